// SPDX-License-Identifier: Apache-2.0
// On which processors workers run, and from which memory nodes slots come.
#include <doctest/doctest.h>
#include <sched.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Processors that this process may use.
std::vector<int> processors() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  std::vector<int> all;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &mine)) all.push_back(cpu);
  return all;
}

// What follows `name` in the first line of a file that has it.
std::string value_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (const std::size_t at = line.find(name); at != std::string::npos) return line.substr(at + name.size());
  return {};
}

std::string processors_of(const feedlane_loader* l, std::int32_t worker) {
  return value_in("/proc/" + std::to_string(worker_of(l, worker).pid) + "/status", "Cpus_allowed_list:\t");
}

std::int32_t nothing(void*, const feedlane_task*, feedlane_error*) { return FEEDLANE_OK; }

void use_kind(Setup& s, bool is_fork, std::int32_t workers) {
  auto table = fresh<feedlane_dataset>();
  table.fetch = nothing;
  if (is_fork) s.forked(workers, table);
  else s.workers(workers);
  s.config.keep_workers = 1;
}

}  // namespace

// promise: torch-placement
TEST_CASE("workers and their replacements run on the processors of their lists, which repeat for further workers") {
  const std::vector<int> mine = processors();
  const std::string first = std::to_string(mine.front()), last = std::to_string(mine.back());
  const std::string lists = first + ";" + last;
  for (const bool is_fork : {true, false}) {
    CAPTURE(is_fork);
    Setup s(60);
    use_kind(s, is_fork, 3);
    s.config.worker_cpus = lists.c_str();
    const Loader l = s.create();
    begin(l.get(), 0);
    wait_until_ready(l.get(), 3);
    CHECK(processors_of(l.get(), 0) == first);
    CHECK(processors_of(l.get(), 1) == last);
    CHECK(processors_of(l.get(), 2) == first);
    REQUIRE(::kill(static_cast<pid_t>(worker_of(l.get(), 1).pid), SIGKILL) == 0);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      const auto w = worker_of(l.get(), 1);
      return w.generation == 1 && w.state == FEEDLANE_WORKER_READY;
    }));
    CHECK(processors_of(l.get(), 1) == last);
    CHECK(take_rest(l.get()).size() == 60);
    CHECK_MESSAGE(processors() == mine, "the trainer's own are as they were");
  }
}

// promise: torch-placement
TEST_CASE("slots are bound to the named memory node, or interleaved over several named nodes") {
  const std::string all = value_in("/sys/devices/system/node/has_memory", "");
  if (all.empty()) return skip("a kernel without memory nodes");
  const std::string last = all.substr(all.find_last_of("-,") + 1);  // npos + 1 is 0
  for (const std::string& nodes : {last, all})
    for (const bool is_pinned : {false, true}) {
      CAPTURE(nodes);
      CAPTURE(is_pinned);
      Setup s(20);
      use_kind(s, true, 1);
      s.config.memory_nodes = nodes.c_str();
      feedlane_pool* pool = nullptr;
      if (is_pinned) {
        auto config = fresh<feedlane_pool_config>();
        REQUIRE(feedlane_pool_create(&config, &pool, nullptr) == FEEDLANE_OK);
        s.config.pinned = pool;
      }
      Loader l;
      Error e;
      if (s.try_create(l, &e) != FEEDLANE_OK && e.os_errno == EPERM) return skip("mbind is forbidden here");
      REQUIRE_MESSAGE(l != nullptr, std::string(e.text));
      CHECK(take_epoch(l.get(), 0).size() == 20);
      const std::string policy = nodes == last ? " bind:" : " interleave:";
      const std::string data = value_in("/proc/self/numa_maps", policy + nodes + " file=/memfd:feedlane-data");
      CHECK(data.find(" N" + last + "=") != std::string::npos);
      const bool is_on_first = data.find(" N0=") != std::string::npos;
      CHECK(is_on_first == (nodes != last || last == "0"));
      CHECK(value_in("/proc/self/numa_maps", "default file=/memfd:feedlane-data").empty());
      l.reset();
      (void)feedlane_pool_destroy(&pool);
    }
}

// promise: torch-placement
TEST_CASE("an impossible placement is refused, and the error has the number found and the number needed") {
  struct Refusal {
    const char *cpus, *nodes, *argument, *text;
    std::int64_t found, needed;
  };
  const std::string possible = value_in("/sys/devices/system/cpu/possible", "");
  const std::string there = value_in("/sys/devices/system/node/has_memory", "");
  const std::int64_t last_cpu = std::atoll(possible.substr(possible.find_last_of("-,") + 1).c_str());
  const std::int64_t last_node = std::atoll(there.substr(there.find_last_of("-,") + 1).c_str());
  for (const Refusal& r :
       {Refusal{"8000", nullptr, "config.worker_cpus", "processor 8000 does not exist", 8000, last_cpu},
        {"0;8000", nullptr, "config.worker_cpus", "processor 8000 does not exist", 8000, last_cpu},
        {"0;", nullptr, "config.worker_cpus", "'' is not a list of processors", 1, 0},
        {"0:3", nullptr, "config.worker_cpus", "'0:3' is not a list of processors", 0, 0},
        {nullptr, "1000", "config.memory_nodes", "memory node", 1000, last_node},
        {nullptr, "-", "config.memory_nodes", "'-' is not a list of memory nodes", 0, 0}}) {
    CAPTURE(r.text);
    Setup s(8);
    use_kind(s, true, 2);
    s.config.worker_cpus = r.cpus;
    s.config.memory_nodes = r.nodes;
    Loader l;
    Error e;
    const std::int32_t status = s.try_create(l, &e);
    if (status == FEEDLANE_E_UNSUPPORTED) continue;  // a kernel without memory nodes
    CHECK(status == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == r.argument);
    CHECK(e.says(r.text));
    CHECK(e.found == r.found);
    CHECK(e.needed == r.needed);
  }
}

// promise: torch-placement
TEST_CASE("worker_cpus is refused unless the library starts the workers") {
  for (const std::int32_t workers : {0, 2}) {
    Setup s(8);
    if (workers != 0) s.external(workers);
    s.config.worker_cpus = "0";
    Loader l;
    Error e;
    CHECK(s.try_create(l, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(e.says("must be NULL unless workers are spawned or forked"));
  }
}
