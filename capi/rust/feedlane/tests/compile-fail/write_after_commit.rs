// SPDX-License-Identifier: Apache-2.0
// error E0505: a committed batch is the trainer's
pub fn worker(mut task: feedlane::Task<'_>) -> Result<(), feedlane::Error> {
    let mut tensor = task.tensor_mut(0)?;
    let x = tensor.as_mut_slice::<f32>()?;
    task.commit(1)?;
    x[0] = 0.0;
    Ok(())
}
