// SPDX-License-Identifier: Apache-2.0
// Reads feedlane_loader_config: checks every member and fills in the defaults.
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

// Rules that several members share.
constexpr const char* needs_workers = "must be 0 if config.workers is 0";
constexpr const char* only_for_spawn = "must be NULL unless workers are started with FEEDLANE_START_SPAWN";
constexpr const char* rank_of_sampler = "must be 0 for a map-style data set, whose sampler has the rank";

static_assert(shm::max_rows == 1 << 30 && shm::max_workers == 4096 && shm::max_config_bytes == 1 << 30 &&
                  shm::max_slot_bytes == std::uint64_t{1} << 40 && shm::max_trace_records == (1 << 24) + 1,
              "the rules state these numbers");

// The ranges of all numbers. Flags are 0 or 1.
Status check_ranges(const feedlane_loader_config& c, Error& error) {
  struct Range {
    const char* argument;
    std::int64_t value, low, high;
    const char* rule;
  };
  constexpr std::int64_t longest = FEEDLANE_FOREVER;
  for (const Range& r : {
           Range{"config.batch_size", c.batch_size, FEEDLANE_UNBATCHED, shm::max_rows,
                 "must be -1 (FEEDLANE_UNBATCHED), 0 (means 1) or 1 to 2^30"},
           {"config.drop_last", c.drop_last, 0, 1, "must be 0 or 1"},
           {"config.has_seed", c.has_seed, 0, 1, "must be 0 or 1"},
           {"config.workers", c.workers, 0, shm::max_workers, "must be 0 (inline) to 4096"},
           {"config.prefetch_factor", c.prefetch_factor, FEEDLANE_PREFETCH_AUTO, 1 << 16,
            "must be -1 (FEEDLANE_PREFETCH_AUTO), 0 (means 2) or 1 to 65536"},
           {"config.keep_workers", c.keep_workers, 0, 1, "must be 0 or 1"},
           {"config.held", c.held, 0, 1 << 19, "must be 0 (means 1) to 524288"},
           {"config.reserved", c.reserved, 0, 0, "must be 0"},
           {"config.worker_config_bytes",
            static_cast<std::int64_t>(std::min<std::uint64_t>(c.worker_config_bytes, INT64_MAX)), 0,
            static_cast<std::int64_t>(shm::max_config_bytes), "must be at most 2^30"},
           {"config.start_timeout_ns", c.start_timeout_ns, 0, longest, "must not be negative (0 means 60 s)"},
           {"config.stop_timeout_ns", c.stop_timeout_ns, 0, longest, "must not be negative (0 means 5 s)"},
           {"config.term_timeout_ns", c.term_timeout_ns, 0, longest, "must not be negative (0 means 1 s)"},
           {"config.max_restarts", c.max_restarts, -1, INT32_MAX, "must be -1 (no restarts), 0 (means 1000) or more"},
           {"config.max_kills_per_batch", c.max_kills_per_batch, 0, INT32_MAX, "must not be negative (0 means 3)"},
           {"config.no_lifeline", c.no_lifeline, 0, 1, "must be 0 or 1"},
           {"config.task_timeout_ns", c.task_timeout_ns, 0, longest, "must not be negative (0 means no deadline)"},
           {"config.state_bytes", static_cast<std::int64_t>(std::min<std::uint64_t>(c.state_bytes, INT64_MAX)), 0,
            static_cast<std::int64_t>(shm::max_config_bytes), "must be at most 2^30"},
           {"config.iterable", c.iterable, 0, 1, "must be 0 or 1"},
           {"config.deterministic", c.deterministic, 0, 1, "must be 0 or 1"},
           {"config.iterable_length", c.iterable_length, 0, longest, "must not be negative (0 means unknown)"},
           {"config.out_of_order", c.out_of_order, 0, 1, "must be 0 or 1"},
           {"config.dispatch", c.dispatch, FEEDLANE_DISPATCH_LEAST_LOADED, FEEDLANE_DISPATCH_ROUND_ROBIN,
            "must be one of FEEDLANE_DISPATCH_..."},
           {"config.start", c.start, FEEDLANE_START_SPAWN, FEEDLANE_START_HOST, "must be one of FEEDLANE_START_..."},
           {"config.slot_bytes", static_cast<std::int64_t>(std::min<std::uint64_t>(c.slot_bytes, INT64_MAX)), 0,
            static_cast<std::int64_t>(shm::max_slot_bytes), "must be at most 2^40"},
           {"config.retries", c.retries, 0, INT32_MAX, "must not be negative"},
           {"config.substitute", c.substitute, 0, 1, "must be 0 or 1"},
           {"config.retry_backoff_ns", c.retry_backoff_ns, 0, longest, "must not be negative (0 means 10 ms)"},
           {"config.staged", c.staged, 0, 1 << 16, "must be 0 (no staging) to 65536"},
           {"config.share", c.share, FEEDLANE_SHARE_NONE, FEEDLANE_SHARE_DEAL, "must be one of FEEDLANE_SHARE_..."},
           {"config.consumers", c.consumers, 0, 1024, "must be 0 (means 1) to 1024"},
           {"config.share_tail", c.share_tail, 0, 1, "must be 0 or 1"},
           {"config.share_reserved", c.share_reserved, 0, 0, "must be 0"},
           {"config.skip_budget", c.skip_budget, -1, longest, "must be -1 (no limit), 0 (none) or more"},
           {"config.world", c.world, 0, INT32_MAX, "must not be negative (0 means 1)"},
           {"config.rank", c.rank, 0, INT32_MAX, "must not be negative"},
           {"config.max_batches", c.max_batches, 0, longest, "must not be negative (0 means no limit)"},
       })
    if (r.value < r.low || r.value > r.high)
      return refuse(error, r.argument, r.value, r.value < r.low ? r.low : r.high, r.rule);
  return FEEDLANE_OK;
}

