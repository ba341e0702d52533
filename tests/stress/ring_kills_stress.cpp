// SPDX-License-Identifier: Apache-2.0
// Ends of a standalone ring are killed at instructions of all that they do with it. A sender: attach, reserve, commit, send (in
// one part), parts (a send of more than a lane holds), leave. The receiver gets what was committed or sent, each message once,
// in order, whole, no commit in part and no send in part that is one part; then END, and the lane is free for the next sender. A receiver: create, admit (the calls of arm until a sender's
// first message), peek, release, receive, destroy. Its senders learn of the end, and the next receiver at the same path gets theirs. In the end nothing is left
// behind, and the process at the other end has not grown.
//   ring_kills_stress                       each operation, at every action; with FEEDLANE_STRESS=full at instructions too, see Plan
//   ring_kills_stress actions OP            one operation, at every action
//   ring_kills_stress every OP [STRIDE]     one operation, at every STRIDE-th instruction
// promise: sender-any-instruction
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "feedlane.h"
#include "footprint.hpp"
#include "nursery.hpp"
#include "support/slowness.hpp"

namespace {

enum class Op : std::uint8_t {
  none,
  attach,
  reserve,
  commit,
  send,
  parts,
  leave,
  create,
  admit,
  peek,
  release,
  receive,
  destroy
};
constexpr std::array<const char*, 13> names{"none",   "attach", "reserve", "commit",  "send",    "parts",  "leave",
                                            "create", "admit",  "peek",    "release", "receive", "destroy"};
bool is_of_sender(Op op) { return op < Op::create; }
// Done once in the life of an end.
bool is_once(Op op) { return op == Op::attach || op == Op::leave || op == Op::create || op == Op::destroy; }

// What an end says before each operation, and, with Op::none, after it.
struct Word {
  Op op = Op::none;
  std::uint64_t done = 0;     // messages committed
  std::uint64_t in_hand = 0;  // and reserved

