// SPDX-License-Identifier: Apache-2.0
// What a member of an arena reads of an owner that writes its welcome, its index, its words, its answers and its messages as it
// likes, at any time: calls return a status, all of a batch and of a reservation lies in mapped memory, and no call lasts.
// promise: arena-owner-noise
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "arena/index.hpp"
#include "arena/memory.hpp"
#include "arena/peer.hpp"
#include "arena_rogue.hpp"
#include "support/arena_entries.hpp"
#include "support/arena_numbers.hpp"

using namespace feedlane;
namespace arenas = feedlane::test::arenas;
using feedlane::fuzz::arena_keys;
using feedlane::test::fresh;
using CallError = feedlane::test::Error;

namespace {

const os::SystemFiles no_accounts{"/nowhere", "/nowhere"};
constexpr std::uint32_t entries = 8;
constexpr std::uint32_t segments = 3;

shm::ArenaPlan small_plan() {
  shm::ArenaGeometry g{};
  g.bytes = 192 * 1024;
  g.entries = g.buckets = entries;
  g.members = 2;
  g.segments = segments;
  g.leases = 4;
  shm::ArenaPlan plan;
  Error error;
  PROMISE(shm::make_arena_plan(g, plan, error) == FEEDLANE_OK);
  return plan;
}

class WildOwner {
 public:
  WildOwner() {
    Error error;
    PROMISE(control_.create_control(shm::SegmentKind::arena_control, plan_.control_bytes, no_accounts, error) ==
            FEEDLANE_OK);
    *control_.control<shm::ArenaGeometry>(sizeof(shm::SegmentHeader)) = plan_.geometry;
    PROMISE(peer_.create(no_accounts, error) == FEEDLANE_OK);
    PROMISE(memory_.open(peer_.segment, error) == FEEDLANE_OK && memory_.open(other_, error) == FEEDLANE_OK);
    PROMISE(os::open_pidfd(::getpid(), self_, error) == FEEDLANE_OK);
    peer_.state = arena::Peer::State::attached;
    index_ = std::make_unique<arena::Index>(control_, plan_);
    payload_ = std::make_unique<fuzz::Mapped>(os::Fd(::dup(memory_.writable(other_))), PROT_READ | PROT_WRITE);
  }

  void welcome(fuzz::Input& in, os::Fd& theirs) {
    fuzz::make_pair(mine_, theirs);
    for (std::byte* const segment : {control_.control<std::byte>(0), peer_.pair().control<std::byte>(0)})
      if (in.pick(8) == 7) {
        fuzz::edit(in, segment + sizeof(shm::SegmentHeader), sizeof(shm::ArenaGeometry));
        is_changed_ = true;
      }
    fuzz::Descriptors fds;
    if (in.pick(16) == 15) {
      greeting::Refused refused{greeting::refused_magic, FEEDLANE_E_LIMIT, 0, 1, 2, "config.members", "no"};
      return fuzz::send(in, mine_.get(), refused, fds);
    }
    for (const int fd :
         {control_.control_fd(), peer_.pair().control_fd(), peer_.pair().data_fd(), memory_.writable(peer_.segment),
          peer_.member_event.get(), peer_.owner_event.get(), self_.get()})
      fds.want(fd);
    const arena::ArenaWelcome welcome{arena::welcome_magic, shm::arena_layout_hash,           1, 0,
                                      peer_.segment,        memory_.generation(peer_.segment)};
    const bool is_changed = in.pick(4) == 3;
    is_changed_ = is_changed_ || is_changed;
    send(in, welcome, fds, is_changed);
  }

  void step(fuzz::Input& in) {
    auto* const control = control_.control<std::byte>(0);
    switch (in.pick(8)) {
      case 0: return fuzz::edit(in, control + plan_.block, plan_.control_bytes - plan_.block);
      case 1:
        return fuzz::edit(in, peer_.pair().control<std::byte>(plan_.answers), plan_.answers_bytes - plan_.answers);
      case 2: return fuzz::edit(in, payload_->at<std::byte>(entry_bytes * in.pick(entries)), 512);
      case 3: return deliver(in);
      case 4: return in.pick(16) == 15 ? mine_.reset() : in.pick(8) == 7 ? peer_.tell_cut_off() : peer_.ring();
      case 5: {
        shm::ArenaAnswer answer = make_answer(in);
        answer.ticket = ticket_ + in.pick(4);  // of a request that was sent, or that will be
        return (void)peer_.answer(answer);
      }
      default: return publish(in);
    }
  }

