// SPDX-License-Identifier: Apache-2.0
// error E0505: a slice is the batch's memory
pub fn trainer(batch: feedlane::Batch) -> Result<f32, feedlane::Error> {
    // SAFETY: never run.
    let x = unsafe { batch.tensor(0)?.values::<f32>()?.as_slice() };
    batch.release();
    Ok(x[0])
}
