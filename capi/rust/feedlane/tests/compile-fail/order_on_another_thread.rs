// SPDX-License-Identifier: Apache-2.0
// error E0277: a loader takes its sampler along to other threads
pub fn trainer(shared: std::rc::Rc<Vec<i64>>) -> Result<feedlane::Sampler, feedlane::Error> {
    feedlane::Sampler::from_fn(None, move |_, _| Vec::clone(&shared).into_iter())
}