  static shm::ArenaAnswer make_answer(fuzz::Input& in) {
    shm::ArenaAnswer answer{};
    answer.kind = 1 + in.pick(5);
    answer.status = in.flag() ? FEEDLANE_E_LIMIT : in.i32();
    answer.offset = std::uint64_t{in.u8()} * 256;
    answer.bytes = std::uint64_t{in.u8()} * 256;
    if (in.pick(8) == 7) (in.flag() ? answer.offset : answer.bytes) = in.u64() << 8;
    if (in.pick(4) == 3) fuzz::edit(in, &answer, sizeof answer);
    return answer;
  }
  // Answers all that is asked until `is_over`, while the member waits in another thread.
  void answer_all(shm::ArenaAnswer answer, const std::atomic<bool>& is_over) {
    while (!is_over.load(std::memory_order_relaxed)) {
      if (!take_request()) {
        std::this_thread::yield();
        continue;
      }
      answer.ticket = ticket_;
      (void)peer_.answer(answer);
    }
  }

  // The member asks only for segments that there may be.
  void take_messages() {
    for (;;) {
      arena::SegmentRequest ask{};
      os::Received received;
      Error error;
      if (os::receive_message(mine_.get(), std::as_writable_bytes(std::span(&ask, 1)), received, error) != FEEDLANE_OK)
        return;
      PROMISE(ask.magic != arena::segment_request_magic || (ask.segment < segments && ask.generation != 0));
    }
  }

  // The member can't wait for this thread. So its requests are handled, and replies about segments lie ready, before each
  // of its calls; the last reply is invalid, which ends every wait for another.
  void prepare(fuzz::Input& in) {
    while (take_request()) {
    }
    auto& position = peer_.pair().control<shm::ArenaAnswers>(plan_.answers)->request_position;
    const std::uint64_t least = is_changed_ ? UINT64_MAX : handled_;  // a get waits for the owner to take up changes
    if (position.load(std::memory_order_relaxed) < least) position.store(least, std::memory_order_relaxed);
    if (in.pick(4) == 3) reply(in, in.u64(), true);
    std::set<std::uint64_t> named;
    arenas::for_each_entry(control_.control<std::byte>(0), plan_, [&](const shm::ArenaEntry& e, shm::ArenaEntryState) {
      named.insert(e.segment.load(std::memory_order_relaxed));
    });
    for (const std::uint64_t segment : named) reply(in, segment, false);
    const greeting::Word end{0};
    Error error;
    (void)os::send_message(mine_.get(), std::as_bytes(std::span(&end, 1)), {}, error);
  }

 private:
  static constexpr std::uint64_t entry_bytes = 4096;

  bool take_request() {
    if (!peer_.has_request()) return false;
    ticket_ = peer_.request().ticket;
    peer_.end_request();
    handled_++;
    return true;
  }
  void publish(fuzz::Input& in) {
    if (index_->is_full()) {  // an index that was changed can't be emptied
      std::memset(control_.control<std::byte>(plan_.buckets), 0, plan_.control_bytes - plan_.buckets);
      index_ = std::make_unique<arena::Index>(control_, plan_);
    }
    const feedlane_field f = test::field("numbers", {0, 64, 1}, {1 + in.pick(100)});
    auto what = fresh<feedlane_put>();
    what.fields = &f;
    what.field_count = 1;
    arena::EntryPlan plan;
    Error error;
    PROMISE(arena::plan_entry(what, plan, error) == FEEDLANE_OK);
    arena::EntryFacts facts;
    facts.segment = other_;
    facts.segment_generation = in.pick(8) == 7 ? in.pick(3) : memory_.generation(other_);
    facts.offset = entry_bytes * in.pick(entries);
    facts.bytes = plan.bytes;
    facts.maker = 2;
    arena::write_contents(plan, nullptr, payload_->at<std::byte>(facts.offset));
    if (in.pick(8) == 7) (in.flag() ? facts.offset : facts.bytes) = in.u64() << 8;
    if (in.pick(4) == 3) fuzz::edit(in, &facts, sizeof facts);
    const std::string& key = arena_keys[in.pick(8)];
    last_ = index_->publish(in.flag() ? arena::Key(key.data(), key.size()) : arena::Key(), facts);
  }
  void deliver(fuzz::Input& in) {
    (void)peer_.collect([](std::uint32_t) {});
    if (peer_.waiting() >= entries) return;
    peer_.deliver(0, in.pick(4) == 3 ? in.u64() : index_->id(last_).word());
  }
  void reply(fuzz::Input& in, std::uint64_t segment, bool is_changed) {
    arena::SegmentReply reply{};
    reply.magic = arena::segment_reply_magic;
    reply.segment = static_cast<std::uint32_t>(segment);
    reply.generation = static_cast<std::uint32_t>(segment >> 32);
    fuzz::Descriptors fds;
    fds.want(memory_.readable(other_, memory_.generation(other_))->get());
    send(in, reply, fds, is_changed || in.pick(8) == 7);
  }
  template <class T>
  void send(fuzz::Input& in, const T& message, fuzz::Descriptors& fds, bool is_changed) {
    fuzz::Input nothing(nullptr, 0);
    fuzz::send(is_changed ? in : nothing, mine_.get(), message, fds);
  }

