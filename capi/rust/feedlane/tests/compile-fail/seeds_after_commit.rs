// SPDX-License-Identifier: Apache-2.0
// error E0505: seeds go with their task
pub fn worker(task: feedlane::Task<'_>) -> Result<u64, feedlane::Error> {
    let seeds = task.seeds();
    task.commit(1)?;
    Ok(seeds[0])
}
