// SPDX-License-Identifier: Apache-2.0
// error E0382: release takes the batch
pub fn trainer(batch: feedlane::Batch) {
    batch.release();
    batch.release();
}
