// SPDX-License-Identifier: Apache-2.0
// The feeder of a shared loader is killed at instructions of all by which it delivers: begin, a round in the middle of an
// epoch, the last round with the epoch's end. What is in the delivery rings at that instruction is what the two consumers get,
// in order, whole, and E_PEER_DEAD after it, whether they take it meanwhile or only afterwards. The workers end.
//   feeder_kills_stress   each operation, at every action; with FEEDLANE_STRESS=full at instructions too, see Plan
//   feeder_kills_stress actions SHARE OP          one operation, at every action
//   feeder_kills_stress every SHARE OP [STRIDE]   one operation, at every STRIDE-th instruction; SHARE is 1 (every) or 2 (deal)
// promise: feeder-any-instruction
#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "nursery.hpp"
#include "sharing.hpp"
#include "shm/share_layout.hpp"
#include "support/slowness.hpp"

namespace {

using sharing::compare;
namespace shm = feedlane::shm;

enum class Op : std::uint8_t { none, begin, round, last };
constexpr std::array<const char*, 4> names{"none", "begin", "round", "last"};
constexpr std::uint64_t word_of_start = 0xff;
constexpr std::int64_t rounds = 4;  // in an epoch
constexpr std::int32_t places = 2;

sharing::Terms terms_of(std::int32_t share, const std::string& path) {
  sharing::Terms t;
  t.share = share;
  t.batches = rounds * t.stride();
  t.path = path;
  t.held = 24;  // two epochs may wait for their consumers
  return t;
}

// ---- the worker ----

// Of epoch 1, so that a call of the feeder's delivers one round and no more: the batches of a range come late.
constexpr const char* slow_variable = "FEEDLANE_KILLS_SLOW";
struct Slow {
  long from = 0, to = 0, ms = 0;
} slow;

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  const feedlane_task& t = *row->task;
  if (row->row == 0 && t.epoch == 1 && t.batch >= slow.from && t.batch < slow.to)
    chaos::nap(slow.ms * INT64_C(1'000'000));
  return chaos::get(self, row, err);
}

int work(std::int32_t fd) {
  const char* text = std::getenv(slow_variable);
  if (text == nullptr || std::sscanf(text, "%ld %ld %ld", &slow.from, &slow.to, &slow.ms) != 3) return 1;
  feedlane_dataset d = chaos::dataset();
  d.get = get;
  return feedlane_worker_run(fd, nullptr, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
}

// ---- the feeder ----

void say(Op op) { stress::announce(static_cast<std::uint64_t>(op)); }

// Rounds of which the first consumer has its batch.
std::int64_t delivered(feedlane_loader* feeder) {
  feedlane_consumer_stats s;
  feedlane_init(&s, sizeof s);
  compare("get_consumer", feedlane_loader_get_consumer(feeder, 0, &s), FEEDLANE_OK);
  return static_cast<std::int64_t>(s.delivered);
}

int feed(const sharing::Terms& terms) {
  const std::int64_t last = terms.batches - terms.stride();
  feedlane_loader* feeder = sharing::create_feeder(terms);
  stress::announce(word_of_start);
  while (sharing::attached(feeder) != places) sharing::await_something(feeder);
  feedlane_error e = sharing::make_error();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    if (epoch == 1) say(Op::begin);
    if (feedlane_loader_begin(feeder, epoch, &e) != FEEDLANE_OK) chaos::die("begin", e);
    say(Op::none);
    std::int32_t s = FEEDLANE_TIMEOUT;
    while (s != FEEDLANE_END) {
      while (feedlane_loader_arm(feeder, nullptr) == FEEDLANE_OK) sharing::await_something(feeder);
      const std::int64_t round = delivered(feeder) - epoch * rounds;
      if (epoch == 1) say(round == 0 ? Op::round : round == last / terms.stride() ? Op::last : Op::none);
      s = feedlane_loader_serve(feeder, 0, &e);
      if (s < 0) chaos::die("serve", e);
      say(Op::none);
    }
  }
  say(Op::none);
  return 0;
}

// ---- a consumer ----

struct Report {
  std::int32_t place = -1;
  std::int32_t has_ended = 0;  // 0: it has joined
  std::uint64_t batches = 0, ends = 0;
};

int consume(const sharing::Terms& terms, std::int32_t place, int reports, int gate) {
  sharing::end_with_parent();
  feedlane_loader* l = sharing::join(terms, place);
  Report r{place};
  if (::write(reports, &r, sizeof r) != sizeof r) stress::die("write", 0, sizeof r);
  char byte = 0;
  if (gate >= 0 && ::read(gate, &byte, 1) != 0) stress::die("read", 1, 0);
  feedlane_error e = sharing::make_error();
  // The feeder is dead: it learns of that before it has taken anything.
  for (int i = 0; gate >= 0 && i < 4; i++) (void)feedlane_loader_poll(l, &e);
  sharing::Order order(terms, place, 0);
  sharing::Hold hold(l, 1);
  compare("the last status", sharing::take_all(l, order, hold, e), FEEDLANE_E_PEER_DEAD);
  compare("destroy", feedlane_loader_destroy(&l), FEEDLANE_OK);
  r = {place, 1, order.count(), order.ends()};
  if (::write(reports, &r, sizeof r) != sizeof r) stress::die("write", 0, sizeof r);
  return 0;
}

