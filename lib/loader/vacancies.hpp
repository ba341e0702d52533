// SPDX-License-Identifier: Apache-2.0
// Ready workers by the number of their tasks. Finds one with the fewest without a look at each worker.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace feedlane::loader {

class Vacancies {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  // No worker is ready, and none will have more than `most` tasks.
  void reset(std::uint32_t workers, std::uint32_t most) {
    tasks_of_.assign(workers, none);
    levels_.assign(most + 1, Level(workers));
    size_ = lowest_ = 0;
  }
  // The worker has so many tasks; none: it is not ready.
  void set(std::uint32_t worker, std::uint32_t tasks) {
    std::uint32_t& now = tasks_of_[worker];
    if (now == tasks) return;
    if (now != none) levels_[now].remove(worker);
    if (tasks != none) levels_[tasks].add(worker);
    lowest_ = std::min(lowest_, tasks);
    size_ = size_ - (now != none ? 1 : 0) + (tasks != none ? 1 : 0);
    now = tasks;
  }
  // Number of ready workers, and of those with this many tasks.
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint32_t size(std::uint32_t tasks) const { return levels_[tasks].size(); }
  // Whether a ready worker has so many tasks or more.
  [[nodiscard]] bool any_from(std::uint32_t tasks) const {
    std::uint32_t fewer = 0;
    for (std::uint32_t i = 0; i < tasks; i++) fewer += levels_[i].size();
    return fewer < size_;
  }

  struct Search {
    std::uint32_t after;  // begins at the next worker, so that equals take turns
    std::uint32_t among;  // of the first so many workers
    std::uint32_t below;  // with fewer tasks than this
    std::uint32_t looks;  // at so many workers at most
  };
  // The first accepted worker of those with the fewest tasks; none: there is no such worker.
  template <class F>
  [[nodiscard]] std::uint32_t find(Search search, F&& accepts) {
    while (lowest_ < levels_.size() && levels_[lowest_].size() == 0) lowest_++;
    for (std::uint32_t tasks = lowest_; tasks < search.below && tasks < levels_.size(); tasks++)
      if (const std::uint32_t worker = levels_[tasks].find(search, accepts); worker != none) return worker;
    return none;
  }

 private:
  class Level {
   public:
    explicit Level(std::size_t workers) : words_((workers + 63) / 64) {}

    void add(std::uint32_t worker) {
      words_[worker / 64] |= bit_of(worker);
      size_++;
    }
    void remove(std::uint32_t worker) {
      words_[worker / 64] &= ~bit_of(worker);
      size_--;
    }
    [[nodiscard]] std::uint32_t size() const { return size_; }

    template <class F>
    [[nodiscard]] std::uint32_t find(Search& search, F&& accepts) const {
      if (size_ == 0) return none;
      const std::uint32_t first = search.after + 1 < search.among ? search.after + 1 : 0;
      const std::uint32_t worker = find(first, search.among, search.looks, accepts);
      return worker == none ? find(0, first, search.looks, accepts) : worker;
    }

   private:
    static std::uint64_t bit_of(std::uint32_t worker) { return std::uint64_t{1} << worker % 64; }

    template <class F>
    [[nodiscard]] std::uint32_t find(std::uint32_t from, std::uint32_t until, std::uint32_t& looks, F&& accepts) const {
      for (std::uint32_t word = from / 64; word * 64 < until; word++) {
        std::uint64_t bits = words_[word];
        if (word == from / 64) bits &= ~std::uint64_t{0} << from % 64;
        for (; bits != 0; bits &= bits - 1) {
          const std::uint32_t worker = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
          if (worker >= until || looks == 0) return none;
          looks--;
          if (accepts(worker)) return worker;
        }
      }
      return none;
    }

    std::vector<std::uint64_t> words_;
    std::uint32_t size_ = 0;
  };

  std::vector<std::uint32_t> tasks_of_;
  std::vector<Level> levels_;
  std::uint32_t size_ = 0;
  std::uint32_t lowest_ = 0;  // no worker has fewer tasks
};

}  // namespace feedlane::loader
