// SPDX-License-Identifier: Apache-2.0
// Many producers, one consumer. Each producer has its own ring, a lane, and the consumer sweeps the lanes in
// round-robin order. Producers share no state and never wait for each other. A producer that dies leaves only complete
// messages in its lane, without a gap for which the consumer would have to wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ring/spsc.hpp"

namespace feedlane::ring {

class Lanes {
 public:
  struct Message {
    std::uint32_t lane;
    const std::byte* data;  // valid until release(lane)
  };

  // Adds a closed lane and returns its number.
  std::uint32_t add(Cells cells, std::uint64_t start, Sequence* published) {
    lanes_.push_back({Consumer(cells, start, published), false});
    return static_cast<std::uint32_t>(lanes_.size() - 1);
  }
  // Replaces the lane's cells by `cells`, which must be all zero. A process that has only the old cells mapped can't
  // write to the new ones. Returns the position at which the new producer must start.
  std::uint64_t renew(std::uint32_t lane, Cells cells) {
    lanes_[lane].consumer.move_to(cells);
    return lanes_[lane].consumer.position();
  }
  // Formats the lane's cells, so that nothing a former producer left there is taken for a message of the next producer.
  // Returns the position at which the next producer must start.
  std::uint64_t prepare(std::uint32_t lane) {
    lanes_[lane].consumer.format();
    return lanes_[lane].consumer.position();
  }
  // Opens the lane, so that its messages are taken from now on. Returns the position at which its producer starts.
  std::uint64_t open(std::uint32_t lane) {
    lanes_[lane].open = true;
    return lanes_[lane].consumer.position();
  }
  // Takes no more messages from the lane until it is closed and opened again: its producer is no longer trusted.
  void shut(std::uint32_t lane) { lanes_[lane].open = false; }
  // Ends the lane's generation, after its producer has died or left and its committed messages have been taken. The
  // position moves beyond every sequence number in the cells. If the next producer gets new cells (renew), this isn't
  // necessary, and the position stays the number of messages taken.
  void close(std::uint32_t lane, bool will_be_renewed = false) {
    Lane& l = lanes_[lane];
    l.open = false;
    if (will_be_renewed) return;
    l.consumer.release(static_cast<std::uint32_t>(l.consumer.next_generation_start() - l.consumer.position()));
  }

  // The next committed message of any open lane, in round-robin order; data is nullptr if there is none.
  Message peek() {
    std::uint32_t one = 0;
    return peek_many(1, one);
  }
  // Like peek, for up to `want` messages of one lane. `got` is their number.
  Message peek_many(std::uint32_t want, std::uint32_t& got) {
    const auto count = static_cast<std::uint32_t>(lanes_.size());
    for (std::uint32_t i = 0; i < count; i++) {
      const std::uint32_t lane = next_ + i < count ? next_ + i : next_ + i - count;
      if (!lanes_[lane].open) continue;
      got = lanes_[lane].consumer.peek(want);
      if (got == 0) continue;
      next_ = lane + 1 < count ? lane + 1 : 0;
      return {lane, lanes_[lane].consumer.message(0)};
    }
    got = 0;
    return {0, nullptr};
  }
  // Like peek, but looks at up to `looks` lanes, and subtracts them from it. The next call starts at the following lane.
  Message peek_within(std::uint32_t& looks) {
    for (; looks != 0; looks--) {
      const std::uint32_t lane = next_;
      next_ = lane + 1 < size() ? lane + 1 : 0;
      if (!lanes_[lane].open || lanes_[lane].consumer.peek(1) == 0) continue;
      looks--;
      return {lane, lanes_[lane].consumer.message(0)};
    }
    return {0, nullptr};
  }
  [[nodiscard]] bool any() const {
    for (const Lane& l : lanes_)
      if (l.open && l.consumer.peek(1) != 0) return true;
    return false;
  }
  // The next committed message of one lane, to drain it after its producer's death.
  [[nodiscard]] Message peek_lane(std::uint32_t lane) const {
    const Consumer& consumer = lanes_[lane].consumer;
    return {lane, consumer.peek(1) == 0 ? nullptr : consumer.message(0)};
  }
  // See Consumer::is_torn.
  [[nodiscard]] bool is_torn(std::uint32_t lane, std::uint32_t count) const {
    return lanes_[lane].consumer.is_torn(count);
  }
  void release(std::uint32_t lane, std::uint32_t count = 1) { lanes_[lane].consumer.release(count); }

  [[nodiscard]] bool is_open(std::uint32_t lane) const { return lanes_[lane].open; }
  // Messages before this position have been released.
  [[nodiscard]] std::uint64_t position(std::uint32_t lane) const { return lanes_[lane].consumer.position(); }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(lanes_.size()); }

 private:
  struct Lane {
    Consumer consumer;
    bool open;
  };
  std::vector<Lane> lanes_;
  std::uint32_t next_ = 0;
};

}  // namespace feedlane::ring
