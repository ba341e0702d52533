// SPDX-License-Identifier: Apache-2.0
// error E0505: values are read from the batch's memory
pub fn trainer(batch: feedlane::Batch) -> Result<Option<f32>, feedlane::Error> {
    let x = batch.tensor(0)?.values::<f32>()?;
    batch.release();
    Ok(x.get(0))
}