// ---- who leads them ----

// What is in the feeder's delivery rings, from outside: of each consumer. No ring is full.
struct Messages {
  std::uint64_t batches = 0, ends = 0, all = 0;
  auto operator<=>(const Messages&) const = default;
};
using Delivered = std::vector<Messages>;

Delivered look_into_rings(pid_t feeder) {
  std::ifstream maps("/proc/" + std::to_string(feeder) + "/maps");
  Delivered found;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("feedlane-delivery") == std::string::npos) continue;
    const std::uint64_t from = std::stoull(line, nullptr, 16);
    std::vector<std::byte> bytes(std::stoull(line.substr(line.find('-') + 1), nullptr, 16) - from);
    const iovec here{bytes.data(), bytes.size()}, there{reinterpret_cast<void*>(from), bytes.size()};
    if (::process_vm_readv(feeder, &here, 1, &there, 1, 0) != static_cast<ssize_t>(bytes.size()))
      stress::die("process_vm_readv", static_cast<std::uint64_t>(errno), 0);
    shm::ShareGeometry geometry{};
    std::memcpy(&geometry, bytes.data() + sizeof(shm::SegmentHeader), sizeof geometry);
    shm::SharePlan plan;
    feedlane::Error error;
    if (shm::make_share_plan(geometry, plan, error) != FEEDLANE_OK) stress::die(error.text, 0, 1);
    Messages& messages = found.emplace_back();
    for (std::uint64_t cell = 0; cell < geometry.capacity; cell++) {
      const std::byte* at = bytes.data() + plan.cells + cell * shm::delivery_cell_bytes;
      std::uint64_t sequence = 0;
      std::memcpy(&sequence, at, sizeof sequence);
      if (sequence != cell + 1) break;  // a prefix is committed
      shm::DeliveryMessage m;
      std::memcpy(&m, at + sizeof sequence, sizeof m);
      messages.batches += m.kind == static_cast<std::uint32_t>(shm::DeliveryKind::batch) ? 1 : 0;
      messages.all++;
      messages.ends += m.kind == static_cast<std::uint32_t>(shm::DeliveryKind::end) ? 1 : 0;
    }
  }
  std::sort(found.begin(), found.end());  // share every: which ring is whose is of no matter, both get the same
  return found;
}

