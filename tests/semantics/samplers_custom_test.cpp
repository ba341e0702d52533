// SPDX-License-Identifier: Apache-2.0
// Samplers of the user's own.
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <stdexcept>

#include "support/make_sampler.hpp"
#include "support/samplers.hpp"

using namespace feedlane::test;
using feedlane::Sampler;

namespace {

// 0, 10, 20 ... of an epoch's own length, at most `piece` at a time.
struct Tens {
  std::size_t next(std::span<std::int64_t> indices) {
    std::size_t got = 0;
    for (; got < std::min(indices.size(), piece) && at < 10 + epoch; at++) indices[got++] = at * 10;
    return got;
  }
  void restart(std::int64_t e, std::uint64_t s) {
    epoch = e;
    seed = s;
    at = 0;
  }
  [[nodiscard]] std::vector<std::byte> save() const {
    std::vector<std::byte> state(padding + 1);
    state.back() = static_cast<std::byte>(at);
    return state;
  }
  void load(std::span<const std::byte> state) {
    if (state.size() != padding + 1) throw std::runtime_error("another size");
    at = std::to_integer<std::int64_t>(state.back());
  }

  std::size_t piece = SIZE_MAX;
  std::size_t padding = 0;
  std::int64_t epoch = 0, at = 0;
  std::uint64_t seed = 99;
};

struct Pairs {
  std::size_t next(std::span<std::int64_t> indices) {
    if (at == 3) return 0;
    indices[0] = at;
    indices[1] = -at;
    return at++ == 2 ? 1 : 2;
  }
  [[nodiscard]] std::int64_t length() const { return 3; }
  [[nodiscard]] std::int64_t batch_rows() const { return 2; }
  std::int64_t at = 0;
};

// A table whose `next` answers what a test says.
struct Answers {
  Answers() {
    feedlane_init(&table, sizeof table);
    table.user_data = this;
    table.next = [](void* user_data, std::int64_t*, std::uint64_t, std::uint64_t* number, feedlane_error*) {
      auto* const self = static_cast<Answers*>(user_data);
      *number = self->got;
      return self->status;
    };
    table.drop = [](void* user_data) { static_cast<Answers*>(user_data)->dropped++; };
  }
  // What a sampler of it then says.
  void check_next(std::int32_t answer, std::uint64_t indices, std::int32_t expected, std::int64_t found,
                  std::int64_t needed, const std::string& argument = "callbacks.next") {
    status = answer;
    got = indices;
    feedlane_sampler* s = nullptr;
    REQUIRE(custom_sampler(&table, &s, nullptr) == FEEDLANE_OK);
    feedlane_error e;
    feedlane_init(&e, sizeof e);
    std::int64_t room[4];
    std::uint64_t n = 0;
    CHECK(feedlane_sampler_next(s, room, 4, &n, &e) == expected);
    if (expected < 0) {
      CHECK(std::string(e.argument) == argument);
      CHECK(e.found == found);
      CHECK(e.needed == needed);
      CHECK(std::string(e.text).find("callbacks.next") != std::string::npos);
    }
    CHECK(feedlane_sampler_destroy(&s) == FEEDLANE_OK);
  }

  feedlane_sampler_callbacks table;
  std::int32_t status = 0;
  std::uint64_t got = 0;
  int dropped = 0;
};

}  // namespace

// promise: sampler-custom-indices
TEST_CASE("a custom sampler yields what its object returns, in pieces of any size") {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, SIZE_MAX}) {
    Sampler s = Sampler::custom(Tens{.piece = piece});
    CHECK(s.length() == -1);
    Indices four(4);
    CHECK_MESSAGE(s.next(four) == 4, "as many as asked for, in however many calls");
    CHECK(four == Indices{0, 10, 20, 30});
    CHECK(rest_of(s).size() == 6);
    CHECK(rest_of(s).empty());
    CHECK(epoch_of(s, 5).size() == 15);
  }
}

