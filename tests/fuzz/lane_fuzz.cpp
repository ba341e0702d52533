// SPDX-License-Identifier: Apache-2.0
// What a ring's receiver reads of a sender that writes its lane as it likes, at any time, its cells and its row: peek, release,
// receive, arm and offer answer with a status, show messages of the lane and nothing else, and give the lane up after its
// sender's end.
// The messages of another sender come meanwhile, each once, whole and in order.
#include <sys/mman.h>

#include <memory>
#include <utility>
#include <vector>

#include "channel/receiver.hpp"
#include "channel/sender.hpp"
#include "greeting/ring.hpp"
#include "input.hpp"
#include "os/socket.hpp"
#include "shm/ring_layout.hpp"

using namespace feedlane;

namespace {

const os::SystemFiles no_accounts{"/nowhere", "/nowhere"};
constexpr std::uint32_t message_bytes = 56;
constexpr std::uint32_t capacity = 4;

shm::RingPlan make_plan() {
  shm::RingPlan plan;
  Error error;
  PROMISE(shm::make_ring_plan(message_bytes, capacity, 2, plan, error) == FEEDLANE_OK);
  return plan;
}

// Takes what it is given and keeps to nothing. It is in the receiver's process, which then has no end of it to see.
class Rogue {
 public:
  Rogue(os::Fd socket, const shm::RingPlan& plan) : socket_(std::move(socket)), plan_(plan) {
    os::Received received;
    Error error;
    PROMISE(os::receive_message(socket_.get(), std::as_writable_bytes(std::span(&welcome_, 1)), received, error) ==
            FEEDLANE_OK);
    void* const at = ::mmap(nullptr, plan.data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            received.fds[channel::ring_welcome_data].get(), 0);
    PROMISE(at != MAP_FAILED);
    memory_ = static_cast<std::byte*>(at);
  }
  Rogue(const Rogue&) = delete;
  Rogue& operator=(const Rogue&) = delete;
  ~Rogue() { (void)::munmap(memory_, plan_.data_bytes); }

  template <class T>
  void say(const T& message) {
    Error error;
    (void)os::send_message(socket_.get(), std::as_bytes(std::span(&message, 1)), {}, error);
  }
  // Once: what comes after it is taken for nonsense, whereupon the lane is its process's till that one's end.
  void attach(std::uint32_t abilities) {
    if (!std::exchange(has_attached_, true)) say(channel::RingAttached{channel::ring_attached_magic, abilities, 0});
  }
  void babble(std::uint64_t word) {
    if (!has_attached_) say(greeting::Word{word});
  }
  void hang_up() { socket_.reset(); }
  // Sequence numbers near the one that the receiver waits for, and anything at any place of the lane.
  void scribble(fuzz::Input& in) {
    const ring::Cells cells{memory_ + plan_.cells, plan_.geometry.cell_bytes, capacity};
    if (in.flag()) return fuzz::edit(in, memory_ + plan_.sender_row, plan_.data_bytes - plan_.sender_row);
    const std::uint64_t position = welcome_.start + in.pick(4 * capacity);
    cells.sequence(position).store(position + static_cast<std::uint64_t>(in.number()), std::memory_order_release);
  }
  void commit(std::uint32_t count) {
    const ring::Cells cells{memory_ + plan_.cells, plan_.geometry.cell_bytes, capacity};
    for (; count > 0; count--, next_++)
      cells.sequence(welcome_.start + next_).store(welcome_.start + next_ + 1, std::memory_order_release);
  }

 private:
  os::Fd socket_;
  const shm::RingPlan& plan_;
  channel::RingWelcome welcome_{};
  std::byte* memory_ = nullptr;
  std::uint64_t next_ = 0;
  bool has_attached_ = false;
};

class Bench {
 public:
  Bench() {
    Error error;
    PROMISE(receiver_.create(plan_, "", no_accounts, error) == FEEDLANE_OK);
    os::Fd theirs;
    PROMISE(receiver_.offer(theirs, error) == FEEDLANE_OK);
    PROMISE(channel::Sender::attach(std::move(theirs), os::Deadline::at(0), honest_, error) == FEEDLANE_OK);
    come();
  }

  void step(fuzz::Input& in) {
    Error error;
    switch (in.pick(8)) {
      case 0: return rogue_->scribble(in);
      case 1: return rogue_->commit(1 + in.pick(2 * capacity));
      case 2: return rogue_->attach(in.u8());
      case 3: return send(in.flag());
      case 4: PROMISE(receiver_.arm(error) >= FEEDLANE_OK); return;
      case 5: return leave(in);
      case 6: return receive(1 + in.pick(2 * capacity));
      default: break;
    }
    const std::uint32_t want = 1 + in.pick(2 * capacity);
    (void)take(want, in.pick(capacity + 1));
  }