class Leader {
 public:
  explicit Leader(const sharing::Terms& terms) : terms_(terms) {
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) stress::die("prctl", static_cast<std::uint64_t>(errno), 0);
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) stress::die("pipe", 0, 1);
    reports_ = fds[0];
    reports_in_ = fds[1];
  }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;
  ~Leader() {
    (void)::close(reports_);
    (void)::close(reports_in_);
  }

  // Kills a feeder in this operation after so many instructions. False: the operation came to its end before.
  bool kill(Op op, stress::Unit unit, std::uint64_t steps) {
    (void)::alarm(60 * static_cast<unsigned>(feedlane::test::slowness()));
    set_pace(op);
    int gate[2];
    if (::pipe(gate) != 0 || ::fcntl(gate[1], F_SETFD, FD_CLOEXEC) != 0) stress::die("pipe", 0, 1);
    const bool is_late = random_(2) == 0;  // whether they take nothing before the feeder is dead
    stress::Led feeder({"feeder_kills_stress", "feeder", std::to_string(terms_.share), terms_.path, ""}, STDERR_FILENO);
    compare("the feeder's first word", static_cast<std::int64_t>(feeder.run().value_or(0)), word_of_start);
    std::vector<pid_t> consumers;
    for (std::int32_t place = 0; place < places; place++)
      consumers.push_back(stress::start_again(
          {"feeder_kills_stress", "consumer", std::to_string(terms_.share), terms_.path, std::to_string(place),
           std::to_string(reports_in_), std::to_string(is_late ? gate[0] : -1)},
          reports_in_, &processor_.all(), false));
    (void)::close(gate[0]);
    stress::Led::Walk walk;
    Delivered before, after;
    do {  // a call that delivers nothing, as there is no result, isn't the one
      lead_to(feeder, op);
      before = look_into_rings(feeder.pid());
      walk = feeder.walk(unit, steps);
      after = look_into_rings(feeder.pid());
    } while (walk.word && op != Op::begin && before == after);
    feeder.kill();
    const std::int64_t killed_ns = chaos::now_ns();
    (void)::close(gate[1]);
    judge(after, op, walk.steps);
    await_ends(consumers);
    Tally& t = tallies_[op];
    t.kills++;
    t.whole += walk.word ? 1 : 0;
    t.length.take(unit, walk);
    t.longest_end_ns = std::max(t.longest_end_ns, chaos::now_ns() - killed_ns);
    std::string outcome;
    for (std::size_t i = 0; i < after.size(); i++) outcome += " " + std::to_string(after[i].all - before[i].all);
    t.outcomes[outcome]++;
    return !walk.word.has_value();
  }
  void carry_out(const stress::Plan& plan, Op op) {
    plan.carry_out(names[static_cast<std::size_t>(op)], op == Op::begin ? 4 : 12, random_, tallies_[op].length,
                   [&](stress::Unit unit, std::uint64_t steps) { return kill(op, unit, steps); });
  }

  void print() const {
    for (const auto& [op, t] : tallies_) {
      std::printf("share %s: %-5s %5llu kills, %llu whole; %s; all over within %.0f ms; messages:",
                  terms_.deals() ? "deal" : "every", names[static_cast<std::size_t>(op)],
                  static_cast<unsigned long long>(t.kills), static_cast<unsigned long long>(t.whole),
                  t.length.text().c_str(), static_cast<double>(t.longest_end_ns) / 1e6);
      for (const auto& [o, n] : t.outcomes)
        std::printf(" (%s: %llu)", o.c_str() + 1, static_cast<unsigned long long>(n));
      std::printf("\n");
    }
  }

 private:
  struct Tally {
    std::uint64_t kills = 0, whole = 0;
    stress::Length length;
    std::int64_t longest_end_ns = 0;
    std::map<std::string, std::uint64_t> outcomes;  // messages for each consumer, in the operation
  };

  void set_pace(Op op) const {
    const std::int64_t from = op == Op::last ? terms_.batches - terms_.stride() : terms_.stride();
    const std::string pace =
        std::to_string(from) + " " + std::to_string(terms_.batches) + (op == Op::last ? " 20" : " 1000");
    (void)::setenv(slow_variable, pace.c_str(), 1);
  }
  static void lead_to(stress::Led& feeder, Op op) {
    for (;;) {
      const auto word = feeder.run();
      if (!word) stress::die("a feeder ended by itself: its wait status", feeder.end_status(), SIGKILL);
      if (*word == static_cast<std::uint64_t>(op)) return;
    }
  }
  // Each consumer got what was delivered, no more, no less.
  void judge(const Delivered& delivered, Op op, std::uint64_t steps) const {
    Delivered got;
    for (std::size_t ended = 0; ended < places;) {
      Report r;
      if (::read(reports_, &r, sizeof r) != sizeof r) stress::die("read", 0, sizeof r);
      if (r.has_ended == 0) continue;
      ended++;
      got.push_back({r.batches, r.ends});
    }
    std::sort(got.begin(), got.end());
    const std::string where = std::string(names[static_cast<std::size_t>(op)]) + " after " + std::to_string(steps) +
                              " instructions or actions: ";
    compare((where + "consumers").c_str(), static_cast<std::int64_t>(delivered.size()), places);
    for (std::size_t i = 0; i < places; i++) {
      compare((where + "batches of a consumer").c_str(), static_cast<std::int64_t>(got[i].batches),
              static_cast<std::int64_t>(delivered[i].batches));
      compare((where + "ends of a consumer").c_str(), static_cast<std::int64_t>(got[i].ends),
              static_cast<std::int64_t>(delivered[i].ends));
    }
  }
  // This process gets the orphans: the workers too have ended when there is no child.
  static void await_ends(const std::vector<pid_t>& consumers) {
    for (int status = -1;;) {
      const pid_t pid = ::waitpid(-1, &status, 0);
      if (pid < 0 && errno == EINTR) continue;
      if (pid < 0) return;
      if (std::find(consumers.begin(), consumers.end(), pid) != consumers.end()) compare("a consumer's end", status, 0);
    }
  }

  const sharing::Terms& terms_;
  stress::OneProcessor processor_;
  stress::Random random_{0xfeed};
  int reports_ = -1, reports_in_ = -1;
  std::map<Op, Tally> tallies_;
};

int run_child(const std::vector<std::string>& a) {
  const sharing::Terms terms = terms_of(std::atoi(a[2].c_str()), a[3]);
  if (a[1] == "feeder") return feed(terms);
  return consume(terms, std::atoi(a[4].c_str()), std::atoi(a[5].c_str()), std::atoi(a[6].c_str()));
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return work(fd);
  const std::vector<std::string> arguments(argv, argv + argc);
  const bool is_one = argc >= 4 && (arguments[1] == "every" || arguments[1] == "actions");
  if (argc > 4 && !is_one) return run_child(arguments);
  (void)::setenv("LD_BIND_NOW", "1", 1);  // else much of what is walked through is the dynamic linker
  const stress::Plan plan = stress::Plan::of(arguments, 3);
  char folder[] = "/tmp/feedlane-kills.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  for (const std::int32_t share : {FEEDLANE_SHARE_DEAL, FEEDLANE_SHARE_EVERY}) {
    if (is_one && share != std::atoi(argv[2])) continue;
    const sharing::Terms terms = terms_of(share, std::string(folder) + "/feeder");
    Leader leader(terms);
    for (std::size_t op = 1; op < names.size(); op++) leader.carry_out(plan, static_cast<Op>(op));
    leader.print();
  }
  (void)::alarm(0);
  (void)::unlink((std::string(folder) + "/feeder").c_str());
  (void)::rmdir(folder);
  return 0;
}
