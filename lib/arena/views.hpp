// SPDX-License-Identifier: Apache-2.0
// A member's mappings of payload segments, for reading. A segment is mapped when the member first gets an entry from
// it, and the mapping of a segment that is gone makes room for its successor once no batch uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "shm/mapping.hpp"

namespace feedlane::arena {

class Views {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  Views(std::uint32_t segments, std::uint64_t bytes)
      : segments_(segments), bytes_(bytes), all_(std::make_unique<View[]>(std::size_t{segments} * per_segment)) {}

  // Any thread. The view of this segment, which stays mapped until `let_go`. none: it is not mapped.
  std::uint32_t keep(std::uint32_t segment, std::uint32_t generation);
  // Any thread.
  void let_go(std::uint32_t view) {
    // Release: the batch's reads happen before the view is unmapped. Pairs with the load in `map`.
    all_[view].users.fetch_sub(1, std::memory_order_release);
  }
  [[nodiscard]] std::byte* base(std::uint32_t view) const { return all_[view].mapping.data(); }
  // One thread at a time. E_LIMIT: batches from two earlier segments of this number are still held.
  Status map(std::uint32_t segment, std::uint32_t generation, int fd, Error& error);

 private:
  static constexpr std::uint32_t per_segment = 2;
  // `generation` is 0 while nothing is mapped. A thread counts itself as a user and then compares the generation; `map`
  // sets the generation to 0 and then looks for users. Both issue a full fence in between.
  struct View {
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::uint32_t> users{0};
    shm::Mapping mapping;
  };

  std::uint32_t segments_;
  std::uint64_t bytes_;
  std::unique_ptr<View[]> all_;
};

}  // namespace feedlane::arena
