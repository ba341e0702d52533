// SPDX-License-Identifier: Apache-2.0
// Structs of older and newer headers.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

template <class T>
struct Later {
  T known;
  std::uint64_t later = 0;
};

// Creates with `config` and looks whether the loader works.
std::int32_t create_and_take(const feedlane_loader_config* config, std::vector<Taken>& taken, Error& e) {
  feedlane_loader* handle = nullptr;
  const std::int32_t status = feedlane_loader_create(config, &handle, &e);
  const Loader loader(handle);
  if (status == FEEDLANE_OK) taken = take_epoch(handle, 0);
  return status;
}

}  // namespace

TEST_CASE("a configuration of an older header is accepted, with defaults for its missing members") {
  Setup s(5, 2);
  s.config.held = 1;
  s.connect();
  Error e;
  std::vector<Taken> taken;
  s.config.size = offsetof(feedlane_loader_config, workers);
  s.config.workers = -7;  // behind its end: must not be read
  REQUIRE_MESSAGE(create_and_take(&s.config, taken, e) == FEEDLANE_OK, e.text);
  check_sequence(taken, 5, 2);
}

TEST_CASE("a configuration of a newer header is accepted while its unknown members are zero") {
  Setup s(5, 2);
  s.connect();
  Later<feedlane_loader_config> config{s.config};
  config.known.size = sizeof config;
  Error e;
  std::vector<Taken> taken;
  REQUIRE(create_and_take(&config.known, taken, e) == FEEDLANE_OK);
  check_sequence(taken, 5, 2);
  config.later = std::uint64_t{1} << 56;
  CHECK(create_and_take(&config.known, taken, e) == FEEDLANE_E_ABI);
  CHECK(std::string(e.argument) == "config");
  CHECK(e.found == sizeof config);
  CHECK(e.needed == sizeof config.known);
}

TEST_CASE("a size that was never set, or that no struct can have, is refused with E_ABI") {
  Setup s(5, 2);
  s.connect();
  Error e;
  std::vector<Taken> taken;
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, SIZE_MAX, std::size_t{1} << 40}) {
    s.config.size = size;
    CHECK(create_and_take(&s.config, taken, e) == FEEDLANE_E_ABI);
    CHECK(e.found == static_cast<std::int64_t>(size));
  }
}

// Otherwise a size could end in the middle of a member, of which half would be read.
TEST_CASE("a configuration or a table whose size isn't a multiple of 8 is refused with E_ABI") {
  Setup s(5, 2);
  s.connect();
  Error e;
  std::vector<Taken> taken;
  for (std::size_t more = 1; more < 8; more++) {
    s.config.size = offsetof(feedlane_loader_config, workers) + more;
    CHECK(create_and_take(&s.config, taken, e) == FEEDLANE_E_ABI);
    CHECK(e.found == static_cast<std::int64_t>(s.config.size));
    s.config.size = sizeof s.config;
    s.dataset.size = offsetof(feedlane_dataset, substitute) + more;
    s.config.substitute = 1;  // a member at the very end
    CHECK(create_and_take(&s.config, taken, e) == FEEDLANE_E_ABI);
    s.dataset.size = sizeof s.dataset;
    s.config.substitute = 0;
  }
  feedlane_sampler* sampler = nullptr;
  auto random = fresh<feedlane_sampler_config>();
  random.length = 3;
  random.size = offsetof(feedlane_sampler_config, seed) + 4;
  CHECK(random_sampler(&random, &sampler, &e) == FEEDLANE_E_ABI);
  auto ring = fresh<feedlane_ring_config>();
  ring.message_bytes = ring.capacity = 4;
  ring.size = offsetof(feedlane_ring_config, lanes) + 4;
  feedlane_rx* rx = nullptr;
  CHECK(feedlane_rx_create(&ring, &rx, &e) == FEEDLANE_E_ABI);
}

TEST_CASE("a data set's table can be shorter or longer too") {
  Setup s(5, 2);
  s.connect();
  Error e;
  std::vector<Taken> taken;
  Later<feedlane_dataset> table{s.dataset};
  table.known.size = sizeof table;
  s.config.dataset = &table.known;
  REQUIRE(create_and_take(&s.config, taken, e) == FEEDLANE_OK);
  check_sequence(taken, 5, 2);
  table.later = 1;
  CHECK(create_and_take(&s.config, taken, e) == FEEDLANE_E_ABI);
  CHECK(std::string(e.argument) == "config.dataset");

  static int fetched;
  fetched = 0;
  auto shorter = fresh<feedlane_dataset>();
  shorter.get = [](void*, const feedlane_row* row, feedlane_error*) {
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return 0;
  };
  shorter.fetch = [](void*, const feedlane_task*, feedlane_error*) { return ++fetched, 0; };
  shorter.size = offsetof(feedlane_dataset, fetch);
  s.config.dataset = &shorter;
  REQUIRE(create_and_take(&s.config, taken, e) == FEEDLANE_OK);
  check_sequence(taken, 5, 2);
  CHECK_MESSAGE(fetched == 0, "behind its end");
}

