// SPDX-License-Identifier: Apache-2.0
// Loader handles, as the files of the boundary share them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "handle.hpp"
#include "loader/loader.hpp"

struct feedlane_loader : feedlane::capi::Handle {
  std::unique_ptr<feedlane::loader::Loader> loader;
  // One for the caller until destroy, one for each batch in its hands and for each local worker: the last deletes the handle.
  std::atomic<std::uint64_t> lives{1};
};

namespace feedlane::capi {

// Gives one life of a loader's handle back.
void let_go(feedlane_loader* l);

// Whether batches of this handle may be asked for: after destroy too, as long as one is held.
inline Status check_batches(const feedlane_loader* l) {
  if (l == nullptr) return FEEDLANE_E_ARGUMENT;
  return l->stamp.is_foreign() ? FEEDLANE_E_FORKED : FEEDLANE_OK;
}

}  // namespace feedlane::capi
