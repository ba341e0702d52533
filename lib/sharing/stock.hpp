// SPDX-License-Identifier: Apache-2.0
// What the feeder has delivered: the holders of each slot, and the states of recent rounds.
//
// Private to the feeder: no consumer can write it. Used by the feeder's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/progress.hpp"
#include "loader/loader.hpp"

namespace feedlane::sharing {

class Stock {
 public:
  explicit Stock(loader::Loader& loader)
      : loader_(loader), tokens_(loader.memory().slots.size()), holders_(loader.memory().slots.size()) {}

  // ---- slots ----

  // Adds a batch that the loader has yielded, with the caller as its only holder. Returns its slot.
  std::uint32_t add(std::uint64_t token) {
    const std::uint32_t slot = tensors::SlotTable::slot_number(token);
    tokens_[slot] = token;
    holders_[slot] = 1;
    return slot;
  }
  void hold(std::uint32_t slot) { holders_[slot]++; }
  [[nodiscard]] std::uint32_t holders(std::uint32_t slot) const { return holders_[slot]; }
  // A holder has returned the slot; after the last one the slot is free.
  void put_back(std::uint32_t slot) {
    if (--holders_[slot] != 0) return;
    tensors::SlotTable::Left left;
    (void)loader_.leases().release(tokens_[slot], left);
  }

  // ---- states ----

  // Records the loader's progress for `round`, and for later rounds until the next record.
  void record(std::uint64_t round) { history_.push_back({round, loader_.progress(), {}, {}}); }
  [[nodiscard]] bool has_recorded() const { return !history_.empty(); }
  // Saves the recorded states. Call it before the loader begins another epoch, because its sampler knows one epoch
  // only.
  void save_epoch() {
    for (Record& r : history_) {
      if (r.is_saved()) continue;
      std::vector<std::byte> saved;  // all of the state, or nothing if memory is short
      (void)loader_.save(r.progress, saved, r.error);
      r.saved = std::move(saved);
    }
  }
  // Forgets states that are only for rounds before this one, which can't be requested any more.
  void forget_before(std::uint64_t round) {
    while (history_.size() > 1 && history_[1].round <= round) history_.pop_front();
  }
  // Whether so many states are kept that it pays to find out which ones can be requested. False for `least` or fewer.
  [[nodiscard]] bool has_many(std::size_t least) const { return history_.size() > std::max(least, 2 * kept_); }
  // Forgets the states that are neither for these rounds nor for new ones.
  void keep(std::vector<std::uint64_t> rounds) {
    std::sort(rounds.begin(), rounds.end());
    std::size_t out = 0;
    for (std::size_t i = 0; i < history_.size(); i++) {
      const auto asked = std::lower_bound(rounds.begin(), rounds.end(), history_[i].round);
      const bool is_last = i + 1 == history_.size();
      if (!is_last && (asked == rounds.end() || *asked >= history_[i + 1].round)) continue;
      if (out != i) history_[out] = std::move(history_[i]);
      out++;
    }
    history_.erase(history_.begin() + static_cast<std::ptrdiff_t>(out), history_.end());
    kept_ = out;
  }
  // The newest state recorded for `round` or before.
  Status state(std::uint64_t round, std::vector<std::byte>& out, Error& error) const {
    const auto after = std::find_if(history_.begin(), history_.end(), [=](const Record& r) { return r.round > round; });
    if (after == history_.begin())
      return error.refuse(FEEDLANE_E_STALE, "token", round, history_.empty() ? 0 : history_.front().round,
                          "the feeder no longer has the state of round {}", round);
    const Record& found = *(after - 1);
    if (!found.is_saved()) return loader_.save(found.progress, out, error);
    out = found.saved;
    error = found.error;
    return error.code;
  }

 private:
  struct Record {
    std::uint64_t round;
    checkpoint::Progress progress;
    std::vector<std::byte> saved;
    Error error;  // of saving

    [[nodiscard]] bool is_saved() const { return !saved.empty() || error.code != FEEDLANE_OK; }
  };
  loader::Loader& loader_;
  std::vector<std::uint64_t> tokens_;   // by slot
  std::vector<std::uint32_t> holders_;  // by slot
  std::deque<Record> history_;
  std::size_t kept_ = 0;  // number of states that the last `keep` left
};

}  // namespace feedlane::sharing
