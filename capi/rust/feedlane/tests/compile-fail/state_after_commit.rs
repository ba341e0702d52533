// SPDX-License-Identifier: Apache-2.0
// error E0505: a state to go on from goes with its task
pub fn worker(task: feedlane::Task<'_>) -> Result<u8, feedlane::Error> {
    let state = task.state();
    task.commit(1)?;
    Ok(state[0])
}
