// SPDX-License-Identifier: Apache-2.0
// A member of an arena that writes its ring, its words, its entries and its messages as the input says.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>

#include <deque>
#include <string>
#include <utility>

#include "arena/contents.hpp"
#include "arena/extents.hpp"
#include "greeting/arena.hpp"
#include "input.hpp"
#include "messages.hpp"
#include "ring/spsc.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"
#include "support/api.hpp"

namespace feedlane::fuzz {

inline const std::string arena_keys[] = {"a", "b", "c", "d", "e", "f", "key", std::string(shm::arena_key_bytes, 'k')};

inline void read_all(const feedlane_batch& b) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < b.tensor_count; i++) {
    PROMISE(std::strlen(b.tensors[i].name) < shm::name_bytes);
    for (std::uint64_t k = 0; k < b.tensors[i].bytes; k++)
      sum += static_cast<const std::uint8_t*>(b.tensors[i].data)[k];
  }
  for (std::uint64_t k = 0; k < b.metadata_bytes; k++) sum += static_cast<const std::uint8_t*>(b.metadata)[k];
  static volatile std::uint64_t seen = 0;  // so that all bytes are read
  seen = sum;
  (void)seen;
}

// A segment that was received, mapped.
class Mapped {
 public:
  Mapped(const os::Fd& fd, int protection) {
    struct stat status {};
    PROMISE(::fstat(fd.get(), &status) == 0);
    bytes_ = static_cast<std::size_t>(status.st_size);
    void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd.get(), 0);
    PROMISE(at != MAP_FAILED);
    at_ = static_cast<std::byte*>(at);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { (void)::munmap(at_, bytes_); }
  template <class T>
  [[nodiscard]] T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(at_ + offset);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* at_ = nullptr;
  std::size_t bytes_ = 0;
};

// What an offer brought.
struct Welcomed {
  explicit Welcomed(os::Fd from) : socket(std::move(from)) {
    arena::ArenaWelcome welcome{};
    Error error;
    PROMISE(os::receive_message(socket.get(), std::as_writable_bytes(std::span(&welcome, 1)), received, error) ==
            FEEDLANE_OK);
    number = welcome.number;
  }
  os::Fd socket;
  os::Received received;
  std::uint32_t number = 0;
};

// A member that follows no rule.
class Rogue {
 public:
  explicit Rogue(Welcomed from)
      : from_(std::move(from)),
        control_(from_.received.fds[arena::welcome_control], PROT_READ),
        answers_(from_.received.fds[arena::welcome_answers], PROT_READ),
        member_(from_.received.fds[arena::welcome_member], PROT_READ | PROT_WRITE),
        payload_(from_.received.fds[arena::welcome_payload], PROT_READ | PROT_WRITE) {
    Error error;
    PROMISE(shm::make_arena_plan(*control_.at<shm::ArenaGeometry>(sizeof(shm::SegmentHeader)), plan_, error) ==
            FEEDLANE_OK);
    row_ = member_.at<shm::ArenaMemberRow>(plan_.row);
    constexpr std::uint32_t capacity = shm::arena_ring_capacity;
    requests_ = ring::Producer({member_.at<std::byte>(plan_.request_cells), shm::arena_request_cell, capacity}, 0,
                               &answers_.at<shm::ArenaAnswers>(plan_.answers)->request_position);
    answered_ = ring::Consumer({answers_.at<std::byte>(plan_.answer_cells), shm::arena_answer_cell, capacity}, 0,
                               &row_->answer_position);
    delivered_ = ring::Consumer({answers_.at<std::byte>(plan_.delivery_cells), shm::arena_delivery_cell, capacity}, 0,
                                &row_->delivery_position);
  }
  [[nodiscard]] std::uint32_t number() const { return from_.number; }
  void attach() { say(arena::attached_magic); }

  void step(Input& in) {
    switch (in.pick(10)) {
      case 0: return take(in);
      case 1: return lease(in);
      case 2: return set(in);
      case 3: return edit(in, member_.at<std::byte>(0), member_.bytes());
      case 4: return spoil(in);
      case 5: return send_message(in);
      case 6: return put_whole(in);
      default:
        for (std::uint32_t i = in.pick(16) == 15 ? in.u8() + 32 : 1; i > 0; i--) request(in);
    }
  }

 private:
  static constexpr std::uint64_t unit = arena::Extents::unit;
  struct Grant {
    std::uint64_t offset = 0, bytes = 0;
  };

