// SPDX-License-Identifier: Apache-2.0
// The loader's configuration: defaults, limits and refusals.
#include "loader/config.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <string>

#include "shm/plan.hpp"
#include "support/kinds.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::loader::Config;
using feedlane::sampler::Sampler;

namespace {

constexpr std::int64_t second = 1'000'000'000;
const char* const program[] = {"prog", "--flag", nullptr};
const char* const no_program[] = {nullptr};
const char* const environment[] = {"A=1", "OMP_NUM_THREADS=4", "FEEDLANE_WORKER_FD=7", "MKL_NUM_THREADS=", nullptr};

// The least that is accepted, with 2 workers or inline.
struct Given {
  explicit Given(std::int32_t workers) {
    Error error;
    REQUIRE(feedlane::test::make_sequential(10, sampler, error) == FEEDLANE_OK);
    field.size = sizeof field;
    field.name = "x";
    field.dtype = {2, 32, 1};
    dataset.size = sizeof dataset;
    dataset.get = [](void*, const feedlane_row*, feedlane_error*) { return 0; };
    config.size = sizeof config;
    config.fields = &field;
    config.field_count = 1;
    config.workers = workers;
    if (workers == 0) config.dataset = &dataset;
  }
  Status read(Error& error) {
    return feedlane::loader::read_config(&config, has_sampler ? sampler.get() : nullptr, read_, error);
  }
  Config& must_read() {
    Error error;
    const Status s = read(error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
    return read_;
  }

  std::unique_ptr<Sampler> sampler;
  bool has_sampler = true;
  feedlane_field field{};
  feedlane_dataset dataset{};
  feedlane_loader_config config{};

 private:
  Config read_;
};

bool has(const std::vector<std::string>& environment_of_worker, const std::string& entry) {
  return std::count(environment_of_worker.begin(), environment_of_worker.end(), entry) == 1;
}

bool names(const std::vector<std::string>& environment_of_worker, const std::string& name) {
  return std::any_of(environment_of_worker.begin(), environment_of_worker.end(),
                     [&](const std::string& e) { return e.rfind(name + "=", 0) == 0; });
}

}  // namespace

// promise: config-other-invalid
TEST_CASE("every refusal names its argument, the number found and the number needed") {
  struct Refusal {
    std::int32_t workers;
    const char* argument;
    std::int64_t found, needed;
    void (*set)(Given&);
  };
  constexpr std::int64_t most_rows = feedlane::shm::max_rows;
  constexpr std::int64_t most_trace = feedlane::shm::max_trace_records - 1;
  static feedlane_pool* const no_pool = reinterpret_cast<feedlane_pool*>(8);  // never used
  constexpr auto most_config = static_cast<std::int64_t>(feedlane::shm::max_config_bytes);
  for (const Refusal& r : {
           // ranges
           Refusal{2, "config.batch_size", -2, -1, [](Given& g) { g.config.batch_size = -2; }},
           {2, "config.batch_size", most_rows + 1, most_rows, [](Given& g) { g.config.batch_size = most_rows + 1; }},
           {2, "config.drop_last", 2, 1, [](Given& g) { g.config.drop_last = 2; }},
           {2, "config.drop_last", -1, 0, [](Given& g) { g.config.drop_last = -1; }},
           {2, "config.has_seed", 2, 1, [](Given& g) { g.config.has_seed = 2; }},
           {-1, "config.workers", -1, 0, [](Given&) {}},
           {4097, "config.workers", 4097, 4096, [](Given&) {}},
           {2, "config.prefetch_factor", -2, -1, [](Given& g) { g.config.prefetch_factor = -2; }},
           {2, "config.arena_bytes", 0, 1, [](Given& g) { g.config.prefetch_factor = FEEDLANE_PREFETCH_AUTO; }},
           {2, "config.prefetch_factor", -1, 0,
            [](Given& g) {
              g.config.prefetch_factor = FEEDLANE_PREFETCH_AUTO;
              g.config.arena_bytes = 1 << 20;
              g.config.share = FEEDLANE_SHARE_EVERY;
            }},
           {0, "config.prefetch_factor", -1, 0,
            [](Given& g) {
              g.config.prefetch_factor = FEEDLANE_PREFETCH_AUTO;
              g.config.arena_bytes = 1 << 20;
            }},
           {2, "config.worker_cpus", 0, 0, [](Given& g) { g.config.worker_cpus = ""; }},
           {2, "config.worker_cpus", 2, 0, [](Given& g) { g.config.worker_cpus = "0;1-2;x"; }},
           {0, "config.worker_cpus", 1, 0, [](Given& g) { g.config.worker_cpus = "0"; }},
           {2, "config.worker_cpus", 1, 0,
            [](Given& g) {
              g.config.start = FEEDLANE_START_THREAD;
              g.config.worker_cpus = "0";
            }},
           {2, "config.memory_nodes", 0, 0, [](Given& g) { g.config.memory_nodes = "0-"; }},
           {2, "config.prefetch_factor", 65537, 65536, [](Given& g) { g.config.prefetch_factor = 65537; }},
           {2, "config.keep_workers", 2, 1, [](Given& g) { g.config.keep_workers = 2; }},
           {2, "config.held", -1, 0, [](Given& g) { g.config.held = -1; }},
           {2, "config.held", 524289, 524288, [](Given& g) { g.config.held = 524289; }},
           {2, "config.reserved", 1, 0, [](Given& g) { g.config.reserved = 1; }},
           {2, "config.worker_config_bytes", most_config + 1, most_config,
            [](Given& g) { g.config.worker_config_bytes = most_config + 1; }},
           {2, "config.worker_config_bytes", INT64_MAX, most_config,
            [](Given& g) { g.config.worker_config_bytes = UINT64_MAX; }},
           {2, "config.start_timeout_ns", -1, 0, [](Given& g) { g.config.start_timeout_ns = -1; }},
           {2, "config.stop_timeout_ns", -1, 0, [](Given& g) { g.config.stop_timeout_ns = -1; }},
           {2, "config.term_timeout_ns", INT64_MIN, 0, [](Given& g) { g.config.term_timeout_ns = INT64_MIN; }},
           {2, "config.max_restarts", -2, -1, [](Given& g) { g.config.max_restarts = -2; }},
           {2, "config.max_kills_per_batch", -1, 0, [](Given& g) { g.config.max_kills_per_batch = -1; }},
           // what is missing, and what doesn't go together
           {2, "config.sampler", 0, 1, [](Given& g) { g.has_sampler = false; }},
           {2, "config.dataset", 0, 1, [](Given& g) { g.config.start = FEEDLANE_START_FORK; }},
           {2, "config.start", -1, 0, [](Given& g) { g.config.start = -1; }},
           {2, "config.start", 5, 4, [](Given& g) { g.config.start = 5; }},
           {0, "config.dataset", 0, 1, [](Given& g) { g.config.dataset = nullptr; }},
           {0, "config.dataset", 0, 1, [](Given& g) { g.dataset.get = nullptr; }},
           {0, "config.prefetch_factor", 2, 0, [](Given& g) { g.config.prefetch_factor = 2; }},
           {0, "config.keep_workers", 1, 0, [](Given& g) { g.config.keep_workers = 1; }},
           {0, "config.task_timeout_ns", 5, 0, [](Given& g) { g.config.task_timeout_ns = 5; }},
           {0, "config.no_lifeline", 1, 0, [](Given& g) { g.config.no_lifeline = 1; }},
           {0, "config.start", 3, 0, [](Given& g) { g.config.start = FEEDLANE_START_EXTERNAL; }},
           {2, "config.dataset", 1, 0, [](Given& g) { g.config.dataset = &g.dataset; }},
           {0, "config.argv", 1, 0, [](Given& g) { g.config.argv = program; }},
           {2, "config.argv", 1, 0,
            [](Given& g) { g.config.argv = program, g.config.start = FEEDLANE_START_EXTERNAL; }},
           {2, "config.argv", 0, 1, [](Given& g) { g.config.argv = no_program; }},
           {0, "config.envp", 1, 0, [](Given& g) { g.config.envp = environment; }},
           {2, "config.envp", 1, 0,
            [](Given& g) { g.config.envp = environment, g.config.start = FEEDLANE_START_EXTERNAL; }},
           {2, "config.worker_config", 0, 5, [](Given& g) { g.config.worker_config_bytes = 5; }},
           {2, "config.state", 0, 5, [](Given& g) { g.config.state_bytes = 5; }},
           {2, "config.staged", 1, 0, [](Given& g) { g.config.staged = 1; }},
           {2, "config.staged", 1, 2, [](Given& g) { g.config.staged = 1, g.config.pinned = no_pool; }},
           {2, "config.staged", 3, 4,
            [](Given& g) { g.config.staged = 3, g.config.held = 3, g.config.pinned = no_pool; }},
           {2, "config.pinned", 1, 0,
            [](Given& g) { g.config.share = FEEDLANE_SHARE_EVERY, g.config.pinned = no_pool; }},
           {2, "config.trace", most_trace + 1, most_trace, [](Given& g) { g.config.trace = most_trace + 1; }},
           {2, "config.slot_bytes", 255, 256, [](Given& g) { g.config.slot_bytes = 255; }},
           {2, "config.state_bytes", 0, 1, [](Given& g) { g.config.state = "state"; }},
           {2, "config.fields", 0, 1, [](Given& g) { g.config.field_count = 0; }},
           {2, "config.fields[0].ndim", 8, 7, [](Given& g) { g.field.ndim = 8; }},
       }) {
    Given given(r.workers);
    r.set(given);
    Error error;
    CAPTURE(std::string(r.argument));
    CAPTURE(r.found);
    CHECK(given.read(error) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(error.argument) == r.argument);
    CHECK(error.found == r.found);
    CHECK(error.needed == r.needed);
    CHECK(std::string(error.text) != "");
  }
}

TEST_CASE("the largest value of each option is accepted") {
  Given given(feedlane::shm::max_workers);
  given.config.batch_size = 1 << 20;
  given.config.prefetch_factor = 1 << 16;
  given.config.held = 1 << 19;
  given.config.start_timeout_ns = given.config.stop_timeout_ns = given.config.term_timeout_ns = FEEDLANE_FOREVER;
  given.config.max_restarts = given.config.max_kills_per_batch = INT32_MAX;
  given.config.trace = feedlane::shm::max_trace_records - 1;
  given.config.name = "thirty-one bytes of a good name";
  const Config& c = given.must_read();
  CHECK(c.trace == feedlane::shm::max_trace_records - 1);
  CHECK(c.name == given.config.name);
  CHECK(c.window() == std::uint32_t{1} << 28);
  CHECK(c.max_restarts == INT32_MAX);
  CHECK(c.start_timeout_ns == FEEDLANE_FOREVER);
}

TEST_CASE("processors and memory nodes that don't exist, and nodes outside the process's cpuset, are refused") {
  const feedlane::test::Folder folder;
  feedlane::os::SystemFiles files;
  files.proc = files.processors = files.nodes = folder.path();
  Given given(2);
  given.config.worker_cpus = "0;5";
  given.config.memory_nodes = "1";
  const Config& c = given.must_read();
  Error error;
  CHECK_MESSAGE(feedlane::loader::check_placement(c, files, error) == FEEDLANE_E_UNSUPPORTED,
                "no nodes; no list of processors");
  folder.write("possible", "0-4\n");
  CHECK(feedlane::loader::check_placement(c, files, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "config.worker_cpus");
  CHECK(error.found == 5);
  CHECK(error.needed == 4);
  folder.write("possible", "0-7\n");
  folder.write("has_memory", "0\n");
  CHECK(feedlane::loader::check_placement(c, files, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "config.memory_nodes");
  CHECK(error.needed == 0);
  folder.write("has_memory", "0-3\n");
  CHECK(feedlane::loader::check_placement(c, files, error) == FEEDLANE_OK);
  folder.write("self/status", "Mems_allowed_list:\t2-3\n");
  CHECK(feedlane::loader::check_placement(c, files, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.text).find("in this process's cpuset") != std::string::npos);
  CHECK(error.needed == 3);
}

TEST_CASE("a config of a wrong size fails with E_ABI, and a NULL config fails with E_ARGUMENT") {
  Given given(2);
  given.config.size = 4;
  Error error;
  CHECK(given.read(error) == FEEDLANE_E_ABI);
  CHECK(std::string(error.argument) == "config");
  Config config;
  CHECK(feedlane::loader::read_config(nullptr, given.sampler.get(), config, error) == FEEDLANE_E_ARGUMENT);
}

// promise: config-zero-default
TEST_CASE("with workers, an option of 0 has its default value") {
  Given given(2);
  const Config& c = given.must_read();
  CHECK(c.workers == 2);
  CHECK(c.batch_size == 1);
  CHECK_FALSE(c.drop_last);
  CHECK(c.prefetch_factor == 2);
  CHECK(c.window() == 4);
  CHECK(c.start == FEEDLANE_START_SPAWN);
  CHECK_FALSE(c.keep_workers);
  CHECK(c.held == 1);
  CHECK(c.start_timeout_ns == 60 * second);
  CHECK(c.stop_timeout_ns == 5 * second);
  CHECK(c.term_timeout_ns == 1 * second);
  CHECK(c.max_restarts == 1000);
  CHECK(c.max_kills_per_batch == 3);
  CHECK(c.lifeline);
  CHECK(c.worker_config.empty());
  REQUIRE_FALSE(c.argv.empty());
  CHECK_MESSAGE(c.argv[0].front() == '/', "this program again");
  REQUIRE(c.declared.size() == 1);
  CHECK(std::string(c.declared[0].name) == "x");
}

// promise: config-zero-default
TEST_CASE("without workers, nothing is prefetched and no process is started by default") {
  Given given(0);
  const Config& c = given.must_read();
  CHECK(c.workers == 0);
  CHECK(c.window() == 0);
  CHECK(c.prefetch_factor == 0);
  CHECK(c.argv.empty());
  CHECK(c.environment.empty());
}

TEST_CASE("an option that is set has the given value") {
  Given given(3);
  const std::array<char, 4> blob{'b', 'l', 'o', 'b'};
  given.config.batch_size = 8;
  given.config.drop_last = 1;
  given.config.seed = 99;
  given.config.prefetch_factor = 5;
  given.config.keep_workers = 1;
  given.config.held = 7;
  given.config.argv = program;
  given.config.worker_config = blob.data();
  given.config.worker_config_bytes = blob.size();
  given.config.start_timeout_ns = 1;
  given.config.stop_timeout_ns = 2;
  given.config.term_timeout_ns = 3;
  given.config.max_restarts = -1;
  given.config.max_kills_per_batch = 4;
  given.config.no_lifeline = 1;
  const Config& c = given.must_read();
  CHECK(c.batch_size == 8);
  CHECK(c.drop_last);
  CHECK(c.seed == 99);
  CHECK(c.window() == 15);
  CHECK(c.keep_workers);
  CHECK(c.held == 7);
  CHECK(c.argv == std::vector<std::string>{"prog", "--flag"});
  CHECK(std::string(reinterpret_cast<const char*>(c.worker_config.data()), c.worker_config.size()) == "blob");
  CHECK(c.start_timeout_ns == 1);
  CHECK(c.stop_timeout_ns == 2);
  CHECK(c.term_timeout_ns == 3);
  CHECK_MESSAGE(c.max_restarts == 0, "-1: none");
  CHECK(c.max_kills_per_batch == 4);
  CHECK_FALSE(c.lifeline);
  CHECK(c.fields.slot_bytes() == 256);
  CHECK_MESSAGE(c.sampler.get() != given.sampler.get(), "a copy");
  CHECK(c.sampler->length() == 10);
}

TEST_CASE("slot_bytes may equal the size of the declared fields, and staged may be held + 1") {
  Given given(2);
  given.config.slot_bytes = 256;
  given.config.held = 3;
  given.config.staged = 4;
  given.config.pinned = reinterpret_cast<feedlane_pool*>(8);  // not used here
  const Config& c = given.must_read();
  CHECK(c.slot_bytes == 256);
  CHECK(c.staged == 4);
}

TEST_CASE("external workers and worker threads are kept after the epoch, and no process is started for them") {
  for (const std::int32_t start : {FEEDLANE_START_EXTERNAL, FEEDLANE_START_THREAD}) {
    Given given(2);
    given.config.start = start;
    const Config& c = given.must_read();
    CHECK(c.start == start);
    CHECK_FALSE(c.starts_workers());
    CHECK(c.keep_workers);
    CHECK(c.argv.empty());
    CHECK(c.environment.empty());
  }
}

TEST_CASE("forked workers and worker threads may run the data set of this process") {
  for (const std::int32_t start : {FEEDLANE_START_FORK, FEEDLANE_START_THREAD}) {
    Given given(2);
    given.config.start = start;
    given.config.dataset = &given.dataset;
    const Config& c = given.must_read();
    CHECK(c.has_dataset);
    CHECK((c.table.get == given.dataset.get));
    CHECK(c.argv.empty());
    CHECK(c.keep_workers == (start == FEEDLANE_START_THREAD));
  }
}

// promise: seed-base
TEST_CASE("the seed is random unless seed is set or has_seed is 1") {
  Given one(2), other(2), zero(2), known(2);
  zero.config.has_seed = 1;
  known.config.seed = 5;
  CHECK(one.must_read().seed != other.must_read().seed);
  CHECK(zero.must_read().seed == 0);
  CHECK(known.must_read().seed == 5);
}

TEST_CASE("a worker's environment sets unset thread counts to 1 and leaves out the parent's FEEDLANE_WORKER_FD") {
  Given given(2);
  given.config.envp = environment;
  const std::vector<std::string>& e = given.must_read().environment;
  CHECK(has(e, "A=1"));
  CHECK_MESSAGE(has(e, "OMP_NUM_THREADS=4"), "what the user set stays");
  CHECK(has(e, "MKL_NUM_THREADS="));
  for (const char* name :
       {"OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "GOMAXPROCS", "JULIA_NUM_THREADS"})
    CHECK(has(e, std::string(name) + "=1"));
  CHECK_FALSE(names(e, "FEEDLANE_WORKER_FD"));
  CHECK(e.size() == 8);
}

TEST_CASE("without config.envp a worker has this process's environment") {
  REQUIRE(::setenv("FEEDLANE_TEST_VARIABLE", "here", 1) == 0);
  REQUIRE(::setenv("FEEDLANE_WORKER_FD", "3", 1) == 0);
  Given given(2);
  const std::vector<std::string>& e = given.must_read().environment;
  CHECK(has(e, "FEEDLANE_TEST_VARIABLE=here"));
  CHECK_FALSE(names(e, "FEEDLANE_WORKER_FD"));
  CHECK(names(e, "OMP_NUM_THREADS"));
  (void)::unsetenv("FEEDLANE_TEST_VARIABLE");
  (void)::unsetenv("FEEDLANE_WORKER_FD");
}
