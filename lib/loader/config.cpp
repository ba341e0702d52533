// SPDX-License-Identifier: Apache-2.0
// Reads feedlane_loader_config: checks every member, fills in the defaults.
#include "loader/config.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/versioned.hpp"
#include "greeting/worker.hpp"
#include "loader/prefetch.hpp"
#include "os/process.hpp"
#include "shm/plan.hpp"

namespace feedlane::loader {
namespace {

// Every number with its range, in one table; flags are 0 or 1.
Status check_ranges(const feedlane_loader_config& c, Error& error) {
  struct Range {
    const char* argument;
    std::int64_t value, low, high;
    const char* rule;
  };
  constexpr std::int64_t longest = FEEDLANE_FOREVER;
  for (const Range& r : {
           Range{"config.batch_size", c.batch_size, FEEDLANE_UNBATCHED, shm::max_rows,
                 "a batch has at least one row (0: 1; -1: FEEDLANE_UNBATCHED)"},
           {"config.drop_last", c.drop_last, 0, 1, "0 or 1"},
           {"config.has_seed", c.has_seed, 0, 1, "0 or 1"},
           {"config.workers", c.workers, 0, shm::max_workers, "not negative (0: inline)"},
           {"config.prefetch_factor", c.prefetch_factor, FEEDLANE_PREFETCH_AUTO, 1 << 16,
            "not negative (0: 2; -1: FEEDLANE_PREFETCH_AUTO)"},
           {"config.keep_workers", c.keep_workers, 0, 1, "0 or 1"},
           {"config.held", c.held, 0, 1 << 19, "not negative (0: 1)"},
           {"config.reserved", c.reserved, 0, 0, "must be zero"},
           {"config.worker_config_bytes",
            static_cast<std::int64_t>(std::min<std::uint64_t>(c.worker_config_bytes, INT64_MAX)), 0,
            static_cast<std::int64_t>(shm::max_config_bytes), "beyond the largest worker configuration"},
           {"config.start_timeout_ns", c.start_timeout_ns, 0, longest, "not negative (0: 60 s)"},
           {"config.stop_timeout_ns", c.stop_timeout_ns, 0, longest, "not negative (0: 5 s)"},
           {"config.term_timeout_ns", c.term_timeout_ns, 0, longest, "not negative (0: 1 s)"},
           {"config.max_restarts", c.max_restarts, -1, INT32_MAX, "-1 (none), 0 (1000) or more"},
           {"config.max_kills_per_batch", c.max_kills_per_batch, 0, INT32_MAX, "not negative (0: 3)"},
           {"config.no_lifeline", c.no_lifeline, 0, 1, "0 or 1"},
           {"config.task_timeout_ns", c.task_timeout_ns, 0, longest, "not negative (0: no deadline)"},
           {"config.state_bytes", static_cast<std::int64_t>(std::min<std::uint64_t>(c.state_bytes, INT64_MAX)), 0,
            static_cast<std::int64_t>(shm::max_config_bytes), "beyond the largest state"},
           {"config.iterable", c.iterable, 0, 1, "0 or 1"},
           {"config.deterministic", c.deterministic, 0, 1, "0 or 1"},
           {"config.iterable_length", c.iterable_length, 0, longest, "not negative (0: unknown)"},
           {"config.out_of_order", c.out_of_order, 0, 1, "0 or 1"},
           {"config.dispatch", c.dispatch, FEEDLANE_DISPATCH_LEAST_LOADED, FEEDLANE_DISPATCH_ROUND_ROBIN,
            "a FEEDLANE_DISPATCH_ number"},
           {"config.start", c.start, FEEDLANE_START_SPAWN, FEEDLANE_START_EXTERNAL, "a FEEDLANE_START_ number"},
           {"config.slot_bytes", static_cast<std::int64_t>(std::min<std::uint64_t>(c.slot_bytes, INT64_MAX)), 0,
            static_cast<std::int64_t>(shm::max_slot_bytes), "beyond the largest slot"},
           {"config.retries", c.retries, 0, INT32_MAX, "not negative"},
           {"config.substitute", c.substitute, 0, 1, "0 or 1"},
           {"config.retry_backoff_ns", c.retry_backoff_ns, 0, longest, "not negative (0: 10 ms)"},
           {"config.staged", c.staged, 0, 1 << 16, "not negative (0: not staged)"},
           {"config.share", c.share, FEEDLANE_SHARE_NONE, FEEDLANE_SHARE_DEAL, "a FEEDLANE_SHARE_ number"},
           {"config.consumers", c.consumers, 0, 1024, "not negative (0: 1)"},
           {"config.share_tail", c.share_tail, 0, 1, "0 or 1"},
           {"config.share_reserved", c.share_reserved, 0, 0, "must be zero"},
           {"config.skip_budget", c.skip_budget, -1, longest, "-1 (any number), 0 (none) or more"},
           {"config.world", c.world, 0, INT32_MAX, "not negative (0: 1)"},
           {"config.rank", c.rank, 0, INT32_MAX, "not negative"},
           {"config.max_batches", c.max_batches, 0, longest, "not negative (0: no limit)"},
       })
    if (r.value < r.low || r.value > r.high)
      return refuse(error, r.argument, r.value, r.value < r.low ? r.low : r.high, r.rule);
  return FEEDLANE_OK;
}

// Where the indices come from, and how they make batches.
Status check_order(const feedlane_loader_config& c, const sampler::Sampler* sampler, Error& error) {
  if (c.iterable == 0) {
    if (sampler == nullptr) return refuse(error, "config.sampler", 0, 1, "a map-style data set needs a sampler");
    if (c.deterministic != 0) return refuse(error, "config.deterministic", 1, 0, "only for iterable data sets");
    if (c.iterable_length != 0)
      return refuse(error, "config.iterable_length", c.iterable_length, 0, "only for iterable data sets");
    if (c.world != 0)
      return refuse(error, "config.world", c.world, 0, "only for iterable data sets: the sampler has the ranks");
    if (c.rank != 0)
      return refuse(error, "config.rank", c.rank, 0, "only for iterable data sets: the sampler has the ranks");
  } else if (sampler != nullptr) {
    return refuse(error, "config.sampler", 1, 0, "an iterable data set has an order of its own, and no sampler");
  }
  if (c.batch_size == FEEDLANE_UNBATCHED && c.drop_last != 0)
    return refuse(error, "config.drop_last", 1, 0, "without batches there is no incomplete one");
  if (sampler != nullptr && sampler->batch_rows() > 0) {
    if (c.batch_size != 0)
      return refuse(error, "config.batch_size", c.batch_size, 0, "the sampler makes the batches: leave it 0");
    if (c.drop_last != 0)
      return refuse(error, "config.drop_last", 1, 0, "the sampler makes the batches, and drops what it drops");
  }
  return FEEDLANE_OK;
}

Status check_rank(const feedlane_loader_config& c, Error& error) {
  if (c.world == 0 && c.rank != 0) return refuse(error, "config.rank", c.rank, 0, "there is no rank without a world");
  if (c.world != 0 && c.rank >= c.world)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.rank", c.rank, c.world,
                        "config.rank is {}: must be less than config.world, {}", c.rank, c.world);
  return FEEDLANE_OK;
}

Status check_policies(const feedlane_loader_config& c, Error& error) {
  if (c.retry_backoff_ns != 0 && c.retries == 0)
    return refuse(error, "config.retry_backoff_ns", c.retry_backoff_ns, 0, "without retries there is no backoff");
  if (c.substitute != 0 && c.iterable != 0)
    return refuse(error, "config.substitute", 1, 0, "an iterable data set's samples have no index to take instead");
  if (c.substitute != 0 && c.dataset != nullptr &&
      c.dataset->size >= offsetof(feedlane_dataset, substitute) + sizeof c.dataset->substitute &&
      c.dataset->substitute == nullptr)
    return refuse(error, "config.substitute", 1, 0, "the data set has no callback `substitute`");
  return FEEDLANE_OK;
}

Status check_share(const feedlane_loader_config& c, Error& error) {
  if (c.share == FEEDLANE_SHARE_NONE) {
    if (c.consumers != 0) return refuse(error, "config.consumers", c.consumers, 0, "only with config.share");
    if (c.share_path != nullptr) return refuse(error, "config.share_path", 1, 0, "only with config.share");
  } else {
    if (c.share_path != nullptr && *c.share_path == '\0')
      return refuse(error, "config.share_path", 0, 1, "the path of a socket is not empty; NULL: none");
    if (c.workers == 0) return refuse(error, "config.workers", 0, 1, "a shared loader has workers");
    if (c.pinned != nullptr) return refuse(error, "config.pinned", 1, 0, "the feeder of a shared loader has no device");
  }
  if (c.share_tail != 0 && c.share != FEEDLANE_SHARE_DEAL)
    return refuse(error, "config.share_tail", 1, 0, "only with FEEDLANE_SHARE_DEAL");
  return FEEDLANE_OK;
}

Status check_prefetch(const feedlane_loader_config& c, Error& error) {
  if (c.workers == 0 && c.prefetch_factor != 0)
    return refuse(error, "config.prefetch_factor", c.prefetch_factor, 0, "without workers nothing is prefetched");
  if (c.prefetch_factor != FEEDLANE_PREFETCH_AUTO) return FEEDLANE_OK;
  if (c.arena_bytes == 0)
    return refuse(error, "config.arena_bytes", 0, 1, "FEEDLANE_PREFETCH_AUTO needs a budget for the slots");
  if (c.share != FEEDLANE_SHARE_NONE)
    return refuse(error, "config.prefetch_factor", c.prefetch_factor, 0,
                  "a feeder does not see for how long its consumers wait");
  return FEEDLANE_OK;
}

// What goes together and what doesn't.
Status check_combinations(const feedlane_loader_config& c, const sampler::Sampler* sampler, Error& error) {
  if (const Status s = check_order(c, sampler, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_rank(c, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_policies(c, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_share(c, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_prefetch(c, error); s != FEEDLANE_OK) return s;
  if (c.workers == 0) {
    if (c.dataset == nullptr)
      return refuse(error, "config.dataset", 0, 1, "without workers the data set runs here and is required");
    if (c.task_timeout_ns != 0)
      return refuse(error, "config.task_timeout_ns", c.task_timeout_ns, 0, "there are no workers to be late");
    if (c.keep_workers != 0)
      return refuse(error, "config.keep_workers", c.keep_workers, 0, "there are no workers to keep");
    if (c.start != 0) return refuse(error, "config.start", c.start, 0, "there are no workers to start");
    if (c.no_lifeline != 0)
      return refuse(error, "config.no_lifeline", c.no_lifeline, 0, "there are no workers to let live on");
  } else if (c.start == FEEDLANE_START_FORK && c.dataset == nullptr) {
    return refuse(error, "config.dataset", 0, 1, "forked workers run the data set of this process");
  } else if (c.dataset != nullptr && c.start != FEEDLANE_START_FORK && c.start != FEEDLANE_START_THREAD) {
    return refuse(error, "config.dataset", 1, 0,
                  "callbacks can't cross to worker programs; give the data set to feedlane_worker_run there");
  }
  if (c.argv != nullptr && (c.workers == 0 || c.start != FEEDLANE_START_SPAWN))
    return refuse(error, "config.argv", 1, 0, "only for FEEDLANE_START_SPAWN");
  if (c.argv != nullptr && c.argv[0] == nullptr)
    return refuse(error, "config.argv", 0, 1, "empty: it begins with the program");
  if (c.envp != nullptr && (c.workers == 0 || c.start != FEEDLANE_START_SPAWN))
    return refuse(error, "config.envp", 1, 0, "only for FEEDLANE_START_SPAWN");
  if (c.staged != 0 && c.pinned == nullptr)
    return refuse(error, "config.staged", c.staged, 0, "its buffers come from config.pinned, which is NULL");
  if (c.staged != 0 && c.staged <= std::max(c.held, 1))
    return refuse(error, "config.staged", c.staged, std::int64_t{std::max(c.held, 1)} + 1,
                  "the batches held take a buffer each, and one more is filled meanwhile");
  if (c.state == nullptr && c.state_bytes != 0)
    return refuse(error, "config.state", 0,
                  static_cast<std::int64_t>(std::min<std::uint64_t>(c.state_bytes, INT64_MAX)),
                  "NULL, but state_bytes isn't zero");
  if (c.state != nullptr && c.state_bytes == 0)
    return refuse(error, "config.state_bytes", 0, 1, "the state to go on from is empty");
  if (c.worker_config == nullptr && c.worker_config_bytes != 0)
    return refuse(error, "config.worker_config", 0, static_cast<std::int64_t>(c.worker_config_bytes),
                  "NULL, but worker_config_bytes isn't zero");
  return FEEDLANE_OK;
}

// Numeric libraries start a thread a core; with several workers that is too many. What the user set stays.
void limit_threads(std::vector<std::string>& environment) {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
                           "NUMEXPR_NUM_THREADS", "GOMAXPROCS", "JULIA_NUM_THREADS"}) {
    const std::string prefix = std::string(name) + "=";
    if (std::none_of(environment.begin(), environment.end(),
                     [&](const std::string& e) { return e.starts_with(prefix); }))
      environment.push_back(prefix + "1");
  }
}

Status read_program(const feedlane_loader_config& c, Config& out, Error& error) {
  if (c.workers == 0 || c.start != FEEDLANE_START_SPAWN) return FEEDLANE_OK;
  if (c.argv == nullptr) {
    out.is_own_program = true;
    if (const Status s = os::this_program(out.argv, error); s != FEEDLANE_OK) return s;
  } else {
    for (const char* const* a = c.argv; *a != nullptr; a++) out.argv.emplace_back(*a);
  }
  const std::string own = std::string(worker::fd_variable) + "=";
  for (const char* const* e = c.envp != nullptr ? c.envp : environ; e != nullptr && *e != nullptr; e++)
    if (!std::string_view(*e).starts_with(own)) out.environment.emplace_back(*e);
  limit_threads(out.environment);
  return FEEDLANE_OK;
}

// "0-3;4-7"
Status read_worker_cpus(const feedlane_loader_config& c, Config& out, Error& error) {
  if (c.worker_cpus == nullptr) return FEEDLANE_OK;
  if (c.workers == 0 || (c.start != FEEDLANE_START_SPAWN && c.start != FEEDLANE_START_FORK))
    return refuse(error, "config.worker_cpus", 1, 0, "only for workers that the library starts: spawn and fork");
  std::string_view rest = c.worker_cpus;
  while (true) {
    const std::string_view list = rest.substr(0, rest.find(';'));
    os::NumberSet cpus;
    if (!cpus.read(list))
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.worker_cpus", out.cpus.size(), 0,
                          "config.worker_cpus: '{}' is no list of processors, as 0-3,8; lists are separated by ;",
                          first(100, std::string(list).c_str()));
    out.cpus.push_back(std::move(cpus));
    if (list.size() == rest.size()) return FEEDLANE_OK;
    rest.remove_prefix(list.size() + 1);
  }
}

Status read_placement(const feedlane_loader_config& c, Config& out, Error& error) {
  if (const Status s = read_worker_cpus(c, out, error); s != FEEDLANE_OK) return s;
  if (c.memory_nodes == nullptr || out.memory_nodes.read(c.memory_nodes)) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "config.memory_nodes", 0, 0,
                      "config.memory_nodes: '{}' is no list of memory nodes, as 0,2-3", first(100, c.memory_nodes));
}

template <class T>
T or_default(T value, T standard) {
  return value == 0 ? standard : value;
}

// A trace that nobody asked for in the program can be asked for from outside.
Status read_observation(const feedlane_loader_config& c, Config& out, Error& error) {
  if (c.name != nullptr) {
    const std::size_t length = ::strnlen(c.name, sizeof shm::LoaderFacts::name);
    if (length == sizeof shm::LoaderFacts::name)
      return refuse(error, "config.name", length, sizeof shm::LoaderFacts::name - 1, "more bytes than a name may have");
    out.name = c.name;
  }
  std::uint64_t trace = c.trace;
  const char* const asked = trace == 0 ? ::secure_getenv("FEEDLANE_TRACE") : nullptr;
  if (asked != nullptr && *asked != '\0') {
    const char* const end = asked + std::strlen(asked);
    if (const auto read = std::from_chars(asked, end, trace); read.ec != std::errc() || read.ptr != end)
      return error.refuse(FEEDLANE_E_ARGUMENT, "FEEDLANE_TRACE", 0, 1,
                          "the environment's FEEDLANE_TRACE is '{}', not a number of batches", first(100, asked));
  }
  if (trace >= shm::max_trace_records)
    return refuse(error, c.trace == 0 ? "FEEDLANE_TRACE" : "config.trace",
                  static_cast<std::int64_t>(std::min<std::uint64_t>(trace, INT64_MAX)), shm::max_trace_records - 1,
                  "more records than a trace may have");
  out.trace = static_cast<std::uint32_t>(trace);
  return FEEDLANE_OK;
}

}  // namespace