  void say(std::uint64_t magic) {
    const greeting::Word word{magic};
    Error error;
    (void)os::send_message(from_.socket.get(), std::as_bytes(std::span(&word, 1)), {}, error);
  }
  void send(const shm::ArenaRequest& request) {
    if (requests_.reserve(1) == 0) return;
    std::memcpy(requests_.message(0), &request, sizeof request);
    requests_.commit(1);
  }
  // A part of what it was granted, or not.
  Grant part(Input& in) {
    Grant g = grants_.empty() ? Grant{0, 4096} : grants_[in.u8() % grants_.size()];
    if (in.flag()) return g;
    const std::uint64_t front = std::uint64_t{in.u8()} * unit;
    g.offset += front;
    g.bytes = in.flag() ? g.bytes - front : std::uint64_t{in.u8()} * unit;
    return g;
  }
  void request(Input& in) {
    using Kind = shm::ArenaRequestKind;
    constexpr Kind kinds[] = {
        Kind::publish,       Kind::publish,  Kind::give_back,  Kind::want_memory, Kind::want_memory,
        Kind::cancel_memory, Kind::want_key, Kind::cancel_key, Kind::drop_key,    Kind{9}};
    shm::ArenaRequest r{};
    r.kind = static_cast<std::uint32_t>(kinds[in.pick(in.pick(8) == 7 ? 10 : 9)]);
    r.flags = in.pick(8);
    r.ticket = in.pick(4);
    const Grant g = r.kind == static_cast<std::uint32_t>(Kind::want_memory)
                        ? Grant{0, (1 + std::uint64_t{in.u8()}) * unit}
                        : part(in);
    r.offset = g.offset;
    r.bytes = g.bytes;
    r.more = std::uint64_t{in.u8()} * unit;
    const bool needs_key = r.kind >= static_cast<std::uint32_t>(Kind::want_key);
    if (needs_key || in.flag()) {
      const std::string& key = arena_keys[in.pick(8)];
      r.key_bytes = key.size();
      std::memcpy(r.key, key.data(), key.size());
    }
    if (in.pick(8) == 7) edit(in, &r, sizeof r);
    send(r);
  }
  // A sound entry, as far as its memory allows.
  void put_whole(Input& in) {
    const Grant g = part(in);
    const feedlane_field f = test::field("numbers", {0, 64, 1}, {1 + in.pick(100)});
    auto what = test::fresh<feedlane_put>();
    what.fields = &f;
    what.field_count = 1;
    arena::EntryPlan plan;
    Error error;
    PROMISE(arena::plan_entry(what, plan, error) == FEEDLANE_OK);
    if (g.offset > plan_.payload_bytes || plan.bytes > plan_.payload_bytes - g.offset) return;
    arena::write_contents(plan, nullptr, payload_.at<std::byte>(g.offset));
    if (in.flag()) edit(in, payload_.at<std::byte>(g.offset), 512);
    shm::ArenaRequest r{};
    r.kind = static_cast<std::uint32_t>(shm::ArenaRequestKind::publish);
    r.offset = g.offset;
    r.bytes = plan.bytes;
    const std::string& key = arena_keys[in.pick(8)];
    if (in.flag()) r.key_bytes = key.size();
    std::memcpy(r.key, key.data(), r.key_bytes);
    send(r);
  }
  void take(Input& in) {
    for (; answered_.peek(1) != 0; answered_.release(1)) {
      shm::ArenaAnswer answer{};
      std::memcpy(&answer, answered_.message(0), sizeof answer);
      if (answer.kind != static_cast<std::uint32_t>(shm::ArenaAnswerKind::memory)) continue;
      grants_.push_back({answer.offset, answer.bytes});
      if (grants_.size() > 8) grants_.pop_front();
    }
    if (in.flag() && delivered_.peek(1) != 0) delivered_.release(1);
  }
  // Uses an entry that there is, or is not.
  void lease(Input& in) {
    const std::uint32_t entries = plan_.geometry.entries, leases = plan_.geometry.leases;
    const std::uint32_t number = in.pick(2 * entries);
    const std::uint64_t state =
        control_.at<shm::ArenaEntry>(plan_.entries)[number % entries].state.load(std::memory_order_relaxed);
    row_->leases_in_use.store(in.pick(2 * leases), std::memory_order_relaxed);
    member_.at<shm::Word64>(plan_.leases)[in.pick(leases)].store(
        in.flag() ? state >> 8 << shm::arena_entry_bits | number : 0, std::memory_order_relaxed);
    member_.at<shm::Word64>(plan_.uses)[number % entries].store(in.flag() ? UINT64_MAX : in.u64(),
                                                                std::memory_order_relaxed);
  }
  // Near what is there, or anything.
  void set(Input& in) {
    shm::Word64* const words[] = {&row_->answer_position, &row_->delivery_position, &row_->leases_in_use, &row_->hits};
    shm::Word64& word = *words[in.pick(4)];
    const std::uint64_t near = word.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(in.number());
    word.store(in.pick(4) == 3 ? in.u64() : near, std::memory_order_relaxed);
  }
  void spoil(Input& in) {
    const Grant g = part(in);
    edit(in, payload_.at<std::byte>(std::min(g.offset, plan_.payload_bytes - 4096)), 4096);
  }
  void send_message(Input& in) {
    constexpr std::uint64_t magics[] = {arena::segment_request_magic, arena::attached_magic, arena::asking_magic,
                                        arena::leaving_magic,         arena::left_magic,     0};
    const std::uint32_t kind = in.pick(16);
    Descriptors fds;
    const arena::SegmentRequest message{magics[kind < 6 ? kind : 0], in.pick(32), in.pick(4)};
    fuzz::send(in, from_.socket.get(), message, fds);
    if (kind == 15) from_.socket.reset();  // for the owner, this member has ended
  }

  Welcomed from_;
  Mapped control_, answers_, member_, payload_;
  shm::ArenaPlan plan_;
  shm::ArenaMemberRow* row_ = nullptr;
  ring::Producer requests_;
  ring::Consumer answered_, delivered_;
  std::deque<Grant> grants_;
};

}  // namespace feedlane::fuzz
