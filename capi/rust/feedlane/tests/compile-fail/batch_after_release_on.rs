// SPDX-License-Identifier: Apache-2.0
// error E0382: a batch that goes back when a stream has passed is gone at once
pub fn trainer(batch: feedlane::Batch) -> usize {
    // SAFETY: never run.
    let _ = unsafe { batch.release_on(std::ptr::null_mut()) };
    batch.rows()
}
