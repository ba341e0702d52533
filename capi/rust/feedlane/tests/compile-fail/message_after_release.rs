// SPDX-License-Identifier: Apache-2.0
// error E0505: a message lies in the ring until it is given back
pub fn receiver(ring: &mut feedlane::Receiver) -> Result<u8, feedlane::Error> {
    let received = ring.receive(1, None)?;
    let message = received.iter().next();
    drop(received);
    Ok(message.and_then(|bytes| bytes.get(0)).unwrap_or(0))
}
