// SPDX-License-Identifier: Apache-2.0
// error E0499: a task ends before the next one
pub fn worker(worker: &mut feedlane::Worker) -> Result<(), feedlane::Error> {
    let first = worker.next_task(None)?;
    let second = worker.next_task(None)?;
    drop((first, second));
    Ok(())
}
