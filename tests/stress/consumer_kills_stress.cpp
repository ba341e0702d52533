// SPDX-License-Identifier: Apache-2.0
// Consumers of a shared loader are killed at instructions of all that they do with it: join, begin, next (the first of an
// epoch, one of a batch, the one of the end), release, leave. The feeder goes on. The consumer beside them gets each batch
// once, in order, whole. Share deal: a replacement gets exactly what the killed one had not taken: whether it had is read
// from the words of its returns segment before the kill. In the end every slot is free, and the feeder has not grown.
//   consumer_kills_stress                  each operation, at every action; with FEEDLANE_STRESS=full at instructions too, see Plan
//   consumer_kills_stress actions SHARE OP          one operation, at every action; SHARE is 1 (every) or 2 (deal)
//   consumer_kills_stress every SHARE OP [STRIDE]   one operation, at every STRIDE-th instruction
// promise: consumer-any-instruction
#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "footprint.hpp"
#include "nursery.hpp"
#include "sharing.hpp"
#include "shm/share_layout.hpp"
#include "support/api.hpp"
#include "support/slowness.hpp"

namespace {

using sharing::compare;
namespace shm = feedlane::shm;

enum class Op : std::uint8_t { none, join, begin, first, next, end, release, leave };
constexpr std::array<const char*, 8> names{"none", "join", "begin", "first", "next", "end", "release", "leave"};
enum class Found : std::uint8_t { nothing, batch, end };

// What a consumer says before each operation, and, with Op::none, after it.
struct Word {
  Op op = Op::none;
  Found found = Found::nothing;
  std::int64_t epoch = 0, batch = 0;

  [[nodiscard]] std::uint64_t pack() const {
    return static_cast<std::uint64_t>(op) | static_cast<std::uint64_t>(found) << 8 |
           static_cast<std::uint64_t>(batch) << 16 | static_cast<std::uint64_t>(epoch) << 32;
  }
  static Word unpack(std::uint64_t w) {
    return {static_cast<Op>(w & 0xff), static_cast<Found>(w >> 8 & 0xff), static_cast<std::int64_t>(w >> 32),
            static_cast<std::int64_t>(w >> 16 & 0xffff)};
  }
};

sharing::Terms terms_of(std::int32_t share, const std::string& path) {
  sharing::Terms t;
  t.share = share;
  t.batches = 8 * t.stride();
  t.path = path;
  return t;
}
constexpr std::int32_t own_place = 1;  // of those that are killed; the consumer beside them has place 0

// ---- the consumer that is killed ----

void say(const Word& word) { stress::announce(word.pack()); }

template <class F>
void doing(Op op, F&& f) {
  say({op});
  f();
  say({});
}

// Leaves after so many batches.
int be_killed(const sharing::Terms& terms, std::int64_t leave) {
  feedlane_loader* l = nullptr;
  doing(Op::join, [&] { l = sharing::join(terms, own_place); });
  feedlane_error e = sharing::make_error();
  const sharing::Order order(terms, own_place);
  for (std::int64_t count = 0;;) {
    std::int64_t epoch = -1;
    compare("next_epoch", feedlane::test::next_epoch_of(l, &epoch), FEEDLANE_OK);
    doing(Op::begin, [&] {
      if (feedlane_loader_begin(l, epoch, &e) != FEEDLANE_OK) chaos::die("begin", e);
    });
    for (Op op = Op::first;;) {
      if (count++ == leave) {
        doing(Op::leave, [&] { (void)feedlane_loader_destroy(&l); });
        return 0;
      }
      while (feedlane_loader_arm(l, nullptr) == FEEDLANE_OK) sharing::await_something(l);  // else the walk is a wait
      feedlane_batch batch;
      feedlane_init(&batch, sizeof batch);
      say({op});
      const std::int32_t s = feedlane_loader_next(l, FEEDLANE_FOREVER, &batch, &e);
      if (s < 0) chaos::die("next", e);
      say({Op::none, s == FEEDLANE_END ? Found::end : Found::batch, epoch, batch.batch});
      if (s == FEEDLANE_END) break;
      chaos::check(batch, epoch);
      doing(Op::release, [&] { compare("release", feedlane_batch_release(l, batch.token), FEEDLANE_OK); });
      op = order.is_last(batch.batch) ? Op::end : Op::next;
    }
  }
}

// ---- the consumer beside it, and the last one ----

struct Report {
  std::uint64_t batches = 0;  // 0: it has joined
};
void send_report(int fd, const Report& r) {
  if (::write(fd, &r, sizeof r) != sizeof r) stress::die("write", 0, sizeof r);
}

int be_beside(const sharing::Terms& terms, std::int32_t place, int reports) {
  sharing::end_with_parent();
  feedlane_loader* l = sharing::join(terms, place);
  send_report(reports, {});
  sharing::Order order(terms, place);
  sharing::Hold hold(l, 1);
  sharing::take_until_stopped(l, order, hold);
  send_report(reports, {order.count()});
  return 0;
}

// ---- the feeder ----

int feed(const sharing::Terms& terms, int reports) {
  sharing::end_with_parent();
  sharing::Feeder feeder(terms);
  send_report(reports, {});
  while (sharing::attached(feeder.get()) == 0) sharing::await_something(feeder.get());
  stress::Footprint first, last;
  bool has_first = false;
  feeder.run([&] {
    last = stress::footprint();
    if (!has_first && feeder.ends() > 20) first = last, has_first = true;
  });
  feeder.finish();
  // A consumer's place: its socket, its events, its segments, its pidfd.
  if (has_first) stress::check_growth(first, last, {.resident_kib = 4096, .descriptors = 8, .mappings = 2});
  std::printf("feeder: %llu epochs, %llu consumers have ended; resident %llu -> %llu KiB\n",
              static_cast<unsigned long long>(feeder.epochs()), static_cast<unsigned long long>(feeder.ends()),
              static_cast<unsigned long long>(first.resident_kib), static_cast<unsigned long long>(last.resident_kib));
  return 0;
}

// ---- who leads them ----

// The words of a consumer's returns segment, from outside.
struct Returns {
  bool is_mapped = false;
  std::uint64_t taken = 0, position = 0, returns = 0;

