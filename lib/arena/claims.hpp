// SPDX-License-Identifier: Apache-2.0
// The numbers of a member's leases and reservations that are free. Thread safety: any thread.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

namespace feedlane::arena {

class Claims {
 public:
  explicit Claims(std::uint32_t numbers)
      : words_((numbers + 63) / 64), free_(std::make_unique<std::atomic<std::uint64_t>[]>(words_)) {
    for (std::uint32_t i = 0; i < numbers; i++) put_back(i);
  }
  // The smallest free number, or nearly. False: none is free.
  bool take(std::uint32_t& number) {
    for (std::uint32_t w = 0; w < words_; w++) {
      // Relaxed: the read-modify-write decides.
      for (std::uint64_t word = free_[w].load(std::memory_order_relaxed); word != 0;) {
        const std::uint64_t bit = word & (~word + 1);
        // Acquire: pairs with the release in put_back.
        const std::uint64_t before = free_[w].fetch_and(~bit, std::memory_order_acquire);
        if ((before & bit) == 0) {
          word = before & ~bit;
          continue;
        }
        number = w * 64 + static_cast<std::uint32_t>(std::countr_zero(bit));
        return true;
      }
    }
    return false;
  }
  void put_back(std::uint32_t number) {
    // Release: pairs with the acquire in take.
    free_[number / 64].fetch_or(std::uint64_t{1} << (number % 64), std::memory_order_release);
  }

 private:
  std::uint32_t words_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> free_;  // one bit per number
};

}  // namespace feedlane::arena
