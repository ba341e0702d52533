// SPDX-License-Identifier: Apache-2.0
// error E0382: a right makes one entry
pub fn maker(right: feedlane::MakeRight, put: &feedlane::Put<'_>) -> Result<(), feedlane::Error> {
    right.reserve(put, None)?.publish(None)?;
    right.reserve(put, None)?.publish(None)?;
    Ok(())
}
