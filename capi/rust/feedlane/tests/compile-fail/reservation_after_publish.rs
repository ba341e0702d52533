// SPDX-License-Identifier: Apache-2.0
// error E0382: other processes read an entry that was published
pub fn producer(mut entry: feedlane::Reservation) -> Result<(), feedlane::Error> {
    entry.publish(None)?;
    entry.write(0, &[1f32])
}
