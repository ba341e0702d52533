// SPDX-License-Identifier: Apache-2.0
// Entries that may be evicted, least recently used first. Members write the time of each use into their own memory, and
// this queue looks there only for the entries at its front. Private to the owner.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace feedlane::arena {

// A binary heap by the last known use, which is never later than the last use. Allocates only in its constructor. Used
// by one thread at a time.
class Recency {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  explicit Recency(std::uint32_t entries) : places_(entries, none), uses_(entries) { heap_.reserve(entries); }

  void add(std::uint32_t entry, std::uint64_t used_ns) {
    uses_[entry] = used_ns;
    places_[entry] = static_cast<std::uint32_t>(heap_.size());
    heap_.push_back(entry);
    rise(places_[entry]);
  }
  void remove(std::uint32_t entry) {
    const std::uint32_t place = places_[entry];
    if (place == none) return;
    exchange(place, static_cast<std::uint32_t>(heap_.size() - 1));
    heap_.pop_back();
    places_[entry] = none;
    if (place < heap_.size()) {
      rise(place);
      sink(place);
    }
  }
  [[nodiscard]] bool contains(std::uint32_t entry) const { return places_[entry] != none; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(heap_.size()); }
  // The entry whose last known use is the earliest. There is one.
  [[nodiscard]] std::uint32_t front() const { return heap_.front(); }
  [[nodiscard]] std::uint64_t used_ns(std::uint32_t entry) const { return uses_[entry]; }
  // A later use of the first entry has become known.
  void renew_front(std::uint64_t used_ns) {
    uses_[heap_.front()] = used_ns;
    sink(0);
  }

 private:
  [[nodiscard]] bool is_earlier(std::uint32_t a, std::uint32_t b) const { return uses_[heap_[a]] < uses_[heap_[b]]; }
  void exchange(std::uint32_t a, std::uint32_t b) {
    std::swap(heap_[a], heap_[b]);
    places_[heap_[a]] = a;
    places_[heap_[b]] = b;
  }
  void rise(std::uint32_t place) {
    for (; place != 0 && is_earlier(place, (place - 1) / 2); place = (place - 1) / 2) exchange(place, (place - 1) / 2);
  }
  void sink(std::uint32_t place) {
    for (;;) {
      std::uint32_t first = place;
      for (const std::uint32_t child : {2 * place + 1, 2 * place + 2})
        if (child < heap_.size() && is_earlier(child, first)) first = child;
      if (first == place) return;
      exchange(place, first);
      place = first;
    }
  }

  std::vector<std::uint32_t> heap_;
  std::vector<std::uint32_t> places_;  // of each entry; none: it is not here
  std::vector<std::uint64_t> uses_;
};

}  // namespace feedlane::arena
