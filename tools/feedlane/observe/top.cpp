// SPDX-License-Identifier: Apache-2.0
// `feedlane top`: one line per interval and loader, with the bottleneck, and one per arena.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "arenas.hpp"
#include "commands.hpp"
#include "terminal.hpp"
#include "watch.hpp"

namespace observe {
namespace {

struct Options {
  std::int64_t pid = 0;
  double seconds = 1;
  std::uint64_t count = 0;  // intervals; 0: no limit
  bool workers = false;
  bool json = false;
  bool no_wait = false;
};

constexpr int lines_to_header = 20;

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[16] = "";
  if (::localtime_r(&now, &local) != nullptr) (void)std::strftime(text, sizeof text, "%H:%M:%S", &local);
  return text;
}

std::string percent(double part) { return part < 0 ? "-" : fmt::format("{:.1f}", part * 100); }

Colour colour_of(std::int32_t bound) {
  switch (bound) {
    case FEEDLANE_BOUND_TRAINER: return Colour::green;
    case FEEDLANE_BOUND_DATA: return Colour::yellow;
    case FEEDLANE_BOUND_WORKER: return Colour::red;
    case FEEDLANE_BOUND_SLOTS: return Colour::magenta;
    case FEEDLANE_BOUND_STARTING: return Colour::cyan;
    case FEEDLANE_BOUND_PROCESSORS: return Colour::magenta;
    default: return Colour::none;
  }
}

Colour colour_of_state(std::int32_t state) {
  switch (state) {
    case FEEDLANE_WORKER_READY: return Colour::none;
    case FEEDLANE_WORKER_STARTING:
    case FEEDLANE_WORKER_OPENING: return Colour::cyan;
    default: return Colour::red;
  }
}

class Top {
 public:
  explicit Top(const Options& options)
      : options_(options), watch_(options.pid), arenas_(options.pid), with_workers_(options.workers) {}

  int run();

 private:
  // Whether to continue. Sets the status if not.
  bool find(int& status);
  // false: a key or a signal ends this.
  bool sleep();
  void print();
  void print_loader(const Watched& w);
  void print_arena(const Arena& arena);
  void print_worker(const Watched& w, std::size_t id);
  void header();
  // Cut at the terminal's edge, so that an interval stays one line.
  using Piece = std::pair<std::string, Colour>;
  void line(const std::vector<Piece>& pieces);

