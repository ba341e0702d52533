// SPDX-License-Identifier: Apache-2.0
// error E0277: one thread at a time drives a loader
fn shares<T: Sync>(_: &T) {}

pub fn trainer(loader: feedlane::Loader) {
    shares(&loader);
}