TEST_CASE("the first field's size is the stride of the field array of a newer header") {
  Setup s(5, 2);
  s.connect();
  std::vector<Later<feedlane_field>> list;
  for (const feedlane_field& f : s.field_list) list.push_back({f});
  for (auto& f : list) f.known.size = sizeof f;
  s.config.fields = &list[0].known;
  Error e;
  std::vector<Taken> taken;
  REQUIRE_MESSAGE(create_and_take(&s.config, taken, e) == FEEDLANE_OK, e.text);
  check_sequence(taken, 5, 2);
  list[1].later = 9;
  CHECK(create_and_take(&s.config, taken, e) == FEEDLANE_E_ABI);
  CHECK(std::string(e.argument) == "config.fields[1].size");
  CHECK(e.found == sizeof list[1]);
  CHECK(e.needed == sizeof list[1].known);
}

TEST_CASE("the field array of an older header has a smaller stride, and missing members of a field are zero") {
  Setup s(5, 2);
  s.connect();
  struct Older {  // before `shape`
    std::size_t size;
    const char* name;
    feedlane_dtype dtype;
    std::int32_t ndim;
  };
  std::vector<Older> list;
  for (const feedlane_field& f : s.field_list) list.push_back({sizeof(Older), f.name, f.dtype, f.ndim});
  s.config.fields = reinterpret_cast<const feedlane_field*>(list.data());
  Error e;
  std::vector<Taken> taken;
  REQUIRE_MESSAGE(create_and_take(&s.config, taken, e) == FEEDLANE_OK, e.text);
  check_sequence(taken, 5, 2);
  CHECK(taken[0].seed(1) == feedlane_row_seed(99, 0, 1));
}

TEST_CASE("a batch struct of an older header gets only the members it has") {
  Setup s(5, 2);
  const Loader l = s.create();
  begin(l.get(), 3);
  feedlane_batch b;
  std::memset(&b, 0x5a, sizeof b);
  b.size = offsetof(feedlane_batch, worker);
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  CHECK(b.size == offsetof(feedlane_batch, worker));
  CHECK(b.epoch == 3);
  CHECK(b.batch == 0);
  CHECK(b.worker == 0x5a5a5a5a);
  CHECK(b.count == 0x5a5a5a5a5a5a5a5a);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);

  Later<feedlane_batch> longer{fresh<feedlane_batch>(), 77};
  longer.known.size = sizeof longer;
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &longer.known, nullptr) == FEEDLANE_OK);
  CHECK(longer.known.size == sizeof longer);
  CHECK(longer.known.count == 2);
  CHECK(longer.later == 77);
  CHECK(feedlane_batch_release(l.get(), longer.known.token) == FEEDLANE_OK);
}

TEST_CASE("an output struct whose size was not set is refused before the call has any effect") {
  Setup s(2, 2);
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  auto b = fresh<feedlane_batch>();
  b.size = 0;
  CHECK(feedlane_loader_next(l.get(), patience_ns, &b, &e) == FEEDLANE_E_ABI);
  CHECK(std::string(e.argument) == "out");
  CHECK(feedlane_loader_next(l.get(), patience_ns, nullptr, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "out");
  feedlane_stats stats{};
  CHECK(observe(l.get(), feedlane_monitor_get_stats, &stats) == FEEDLANE_E_ABI);
  CHECK(observe(l.get(), feedlane_monitor_get_stats, nullptr) == FEEDLANE_E_ARGUMENT);
  feedlane_worker_stats worker{};
  CHECK(observe(l.get(), feedlane_monitor_get_worker_stats, 0, &worker) == FEEDLANE_E_ABI);
  CHECK(observe(l.get(), feedlane_monitor_get_worker_stats, 0, nullptr) == FEEDLANE_E_ARGUMENT);
  check_sequence(take_rest(l.get()), 2, 2);
}

TEST_CASE("a statistics struct of an older header gets only the members it has") {
  Setup s(4, 2);
  const Loader l = s.create();
  (void)take_epoch(l.get(), 0);
  feedlane_stats stats;
  std::memset(&stats, 0x5a, sizeof stats);
  stats.size = offsetof(feedlane_stats, epochs);
  REQUIRE(observe(l.get(), feedlane_monitor_get_stats, &stats) == FEEDLANE_OK);
  CHECK(stats.batches == 2);
  CHECK(stats.samples == 4);
  CHECK(stats.bytes == 4 * 16);
  CHECK(stats.epochs == 0x5a5a5a5a5a5a5a5a);
}