// promise: sampler-custom-indices
TEST_CASE("a function can be a custom sampler") {
  Sampler s = Sampler::custom([left = 3](std::span<std::int64_t> indices) mutable -> std::size_t {
    if (left == 0) return 0;
    indices[0] = left--;
    return 1;
  });
  CHECK(rest_of(s) == Indices{3, 2, 1});
}

// promise: sampler-custom-indices
TEST_CASE("a custom sampler may make its own batches") {
  Sampler s = Sampler::custom(Pairs{});
  CHECK(s.length() == 3);
  CHECK(rest_of_batches(s, 5) == std::vector<Indices>{{0, 0}, {1, -1}, {2}});
  CHECK_THROWS_AS((void)Sampler::batch(s, 2), feedlane::Error);
}

// promise: sampler-custom-indices
TEST_CASE("the length of a batch sampler over a custom sampler is unknown") {
  Sampler s = Sampler::batch(Sampler::custom(Tens{.piece = 1}), 4, true);
  CHECK(s.length() == -1);
  CHECK(batches_of(s, 0, 4) == std::vector<Indices>{{0, 10, 20, 30}, {40, 50, 60, 70}});
}

// promise: state-custom-sampler
TEST_CASE("custom samplers save and load states of any size with callbacks") {
  for (const std::size_t padding : {0U, 511U, 512U, 100000U}) {
    Sampler s = Sampler::batch(Sampler::custom(Tens{.padding = padding}), 4);
    s.restart(1);
    Indices room(4);
    (void)s.next(room);
    const auto state = s.save();
    Sampler other = Sampler::batch(Sampler::custom(Tens{.padding = padding}), 4);
    other.restart(1);
    other.load(state);
    CHECK(rest_of_batches(other, 4) == std::vector<Indices>{{40, 50, 60, 70}, {80, 90, 100}});
    CHECK(rest_of_batches(s, 4).size() == 2);
    other.restart(1);
    other.load(s.save());
    CHECK_MESSAGE(rest_of_batches(other, 4).empty(), "no index is left");
  }
}

// promise: state-custom-sampler
TEST_CASE("a custom sampler at the end of its epoch yields nothing until restart, also after load") {
  struct Endless {  // 1, END, 1, END ...
    std::size_t next(std::span<std::int64_t> indices) {
      indices[0] = 1;
      return ++calls % 2;
    }
    [[nodiscard]] std::vector<std::byte> save() const { return {}; }
    void load(std::span<const std::byte>) {}
    std::size_t calls = 0;
  };
  Sampler s = Sampler::custom(Endless{}), other = Sampler::custom(Endless{});
  CHECK(rest_of(s).size() == 1);
  CHECK(rest_of(s).empty());
  other.load(s.save());
  CHECK(rest_of(other).empty());
  CHECK(epoch_of(other, 0).size() == 1);
}

// promise: state-custom-refused
TEST_CASE("a custom sampler without save and load refuses both with E_UNSUPPORTED and the callback's name") {
  Sampler s = Sampler::custom(Pairs{});
  try {
    (void)s.save();
    FAIL("there is no state");
  } catch (const feedlane::Error& e) {
    CHECK(e.code() == FEEDLANE_E_UNSUPPORTED);
    CHECK(e.argument() == "sampler.save");
  }
  try {
    s.load(Sampler::custom(Tens{}).save());
    FAIL("there is no state");
  } catch (const feedlane::Error& e) {
    CHECK(e.code() == FEEDLANE_E_UNSUPPORTED);
    CHECK(e.argument() == "sampler.load");
  }
}

// promise: sampler-custom-errors
TEST_CASE("an exception in a custom sampler becomes the error of the call") {
  Sampler thrower =
      Sampler::custom([](std::span<std::int64_t>) -> std::size_t { throw std::runtime_error("no luck"); });
  Indices room(4);
  try {
    (void)thrower.next(room);
    FAIL("it throws");
  } catch (const feedlane::Error& e) {
    CHECK(e.code() == FEEDLANE_E_SAMPLE);
    CHECK(e.text() == "no luck");
    CHECK(e.argument() == "callbacks.next");
  }
  Sampler s = Sampler::custom(Tens{.padding = 1}), other = Sampler::custom(Tens{.padding = 2});
  CHECK_THROWS_WITH_AS(other.load(s.save()), "E_SAMPLE: another size", feedlane::Error);
}

