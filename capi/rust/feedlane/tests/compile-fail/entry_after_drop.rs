// SPDX-License-Identifier: Apache-2.0
// error E0505: values of an entry are a view of its batch
pub fn reader(arena: &feedlane::Arena) -> Result<Option<f32>, feedlane::Error> {
    let batch = arena.receive(None)?;
    let values = batch.tensor(0)?.values::<f32>()?;
    drop(batch);
    Ok(values.get(0))
}
