// SPDX-License-Identifier: Apache-2.0
// A backend's table that counts how often each address was registered, and refuses on demand.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "pinned/backend.hpp"
#include "support/api.hpp"

namespace feedlane::test {

class CountingTable {
 public:
  // With read_only, every registration for writing fails.
  explicit CountingTable(pinned::Access access = pinned::Access::read_write) {
    table.user_data = this;
    table.register_memory = access == pinned::Access::read_write ? add : fail;
    table.register_read_only = access == pinned::Access::read_only ? add : fail;
    table.unregister_memory = remove;
  }
  CountingTable(const CountingTable&) = delete;
  CountingTable& operator=(const CountingTable&) = delete;

  feedlane_pool* make_pool() {
    auto c = fresh<feedlane_pool_config>();
    c.custom = &table;
    feedlane_pool* p = nullptr;
    REQUIRE(feedlane_pool_create(&c, &p, nullptr) == FEEDLANE_OK);
    return p;
  }
  // Of the registration that contains this address.
  [[nodiscard]] int times_of(const void* memory) const {
    const auto after = times.upper_bound(reinterpret_cast<std::uintptr_t>(memory));
    return after == times.begin() ? 0 : std::prev(after)->second;
  }
  [[nodiscard]] int most() const {
    int most = 0;
    for (const auto& [address, count] : times) most = std::max(most, count);
    return most;
  }

  feedlane_backend table = fresh<feedlane_backend>();
  std::map<std::uintptr_t, int> times;
  int there = 0;
  bool refuses = false;  // to register
  bool keeps = false;    // refuses to unregister

 private:
  static std::int32_t add(void* self, void* address, std::uint64_t, feedlane_error*) {
    auto& t = *static_cast<CountingTable*>(self);
    if (t.refuses) return FEEDLANE_E_DEVICE;
    t.times[reinterpret_cast<std::uintptr_t>(address)]++;
    t.there++;
    return FEEDLANE_OK;
  }
  static std::int32_t remove(void* self, void*, std::uint64_t, feedlane_error*) {
    auto& t = *static_cast<CountingTable*>(self);
    if (t.keeps) return FEEDLANE_E_DEVICE;
    t.there--;
    return FEEDLANE_OK;
  }
  static std::int32_t fail(void*, void*, std::uint64_t, feedlane_error*) { return FEEDLANE_E_DEVICE; }
};

}  // namespace feedlane::test
