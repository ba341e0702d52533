// SPDX-License-Identifier: Apache-2.0
// error E0133: another process has the memory mapped for writing
pub fn trainer(batch: feedlane::Batch) -> Result<f32, feedlane::Error> {
    Ok(batch.tensor(0)?.values::<f32>()?.as_slice()[0])
}