Status check_placement(const Config& config, const os::SystemFiles& files, Error& error) {
  const auto check = [&](const os::NumberSet& wanted, const os::NumberSet& there, const char* argument,
                         const char* what) {
    for (const std::uint32_t number : wanted.numbers())
      if (!there.has(number))
        return error.refuse(FEEDLANE_E_ARGUMENT, argument, number, there.last(),
                            "{}: there is no {} {}, the last one is {}", argument, what, number, there.last());
    return FEEDLANE_OK;
  };
  // Those that are offline, or not this process's, the kernel leaves out; without a list it is the only judge.
  const os::NumberSet cpus = config.cpus.empty() ? os::NumberSet{} : os::read_set(files.processors + "/possible");
  for (const os::NumberSet& wanted : config.cpus)
    if (const Status s = cpus.is_empty() ? FEEDLANE_OK : check(wanted, cpus, "config.worker_cpus", "processor");
        s != FEEDLANE_OK)
      return s;
  if (config.memory_nodes.is_empty()) return FEEDLANE_OK;
  const os::NumberSet nodes = os::read_set(files.nodes + "/has_memory");
  if (nodes.is_empty())
    return error.refuse(FEEDLANE_E_UNSUPPORTED, "config.memory_nodes", 0, 0, "this kernel knows no memory nodes");
  if (const Status s = check(config.memory_nodes, nodes, "config.memory_nodes", "memory node"); s != FEEDLANE_OK)
    return s;
  const os::NumberSet allowed = os::allowed_nodes(files);
  return allowed.is_empty() ? FEEDLANE_OK
                            : check(config.memory_nodes, allowed, "config.memory_nodes", "memory node in the cpuset");
}

