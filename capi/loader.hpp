// SPDX-License-Identifier: Apache-2.0
// Loader handles, for the files of the C interface that use them.
#pragma once

#include <memory>

#include "handle.hpp"
#include "lending/life.hpp"
#include "loader/loader.hpp"
#include "sharing/consumer.hpp"
#include "sharing/feeder.hpp"

namespace feedlane::capi {
struct ArenaSource;
}

struct feedlane_loader : feedlane::capi::Handle, feedlane::lending::Life {
  std::unique_ptr<feedlane::loader::Source> source;
  // The kind of `source`: a loader, with a feeder if it is shared; a consumer; or an arena. The others are nullptr.
  feedlane::loader::Loader* loader = nullptr;
  feedlane::sharing::Feeder* feeder = nullptr;
  feedlane::sharing::Consumer* consumer = nullptr;
  feedlane::capi::ArenaSource* arena = nullptr;

  [[nodiscard]] const char* noun() const { return arena != nullptr ? "arena" : "loader"; }
  void wake() { source->close(); }
  void end_what_was_begun() noexcept { source->ask_to_end(); }
};

namespace feedlane::capi {

// No owner is left: kills the workers. Held batches keep the memory.
template <>
inline void finish(feedlane_loader& l) {
  l.source->abandon();
  l.let_go();
}

// Checks the struct into which a batch is written.
inline Status check_batch(const feedlane_batch* out, Error& error) {
  const Status s = check_output(out, "out", error);
  constexpr std::size_t least = offsetof(feedlane_batch, epoch);  // without its token a batch could never be released
  if (s != FEEDLANE_OK || out->size >= least) return s;
  return error.refuse(FEEDLANE_E_ABI, "out", out->size, least,
                      "out->size is {}: must be at least {}, to have room for the token", out->size, least);
}

// E_STATE for a consumer and an arena, which have no workers.
inline Status check_loader(const feedlane_loader* l, Error& error) {
  if (l->loader != nullptr) return FEEDLANE_OK;
  if (l->arena != nullptr) return error.fail(FEEDLANE_E_STATE, "not available on an arena, which has no workers");
  return error.fail(FEEDLANE_E_STATE, "not available on a consumer: only its feeder has workers and their statistics");
}
inline Status check_feeder(const feedlane_loader* l, Error& error) {
  if (l->feeder != nullptr) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_STATE, "config.share", 0, FEEDLANE_SHARE_EVERY,
                      "the loader is not shared: set config.share");
}

// Whether batches of this handle may be used. They may after destroy too, as long as one is held.
inline Status check_batches(const feedlane_loader* l) {
  if (l == nullptr) return FEEDLANE_E_ARGUMENT;
  return l->stamp.is_foreign() ? FEEDLANE_E_FORKED : FEEDLANE_OK;
}
inline Status check_batches(const feedlane_loader* l, Error& error) {
  if (l == nullptr) return refuse_null(error, "l");
  const Status s = check_batches(l);
  return s == FEEDLANE_OK ? s : refuse_foreign(*l, error);
}

}  // namespace feedlane::capi