// Where the indices come from, and how they are grouped into batches.
Status check_order(const feedlane_loader_config& c, const sampler::Sampler* sampler, Error& error) {
  if (c.iterable == 0) {
    if (sampler == nullptr)
      return refuse_pointer(error, "config.sampler", false, "a map-style data set needs a sampler");
    if (c.deterministic != 0) return refuse(error, "config.deterministic", 1, 0, "must be 0 for a map-style data set");
    if (c.iterable_length != 0)
      return refuse(error, "config.iterable_length", c.iterable_length, 0, "must be 0 for a map-style data set");
    if (c.world != 0) return refuse(error, "config.world", c.world, 0, rank_of_sampler);
    if (c.rank != 0) return refuse(error, "config.rank", c.rank, 0, rank_of_sampler);
  } else if (sampler != nullptr) {
    return refuse_pointer(error, "config.sampler", true,
                          "must be NULL for an iterable data set, which has its own order");
  }
  if (c.batch_size == FEEDLANE_UNBATCHED && c.drop_last != 0)
    return refuse(error, "config.drop_last", 1, 0, "must be 0 with FEEDLANE_UNBATCHED");
  if (sampler != nullptr && sampler->batch_rows() > 0) {
    if (c.batch_size != 0)
      return refuse(error, "config.batch_size", c.batch_size, 0, "must be 0, because config.sampler yields batches");
    if (c.drop_last != 0)
      return refuse(error, "config.drop_last", 1, 0, "must be 0, because config.sampler yields batches");
  }
  return FEEDLANE_OK;
}

Status check_rank(const feedlane_loader_config& c, Error& error) {
  if (c.world == 0 && c.rank != 0)
    return refuse(error, "config.rank", c.rank, 0, "must be 0 unless config.world is set");
  if (c.world != 0 && c.rank >= c.world)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.rank", c.rank, c.world,
                        "config.rank is {}: must be less than config.world, {}", c.rank, c.world);
  return FEEDLANE_OK;
}

Status check_policies(const feedlane_loader_config& c, Error& error) {
  if (c.retry_backoff_ns != 0 && c.retries == 0)
    return refuse(error, "config.retry_backoff_ns", c.retry_backoff_ns, 0, "must be 0 unless config.retries is set");
  if (c.substitute != 0 && c.iterable != 0)
    return refuse(error, "config.substitute", 1, 0, "must be 0 for an iterable data set");
  if (c.substitute != 0 && c.dataset != nullptr &&
      c.dataset->size >= offsetof(feedlane_dataset, substitute) + sizeof c.dataset->substitute &&
      c.dataset->substitute == nullptr)
    return refuse(error, "config.substitute", 1, 0, "the data set has no callback `substitute`");
  return FEEDLANE_OK;
}

