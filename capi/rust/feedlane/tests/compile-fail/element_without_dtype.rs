// SPDX-License-Identifier: Apache-2.0
// error E0277: not every pattern of bits is a bool
pub fn trainer(batch: feedlane::Batch) -> Result<(), feedlane::Error> {
    batch.tensor(0)?.values::<bool>().map(drop)
}
