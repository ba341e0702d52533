// SPDX-License-Identifier: Apache-2.0
// error E0521: scratch memory is the library's again when its task ends
pub fn worker<'t>(task: &'t mut feedlane::Task<'_>, kept: &mut Vec<&'t mut [u8]>) {
    task.with_scratch(64, |_, memory| kept.push(memory));
}
