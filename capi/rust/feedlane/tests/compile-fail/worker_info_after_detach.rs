// SPDX-License-Identifier: Apache-2.0
// error E0505: what a worker is told goes with it
pub fn worker(worker: feedlane::Worker) -> Result<usize, feedlane::Error> {
    let config = worker.info()?.config();
    drop(worker);
    Ok(config.len())
}
