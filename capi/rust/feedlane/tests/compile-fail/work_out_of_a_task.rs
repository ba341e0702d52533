// SPDX-License-Identifier: Apache-2.0
// error E0596: a task keeps its work, or another's could be committed under its writer
pub fn worker<'a>(task: &mut feedlane::Task<'a>, work: &mut feedlane::Work<'a>) {
    std::mem::swap(work, &mut **task);
}