// promise: sampler-custom-errors
TEST_CASE("an invalid result of a custom sampler's next is refused with E_ARGUMENT") {
  Answers a;
  a.check_next(FEEDLANE_OK, 5, FEEDLANE_E_ARGUMENT, 5, 4);
  a.check_next(FEEDLANE_OK, UINT64_MAX, FEEDLANE_E_ARGUMENT, INT64_MAX, 4);
  a.check_next(FEEDLANE_OK, 0, FEEDLANE_E_ARGUMENT, 0, 1);
  a.check_next(FEEDLANE_END, 2, FEEDLANE_E_ARGUMENT, 2, 0);
  a.check_next(FEEDLANE_TIMEOUT, 1, FEEDLANE_E_ARGUMENT, FEEDLANE_TIMEOUT, 0);
  a.check_next(-1000, 1, FEEDLANE_E_ARGUMENT, -1000, 0);
  a.check_next(FEEDLANE_E_OS, 1, FEEDLANE_E_OS, 0, 0);
  a.check_next(FEEDLANE_END, 0, FEEDLANE_END, 0, 0);
  CHECK_MESSAGE(a.dropped == 8, "each sampler is dropped once");
}

// promise: sampler-live-refused
TEST_CASE("AGAIN with indices or without a descriptor is refused with E_ARGUMENT, and so is a negative descriptor") {
  Answers a;
  a.check_next(FEEDLANE_AGAIN, 0, FEEDLANE_E_ARGUMENT, 0, 1, "callbacks.wake_fd");
  a.table.wake_fd = 1;
  a.check_next(FEEDLANE_AGAIN, 1, FEEDLANE_E_ARGUMENT, 1, 0);
  a.check_next(FEEDLANE_AGAIN, 0, FEEDLANE_AGAIN, 0, 0);
  a.table.wake_fd = -1;
  feedlane_sampler* s = nullptr;
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  CHECK(custom_sampler(&a.table, &s, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "callbacks.wake_fd");
  CHECK(e.found == -1);
}

// promise: sampler-live-batches
TEST_CASE("a live sampler keeps its indices until there are as many as requested; a state can't have them") {
  struct Live {
    std::optional<std::size_t> next(std::span<std::int64_t> indices) {
      if (waiting->empty()) return std::nullopt;
      indices[0] = waiting->back();
      waiting->pop_back();
      return 1;
    }
    [[nodiscard]] int wake_fd() const { return 1; }
    [[nodiscard]] std::vector<std::byte> save() const { return {}; }
    void load(std::span<const std::byte>) {}
    std::shared_ptr<Indices> waiting = std::make_shared<Indices>();
  };
  const Live live;
  Sampler s = Sampler::custom(live);
  Indices two(2);
  CHECK(s.next(two) == 0);
  CHECK_NOTHROW((void)s.save());
  *live.waiting = {7};
  CHECK(s.next(two) == 0);
  try {
    (void)s.save();
    FAIL("an index is kept");
  } catch (const feedlane::Error& e) {
    CHECK(e.code() == FEEDLANE_E_STATE);
  }
  *live.waiting = {8};
  CHECK(s.next(two) == 2);
  CHECK(two == Indices{7, 8});
  CHECK_NOTHROW((void)s.save());
}

// promise: sampler-custom-indices
TEST_CASE("copies of a custom sampler share its object, which is released with the last copy") {
  Answers a;
  feedlane_sampler *s = nullptr, *batches = nullptr;
  REQUIRE(custom_sampler(&a.table, &s, nullptr) == FEEDLANE_OK);
  REQUIRE(batch_sampler(s, 2, 0, &batches, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_sampler_destroy(&s) == FEEDLANE_OK);
  CHECK(a.dropped == 0);
  CHECK(feedlane_sampler_destroy(&batches) == FEEDLANE_OK);
  CHECK(a.dropped == 1);
}
