// SPDX-License-Identifier: Apache-2.0
// error E0505: the descriptor belongs to the arena
pub fn sleeper(arena: feedlane::Arena) -> Result<bool, feedlane::Error> {
    let fd = arena.arm()?;
    drop(arena);
    Ok(fd.is_some())
}
