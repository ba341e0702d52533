// SPDX-License-Identifier: Apache-2.0
// Reads /proc/PID/smaps_rollup, /proc/self/maps and the workers' counters.
#include "proc.hpp"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace {

struct Memory {
  double resident = 0;      ///< MiB
  double proportional = 0;  ///< a page that n processes map counts 1/n in each
  double own = 0;           ///< pages that no other process maps
};

Memory memory_of(std::int64_t pid) {
  Memory memory;
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    char name[32];
    double kib = 0;
    if (std::sscanf(line.c_str(), "%31[^:]: %lf kB", name, &kib) != 2) continue;
    const std::string field = name;
    if (field == "Rss") memory.resident += kib / 1024;
    if (field == "Pss") memory.proportional += kib / 1024;
    if (field == "Private_Clean" || field == "Private_Dirty") memory.own += kib / 1024;
  }
  return memory;
}

}  // namespace

std::string program_beside(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

std::string mapping_of(const void* address) {
  std::ifstream file("/proc/self/maps");
  std::string line;
  while (std::getline(file, line)) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    int name = 0;  // where it begins
    if (std::sscanf(line.c_str(), "%llx-%llx %*s %*s %*s %*s %n", &begin, &end, &name) < 2 || name == 0) continue;
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    if (wanted >= begin && wanted < end) return line.substr(static_cast<std::size_t>(name));
  }
  return {};
}

void print_worker_costs(const feedlane::Loader& loader, std::chrono::steady_clock::time_point began) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::printf("%6s  %8s  %8s  %8s  %8s  %11s\n", "worker", "pid", "start ms", "RSS MiB", "PSS MiB", "private MiB");
  int number = 0;
  for (const feedlane_worker_stats& worker : loader.worker_stats()) {
    if (worker.state == FEEDLANE_WORKER_READY) {
      char start[32] = "-";
      // The steady clock of libstdc++ is CLOCK_MONOTONIC, as the loader's.
      const std::chrono::steady_clock::time_point ready{std::chrono::nanoseconds(worker.state_since_ns)};
      if (worker.generation == 0) std::snprintf(start, sizeof start, "%.1f", Milliseconds(ready - began).count());
      const Memory memory = memory_of(worker.pid);
      std::printf("%6d  %8lld  %8s  %8.1f  %8.1f  %11.1f\n", number, static_cast<long long>(worker.pid), start,
                  memory.resident, memory.proportional, memory.own);
    }
    number++;
  }
}
