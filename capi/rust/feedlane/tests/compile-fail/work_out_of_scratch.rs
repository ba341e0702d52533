// SPDX-License-Identifier: Apache-2.0
// error E0521: two tasks keep their works, also while they have scratch memory
pub fn worker<'a>(task: &mut feedlane::Task<'a>, other: &mut feedlane::Work<'a>) {
    task.with_scratch(64, |work, _memory: &mut [u8]| std::mem::swap(work, other));
}