  static Returns of(pid_t pid) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    std::uint64_t base = 0;
    for (std::string line; std::getline(maps, line);)
      if (line.find("feedlane-returns") != std::string::npos) base = std::stoull(line, nullptr, 16);
    if (base == 0) return {};
    shm::SharePlan plan;
    feedlane::Error error;
    (void)shm::make_share_plan({1, 1}, plan, error);  // where the row is doesn't depend on it
    Returns r{true};
    r.taken = read(pid, base + plan.row + offsetof(shm::ConsumerRow, taken));
    r.position = read(pid, base + plan.row + offsetof(shm::ConsumerRow, position));
    r.returns = read(pid, base + plan.row + offsetof(shm::ConsumerRow, returns));
    return r;
  }

 private:
  static std::uint64_t read(pid_t pid, std::uint64_t address) {
    std::uint64_t value = 0;
    const iovec here{&value, sizeof value}, there{reinterpret_cast<void*>(address), sizeof value};
    if (::process_vm_readv(pid, &here, 1, &there, 1, 0) != sizeof value)
      stress::die("process_vm_readv", static_cast<std::uint64_t>(errno), 0);
    return value;
  }
};

// What the place's consumers have had, one after another. Each epoch is a round of its begin, one of each batch of the place,
// one of its end; the first round is 1.
class Ledger {
 public:
  explicit Ledger(const sharing::Terms& terms) : terms_(terms) {}

  void next_consumer() { is_first_ = true; }
  void yielded(const Word& w) {
    if (w.found == Found::nothing) return;
    const std::uint64_t round = round_of(w);
    const std::uint64_t next = had_ + (is_begin(had_ + 1) ? 2 : 1);
    // Share every: between the death of one and the coming of the next, the others get batches of which it knows nothing.
    if (is_first_ && !terms_.deals() && round > next) had_ = round;
    else if (round != next)
      stress::die(("the round that a consumer gets, after a kill in " + last_).c_str(), round, next);
    had_ = round;
    is_first_ = false;
  }
  void killed(const Returns& r, Op op, std::uint64_t steps) {
    had_ = std::max(had_, r.taken);
    last_ = std::string(names[static_cast<std::size_t>(op)]) + " after " + std::to_string(steps) +
            " instructions or actions";
  }

 private:
  [[nodiscard]] std::uint64_t per_epoch() const { return static_cast<std::uint64_t>(terms_.batches_of_each()) + 2; }
  [[nodiscard]] bool is_begin(std::uint64_t round) const { return (round - 1) % per_epoch() == 0; }
  [[nodiscard]] std::uint64_t round_of(const Word& w) const {
    const std::uint64_t begin = static_cast<std::uint64_t>(w.epoch) * per_epoch() + 1;
    if (w.found == Found::end) return begin + per_epoch() - 1;
    return begin + 1 + static_cast<std::uint64_t>(w.batch / terms_.stride());
  }

  const sharing::Terms& terms_;
  std::uint64_t had_ = 0;  // the newest round that was taken
  bool is_first_ = true;
  std::string last_ = "none";  // where the last one was killed
};

