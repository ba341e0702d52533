// SPDX-License-Identifier: Apache-2.0
// error E0502: nobody reads what is being written
pub fn trainer(mut batch: feedlane::Batch) -> Result<f32, feedlane::Error> {
    let x = batch.tensor(0)?.as_slice::<f32>()?;
    batch.tensor_mut(0)?.as_mut_slice::<f32>()?.fill(0.0);
    Ok(x[0])
}
