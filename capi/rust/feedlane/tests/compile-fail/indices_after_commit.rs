// SPDX-License-Identifier: Apache-2.0
// error E0505: a committed task's list is the next one's
pub fn worker(task: feedlane::Task<'_>) -> Result<i64, feedlane::Error> {
    let indices = task.indices();
    task.commit(1)?;
    Ok(indices[0])
}
