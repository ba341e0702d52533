// SPDX-License-Identifier: Apache-2.0
// Tags of the events of a feeder's poller, in addition to those of greeting::Guests.
#pragma once

#include <cstdint>

namespace feedlane::sharing {

struct EventTag {
  enum Kind : std::uint64_t { socket, process, bell };

  Kind kind;
  std::uint32_t number;  // of the link

  static constexpr std::uint64_t host_bell = UINT64_MAX >> 1;
  [[nodiscard]] static constexpr std::uint64_t make(Kind kind, std::uint32_t number) {
    return std::uint64_t{number} << 2 | kind;
  }
  [[nodiscard]] static constexpr EventTag read(std::uint64_t tag) {
    return {static_cast<Kind>(tag & 3), static_cast<std::uint32_t>(tag >> 2)};
  }
};

}  // namespace feedlane::sharing
