// SPDX-License-Identifier: Apache-2.0
// Loader handles, as the files of the boundary share them.
#pragma once

#include <memory>

#include "handle.hpp"
#include "loader/life.hpp"
#include "loader/loader.hpp"

struct feedlane_loader : feedlane::capi::Handle, feedlane::loader::Life {
  std::unique_ptr<feedlane::loader::Loader> loader;

  void wake() { loader->close(); }
  void end_what_was_begun() noexcept { loader->crew().ask_to_end(); }
};

namespace feedlane::capi {

// No owner is left: its workers are killed, batches keep the memory.
template <>
inline void finish(feedlane_loader& l) {
  l.loader->abandon();
  l.let_go();
}

// Whether batches of this handle may be asked for: after destroy too, as long as one is held.
inline Status check_batches(const feedlane_loader* l) {
  if (l == nullptr) return FEEDLANE_E_ARGUMENT;
  return l->stamp.is_foreign() ? FEEDLANE_E_FORKED : FEEDLANE_OK;
}
inline Status check_batches(const feedlane_loader* l, Error& error) {
  if (l == nullptr) return refuse_null(error, "l");
  const Status s = check_batches(l);
  return s == FEEDLANE_OK ? s : error.fail(s, "the handle belongs to the parent process");
}

}  // namespace feedlane::capi
