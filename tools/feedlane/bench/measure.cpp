// SPDX-License-Identifier: Apache-2.0
// Processors, clocks, rounds of measurements, and the report of the machine.
#include "measure.hpp"

#include <fmt/core.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>

namespace bench {

void fail(const std::string& what) {
  fmt::print(stderr, "{}: {}\n", program_invocation_short_name, what);
  std::_Exit(1);
}

void fail_call(const char* what, std::int32_t status, const feedlane_error& error) {
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

bool placed = true;

void allow(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) fail("cannot pin a process: sched_setaffinity failed");
}

}  // namespace

void pin(std::size_t n) {
  if (placed) allow({processors()[n % processors().size()]});
}
void unpin() {
  if (placed) allow(processors());
}
void leave_placement_alone() { placed = false; }
bool placement_is_ours() { return placed; }

std::int64_t cpu_ns() {
  timespec time{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void wait_until_asleep(pid_t pid) {
  const std::int64_t latest = now_ns() + 10'000'000'000;
  for (int asleep = 0; asleep < 2;) {
    if (now_ns() > latest) fail(fmt::format("process {} did not sleep within 10 s", pid));
    (void)::usleep(1000);
    std::ifstream stat(fmt::format("/proc/{}/stat", pid));
    std::string line;
    std::getline(stat, line);
    const std::size_t name = line.rfind(')');
    if (name == std::string::npos || name + 2 >= line.size()) fail(fmt::format("process {} ended too early", pid));
    asleep = line[name + 2] == 'S' ? asleep + 1 : 0;
  }
}

Child::Child(std::size_t n, const std::function<void()>& body) : pid_(::fork()) {
  if (pid_ < 0) fail("cannot start a process: fork failed");
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

void Gate::pass(std::uint64_t everybody) {
  came_->fetch_add(1, std::memory_order_relaxed);  // counts, and orders nothing
  const std::int64_t latest = now_ns() + 60'000'000'000;
  while (came_->load(std::memory_order_relaxed) < everybody) {
    if (now_ns() > latest) fail("another process did not start within 60 s");
    (void)::usleep(20);
  }
}

void* shared_memory(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(fmt::format("cannot allocate {} bytes", bytes));
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
namespace {

Figure each(const Figure& ours, const Figure& theirs, double (*combine)(double, double)) {
  Figure out;
  const std::size_t rounds = std::min(ours.rounds().size(), theirs.rounds().size());
  for (std::size_t i = 0; i < rounds; i++) out.add(combine(ours.rounds()[i], theirs.rounds()[i]));
  return out;
}

}  // namespace

Figure Figure::over(const Figure& other) const {
  return each(*this, other, [](double a, double b) { return a / b; });
}
Figure Figure::minus(const Figure& other) const {
  return each(*this, other, [](double a, double b) { return a - b; });
}
Figure Figure::best_with(const Figure& other) const {
  return each(*this, other, [](double a, double b) { return std::max(a, b); });
}
double Figure::min() const { return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }
double Figure::max() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }

void alternate(std::size_t count, const Options& options, const std::function<void(std::size_t, bool)>& measure) {
  for (int round = -1; round < options.rounds; round++)
    for (std::size_t i = 0; i < count; i++) measure(round % 2 == 0 ? i : count - 1 - i, round >= 0);
}

void run_rounds(std::vector<Entry>& entries, const Options& options) {
  alternate(entries.size(), options, [&](std::size_t i, bool counts) {
    const Measured measured = entries[i].measure();
    if (!counts) return;
    entries[i].figure.add(measured.value);
    if (measured.cpu_ns > 0) entries[i].cpu_ns.add(measured.cpu_ns);
  });
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
  if (f.empty()) return nullptr;
  Json rounds = Json::array();
  for (const double value : f.rounds()) rounds.push_back(rounded(value));
  return {{"median", rounded(f.median())}, {"min", rounded(f.min())}, {"max", rounded(f.max())}, {"rounds", rounds}};
}

}  // namespace bench
