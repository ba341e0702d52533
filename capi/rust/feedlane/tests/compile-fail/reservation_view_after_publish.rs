// SPDX-License-Identifier: Apache-2.0
// error E0505: a view of a reservation ends before it is published
pub fn producer(mut entry: feedlane::Reservation) -> Result<(), feedlane::Error> {
    let mut values = entry.tensor_mut(0)?.into_values_mut::<f32>()?;
    entry.publish(None)?;
    values.fill(1.0);
    Ok(())
}