Status read_config(const feedlane_loader_config* config, const sampler::Sampler* sampler, Config& out, Error& error) {
  feedlane_loader_config c;
  Status s = read_versioned(config, c, "config", error);
  if (s == FEEDLANE_OK) s = check_ranges(c, error);
  if (s == FEEDLANE_OK) s = check_combinations(c, sampler, error);
  if (s != FEEDLANE_OK) return s;
  out.unbatched = c.batch_size == FEEDLANE_UNBATCHED;
  out.batch_size = out.unbatched ? 1 : or_default<std::int64_t>(c.batch_size, 1);
  if (sampler != nullptr && sampler->batch_rows() > 0) out.batch_size = sampler->batch_rows();
  out.iterable = c.iterable != 0;
  if (c.field_count != 0 || c.slot_bytes == 0) s = out.fields.declare(c.fields, c.field_count, out.batch_size, error);
  if (s == FEEDLANE_OK && out.unbatched) out.fields.leave_out_batch_dimension();
  if (s == FEEDLANE_OK && c.slot_bytes != 0 && c.slot_bytes < out.fields.slot_bytes())
    return refuse(error, "config.slot_bytes", static_cast<std::int64_t>(c.slot_bytes),
                  static_cast<std::int64_t>(out.fields.slot_bytes()), "the declared fields don't fit a slot");
  out.has_dataset = c.dataset != nullptr;
  if (s == FEEDLANE_OK && out.has_dataset) s = out.dataset.take(c.dataset, "config.dataset", error);
  if (s == FEEDLANE_OK && out.has_dataset) s = out.dataset.check_style(out.iterable, "config.dataset", error);
  if (s == FEEDLANE_OK) s = read_program(c, out, error);
  if (s != FEEDLANE_OK) return s;
  out.declared = out.fields.as_declared();
  if (sampler != nullptr) out.sampler = sampler->clone();
  out.drop_last = c.drop_last != 0;
  out.seed = c.seed;
  out.has_seed = c.has_seed != 0 || c.seed != 0;
  const auto* state = static_cast<const std::byte*>(c.state);
  out.state.assign(state, state + c.state_bytes);
  if (!out.has_seed && ::getrandom(&out.seed, sizeof out.seed, 0) != sizeof out.seed)
    return error.os(errno, "getrandom");
  out.workers = static_cast<std::uint32_t>(c.workers);
  out.start = c.start;
  out.table = out.dataset.table();
  out.chooses_prefetch = c.prefetch_factor == FEEDLANE_PREFETCH_AUTO;
  out.prefetch_factor = c.workers == 0         ? 0
                        : out.chooses_prefetch ? Prefetch::most_for(static_cast<std::uint32_t>(c.workers))
                                               : static_cast<std::uint32_t>(or_default(c.prefetch_factor, 2));
  out.keep_workers = c.keep_workers != 0 || (out.workers != 0 && !out.starts_workers());
  out.held = static_cast<std::uint32_t>(or_default(c.held, 1));
  const auto* bytes = static_cast<const std::byte*>(c.worker_config);
  out.worker_config.assign(bytes, bytes + c.worker_config_bytes);
  constexpr std::int64_t second = 1'000'000'000;
  out.start_timeout_ns = or_default(c.start_timeout_ns, 60 * second);
  out.stop_timeout_ns = or_default(c.stop_timeout_ns, 5 * second);
  out.term_timeout_ns = or_default(c.term_timeout_ns, 1 * second);
  out.max_restarts = c.max_restarts < 0 ? 0 : static_cast<std::uint32_t>(or_default(c.max_restarts, 1000));
  out.task_timeout_ns = c.task_timeout_ns == 0 ? FEEDLANE_FOREVER : c.task_timeout_ns;
  out.deterministic = c.deterministic != 0;
  out.iterable_length = c.iterable_length;
  out.world = static_cast<std::uint32_t>(std::max(c.world, 1));
  out.rank = static_cast<std::uint32_t>(c.rank);
  out.max_batches = or_default(c.max_batches, INT64_MAX);
  out.out_of_order = c.out_of_order != 0;
  out.round_robin = c.dispatch == FEEDLANE_DISPATCH_ROUND_ROBIN || out.iterable;
  out.slot_bytes = c.slot_bytes;
  out.arena_bytes = c.arena_bytes;
  out.retries = static_cast<std::uint32_t>(c.retries);
  out.retry_backoff_ns = or_default<std::int64_t>(c.retry_backoff_ns, 10'000'000);
  out.substitute = c.substitute != 0;
  out.skip_budget = c.skip_budget < 0 ? INT64_MAX : c.skip_budget;
  out.max_kills_per_batch = static_cast<std::uint32_t>(or_default(c.max_kills_per_batch, 3));
  out.lifeline = c.no_lifeline == 0;
  out.is_pinned = c.pinned != nullptr;
  out.staged = static_cast<std::uint32_t>(c.staged);
  out.share = c.share;
  out.consumers = c.share == FEEDLANE_SHARE_NONE ? 0 : static_cast<std::uint32_t>(or_default(c.consumers, 1));
  if (c.share_path != nullptr) out.share_path = c.share_path;
  out.share_tail = c.share_tail != 0;
  if (s = read_placement(c, out, error); s != FEEDLANE_OK) return s;
  return read_observation(c, out, error);
}

}  // namespace feedlane::loader
