// SPDX-License-Identifier: Apache-2.0
// The index: keys are found as they were published and removed, also by a member that looks while the owner changes it.
#include "arena/index.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

using namespace feedlane;
using namespace feedlane::arena;

namespace {

// The owner's index of an arena, and how a member sees it. Few buckets, so that each has many entries.
struct Made {
  explicit Made(std::uint32_t entries, std::uint32_t buckets) {
    Error error;
    const shm::ArenaGeometry geometry{1 << 20, entries, buckets, 2, 8, 4, 0};
    REQUIRE(shm::make_arena_plan(geometry, plan, error) == FEEDLANE_OK);
    REQUIRE_MESSAGE(
        control.create_control(shm::SegmentKind::arena_control, plan.control_bytes, {}, error) == FEEDLANE_OK,
        error.text);
    index = std::make_unique<Index>(control, plan);
    view = IndexView(control, plan);
  }
  shm::ArenaPlan plan;
  shm::SegmentPair control;
  std::unique_ptr<Index> index;
  IndexView view;
};

Key key_of(std::uint64_t number) { return Key(&number, sizeof number); }

EntryFacts facts_of(std::uint64_t number) {
  EntryFacts facts;
  facts.segment = static_cast<std::uint32_t>(number % 7);
  facts.segment_generation = static_cast<std::uint32_t>(number + 1);
  facts.offset = number * 256;
  facts.bytes = 256;
  facts.maker = static_cast<std::uint32_t>(number % 5);
  facts.sequence = number;
  facts.published_ns = number * 3;
  return facts;
}

void remove(Index& index, std::uint32_t entry) {
  index.begin_change();
  index.retire(entry);
  index.unlink(entry);
  index.end_change();
  index.free(entry);
}

IndexView::Found find(const IndexView& view, std::uint64_t number, EntryId& id) {
  const Key key = key_of(number);
  return view.find(key, key.hash(), id);
}

}  // namespace

TEST_CASE("an entry is found from publish to retire, and its number has another generation afterwards") {
  Made m(4, 2);
  EntryId id, later;
  CHECK(find(m.view, 1, id) == IndexView::Found::no);
  const std::uint32_t entry = m.index->publish(key_of(1), facts_of(9));
  REQUIRE(find(m.view, 1, id) == IndexView::Found::yes);
  CHECK(id == m.index->id(entry));
  CHECK(EntryId::of(id.word()) == id);
  CHECK(m.view.is_live(id));
  CHECK(m.view.facts(id.number).offset == 9 * 256);
  CHECK(m.view.facts(id.number).segment_generation == 10);
  m.index->begin_change();
  m.index->retire(entry);
  CHECK_FALSE(m.view.is_live(id));
  CHECK(find(m.view, 1, later) == IndexView::Found::unsure);
  m.index->restore(entry);
  CHECK(m.view.is_live(id));
  m.index->end_change();
  remove(*m.index, entry);
  CHECK(find(m.view, 1, later) == IndexView::Found::no);
  for (std::uint64_t i = 0; i < 4; i++) (void)m.index->publish(key_of(i), facts_of(i));
  CHECK(m.index->is_full());
  CHECK(m.index->id(entry).generation > id.generation);
  CHECK_FALSE(m.view.is_live(id));
}

TEST_CASE("keys that differ in length only are different keys") {
  Made m(4, 1);
  const char bytes[4] = {};
  const Key one(bytes, 1), two(bytes, 2);
  const std::uint32_t entry = m.index->publish(one, facts_of(1));
  EntryId id;
  CHECK(m.view.find(two, two.hash(), id) == IndexView::Found::no);
  CHECK(m.index->find(two) == Index::none);
  CHECK(m.view.find(one, one.hash(), id) == IndexView::Found::yes);
  CHECK(m.index->find(one) == entry);
}

TEST_CASE("random use: the owner and a member find what plain bookkeeping has") {
  std::mt19937_64 random(3);
  Made m(24, 4);
  std::map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>> plain;  // key: entry, its number
  std::vector<std::uint32_t> sent;                                         // entries without a key
  for (std::uint64_t step = 0; step < 20'000; step++) {
    const std::uint64_t key = random() % 32;
    const auto it = plain.find(key);
    if (random() % 8 == 0 && !sent.empty()) {
      m.index->retire(sent.back());
      m.index->free(sent.back());
      sent.pop_back();
    } else if (it != plain.end() && random() % 4 != 0) {
      remove(*m.index, it->second.first);
      plain.erase(it);
    } else if (!m.index->is_full()) {
      if (random() % 8 == 0) {
        sent.push_back(m.index->publish(Key(), facts_of(step)));
      } else {  // a key that is there is replaced, the new entry first
        const std::uint32_t entry = m.index->publish(key_of(key), facts_of(step));
        if (it != plain.end()) remove(*m.index, it->second.first);
        plain[key] = {entry, step};
      }
    }
    REQUIRE(m.index->is_full() == (plain.size() + sent.size() == 24));
    for (std::uint64_t k = 0; k < 32; k++) {
      EntryId id;
      const auto expected = plain.find(k);
      REQUIRE(m.index->find(key_of(k)) == (expected == plain.end() ? Index::none : expected->second.first));
      REQUIRE(find(m.view, k, id) == (expected == plain.end() ? IndexView::Found::no : IndexView::Found::yes));
      if (expected == plain.end()) continue;
      REQUIRE(id == m.index->id(expected->second.first));
      REQUIRE(m.view.facts(id.number).sequence == expected->second.second);
    }
  }
}

TEST_CASE("a member finds a key that stays, and none that is absent, while the owner changes others of its bucket") {
  Made m(8, 1);
  (void)m.index->publish(key_of(100), facts_of(100));
  std::atomic<bool> is_over{false};
  std::thread owner([&] {
    std::uint64_t first = m.index->publish(key_of(0), facts_of(0));
    for (std::uint64_t i = 1; !is_over.load(std::memory_order_relaxed); i++) {
      const std::uint32_t entry = m.index->publish(key_of(i % 16), facts_of(i));
      remove(*m.index, static_cast<std::uint32_t>(first));
      first = entry;
    }
  });
  std::uint64_t looks = 0, lost = 0, invented = 0;
  for (EntryId id; looks < 200'000; looks++) {
    lost += find(m.view, 100, id) == IndexView::Found::no ? 1 : 0;
    invented += find(m.view, 99, id) == IndexView::Found::yes ? 1 : 0;
  }
  is_over.store(true, std::memory_order_relaxed);
  owner.join();
  CHECK(lost == 0);
  CHECK(invented == 0);
}