  [[nodiscard]] std::uint64_t pack() const { return static_cast<std::uint64_t>(op) | in_hand << 8 | done << 16; }
  static Word unpack(std::uint64_t w) { return {static_cast<Op>(w & 0xff), w >> 16, w >> 8 & 0xff}; }
};
void say(const Word& word) { stress::announce(word.pack()); }

feedlane_error make_error() {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  return e;
}
void check(std::int32_t status, const feedlane_error& e) {
  if (status != FEEDLANE_OK) stress::die(status < 0 ? e.text : feedlane_status_name(status), 0, 0);
}

// ---- messages ----

// The n-th of a sender; `left`: how many follow of its commit, or of its send if that is one part.
struct Message {
  std::uint64_t n, left, check[5];
};
Message make_message(std::uint64_t n, std::uint64_t left) { return {n, left, {~n, n * 3, n * 5, n * 7, left * 11}}; }

feedlane_rx* create(const std::string& path) {
  feedlane_ring_config config;
  feedlane_init(&config, sizeof config);
  config.message_bytes = sizeof(Message);
  config.capacity = 4;
  config.lanes = 1;
  config.path = path.c_str();
  feedlane_rx* rx = nullptr;
  feedlane_error e = make_error();
  check(feedlane_rx_create(&config, &rx, &e), e);
  return rx;
}

void fill(const feedlane_span& span, std::uint64_t first) {
  for (std::uint32_t k = 0; k < span.count; k++) {
    const Message m = make_message(first + k, span.count - 1 - k);
    std::memcpy(static_cast<std::byte*>(span.data) + k * span.stride, &m, sizeof m);
  }
}

// What came of one sender.
class Inbox {
 public:
  void take(const feedlane_span& span) {
    for (std::uint32_t k = 0; k < span.count; k++) {
      Message m;
      std::memcpy(&m, static_cast<std::byte*>(span.data) + k * span.stride, sizeof m);
      take(m);
    }
  }
  void take(const Message& m) {
    const Message expected = make_message(m.n, m.left);
    if (std::memcmp(&m, &expected, sizeof m) != 0) stress::die("a message torn", m.check[0], ~m.n);
    if (m.n == 0 && left_ == 0) count_ = 0;  // of the next sender
    if (m.n != count_) stress::die("a message out of order", m.n, count_);
    count_++;
    left_ = m.left;
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // All that is to come of this sender has come. How many that was.
  std::uint64_t end() {
    if (left_ != 0) stress::die("a commit in part, messages left of it", left_, 0);
    return std::exchange(count_, 0);
  }

 private:
  std::uint64_t count_ = 0;
  std::uint64_t left_ = 0;
};

void await_readable(int fd, int other = -1) {
  pollfd entries[]{{fd, POLLIN, 0}, {other, POLLIN, 0}};
  if (::poll(entries, 2, -1) < 0 && errno != EINTR) stress::die("poll", static_cast<std::uint64_t>(errno), 0);
}

// ---- the ends that are killed ----

void commit_some(feedlane_tx* tx, std::uint64_t& done) {
  feedlane_error e = make_error();
  feedlane_span span;
  say({Op::reserve, done});
  check(feedlane_tx_reserve(tx, 3, FEEDLANE_FOREVER, &span, &e), e);
  say({Op::none, done, span.count});
  fill(span, done);
  say({Op::commit, done, span.count});
  check(feedlane_tx_commit(tx, span.count, &e), e);
  say({Op::none, done += span.count});
}
void send_messages(Op op, feedlane_tx* tx, std::uint64_t& done, std::span<const Message> messages) {
  feedlane_error e = make_error();
  std::uint32_t sent = 0;
  say({op, done, messages.size()});
  check(feedlane_tx_send(tx, messages.data(), static_cast<std::uint32_t>(messages.size()), FEEDLANE_FOREVER, &sent, &e),
        e);
  if (sent != messages.size()) stress::die("messages sent", sent, messages.size());
  say({Op::none, done += sent});
}
// As many as there is space for at once: one part.
void send_some(feedlane_tx* tx, std::uint64_t& done) {
  feedlane_error e = make_error();
  feedlane_span span;
  check(feedlane_tx_reserve(tx, 3, FEEDLANE_FOREVER, &span, &e), e);
  std::array<Message, 3> messages;
  for (std::uint64_t k = 0; k < span.count; k++) messages[k] = make_message(done + k, span.count - 1 - k);
  send_messages(Op::send, tx, done, std::span(messages).first(span.count));
}
void send_parts(feedlane_tx* tx, std::uint64_t& done) {
  std::array<Message, 6> messages;
  for (std::uint64_t k = 0; k < messages.size(); k++) messages[k] = make_message(done + k, 0);
  send_messages(Op::parts, tx, done, messages);
}

// Leaves after so many commits and sends.
int send(const std::string& path, std::uint64_t leave) {
  feedlane_error e = make_error();
  feedlane_tx* tx = nullptr;
  say({Op::attach});
  check(feedlane_tx_attach(-1, path.c_str(), FEEDLANE_FOREVER, &tx, nullptr, &e), e);
  std::uint64_t done = 0;
  say({});
  for (std::uint64_t turn = 0; turn < leave; turn++) {
    if (turn % 3 == 0) commit_some(tx, done);
    else if (turn % 3 == 1) send_some(tx, done);
    else send_parts(tx, done);
  }
  say({Op::leave, done});
  (void)feedlane_tx_destroy(&tx);
  say({Op::none, done});
  return 0;
}

// False: END.
bool peek_some(feedlane_rx* rx, Inbox& inbox) {
  feedlane_error e = make_error();
  feedlane_span span;
  say({Op::peek});
  const std::int32_t s = feedlane_rx_peek(rx, 4, FEEDLANE_FOREVER, &span, &e);
  say({});
  if (s == FEEDLANE_END) return false;
  check(s, e);
  inbox.take(span);
  say({Op::release});
  check(feedlane_rx_release(rx, span.lane, span.count, &e), e);
  say({});
  return true;
}
bool receive_some(feedlane_rx* rx, Inbox& inbox) {
  feedlane_error e = make_error();
  std::array<Message, 4> messages;
  std::uint32_t got = 0;
  say({Op::receive});
  const std::int32_t s = feedlane_rx_receive(rx, messages.data(), 4, FEEDLANE_FOREVER, &got, nullptr, &e);
  say({});
  if (s == FEEDLANE_END) return false;
  check(s, e);
  for (std::uint32_t k = 0; k < got; k++) inbox.take(messages[k]);
  return true;
}

// Ends after it has looked for messages so many times.
int receive(const std::string& path, std::uint64_t looks) {
  say({Op::create});
  feedlane_rx* rx = create(path);
  say({});
  Inbox inbox;
  for (; looks != 0; looks--) {
    for (;;) {  // else the walk is a wait
      if (inbox.count() == 0) say({Op::admit});
      std::int32_t fd = -1;
      const std::int32_t s = feedlane_rx_arm(rx, &fd);
      if (inbox.count() == 0) say({});
      if (s != FEEDLANE_OK) break;
      await_readable(fd);
    }
    if (!(looks % 2 == 0 ? peek_some(rx, inbox) : receive_some(rx, inbox))) (void)inbox.end();
  }
  say({Op::destroy});
  (void)feedlane_rx_destroy(&rx);
  say({});
  return 0;
}

// ---- the other ends, which live ----

// A receiver in a thread of its own.
class Receiving {
 public:
  explicit Receiving(const std::string& path)
      : rx_(create(path)), event_(stress::make_event()), thread_([this] { run(); }) {}
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;
  ~Receiving() {
    should_stop_ = true;
    (void)::eventfd_write(event_.get(), 1);
    thread_.join();
    (void)feedlane_rx_destroy(&rx_);
  }

