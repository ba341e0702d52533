// SPDX-License-Identifier: Apache-2.0
// All links of a feeder, in the order in which they were opened.
//
// Used by the feeder's thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sharing/link.hpp"

namespace feedlane::sharing {

struct Links {
  std::vector<std::unique_ptr<Link>> all;

  // nullptr: none.
  [[nodiscard]] Link* find(std::uint32_t number) const {
    return find_if([=](const Link& link) { return link.number() == number; });
  }
  // The consumer that gets this place's batches; nullptr: none.
  [[nodiscard]] Link* at_place(std::size_t place) const {
    return find_if(
        [=](const Link& link) { return link.is_receiving() && link.place() == static_cast<std::int32_t>(place); });
  }
  // Wakes consumers that sleep and were sent something since.
  void ring() const {
    for (const std::unique_ptr<Link>& link : all) link->ring();
  }
  [[nodiscard]] std::size_t count_attached() const {
    return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [](const std::unique_ptr<Link>& link) {
      return link->state == Link::State::attached;
    }));
  }
  // Number of consumers that get batches or hold some.
  [[nodiscard]] std::size_t count_concerned() const {
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [](const std::unique_ptr<Link>& link) { return link->is_concerned(); }));
  }
  [[nodiscard]] bool any_receiving() const {
    return find_if([](const Link& link) { return link.is_receiving(); }) != nullptr;
  }
  [[nodiscard]] bool any_news() const {
    return find_if([](const Link& link) { return link.has_news(); }) != nullptr;
  }
  // Whether every consumer's ring has room for a round. Observers don't count: they miss batches that find no room.
  [[nodiscard]] bool has_room() const {
    return find_if([](Link& link) {
             return link.is_receiving() && link.lag() != FEEDLANE_LAG_OBSERVE && !link.has_room();
           }) == nullptr;
  }

 private:
  template <class F>
  [[nodiscard]] Link* find_if(F&& f) const {
    const auto it = std::find_if(all.begin(), all.end(), [&](const std::unique_ptr<Link>& link) { return f(*link); });
    return it == all.end() ? nullptr : it->get();
  }
};

}  // namespace feedlane::sharing
