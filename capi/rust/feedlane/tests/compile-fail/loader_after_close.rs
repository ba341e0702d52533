// SPDX-License-Identifier: Apache-2.0
// error E0382: close takes the loader
pub fn trainer(loader: feedlane::Loader) -> Result<(), feedlane::Error> {
    loader.close()?;
    loader.length().map(drop)
}