  // After the last sender's end: how many messages came of it.
  std::uint64_t drain() {
    std::unique_lock lock(mutex_);
    is_asked_ = true;
    (void)::eventfd_write(event_.get(), 1);
    answered_.wait(lock, [&] { return !is_asked_; });
    return answer_;
  }

 private:
  void run() {
    feedlane_error e = make_error();
    Inbox inbox;
    while (!should_stop_) {
      feedlane_span span;
      const std::int32_t s = feedlane_rx_peek(rx_, 4, 0, &span, &e);
      if (s == FEEDLANE_OK) {
        inbox.take(span);
        check(feedlane_rx_release(rx_, span.lane, span.count, &e), e);
        continue;
      }
      if (s != FEEDLANE_END && s != FEEDLANE_TIMEOUT) check(s, e);
      if (s == FEEDLANE_END && answer(inbox)) continue;
      std::int32_t fd = -1;
      if (feedlane_rx_arm(rx_, &fd) == FEEDLANE_OK) await_readable(fd, event_.get());
      feedlane::os::drain_event(event_.get());
    }
  }
  bool answer(Inbox& inbox) {
    const std::lock_guard lock(mutex_);
    if (!is_asked_) return false;
    answer_ = inbox.end();
    is_asked_ = false;
    answered_.notify_one();
    return true;
  }

  feedlane_rx* rx_;
  feedlane::os::Fd event_;
  std::mutex mutex_;
  std::condition_variable answered_;
  bool is_asked_ = false;
  std::uint64_t answer_ = 0;
  std::atomic<bool> should_stop_{false};
  std::thread thread_;
};

// Senders, one after another, in a thread: each attaches as soon as there is a receiver, sends a little, and leaves.
class Sending {
 public:
  explicit Sending(std::string path) : path_(std::move(path)), thread_([this] { run(); }) {}
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;
  ~Sending() {
    should_stop_ = true;
    thread_.join();
  }

 private:
  void run() {
    while (!should_stop_) {
      feedlane_error e = make_error();
      feedlane_tx* tx = nullptr;
      constexpr std::int64_t patience_ns = 100'000'000;
      const std::int32_t s = feedlane_tx_attach(-1, path_.c_str(), patience_ns, &tx, nullptr, &e);
      if (s == FEEDLANE_OK) send(tx);
      else if (s != FEEDLANE_E_PEER_DEAD && s != FEEDLANE_TIMEOUT && s != FEEDLANE_E_LIMIT) check(s, e);
      else std::this_thread::sleep_for(std::chrono::milliseconds(1));  // there is no receiver
    }
  }
  // Until it has sent ten messages, or the receiver has ended.
  void send(feedlane_tx* tx) {
    feedlane_error e = make_error();
    for (std::uint64_t done = 0; done < 10;) {
      feedlane_span span;
      const std::int32_t s = feedlane_tx_reserve(tx, 3, FEEDLANE_FOREVER, &span, &e);
      if (s == FEEDLANE_E_PEER_DEAD) break;
      check(s, e);
      fill(span, done);
      check(feedlane_tx_commit(tx, span.count, &e), e);
      done += span.count;
    }
    (void)feedlane_tx_destroy(&tx);
  }

  std::string path_;
  std::atomic<bool> should_stop_{false};
  std::thread thread_;
};

// ---- who leads them ----

class Leader {
 public:
  explicit Leader(std::string path) : path_(std::move(path)) {}

  void whole(Op op) {
    while (kill(op, stress::knows_actions ? stress::Unit::action : stress::Unit::instruction, UINT64_MAX)) continue;
  }
  void carry_out(const stress::Plan& plan, Op op) {
    // Both look how much memory there is: hundreds of thousands of instructions.
    const bool is_long = op == Op::create || op == Op::admit;
    plan.carry_out(names[static_cast<std::size_t>(op)], is_long ? 2 : 32, random_, tallies_[op].length,
                   [&](stress::Unit unit, std::uint64_t steps) { return kill(op, unit, steps); });
  }
  // The other end lives as long as this.
  template <class F>
  void beside_receiver(F&& f) {
    Receiving receiving(path_);
    receiving_ = &receiving;
    whole(Op::leave);  // there is no END before the first sender
    f();
    receiving_ = nullptr;
  }
  template <class F>
  void beside_senders(F&& f) {
    Sending sending(path_);
    f();
    stress::Led last = start(Op::destroy);  // it takes the socket's file away
    while (last.run()) continue;
  }
  [[nodiscard]] bool is_path_free() const { return ::access(path_.c_str(), F_OK) != 0; }

