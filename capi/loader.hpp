// SPDX-License-Identifier: Apache-2.0
// Loader handles, as the files of the boundary share them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "handle.hpp"
#include "loader/loader.hpp"
#include "pinned/pool.hpp"

namespace feedlane::capi {
class RecordedStreams;
}

struct feedlane_loader : feedlane::capi::Handle, feedlane::pinned::Pool::Deferred {
  std::unique_ptr<feedlane::loader::Loader> loader;
  // One for all owners, one for each batch in their hands and for each local worker: the last deletes the handle.
  std::atomic<std::uint64_t> lives{1};
  std::unique_ptr<feedlane::capi::RecordedStreams> streams;  // with a pool

  feedlane_loader();
  ~feedlane_loader() override;

  void wake() { loader->close(); }
  void end_what_was_begun() noexcept { loader->ask_workers_to_end(); }
};

namespace feedlane::capi {

// No owner is left: its workers are killed, batches keep the memory.
template <>
void finish(feedlane_loader& l);
// Gives one life of a loader's handle back.
void let_go(feedlane_loader* l);
// The same where a stream's callback runs: what is left is deleted by the pool's next call.
void let_go_later(feedlane_loader* l);

// Gives a reference to a batch back, the slot too if it was the last and no stream uses the batch. E_STALE.
Status give_back(feedlane_loader* l, std::uint64_t token);

// A reference to a batch, given back at the end.
class Reference {
 public:
  Reference() = default;
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() {
    if (loader_ != nullptr) (void)give_back(loader_, token_);
  }
  Status take(feedlane_loader* l, std::uint64_t token, Error& error);
  // Whose batch, now the caller's to give back.
  feedlane_loader* keep() { return std::exchange(loader_, nullptr); }

 private:
  feedlane_loader* loader_ = nullptr;
  std::uint64_t token_ = 0;
};

// A tensor of a batch to which the caller has a reference. E_ARGUMENT.
Status find_tensor(feedlane_loader* l, std::uint64_t token, std::int32_t number, const feedlane_tensor*& out,
                   Error& error);

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
