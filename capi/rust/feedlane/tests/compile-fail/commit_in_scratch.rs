// SPDX-License-Identifier: Apache-2.0
// error E0505: a task ends after the use of its scratch memory
pub fn worker(mut task: feedlane::Task<'_>) {
    task.with_scratch(64, |_, _memory: &mut [u8]| task.commit(1));
}
