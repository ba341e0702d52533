// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <fmt/core.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>

namespace bench {

void fail(const std::string& what) {
  fmt::print(stderr, "feedlane: {}\n", what);
  std::_Exit(1);
}

void check(const char* what, std::int32_t status, const feedlane_error& error) {
  if (status == FEEDLANE_OK) return;
  fail(fmt::format("{}: {}: {}", what, feedlane_status_name(status), error.text));
}

std::int64_t now_ns() {
  timespec time{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// ---- processors ----

const std::vector<int>& processors() {
  static const std::vector<int> all = [] {
    cpu_set_t set;
    std::vector<int> found;
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
      for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
    return found.empty() ? std::vector<int>{0} : found;
  }();
  return all;
}

namespace {

void allow(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity was refused");
}

}  // namespace

void pin(std::size_t n) { allow({processors()[n % processors().size()]}); }
void unpin() { allow(processors()); }

Child::Child(std::size_t n, const std::function<void()>& body) : pid_(::fork()) {
  if (pid_ < 0) fail("fork was refused");
  if (pid_ != 0) return;
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(n);
  body();
  std::_Exit(0);
}

Child::~Child() {
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_ || status != 0) fail(fmt::format("a process ended with status {}", status));
}

void* shared_memory(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(fmt::format("no memory for {} bytes", bytes));
  return memory;
}

// ---- rounds ----

double Figure::median() const {
  if (values_.empty()) return 0;
  std::vector<double> v = values_;
  std::sort(v.begin(), v.end());
  const std::size_t half = v.size() / 2;
  return v.size() % 2 == 1 ? v[half] : (v[half - 1] + v[half]) / 2;
}
double Figure::min() const { return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }
double Figure::max() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }

void run_rounds(std::vector<Entry>& entries, const Options& options) {
  for (int round = -1; round < options.rounds; round++) {
    for (Entry& e : entries) {
      const double value = e.measure();
      if (round >= 0) e.figure.add(value);
    }
  }
}

// ---- reports ----

namespace {

std::string processor_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") || line.starts_with("CPU part")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

Json machine() {
  utsname system{};
  (void)::uname(&system);
  std::ifstream thp("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string huge;
  std::getline(thp, huge);
  return {{"processor", processor_model()},
          {"processors", processors().size()},
          {"kernel", std::string(system.sysname) + " " + system.release},
          {"shmem_huge_pages", huge},
          {"compiler", __VERSION__}};
}

void print_machine() {
  const Json m = machine();
  fmt::print("{} x {}, {}, huge pages of shared memory: {}; pinned, medians [min .. max]\n\n",
             m["processors"].get<std::size_t>(), m["processor"].get<std::string>(), m["kernel"].get<std::string>(),
             m["shmem_huge_pages"].get<std::string>());
}

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

std::string cell(const Figure& f) {
  return f.empty() ? "-" : fmt::format("{:.4g} [{:.4g} .. {:.4g}]", f.median(), f.min(), f.max());
}

Json spread(const Figure& f) {
  return {{"median", rounded(f.median())}, {"min", rounded(f.min())}, {"max", rounded(f.max())}};
}

}  // namespace bench
