// SPDX-License-Identifier: Apache-2.0
// error E0382: what another library may write is nobody else's to read
pub fn trainer(batch: feedlane::Batch) -> Result<usize, feedlane::Error> {
    let exported = batch.into_dlpack()?;
    Ok(exported.len() + batch.rows())
}