Status check_share(const feedlane_loader_config& c, Error& error) {
  if (c.share == FEEDLANE_SHARE_NONE) {
    if (c.consumers != 0)
      return refuse(error, "config.consumers", c.consumers, 0, "must be 0 unless config.share is set");
    if (c.share_path != nullptr)
      return refuse_pointer(error, "config.share_path", true, "must be NULL unless config.share is set");
  } else {
    if (c.share_path != nullptr && *c.share_path == '\0')
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.share_path", 0, 1,
                          "config.share_path is empty: must be a path or NULL");
    if (c.workers == 0) return refuse(error, "config.workers", 0, 1, "a shared loader needs workers");
    if (c.pinned != nullptr) return refuse_pointer(error, "config.pinned", true, "must be NULL for a shared loader");
  }
  if (c.share_tail != 0 && c.share != FEEDLANE_SHARE_DEAL)
    return refuse(error, "config.share_tail", 1, 0, "must be 0 unless config.share is FEEDLANE_SHARE_DEAL");
  return FEEDLANE_OK;
}

Status check_prefetch(const feedlane_loader_config& c, Error& error) {
  if (c.workers == 0 && c.prefetch_factor != 0)
    return refuse(error, "config.prefetch_factor", c.prefetch_factor, 0, needs_workers);
  if (c.prefetch_factor != FEEDLANE_PREFETCH_AUTO) return FEEDLANE_OK;
  if (c.arena_bytes == 0)
    return refuse(error, "config.arena_bytes", 0, 1, "FEEDLANE_PREFETCH_AUTO needs a memory budget");
  if (c.share != FEEDLANE_SHARE_NONE)
    return refuse(error, "config.prefetch_factor", c.prefetch_factor, 0,
                  "FEEDLANE_PREFETCH_AUTO is not available on a shared loader");
  return FEEDLANE_OK;
}

