// SPDX-License-Identifier: Apache-2.0
// error E0505: a committed batch is the trainer's
pub fn worker(mut task: feedlane::Task<'_>) -> Result<(), feedlane::Error> {
    let mut tensor = task.tensor_mut(0)?;
    let mut x = tensor.values_mut::<f32>()?;
    task.commit(1)?;
    x.set(0, 0.0);
    Ok(())
}