  void print() const {
    for (const auto& [op, t] : tallies_) {
      std::printf("%-8s %5llu kills, %llu whole; %s; messages that came besides what was committed before:",
                  names[static_cast<std::size_t>(op)], static_cast<unsigned long long>(t.kills),
                  static_cast<unsigned long long>(t.whole), t.length.text().c_str());
      for (const auto& [more, n] : t.outcomes)
        std::printf(" (%llu: %llu)", static_cast<unsigned long long>(more), static_cast<unsigned long long>(n));
      std::printf("\n");
    }
  }

 private:
  struct Tally {
    std::uint64_t kills = 0, whole = 0;
    stress::Length length;
    std::map<std::uint64_t, std::uint64_t> outcomes;
  };

  stress::Led start(Op op) {
    const bool ends = op == Op::leave || op == Op::destroy;
    return stress::Led({"ring_kills_stress", is_of_sender(op) ? "sender" : "receiver", path_,
                        std::to_string(ends ? 1 + random_(8) : 1'000'000)},
                       STDERR_FILENO);
  }
  // False: the operation came to its end before.
  bool kill(Op op, stress::Unit unit, std::uint64_t steps) {
    (void)::alarm(60 * static_cast<unsigned>(feedlane::test::slowness()));
    stress::Led led = start(op);
    std::uint64_t nth = is_once(op) ? 0 : random_(6);
    Word w;
    do {
      const auto word = led.run();
      if (!word) stress::die("an end ended by itself: its wait status", led.end_status(), SIGKILL);
      w = Word::unpack(*word);
    } while (w.op != op || nth-- != 0);
    const stress::Led::Walk walk = led.walk(unit, steps);
    led.kill();
    Tally& t = tallies_[op];
    t.kills++;
    t.length.take(unit, walk);
    t.whole += walk.word ? 1 : 0;
    t.outcomes[is_of_sender(op) ? judge(op, w, walk) : 0]++;
    return !walk.word.has_value();
  }
  // How many messages came of a sender besides those that it had committed before the operation.
  std::uint64_t judge(Op op, const Word& before, const stress::Led::Walk& walk) const {
    const std::uint64_t came = receiving_->drain();
    const std::string where = std::string(names[static_cast<std::size_t>(op)]) + " after " +
                              std::to_string(walk.steps) + " instructions or actions: messages that came";
    const bool publishes = op == Op::commit || op == Op::send || op == Op::parts;
    const std::uint64_t more = walk.word ? Word::unpack(*walk.word).done - before.done : publishes ? before.in_hand : 0;
    const bool may_be_none = !walk.word.has_value();
    const bool is_between = came >= before.done && came <= before.done + more;
    if (came != before.done + more && !(may_be_none && (came == before.done || (op == Op::parts && is_between))))
      stress::die(where.c_str(), came, before.done + more);
    return came - before.done;
  }

  std::string path_;
  stress::OneProcessor processor_;
  stress::Random random_{0xfeed};
  Receiving* receiving_ = nullptr;
  std::map<Op, Tally> tallies_;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> a(argv, argv + argc);
  if (argc == 4 && a[1] == "sender") return send(a[2], std::strtoull(argv[3], nullptr, 10));
  if (argc == 4 && a[1] == "receiver") return receive(a[2], std::strtoull(argv[3], nullptr, 10));
  (void)::setenv("LD_BIND_NOW", "1", 1);  // else much of what is walked through is the dynamic linker
  const stress::Plan plan = stress::Plan::of(a, 2);
  if (!plan.only.empty() && std::find(names.begin() + 1, names.end(), plan.only) == names.end()) {
    std::fprintf(stderr, "no such operation: %s\n", plan.only.c_str());
    return 2;
  }
  char folder[] = "/tmp/feedlane-kills.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  Leader leader(std::string(folder) + "/ring");
  const auto kill_in = [&](bool senders) {
    stress::Footprint first;
    for (std::size_t i = 1; i < names.size(); i++) {
      const auto op = static_cast<Op>(i);
      if (is_of_sender(op) != senders || (!plan.only.empty() && plan.only != names[i])) continue;
      leader.whole(op);
      first = stress::footprint();
      leader.carry_out(plan, op);
      stress::check_growth(first, stress::footprint(), {.resident_kib = 1024, .descriptors = 6, .mappings = 4});
    }
  };
  leader.beside_receiver([&] { kill_in(true); });
  leader.beside_senders([&] { kill_in(false); });
  if (!leader.is_path_free()) stress::die("the socket's file is left", 1, 0);
  leader.print();
  (void)::alarm(0);
  if (::rmdir(folder) != 0) stress::die("the folder isn't empty", static_cast<std::uint64_t>(errno), 0);
  return 0;
}