  const Options options_;
  Watch watch_;
  ArenaWatch arenas_;
  Keys keys_;
  bool with_workers_;
  bool with_names_ = false;
  bool has_said_waiting_ = false;
  int lines_ = lines_to_header;
  std::uint64_t next_ns_ = 0;
};

bool Top::find(int& status) {
  watch_.find();
  arenas_.find();
  if (!watch_.all().empty() || !arenas_.all().empty()) {
    has_said_waiting_ = false;
    return true;
  }
  const bool is_gone = options_.pid != 0 && watch_.error().code() != 0;
  if (is_gone && !watch_.has_seen_one()) say("{}", watch_.error().what());
  if (is_gone || options_.no_wait || (options_.pid != 0 && watch_.has_seen_one())) {
    const bool was_said = is_gone || watch_.has_seen_one();
    if (!was_said && options_.pid == 0 && !watch_.has_told()) say("none of your processes has a loader or arena");
    if (!was_said && options_.pid != 0) say("process {} has no loader or arena", options_.pid);
    status = watch_.has_seen_one() ? 0 : 1;
    return false;
  }
  if (!std::exchange(has_said_waiting_, true)) {
    if (options_.pid == 0) say("waiting for a loader or arena: none of your processes has one that can be read");
    else say("waiting for a loader or arena of process {}", options_.pid);
  }
  return true;
}

bool Top::sleep() {
  const auto interval = static_cast<std::uint64_t>(options_.seconds * 1e9);
  const std::uint64_t now = now_ns();
  next_ns_ = next_ns_ + interval < now ? now + interval : next_ns_ + interval;
  for (;;) {
    const std::optional<char> key = keys_.wait(next_ns_);
    if (!key) return true;
    if (*key == 'q') return false;
    if (*key != 'w' || options_.json) continue;
    with_workers_ = !with_workers_;
    lines_ = lines_to_header;
  }
}

int Top::run() {
  int status = 0;
  next_ns_ = now_ns();
  for (std::uint64_t shown = 0; find(status);) {
    const bool is_waiting = watch_.all().empty() && arenas_.all().empty();
    if (!sleep()) return 0;
    if (is_waiting) continue;
    watch_.measure();
    arenas_.measure();
    print();
    if (++shown == options_.count) return 0;
  }
  return status;
}

void Top::print() {
  if (options_.json) {
    for (const Watched& w : watch_.all()) fmt::print("{}\n", json_text(watched_json(w, with_workers_)));
    for (const Arena& arena : arenas_.all()) fmt::print("{}\n", json_text(to_json(arena, arenas_.seconds())));
  } else {
    const bool names = watch_.all().size() > 1 || options_.pid == 0;
    if (!watch_.all().empty() && (lines_ >= lines_to_header || names != with_names_)) {
      with_names_ = names;
      header();
    }
    for (const Watched& w : watch_.all()) print_loader(w);
    for (const Arena& arena : arenas_.all()) print_arena(arena);
  }
  (void)std::fflush(stdout);
}

void Top::line(const std::vector<Piece>& pieces) {
  const std::size_t width = terminal_width();
  std::size_t used = 0;
  for (const auto& [text, colour] : pieces) {
    if (width != 0 && used >= width) break;
    fmt::print("{}", coloured(cut(text, width == 0 ? 0 : width - used), colour));
    used += text.size();
  }
  fmt::print("\n");
  lines_++;
}

void Top::header() {
  const std::string name = with_names_ ? fmt::format(" {:>8}  {:<16}", "pid", "name") : "";
  line({{fmt::format("{:<8}{}  {:<10} {:>5} {:>13} {:>8} {:>9} {:>7} {:>6} {:>7} {:>6} {:>13}  {}", "time", name,
                     "bound by", "epoch", "batch", "batch/s", "sample/s", "MB/s", "wait %", "ready %", "busy %",
                     "held/free/all", "why"),
         Colour::bold}});
  if (with_workers_)
    line({{fmt::format("{:>10} {:>4} {:>8} {:>9} {:>6} {:>9} {:>9} {:>9} {:>10} {:>8} {:>9}", "worker", "id", "pid",
                       "state", "busy %", "batch/s", "work p50", "work p99", "in hand", "errors", "restarts"),
           Colour::bold}});
  lines_ = 0;
}

// "data", "worker 3".
std::string bound_text(const feedlane_diagnosis& d) {
  const std::string name = bound_name(d.bound);
  return d.bound == FEEDLANE_BOUND_WORKER ? fmt::format("{} {}", name, d.worker) : name;
}

void Top::print_loader(const Watched& w) {
  const feedlane_loader_info& info = w.after.info;
  const feedlane_stats& stats = w.after.stats;
  const Rates rate = rates(w.before, w.after);
  const std::string pid = std::to_string(w.found.pid) + (w.found.nth == 0 ? "" : fmt::format("/{}", w.found.nth));
  const std::string name = with_names_ ? fmt::format(" {:>8}  {:<16}", pid, cut(printable(info.name), 16)) : "";
  const std::string numbers =
      fmt::format(" {:>5} {:>13} {:>8.1f} {:>9.0f} {:>7.1f} {:>6} {:>7} {:>6} {:>13}  ",
                  info.epoch < 0 ? "-" : std::to_string(info.epoch), progress(info), rate.batches, rate.samples,
                  rate.bytes * 1e-6, percent(w.exposed()), percent(w.readiness()), percent(w.busy()),
                  fmt::format("{}/{}/{}", stats.slots_held, stats.slots_free, stats.slots));
  line({{time_of_day() + name + "  ", Colour::none},
        {fmt::format("{:<10}", bound_text(w.diagnosis)), colour_of(w.diagnosis.bound)},
        {numbers + printable(w.diagnosis.text), Colour::none}});
  if (!with_workers_) return;
  for (std::size_t id = 0; id < w.after.workers.size(); id++) print_worker(w, id);
}

void Top::print_arena(const Arena& arena) {
  const feedlane_arena_stats& s = arena.after.stats;
  const ArenaRates rate = rates(arena, arenas_.seconds());
  std::string holders;  // the processes that hold most
  for (const feedlane_arena_member& m : arena.after.members)
    if (m.held != 0) holders += fmt::format("{}{} by {}", holders.empty() ? ": " : ", ", m.held, m.pid);
  line({{fmt::format("{}  arena {} of {}: {} of {}, {} entries, {:.1f} get/s, hit % {}, {:.1f} put/s, {:.1f} evicted/s",
                     time_of_day(), arena.nth, arena.pid, bytes_text(static_cast<double>(s.used_bytes)),
                     bytes_text(static_cast<double>(s.bytes)), s.entries, rate.gets, percent(rate.hit_share),
                     rate.published, rate.evicted),
         Colour::none},
        {fmt::format(", {} waiting", s.waiting), s.waiting != 0 ? Colour::yellow : Colour::none},
        {fmt::format(", {} held{}", s.leased, holders), Colour::none}});
}

void Top::print_worker(const Watched& w, std::size_t id) {
  const feedlane_worker_stats& s = w.after.workers[id];
  const feedlane_timings timings = w.found.monitor.timings(static_cast<std::int32_t>(id));
  const bool has_task = s.task_since_ns != 0;
  const auto seconds = [](std::uint64_t ns) {
    return ns == 0 ? std::string("-") : duration(static_cast<double>(ns) * 1e-9);
  };
  const std::uint64_t in_hand = has_task ? w.after.time_ns - std::min(w.after.time_ns, s.task_since_ns) : 0;
  const std::string state = fmt::format("{:>9}", state_name(s.state));
  const std::string left = fmt::format("{:>10} {:>4} {:>8} ", "", id, s.pid);
  const std::string right = fmt::format(
      " {:>6} {:>9.1f} {:>9} {:>9} {:>10} {:>8} {:>9}", percent(w.worker_busy(id)), tasks_per_s(w.before, w.after, id),
      seconds(timings.work_percentiles.p50_ns), seconds(timings.work_percentiles.p99_ns),
      has_task ? duration(static_cast<double>(in_hand) * 1e-9) : "-", s.errors, s.generation);
  line({{left, Colour::none}, {state, colour_of_state(s.state)}, {right, Colour::none}});
}

}  // namespace