// Which members can be combined.
Status check_combinations(const feedlane_loader_config& c, const sampler::Sampler* sampler, Error& error) {
  if (const Status s = check_order(c, sampler, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_rank(c, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_policies(c, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_share(c, error); s != FEEDLANE_OK) return s;
  if (const Status s = check_prefetch(c, error); s != FEEDLANE_OK) return s;
  if (c.workers == 0) {
    if (c.dataset == nullptr)
      return refuse_pointer(error, "config.dataset", false, "it is required if config.workers is 0");
    if (c.task_timeout_ns != 0) return refuse(error, "config.task_timeout_ns", c.task_timeout_ns, 0, needs_workers);
    if (c.keep_workers != 0) return refuse(error, "config.keep_workers", c.keep_workers, 0, needs_workers);
    if (c.start != 0) return refuse(error, "config.start", c.start, 0, needs_workers);
    if (c.no_lifeline != 0) return refuse(error, "config.no_lifeline", c.no_lifeline, 0, needs_workers);
  } else if (c.start == FEEDLANE_START_FORK && c.dataset == nullptr) {
    return refuse_pointer(error, "config.dataset", false, "it is required with FEEDLANE_START_FORK");
  } else if (c.dataset != nullptr && c.start != FEEDLANE_START_FORK && c.start != FEEDLANE_START_THREAD) {
    return refuse_pointer(error, "config.dataset", true,
                          "must be NULL, because worker programs pass their data set to feedlane_worker_run");
  }
  if (c.argv != nullptr && (c.workers == 0 || c.start != FEEDLANE_START_SPAWN))
    return refuse_pointer(error, "config.argv", true, only_for_spawn);
  if (c.argv != nullptr && c.argv[0] == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.argv", 0, 1,
                        "config.argv is empty: argv[0] must be the worker program");
  if (c.envp != nullptr && (c.workers == 0 || c.start != FEEDLANE_START_SPAWN))
    return refuse_pointer(error, "config.envp", true, only_for_spawn);
  if (c.staged != 0 && c.pinned == nullptr)
    return refuse(error, "config.staged", c.staged, 0,
                  "must be 0 if config.pinned is NULL, because the buffers are the pool's");
  if (c.staged != 0 && c.staged <= std::max(c.held, 1))
    return refuse(error, "config.staged", c.staged, std::int64_t{std::max(c.held, 1)} + 1,
                  "must be larger than config.held: each held batch uses a buffer, and one more is being filled");
  if (c.state == nullptr && c.state_bytes != 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.state", 0, c.state_bytes,
                        "config.state is NULL, but config.state_bytes is {}", c.state_bytes);
  if (c.state != nullptr && c.state_bytes == 0)
    return refuse(error, "config.state_bytes", 0, 1, "must be the size of config.state");
  if (c.worker_config == nullptr && c.worker_config_bytes != 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.worker_config", 0, c.worker_config_bytes,
                        "config.worker_config is NULL, but config.worker_config_bytes is {}", c.worker_config_bytes);
  return FEEDLANE_OK;
}

// Numeric libraries start one thread per core, which is too many with several workers. Variables that the user has set
// are kept.
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

// The format is "0-3;4-7": one set of processors for each worker.
Status read_worker_cpus(const feedlane_loader_config& c, Config& out, Error& error) {
  if (c.worker_cpus == nullptr) return FEEDLANE_OK;
  if (c.workers == 0 || (c.start != FEEDLANE_START_SPAWN && c.start != FEEDLANE_START_FORK))
    return refuse_pointer(error, "config.worker_cpus", true, "must be NULL unless workers are spawned or forked");
  std::string_view rest = c.worker_cpus;
  while (true) {
    const std::string_view list = rest.substr(0, rest.find(';'));
    os::NumberSet cpus;
    if (!cpus.read(list))
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.worker_cpus", out.cpus.size(), 0,
                          "config.worker_cpus: '{}' is not a list of processors like 0-3,8 (separate lists with ;)",
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
                      "config.memory_nodes: '{}' is not a list of memory nodes like 0,2-3", first(100, c.memory_nodes));
}

template <class T>
T or_default(T value, T standard) {
  return value == 0 ? standard : value;
}

// If the program does not request a trace, the environment can.
Status read_observation(const feedlane_loader_config& c, Config& out, Error& error) {
  if (c.name != nullptr) {
    const std::size_t length = ::strnlen(c.name, sizeof shm::LoaderFacts::name);
    if (length == sizeof shm::LoaderFacts::name)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.name", length, sizeof shm::LoaderFacts::name - 1,
                          "config.name has more than {} bytes", sizeof shm::LoaderFacts::name - 1);
    out.name = c.name;
  }
  std::uint64_t trace = c.trace;
  const char* const asked = trace == 0 ? ::secure_getenv("FEEDLANE_TRACE") : nullptr;
  if (asked != nullptr && *asked != '\0') {
    const char* const end = asked + std::strlen(asked);
    if (const auto read = std::from_chars(asked, end, trace); read.ec != std::errc() || read.ptr != end)
      return error.refuse(FEEDLANE_E_ARGUMENT, "FEEDLANE_TRACE", 0, 1,
                          "the environment variable FEEDLANE_TRACE is '{}': must be a number of batches",
                          first(100, asked));
  }
  if (trace >= shm::max_trace_records)
    return refuse(error, c.trace == 0 ? "FEEDLANE_TRACE" : "config.trace",
                  static_cast<std::int64_t>(std::min<std::uint64_t>(trace, INT64_MAX)), shm::max_trace_records - 1,
                  "must be at most 2^24");
  out.trace = static_cast<std::uint32_t>(trace);
  return FEEDLANE_OK;
}

}  // namespace

Status check_placement(const Config& config, const os::SystemFiles& files, Error& error) {
  const auto check = [&](const os::NumberSet& wanted, const os::NumberSet& there, const char* argument,
                         const char* what, const char* where) {
    for (const std::uint32_t number : wanted.numbers())
      if (!there.has(number))
        return error.refuse(FEEDLANE_E_ARGUMENT, argument, number, there.last(),
                            "{}: {} {} does not exist{}; the highest is {}", argument, what, number, where,
                            there.last());
    return FEEDLANE_OK;
  };
  // The kernel ignores processors that are offline or not allowed for this process. If the list of possible processors
  // can't be read, only the kernel checks the numbers.
  const os::NumberSet cpus = config.cpus.empty() ? os::NumberSet{} : os::read_set(files.processors + "/possible");
  for (const os::NumberSet& wanted : config.cpus)
    if (const Status s = cpus.is_empty() ? FEEDLANE_OK : check(wanted, cpus, "config.worker_cpus", "processor", "");
        s != FEEDLANE_OK)
      return s;
  if (config.memory_nodes.is_empty()) return FEEDLANE_OK;
  const os::NumberSet nodes = os::read_set(files.nodes + "/has_memory");
  if (nodes.is_empty())
    return error.refuse(FEEDLANE_E_UNSUPPORTED, "config.memory_nodes", 0, 0,
                        "the kernel reports no memory nodes: leave config.memory_nodes NULL");
  if (const Status s = check(config.memory_nodes, nodes, "config.memory_nodes", "memory node", ""); s != FEEDLANE_OK)
    return s;
  const os::NumberSet allowed = os::allowed_nodes(files);
  return allowed.is_empty()
             ? FEEDLANE_OK
             : check(config.memory_nodes, allowed, "config.memory_nodes", "memory node", " in this process's cpuset");
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
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.slot_bytes", c.slot_bytes, out.fields.slot_bytes(),
                        "config.slot_bytes is {}: must be at least {}, the size of the declared fields", c.slot_bytes,
                        out.fields.slot_bytes());
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