  // Whatever was done, its end is one: then what the other has sent comes, and END.
  void finish() {
    rogue_->say(greeting::Word{channel::ring_leaving_magic});
    rogue_->hang_up();
    honest_.reset();
    Error error;
    PROMISE(receiver_.arm(error) >= FEEDLANE_OK);  // hears of both ends while there are messages
    int looks = 0;
    while (take(capacity, capacity) != FEEDLANE_END) PROMISE(looks++ < 64);  // their ends are news first
    PROMISE(taken_ == sent_);
    os::Fd theirs;
    PROMISE(receiver_.offer(theirs, error) == FEEDLANE_OK);
    PROMISE(receiver_.offer(theirs, error) == FEEDLANE_OK);
  }

 private:
  void come() {
    os::Fd theirs;
    Error error;
    const Status s = receiver_.offer(theirs, error);
    // The lane is in the caller's hands until a peek finds nothing.
    if (s == FEEDLANE_E_LIMIT) return;
    PROMISE(s == FEEDLANE_OK);
    rogue_ = std::make_unique<Rogue>(std::move(theirs), plan_);
  }
  void leave(fuzz::Input& in) {
    if (in.flag()) rogue_->say(greeting::Word{channel::ring_leaving_magic});
    else rogue_->babble(in.u64());
    if (in.flag()) rogue_->hang_up();
    if (in.flag()) come();
  }
  void send(bool by_reserving) {
    Error error;
    feedlane_span span{};
    const std::uint64_t words[message_bytes / 8] = {~sent_, sent_ * 3};
    if (by_reserving) {
      if (honest_->reserve(1, 0, span, error) != FEEDLANE_OK) return;
      std::memcpy(span.data, words, sizeof words);
      PROMISE(honest_->commit(1, error) == FEEDLANE_OK);
      sent_++;
    } else {
      std::uint32_t sent = 0;
      (void)honest_->send(reinterpret_cast<const std::byte*>(words), 1, 0, sent, error);
      sent_ += sent;
    }
  }
  // Whole, in order, and behind them nothing of the caller's memory is written.
  void receive(std::uint32_t want) {
    constexpr std::uint64_t untouched = 0x5151515151515151;
    std::vector<std::uint64_t> words((want + 1) * (message_bytes / 8), untouched);
    std::uint32_t got = 0, lane = 0;
    Error error;
    const Status s = receiver_.receive(reinterpret_cast<std::byte*>(words.data()), want, 0, got, lane, error);
    PROMISE(s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT || s == FEEDLANE_END);
    if (s != FEEDLANE_OK) return;
    PROMISE(got >= 1 && got <= want && got <= capacity && lane < 2);
    for (std::size_t i = got * (message_bytes / 8); i < words.size(); i++) PROMISE(words[i] == untouched);
    if (lane != 0) return;
    for (std::uint32_t i = 0; i < got; i++, taken_++) {
      const std::uint64_t* const message = words.data() + i * (message_bytes / 8);
      PROMISE(message[0] == ~taken_ && message[1] == taken_ * 3);
    }
  }
  Status take(std::uint32_t want, std::uint32_t give_back) {
    Error error;
    feedlane_span span{};
    const Status s = receiver_.peek(want, 0, span, error);
    PROMISE(s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT || s == FEEDLANE_END);
    if (s != FEEDLANE_OK) return s;
    PROMISE(span.count >= 1 && span.count <= want && span.count <= capacity);
    PROMISE(span.lane < 2 && span.stride == plan_.geometry.cell_bytes);
    const std::uint32_t count = std::min(give_back, span.count);
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < span.count; i++) {
      std::uint64_t words[message_bytes / 8];
      std::memcpy(words, static_cast<const std::byte*>(span.data) + i * span.stride, sizeof words);
      for (const std::uint64_t word : words) sum += word;
      if (span.lane == 0) PROMISE(words[0] == ~(taken_ + i) && words[1] == (taken_ + i) * 3);
    }
    static volatile std::uint64_t seen = 0;  // so that all of them are read
    seen = sum;
    (void)seen;
    if (span.lane == 0) taken_ += count;
    PROMISE(receiver_.release(span.lane, count, error) == FEEDLANE_OK);
    return s;
  }

  const shm::RingPlan plan_ = make_plan();
  channel::Receiver receiver_;
  std::unique_ptr<channel::Sender> honest_;  // in lane 0
  std::unique_ptr<Rogue> rogue_;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  Bench bench;
  for (int i = 0; i < 200 && in.any(); i++) bench.step(in);
  bench.finish();
  return 0;
}
