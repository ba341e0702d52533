// SPDX-License-Identifier: Apache-2.0
// error E0133: another process has the memory mapped for writing
pub fn worker(row: &mut feedlane::Row<'_>) -> Result<(), feedlane::Error> {
    row.field_mut::<f32>(0)?.as_mut_slice()[0] = 1.0;
    Ok(())
}