class Leader {
 public:
  explicit Leader(const sharing::Terms& terms) : terms_(terms), ledger_(terms) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) stress::die("pipe", 0, 1);
    reports_ = fds[0];
    reports_in_ = fds[1];
    feeder_ = start({"feeder"});
    (void)await_report();
    others_.push_back(start({"beside", "0"}));
    (void)await_report();
  }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;
  ~Leader() {
    (void)::close(reports_);
    (void)::close(reports_in_);
  }

  // Kills a consumer in this operation after so many instructions. False: the operation came to its end before.
  bool kill(Op op, stress::Unit unit, std::uint64_t steps) {
    (void)::alarm(60 * static_cast<unsigned>(feedlane::test::slowness()));
    const bool is_once = op == Op::join || op == Op::leave;
    std::uint64_t nth = is_once ? 0 : random_(2);
    stress::Led led({"consumer_kills_stress", "killed", std::to_string(terms_.share), terms_.path,
                     op == Op::leave ? std::to_string(random_(4)) : "-1"},
                    STDERR_FILENO);
    ledger_.next_consumer();
    Word w;
    do {
      const auto word = led.run();
      if (!word) stress::die("a consumer ended by itself: its wait status", led.end_status(), SIGKILL);
      w = Word::unpack(*word);
      ledger_.yielded(w);
    } while (w.op != op || nth-- != 0);
    const Returns before = Returns::of(led.pid());
    const stress::Led::Walk walk = led.walk(unit, steps);
    const Returns after = Returns::of(led.pid());
    if (walk.word) ledger_.yielded(Word::unpack(*walk.word));
    led.kill();
    ledger_.killed(after, op, walk.steps);
    Tally& t = tallies_[op];
    t.kills++;
    t.length.take(unit, walk);
    t.whole += walk.word ? 1 : 0;
    if (after.is_mapped)
      t.outcomes[{true, after.taken != before.taken, after.position - before.position, after.returns - before.returns,
                  walk.word.has_value()}]++;
    else t.outcomes[{false, false, 0, 0, walk.word.has_value()}]++;
    return !walk.word.has_value();
  }
  void carry_out(const stress::Plan& plan, Op op) {
    plan.carry_out(names[static_cast<std::size_t>(op)], 16, random_, tallies_[op].length,
                   [&](stress::Unit unit, std::uint64_t steps) { return kill(op, unit, steps); });
  }

  // Everything comes to its end.
  void finish() {
    (void)::alarm(120 * static_cast<unsigned>(feedlane::test::slowness()));
    others_.push_back(start({"beside", std::to_string(own_place)}));
    (void)await_report();
    (void)::kill(feeder_, SIGTERM);
    const std::uint64_t batches = await_report().batches + await_report().batches;
    others_.push_back(feeder_);
    for (const pid_t pid : others_) {
      int status = -1;
      if (::waitpid(pid, &status, 0) != pid || status != 0)
        stress::die("the end of a process", static_cast<std::uint64_t>(status), 0);
    }
    (void)::alarm(0);
    print(batches);
  }

 private:
  struct Tally {
    std::uint64_t kills = 0, whole = 0;
    stress::Length length;
    // Whether the segment was mapped, whether `taken` was stored, messages given back, returns, whether it was whole.
    std::map<std::tuple<bool, bool, std::uint64_t, std::uint64_t, bool>, std::uint64_t> outcomes;
  };

  pid_t start(std::vector<std::string> what) {
    std::vector<std::string> arguments{"consumer_kills_stress",        what[0],
                                       std::to_string(terms_.share),   terms_.path,
                                       what.size() > 1 ? what[1] : "", std::to_string(reports_in_)};
    return stress::start_again(arguments, reports_in_, &processor_.all(), false);
  }
  Report await_report() const {
    Report r;
    if (::read(reports_, &r, sizeof r) != sizeof r) stress::die("read", 0, sizeof r);
    return r;
  }
  void print(std::uint64_t batches) const {
    std::printf("share %s: outcomes are (mapped, taken, messages, returns, whole: kills)\n",
                terms_.deals() ? "deal" : "every");
    for (const auto& [op, t] : tallies_) {
      std::printf("%-8s %5llu kills, %llu whole; %s:", names[static_cast<std::size_t>(op)],
                  static_cast<unsigned long long>(t.kills), static_cast<unsigned long long>(t.whole),
                  t.length.text().c_str());
      for (const auto& [o, n] : t.outcomes)
        std::printf(" (%d %d %llu %llu %d: %llu)", std::get<0>(o), std::get<1>(o),
                    static_cast<unsigned long long>(std::get<2>(o)), static_cast<unsigned long long>(std::get<3>(o)),
                    std::get<4>(o), static_cast<unsigned long long>(n));
      std::printf("\n");
    }
    std::printf("the others had %llu batches, each once, in order, whole\n", static_cast<unsigned long long>(batches));
  }

  const sharing::Terms& terms_;
  Ledger ledger_;
  stress::OneProcessor processor_;
  stress::Random random_{0xfeed};
  int reports_ = -1, reports_in_ = -1;
  pid_t feeder_ = -1;
  std::vector<pid_t> others_;
  std::map<Op, Tally> tallies_;
};

int run_child(const std::vector<std::string>& a) {
  const sharing::Terms terms = terms_of(std::atoi(a[2].c_str()), a[3]);
  if (a[1] == "killed") return be_killed(terms, std::atoll(a[4].c_str()));
  const int reports = std::atoi(a[5].c_str());
  if (a[1] == "feeder") return feed(terms, reports);
  return be_beside(terms, std::atoi(a[4].c_str()), reports);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return sharing::work(fd);
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
    leader.finish();
  }
  (void)::rmdir(folder);
  return 0;
}
