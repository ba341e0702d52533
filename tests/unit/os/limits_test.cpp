// SPDX-License-Identifier: Apache-2.0
// Memory and processors that are available, read from made-up system files.
#include "os/limits.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::check_memory;
using feedlane::os::memory_room;
using feedlane::os::Room;
using feedlane::os::SystemFiles;

namespace {

constexpr std::uint64_t mib = 1 << 20;

// A system whose accounts say what a test wants. Without files there is no limit.
struct System {
  feedlane::test::Folder folder;
  [[nodiscard]] SystemFiles files() const { return {folder.path() + "/proc", folder.path() + "/cgroup"}; }
  void available(std::uint64_t kib) const {
    folder.write("proc/meminfo",
                 "MemTotal: 99999999 kB\nMemFree:     1 kB\nMemAvailable:   " + std::to_string(kib) + " kB\n");
  }
  void member(const std::string& lines) const { folder.write("proc/self/cgroup", lines); }
  void cgroup2(const std::string& path, const std::string& limit, std::uint64_t usage,
               const std::string& stat = "") const {
    folder.write("cgroup" + path + "/memory.max", limit + "\n");
    folder.write("cgroup" + path + "/memory.current", std::to_string(usage) + "\n");
    folder.write("cgroup" + path + "/memory.stat", stat);
  }
  void cgroup1(const std::string& path, const std::string& limit, std::uint64_t usage,
               const std::string& stat = "") const {
    folder.write("cgroup/memory" + path + "/memory.limit_in_bytes", limit + "\n");
    folder.write("cgroup/memory" + path + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    folder.write("cgroup/memory" + path + "/memory.stat", stat);
  }
};

// Bytes left under the limit of that name, or -1.
std::int64_t room_of(const std::vector<Room>& rooms, const std::string& limit) {
  const auto found = std::find_if(rooms.begin(), rooms.end(), [&](const Room& r) { return r.limit == limit; });
  return found == rooms.end() ? -1 : static_cast<std::int64_t>(found->bytes);
}

struct Refusal {
  feedlane::Status code;
  char argument[64];
  std::int64_t found, needed;
};
Refusal as_refusal(const Error& error) {
  Refusal r{error.code, {}, error.found, error.needed};
  std::memcpy(r.argument, error.argument, sizeof r.argument);
  return r;
}

void lower(decltype(RLIMIT_AS) which, std::uint64_t bytes) {
  const rlimit limit{bytes, bytes};
  if (::setrlimit(which, &limit) != 0) ::_exit(2);
}

}  // namespace

TEST_CASE("MemAvailable is read and converted to bytes") {
  const System system;
  system.available(2048);
  const auto rooms = memory_room(system.files());
  REQUIRE(rooms.size() == 1);
  CHECK(rooms[0].limit == "MemAvailable");
  CHECK(rooms[0].bytes == 2 * mib);
}

TEST_CASE("a system without memory files in /proc and cgroups sets no limit") {
  const System system;
  CHECK(memory_room(system.files()).empty());
  Error error;
  CHECK(check_memory({std::uint64_t{1} << 50}, std::uint64_t{1} << 50, system.files(), error) == FEEDLANE_OK);
}

TEST_CASE("cgroup v2: the limit of every ancestor up to the root is applied and reported under its own name") {
  const System system;
  system.member("0::/job/step\n");
  system.cgroup2("/job/step", std::to_string(100 * mib), 30 * mib);
  system.cgroup2("/job", std::to_string(50 * mib), 40 * mib);
  system.cgroup2("", std::to_string(900 * mib), 1 * mib);
  system.cgroup2("/other", "1", 1);
  const auto rooms = memory_room(system.files());
  CHECK(rooms.size() == 3);
  CHECK(room_of(rooms, "the memory limit of cgroup /job/step") == 70 * mib);
  CHECK(room_of(rooms, "the memory limit of cgroup /job") == 10 * mib);
  CHECK(room_of(rooms, "the memory limit of cgroup /") == 899 * mib);
}

TEST_CASE("cgroup v2: \"max\" is no limit, and a level without files is skipped") {
  const System system;
  system.member("0::/a/b/c\n");
  system.cgroup2("/a/b/c", "max", 30 * mib);
  system.cgroup2("/a", std::to_string(8 * mib), 3 * mib);
  const auto rooms = memory_room(system.files());
  REQUIRE(rooms.size() == 1);
  CHECK(room_of(rooms, "the memory limit of cgroup /a") == 5 * mib);
}

// promise: fault-little-memory, machine-cgroup-memory
TEST_CASE("cgroup v2: memory.high, which slows processes down, is a limit like memory.max, in every ancestor") {
  const System system;
  system.member("0::/job/step\n");
  system.cgroup2("/job/step", "max", 30 * mib);
  system.folder.write("cgroup/job/step/memory.high", std::to_string(50 * mib) + "\n");
  system.cgroup2("/job", std::to_string(100 * mib), 40 * mib);
  system.folder.write("cgroup/job/memory.high", std::to_string(60 * mib) + "\n");
  system.cgroup2("", std::to_string(900 * mib), 1 * mib);
  system.folder.write("cgroup/memory.high", "max\n");
  const auto rooms = memory_room(system.files());
  CHECK(rooms.size() == 3);
  CHECK(room_of(rooms, "the memory limit of cgroup /job/step") == 20 * mib);
  CHECK(room_of(rooms, "the memory limit of cgroup /job") == 20 * mib);
  CHECK(room_of(rooms, "the memory limit of cgroup /") == 899 * mib);
  system.folder.write("cgroup/job/memory.high", std::to_string(200 * mib) + "\n");
  CHECK_MESSAGE(room_of(memory_room(system.files()), "the memory limit of cgroup /job") == 60 * mib, "the lower one");
}

TEST_CASE("cgroup v2: page cache counts as available memory, other memory does not") {
  const System system;
  system.member("0::/a\n");
  const std::string stat = "anon 5000\ninactive_anon 7\nfile 900\ninactive_file 300\nactive_file 200\nshmem 4\n";
  system.cgroup2("/a", "10000", 6000, stat);
  CHECK(room_of(memory_room(system.files()), "the memory limit of cgroup /a") == 4500);
  system.cgroup2("/a", "10000", 400, stat);
  CHECK_MESSAGE(room_of(memory_room(system.files()), "the memory limit of cgroup /a") == 10000,
                "never more than the limit");
  system.cgroup2("/a", "10000", 20000, stat);
  CHECK_MESSAGE(room_of(memory_room(system.files()), "the memory limit of cgroup /a") == 0, "never less than nothing");
}

TEST_CASE("cgroup v1: only the memory controller is read, with its ancestors and its own file names") {
  const System system;
  system.member("5:cpuset:/elsewhere\n4:cpu,memory:/job/step\n1:name=systemd:/x\n0::/\n");
  const std::string stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n";
  system.cgroup1("/job/step", "10000", 6000, stat);
  system.cgroup1("/job", "9223372036854771712", 6000);
  system.cgroup1("/elsewhere", "1", 1);
  const auto rooms = memory_room(system.files());
  CHECK(rooms.size() == 2);
  CHECK(room_of(rooms, "the memory limit of cgroup /job/step") == 4500);
  CHECK(room_of(rooms, "the memory limit of cgroup /job") == 9223372036854771712 - 6000);
}

TEST_CASE("lines about anything but memory are skipped") {
  const System system;
  system.member("\ngarbage\n0:\n0::relative\n3:memory:\n7:memorystore:/a\n0::/a\n");
  system.cgroup2("/a", "100", 1);
  system.cgroup1("/a", "100", 1);
  CHECK(memory_room(system.files()).size() == 1);
}

TEST_CASE("if memory is too small, the error names the limit and has both numbers") {
  const System system;
  system.available(4096);
  system.member("0::/job\n");
  system.cgroup2("/job", std::to_string(3 * mib), 1 * mib);
  Error error;
  CHECK(check_memory({1 * mib, 1 * mib}, 2 * mib, system.files(), error) == FEEDLANE_OK);
  CHECK_MESSAGE(check_memory({1 * mib, 1 * mib + 1}, 2 * mib + 1, system.files(), error) == FEEDLANE_E_MEMORY,
                "both segments count");
  CHECK(std::string(error.argument) == "arena");
  CHECK(error.found == 2 * mib);
  CHECK(error.needed == 2 * mib + 1);
  CHECK(std::string(error.text) ==
        "the shared memory needs 2097153 bytes, but the memory limit of cgroup /job leaves only 2097152");
  CHECK(check_memory({8 * mib}, 8 * mib, system.files(), error) == FEEDLANE_E_MEMORY);
  CHECK(std::string(error.text).find("MemAvailable leaves only 4194304") != std::string::npos);
}

TEST_CASE("a size beyond RLIMIT_FSIZE is refused before the reservation, and the error has both numbers") {
  const System system;
  const auto files = system.files();
  const auto ask = [&](std::vector<std::uint64_t> segments) {
    return feedlane::test::in_child([&] {
      lower(RLIMIT_FSIZE, 2 * mib);
      Error error;
      (void)check_memory(segments, std::accumulate(segments.begin(), segments.end(), std::uint64_t{0}), files, error);
      return as_refusal(error);
    });
  };
  const Refusal r = ask({1 * mib, 3 * mib});
  CHECK(r.code == FEEDLANE_E_LIMIT);
  CHECK(std::string(r.argument) == "RLIMIT_FSIZE");
  CHECK(r.found == 2 * mib);
  CHECK(r.needed == 3 * mib);
  CHECK_MESSAGE(ask({2 * mib, 2 * mib}).code == FEEDLANE_OK, "the limit is for each file");
}

TEST_CASE("a size beyond RLIMIT_AS is refused, and the error has the number of bytes still available") {
  const System system;
  system.folder.write("proc/self/statm", "1000 7 7 7 0 7 0\n");
  const auto files = system.files();
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  REQUIRE(pages > 0);
  const std::uint64_t limit = pages * page + 256 * mib;  // so that this process itself can go on
  const std::uint64_t left = limit - 1000 * page;        // by the accounts of `system`
  const auto ask = [&](std::vector<std::uint64_t> segments, const SystemFiles& where) {
    return feedlane::test::in_child([&] {
      lower(RLIMIT_AS, limit);
      Error error;
      (void)check_memory(segments, std::accumulate(segments.begin(), segments.end(), std::uint64_t{0}), where, error);
      return as_refusal(error);
    });
  };
  const Refusal r = ask({left, 1}, files);
  CHECK(r.code == FEEDLANE_E_LIMIT);
  CHECK(std::string(r.argument) == "RLIMIT_AS");
  CHECK(r.found == static_cast<std::int64_t>(left));
  CHECK(r.needed == static_cast<std::int64_t>(left + 1));
  CHECK(ask({left - 1, 1}, files).code == FEEDLANE_OK);
  const Refusal real = ask({512 * mib}, {});
  CHECK(std::string(real.argument) == "RLIMIT_AS");
  CHECK(real.found <= static_cast<std::int64_t>(260 * mib));
  CHECK(real.needed == 512 * mib);
}

// promise: config-cgroup-quota
TEST_CASE(
    "the number of processors is at least one and at most the tightest quota of any ancestor and the number present") {
  const System system;
  const int all = feedlane::os::usable_cpus(system.files());
  CHECK(all >= 1);
  CHECK(all <= ::sysconf(_SC_NPROCESSORS_CONF));
  system.member("0::/job/step\n3:cpu,cpuacct:/old/one\n");
  system.folder.write("cgroup/job/step/cpu.max", "max 100000\n");
  CHECK(feedlane::os::usable_cpus(system.files()) == all);
  system.folder.write("cgroup/job/cpu.max", "150000 100000\n");
  CHECK(feedlane::os::usable_cpus(system.files()) == 1);
  system.folder.write("cgroup/job/cpu.max", "99900000 100000\n");
  CHECK(feedlane::os::usable_cpus(system.files()) == all);
  // The tightest, wherever it is: of the process's own group, above it, or of the root.
  for (const char* tight : {"cgroup/job/step/cpu.max", "cgroup/job/cpu.max", "cgroup/cpu.max"}) {
    CAPTURE(std::string(tight));
    for (const char* loose : {"cgroup/job/step/cpu.max", "cgroup/job/cpu.max", "cgroup/cpu.max"})
      system.folder.write(loose, loose == tight ? "110000 100000\n" : "99900000 100000\n");
    CHECK(feedlane::os::usable_cpus(system.files()) == 1);
    system.folder.write(tight, "max 100000\n");
  }
  system.folder.write("cgroup/cpu/old/cpu.cfs_quota_us", "-1\n");
  system.folder.write("cgroup/cpu/old/cpu.cfs_period_us", "100000\n");
  CHECK_MESSAGE(feedlane::os::usable_cpus(system.files()) == all, "-1 is no quota");
  system.folder.write("cgroup/cpu/old/cpu.cfs_quota_us", "5000\n");
  CHECK(feedlane::os::usable_cpus(system.files()) == 1);
}

// promise: config-many-workers
TEST_CASE("the number of processors is limited by the affinity of the process") {
  const System system;
  const auto files = system.files();
  CHECK(feedlane::test::in_child([&] {
          cpu_set_t one;
          CPU_ZERO(&one);
          CPU_SET(::sched_getcpu(), &one);
          if (::sched_setaffinity(0, sizeof one, &one) != 0) ::_exit(2);
          return feedlane::os::usable_cpus(files);
        }) == 1);
}

TEST_CASE("the files of the system that runs this test can be read") {
  const auto rooms = memory_room({});
  const std::int64_t available = room_of(rooms, "MemAvailable");
  CHECK(available > 0);
  CHECK(available < ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE));
}

TEST_CASE("the count of out-of-memory kills comes from the nearest visible memory cgroup, for cgroup v1 and v2") {
  const System s;
  CHECK(feedlane::os::oom_kills(s.files()) == -1);
  s.member("0::/job/step\n");
  CHECK(feedlane::os::oom_kills(s.files()) == -1);
  s.folder.write("cgroup/memory.events", "low 0\noom 1\noom_kill 9\n");
  CHECK(feedlane::os::oom_kills(s.files()) == 9);
  s.folder.write("cgroup/job/step/memory.events", "low 0\noom 5\noom_kill 4\noom_group_kill 1\n");
  CHECK(feedlane::os::oom_kills(s.files()) == 4);
  s.member("4:memory:/old\n0::/\n");
  s.folder.write("cgroup/memory/old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  CHECK(feedlane::os::oom_kills(s.files()) == 2);
}
