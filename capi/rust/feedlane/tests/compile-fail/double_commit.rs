// SPDX-License-Identifier: Apache-2.0
// error E0382: commit takes the task
pub fn worker(task: feedlane::Task<'_>) -> Result<(), feedlane::Error> {
    task.commit(1)?;
    task.commit(1)
}