void add_top(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "top", "Show each loader's rates and bottleneck, and each arena's rates, refreshed every second");
  add_pid(*command, options->pid,
          "Show only this process's loaders (default: those of all your processes; root: all users')");
  command->add_option("--seconds", options->seconds, "Spend this many seconds on each line of output (default: 1)")
      ->type_name("S")
      ->check(seconds_between(0.01, 3600));
  command
      ->add_option("--count", options->count,
                   "Print this many lines per loader and arena and exit; 1 is a single shot (default: no limit)")
      ->type_name("N");
  command->add_flag("--workers", options->workers, "Add a row for each worker; on a terminal, key w toggles this");
  command->add_flag("--no-wait", options->no_wait, "Exit if there is no loader or arena (default: wait for one)");
  command->add_flag("--json", options->json, "Print one JSON value per line instead of text");
  command->callback([options, &exit_status] { exit_status = Top(*options).run(); });
  command->footer(
      "Keys on a terminal: w shows or hides workers, q quits.\n"
      "wait %: the share of the time that the trainer waited for a batch. ready %: the share of batches that were "
      "ready "
      "when\nit asked. busy %: the share of the workers' time with a batch in hand. held/free/all: slots. work p50, "
      "p99:\npercentiles of the time that a batch took, over the loader's life.");
}

}  // namespace observe
