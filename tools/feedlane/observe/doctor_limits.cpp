// SPDX-License-Identifier: Apache-2.0
// Checks limits, memory and processors against what loaders take.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "doctor.hpp"

namespace observe {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// Numbers of capabilities, of <linux/capability.h>.
constexpr int cap_ipc_lock = 14;
constexpr int cap_sys_admin = 21;
constexpr int cap_sys_resource = 24;

Json amount(std::uint64_t number) { return number == unlimited ? Json("unlimited") : Json(number); }

std::uint64_t meminfo(const System& system, const char* name) {
  return number_after(system.proc("meminfo"), name).value_or(0) * 1024;
}

std::int64_t usable_processors(const System& system) {
  std::int64_t processors = allowed_processors(system.process == "self" ? 0 : std::stoll(system.process));
  if (const auto quota = processor_quota(system))
    processors = std::min(processors, std::max<std::int64_t>(1, static_cast<std::int64_t>(quota->processors)));
  return processors;
}

// Workers to expect: those that run, or one for each processor.
std::uint64_t expected_workers(const System& system, const Demand& demand) {
  return static_cast<std::uint64_t>(demand.workers > 0 ? demand.workers : usable_processors(system));
}

// A trainer keeps five descriptors for each worker (a socket, a pidfd, two eventfds, a lifeline), eight for itself and, while
// it starts a worker, a few more.
Check check_descriptors(const System& system, const Demand& demand) {
  constexpr std::uint64_t of_worker = 5;
  constexpr std::uint64_t of_loader = 8;
  constexpr std::uint64_t while_starting = 8;
  constexpr std::uint64_t of_program = 64;  // files, libraries and connections of a program that trains
  const Limit limit = limit_of(system, "Max open files");
  const std::uint64_t open = entries_of(system.of_process("fd"));
  const bool is_trainer = system.process != "self";
  const std::uint64_t needed =
      is_trainer ? open + while_starting
                 : of_program + of_loader + while_starting + of_worker * expected_workers(system, demand);
  Check c{"descriptors", State::ok, amount(limit.soft), needed, "descriptors", {}, {}};
  c.note = is_trainer ? fmt::format("{} are open", open)
                      : fmt::format("for a loader with {} workers", expected_workers(system, demand));
  if (limit.soft >= needed) return c;
  c.state = State::problem;
  if (limit.hard >= needed)
    c.advice = fmt::format("ulimit -n {} in the shell that starts the trainer", amount(limit.hard).dump());
  else
    c.advice = fmt::format(
        "raise the hard limit of {}: LimitNOFILE= of a systemd unit, --ulimit nofile= of a container, "
        "or nofile in /etc/security/limits.conf",
        limit.hard);
  return c;
}

// Pools of the backend mlock register slots: RLIMIT_MEMLOCK counts them.
Check check_locked_memory(const System& system, const Demand& demand) {
  constexpr std::uint64_t of_kernel = 8 * mib;  // the default of Linux 5.16 and later
  const Limit limit = limit_of(system, "Max locked memory");
  const std::uint64_t locked = number_after(system.of_process("status"), "VmLck:").value_or(0) * 1024;
  const std::uint64_t needed = locked > 0 ? std::max(locked, demand.data_bytes) : of_kernel;
  Check c{"locked_memory",
          State::ok,
          amount(limit.soft),
          needed,
          "bytes",
          "matters only for pools with the mlock backend",
          {}};
  if (has_capability(system, cap_ipc_lock)) c.note = "does not apply: the process has CAP_IPC_LOCK";
  else if (limit.soft < needed) c.state = State::warning;
  if (c.state != State::ok)
    c.advice = fmt::format(
        "ulimit -l {} in the shell that starts the trainer, or LimitMEMLOCK= of its systemd unit, "
        "--ulimit memlock= of its container, memlock in /etc/security/limits.conf",
        needed / 1024);
  return c;
}

// Each worker is a process, and its program may start threads.
Check check_processes(const System& system, const Demand& demand) {
  const std::uint64_t workers = expected_workers(system, demand);
  const Limit limit = limit_of(system, "Max processes");
  const bool is_free = has_capability(system, cap_sys_admin) || has_capability(system, cap_sys_resource);
  Check c{"processes", State::ok, "unlimited", 2 * workers, "processes", {}, {}};
  std::uint64_t left = unlimited;
  if (limit.soft != unlimited && !is_free) {
    const std::uint64_t used = threads_of_user(system);
    left = limit.soft - std::min(limit.soft, used);
    c.note = fmt::format("left of a limit of {}; this user has {} processes and threads", limit.soft, used);
    c.advice = "ulimit -u in the shell that starts the trainer, or nproc in /etc/security/limits.conf";
  }
  const auto group = task_limit(system);
  if (group && group->left() < left) {
    left = group->left();
    c.note = fmt::format("left of a limit of {} of cgroup {}", group->limit, group->group);
    c.advice = "raise pids.max of the cgroup: TasksMax= of a systemd unit, --pids-limit of a container";
  }
  c.found = amount(left);
  if (left < workers) c.state = State::problem;
  else if (left < 2 * workers) c.state = State::warning;
  else c.advice.clear();
  return c;
}

// A loader checks both before it reserves memory.
Check check_size_limit(const System& system, const Demand& demand, const char* name, const char* limit_name,
                       const char* option) {
  const Limit limit = limit_of(system, limit_name);
  const std::uint64_t memory = meminfo(system, "MemTotal:");
  Check c{name, State::ok, amount(limit.soft), memory, "bytes", {}, {}};
  if (limit.soft >= memory) return c;
  c.state = demand.data_bytes > limit.soft ? State::problem : State::warning;
  c.note = "a loader that needs more memory than this gets E_LIMIT";
  c.advice = fmt::format("ulimit {} unlimited in the shell that starts the trainer", option);
  return c;
}

Check check_memory(const System& system) {
  const std::uint64_t all = meminfo(system, "MemTotal:");
  const std::uint64_t available = meminfo(system, "MemAvailable:");
  Check c{"memory", State::ok, available, all / 20, "bytes", fmt::format("available of {}", bytes_text(double(all))),
          {}};
  if (available >= all / 20) return c;
  c.state = available < all / 100 ? State::problem : State::warning;
  c.advice =
      "end other programs, or lower prefetch_factor, batch_size or arena_bytes: a loader that does not fit gets "
      "E_MEMORY";
  return c;
}

Check check_memory_limit(const System& system) {
  Check c{"memory_limit", State::ok, "unlimited", Json(), "bytes", "no cgroup limits memory", {}};
  const auto group = memory_limit(system);
  if (!group) return c;
  c.found = group->left();
  c.needed = group->limit / 20;
  c.note = fmt::format("left of a limit of {} of cgroup {}", bytes_text(double(group->limit)), group->group);
  if (const std::uint64_t killed = killed_for_memory(system); killed != 0)
    c.note += fmt::format("; its OOM killer has killed {} processes", killed);
  if (group->left() >= group->limit / 20) return c;
  c.state = group->left() < group->limit / 100 ? State::problem : State::warning;
  c.advice =
      "raise memory.max (and memory.high) of the cgroup: MemoryMax= of a systemd unit, --memory of a container, "
      "limits.memory of a pod; or lower prefetch_factor, batch_size or arena_bytes";
  return c;
}

Check check_processors(const System& system, const Demand& demand) {
  const int allowed = allowed_processors(system.process == "self" ? 0 : std::stoll(system.process));
  const auto quota = processor_quota(system);
  const double usable = quota ? std::min<double>(allowed, quota->processors) : allowed;
  Check c{"processors", State::ok, std::round(usable * 100) / 100, Json(), "processors", {}, {}};
  if (usable == std::floor(usable)) c.found = static_cast<std::int64_t>(usable);
  if (quota && quota->processors < allowed)
    c.note = fmt::format("{} by affinity, {:.2f} by the quota of cgroup {}", allowed, quota->processors, quota->group);
  if (demand.workers > 0) {
    c.note += fmt::format("{}{} workers are running", c.note.empty() ? "" : "; ", demand.workers);
  }
  // More workers than processors are right for a data set that waits for storage: what a loader lacks was measured.
  if (demand.is_short_of_processors) {
    c.state = State::warning;
    c.note += fmt::format("{}they are the bottleneck of a loader below", c.note.empty() ? "" : "; ");
    c.advice = "end other programs, or give the trainer more: taskset, cpuset.cpus, cpu.max, --cpus of a container";
  }
  if (demand.throttled_ns > demand.interval_ns / 20 && demand.interval_ns != 0) {
    c.state = State::warning;
    c.note += fmt::format("{}throttled for {} of {}", c.note.empty() ? "" : "; ",
                          duration(double(demand.throttled_ns) / 1e9), duration(double(demand.interval_ns) / 1e9));
    c.advice = "raise cpu.max of the cgroup: CPUQuota= of a systemd unit, --cpus of a container, limits.cpu of a pod";
  }
  return c;
}

}  // namespace

void check_limits(const System& system, const Demand& demand, std::vector<Check>& out) {
  out.push_back(check_processors(system, demand));
  out.push_back(check_memory(system));
  out.push_back(check_memory_limit(system));
  out.push_back(check_descriptors(system, demand));
  out.push_back(check_processes(system, demand));
  out.push_back(check_locked_memory(system, demand));
  out.push_back(check_size_limit(system, demand, "file_size", "Max file size", "-f"));
  out.push_back(check_size_limit(system, demand, "address_space", "Max address space", "-v"));
}

}  // namespace observe
