// SPDX-License-Identifier: Apache-2.0
// Which arenas are made for huge pages, on systems that give some and on others, by what they reserve.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "loader/loader.hpp"
#include "os/huge_pages.hpp"
#include "support/kinds.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::loader::Loader;
using feedlane::os::SystemFiles;

namespace {

constexpr std::uint64_t mib = 1 << 20;

// A system that says it gives huge pages of 2 MiB, or none; memory is what it has if nothing is said of it.
struct System {
  explicit System(const char* offers) {
    folder.write("huge/shmem_enabled", std::string("always [") + offers + "] deny force\n");
    folder.write("huge/hpage_pmd_size", "2097152\n");
    files.huge_pages = folder.path() + "/huge";
    files.proc = folder.path() + "/proc";
    files.cgroup = "/nowhere";
  }
  void available(std::uint64_t bytes) const {
    folder.write("proc/meminfo", "MemAvailable: " + std::to_string(bytes / 1024) + " kB\n");
  }
  feedlane::test::Folder folder;
  SystemFiles files;
};

std::int32_t get(void*, const feedlane_row*, feedlane_error*) { return FEEDLANE_OK; }

// The statistics of a loader without workers, whose batches take so much; with two batches held that is four slots.
struct Arena {
  explicit Arena(std::uint64_t field_bytes) {
    field.size = sizeof field;
    field.name = "bytes";
    field.dtype = {1, 8, 1};
    field.ndim = 1;
    field.shape[0] = static_cast<std::int64_t>(field_bytes);
    dataset.size = sizeof dataset;
    dataset.get = get;
    config.size = sizeof config;
    config.dataset = &dataset;
    config.fields = &field;
    config.field_count = 1;
    config.batch_size = 1;
    config.held = 2;
  }
  feedlane_stats create(const System& system) {
    Error error;
    std::unique_ptr<feedlane::sampler::Sampler> order;
    REQUIRE(feedlane::test::make_sequential(8, order, error) == FEEDLANE_OK);
    std::unique_ptr<Loader> l;
    REQUIRE(Loader::create(&config, order.get(), nullptr, nullptr, system.files, l, error) == FEEDLANE_OK);
    return l->stats();
  }
  feedlane_field field{};
  feedlane_dataset dataset{};
  feedlane_loader_config config{};
};

bool fills_slots(const feedlane_stats& s) { return s.reserved_bytes == s.control_bytes + s.data_bytes; }

}  // namespace

TEST_CASE("if the system offers huge pages, large slots are reserved to their end") {
  for (const char* offers : {"advise", "within_size"}) CHECK(fills_slots(Arena(4 * mib).create(System(offers))));
  CHECK_FALSE(fills_slots(Arena(4 * mib).create(System("never"))));
}

TEST_CASE("slots whose unreserved end exceeds 1/8 of the reserved part keep the end as address space") {
  const System system("advise");
  CHECK(fills_slots(Arena(4 * mib).create(system)));
  Arena generous(4 * mib);
  generous.config.slot_bytes = 4 * mib + mib / 2;
  CHECK(fills_slots(generous.create(system)));
  generous.config.slot_bytes += 4096;
  CHECK_FALSE(fills_slots(generous.create(system)));
}

TEST_CASE("small arenas and arenas with a byte budget are reserved as without huge pages") {
  const System system("advise");
  CHECK_FALSE(fills_slots(Arena(mib).create(system)));  // 4.3 MiB
  Arena budget(4 * mib);
  budget.config.arena_bytes = 100 * mib;
  CHECK_FALSE(fills_slots(budget.create(system)));
}

TEST_CASE("if memory doesn't suffice for whole slots, the slots' ends stay address space and the loader is created") {
  const System system("advise");
  Arena arena(4 * mib);
  const feedlane_stats filled = arena.create(system);
  REQUIRE(fills_slots(filled));
  system.available(filled.reserved_bytes - 4096);
  CHECK_FALSE(fills_slots(arena.create(system)));
  system.available(filled.reserved_bytes);
  CHECK(fills_slots(arena.create(system)));
}
