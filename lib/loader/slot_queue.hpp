// SPDX-License-Identifier: Apache-2.0
// A queue of slots in a circular buffer. Each slot is queued at most once, so the queue never allocates after
// `reserve`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace feedlane::loader {

class SlotQueue {
 public:
  void reserve(std::size_t slots) { circle_.resize(slots); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::uint32_t front() const { return circle_[head_]; }
  void push(std::uint32_t slot) { at(count_++) = slot; }
  void pop() {
    head_ = place(1);
    count_--;
  }
  void remove(std::uint32_t slot) {
    std::size_t i = 0;
    while (i < count_ && at(i) != slot) i++;
    if (i == count_) return;
    for (; i > 0; i--) at(i) = at(i - 1);  // earlier slots move up
    pop();
  }
  void replace(std::uint32_t slot, std::uint32_t other) {
    for (std::size_t i = 0; i < count_; i++)
      if (at(i) == slot) at(i) = other;
  }
  void clear() { head_ = count_ = 0; }

  class Iterator {
   public:
    Iterator(const SlotQueue& queue, std::size_t at) : queue_(&queue), at_(at) {}
    std::uint32_t operator*() const { return queue_->circle_[queue_->place(at_)]; }
    Iterator& operator++() {
      at_++;
      return *this;
    }
    Iterator operator+(std::size_t more) const { return {*queue_, at_ + more}; }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const SlotQueue* queue_;
    std::size_t at_;
  };
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, count_}; }

 private:
  // The place of the i-th slot, i <= size(). Avoids a division, because it is computed several times per batch.
  [[nodiscard]] std::size_t place(std::size_t i) const {
    const std::size_t at = head_ + i;
    return at < circle_.size() ? at : at - circle_.size();
  }
  std::uint32_t& at(std::size_t i) { return circle_[place(i)]; }

  std::vector<std::uint32_t> circle_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

}  // namespace feedlane::loader