  shm::ArenaPlan plan_ = small_plan();
  shm::SegmentPair control_;
  arena::Peer peer_{1, plan_};
  arena::Memory memory_{plan_, no_accounts};
  std::unique_ptr<arena::Index> index_;
  std::unique_ptr<fuzz::Mapped> payload_;  // of the member that made all entries
  os::Fd mine_, self_;
  std::uint32_t other_ = 0, last_ = 0;
  std::uint64_t ticket_ = 0, handled_ = 0;
  bool is_changed_ = false;  // the welcome: requests may lie elsewhere
};

class Member {
 public:
  explicit Member(feedlane_arena* a) : a_(a) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    while (!held_.empty()) release();
    PROMISE(feedlane_arena_destroy(&a_) == FEEDLANE_OK);
  }
  void step(fuzz::Input& in, std::int64_t timeout_ns) {
    const std::string& key = arena_keys[in.pick(8)];
    auto batch = fresh<feedlane_batch>();
    CallError e;
    switch (in.pick(8)) {
      case 0: return check(feedlane_arena_drop(a_, key.data(), key.size(), 0, &e), e);
      case 1: return release();
      case 2: return publish();
      case 3: return take(feedlane_arena_receive(a_, 0, &batch, &e), batch, e);
      case 4: {
        auto stats = fresh<feedlane_arena_stats>();
        PROMISE(feedlane_arena_get_stats(a_, &stats) == FEEDLANE_OK);
        return (void)feedlane_arena_arm(a_, nullptr);
      }
      case 5: {
        const std::int64_t count = 1 + 100 * std::int64_t{in.u8()};
        const std::int32_t s = arenas::reserve(a_, in.flag() ? key : "", 1, count, timeout_ns, batch, &e);
        check(s, e);
        if (s != FEEDLANE_OK) return;
        puts_.push_back(batch.token), held_.push_back(batch.token);
        return in.flag() ? publish() : fuzz::read_all(batch);
      }
      default: return take(arenas::get(a_, key, batch, timeout_ns, &e, in.flag() ? FEEDLANE_GET_MAKE : 0), batch, e);
    }
  }

 private:
  static void check(std::int32_t s, const CallError& e) { PROMISE(s >= 0 || e.code == s); }
  void take(std::int32_t s, const feedlane_batch& b, const CallError& e) {
    check(s, e);
    if (s != FEEDLANE_OK) return;
    held_.push_back(b.token);
    PROMISE(b.token != 0 && b.tensor_count <= FEEDLANE_MAX_TENSORS);
    fuzz::read_all(b);
  }
  void release() {
    if (held_.empty()) return;
    PROMISE(feedlane_batch_release(a_, held_.back()) == FEEDLANE_OK);
    held_.pop_back();
  }
  void publish() {
    if (puts_.empty()) return;
    CallError e;
    const std::int32_t s = feedlane_arena_publish(a_, puts_.back(), 0, &e);
    check(s, e);
    if (s == FEEDLANE_OK) std::erase(held_, puts_.back());
    puts_.pop_back();
  }

  feedlane_arena* a_;
  std::vector<std::uint64_t> held_, puts_;  // tokens; some of `puts_` are released
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  WildOwner owner;
  os::Fd theirs;
  owner.welcome(in, theirs);
  const os::Fd member_end(::dup(theirs.get()));
  feedlane_arena* a = nullptr;
  CallError e;
  const std::int32_t s = feedlane_arena_join(theirs.release(), nullptr, 0, &a, &e);
  PROMISE((s == FEEDLANE_OK) == (a != nullptr) && (s >= 0 || e.code == s));
  if (s != FEEDLANE_OK) return 0;
  Member member(a);
  for (int i = 0; i < 200 && in.any(); i++) {
    if (in.flag()) {
      owner.step(in);
      continue;
    }
    owner.prepare(in);
    if (in.pick(4) == 3) {
      std::atomic<bool> is_over{false};
      std::thread answering([&, answer = WildOwner::make_answer(in)] { owner.answer_all(answer, is_over); });
      member.step(in, 5'000'000);
      is_over.store(true, std::memory_order_relaxed);
      answering.join();
    } else {
      member.step(in, 0);
    }
    os::discard_messages(member_end.get());
    owner.take_messages();
  }
  return 0;
}
