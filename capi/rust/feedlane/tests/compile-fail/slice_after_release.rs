// SPDX-License-Identifier: Apache-2.0
// error E0505: a slice is the batch's memory
pub fn trainer(batch: feedlane::Batch) -> Result<f32, feedlane::Error> {
    let x = batch.tensor(0)?.as_slice::<f32>()?;
    batch.release();
    Ok(x[0])
}
