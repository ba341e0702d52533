// SPDX-License-Identifier: Apache-2.0
// What a consumer reads of a feeder that writes its welcome, its messages, its catalogue and its words as it likes, at any time: the
// calls answer with a status, a batch lies in the feeder's memory with all of its tensors, names and indices, a slot that the
// trainer holds is not yielded again, and no call goes on for ever.
// promise: feeder-noise-memory, feeder-noise-socket
#include <sys/socket.h>

#include <memory>
#include <utility>
#include <vector>

#include "greeting/share.hpp"
#include "input.hpp"
#include "messages.hpp"
#include "sharing/catalogue.hpp"
#include "sharing/consumer.hpp"
#include "sharing/link.hpp"

using namespace feedlane;

namespace {

const os::SystemFiles no_accounts{"/nowhere", "/nowhere"};
constexpr std::uint32_t slots = 3;
constexpr std::uint32_t capacity = 16;

shm::Geometry small_geometry() {
  shm::Geometry g{};
  g.workers = 1;
  g.world = 1;
  g.slots = slots;
  g.max_rows = 4;
  g.field_count = 1;
  g.ring_capacity = 4;
  g.slot_bytes = g.reserved_bytes = 5000;
  g.list_bytes = 64;
  return g;
}

// The loader's segments are made once: a consumer only reads them.
struct Memory {
  Memory() {
    shm::Plan plan;
    Error error;
    PROMISE(shm::make_plan(small_geometry(), plan, error) == FEEDLANE_OK);
    PROMISE(segments.create(plan, no_accounts, error) == FEEDLANE_OK);
    PROMISE(os::open_for_reading(segments.data_fd(), readable, error) == FEEDLANE_OK);
  }
  shm::Segments segments;
  os::Fd readable;
};

class Feeder {
 public:
  explicit Feeder(fuzz::Input& in) {
    Error error;
    PROMISE(shm::make_share_plan({slots, capacity}, plan_, error) == FEEDLANE_OK);
    PROMISE(catalogue_.create_control(shm::SegmentKind::share_catalogue, plan_.catalogue_bytes, no_accounts, error) ==
            FEEDLANE_OK);
    *catalogue_.control<shm::ShareGeometry>(sizeof(shm::SegmentHeader)) = plan_.geometry;
    catalogue_.control<shm::FeederBlock>(plan_.feeder)->wants_returns.store(in.u8() & 1, std::memory_order_relaxed);
    PROMISE(link_.create(plan_, no_accounts, error) == FEEDLANE_OK);
    PROMISE(os::open_pidfd(::getpid(), self_, error) == FEEDLANE_OK);
  }

  void welcome(fuzz::Input& in, os::Fd& theirs) {
    fuzz::make_pair(mine_, theirs);
    if (in.pick(8) == 7)
      fuzz::edit(in, catalogue_.control<std::byte>(sizeof(shm::SegmentHeader)), sizeof(shm::ShareGeometry));
    if (in.pick(8) == 7)
      fuzz::edit(in, link_.segments().control<std::byte>(sizeof(shm::SegmentHeader)), sizeof(shm::ShareGeometry));
    fuzz::Descriptors fds;
    if (in.pick(16) == 15) {
      greeting::Refused refused{greeting::refused_magic, FEEDLANE_E_LIMIT, 0, 1, 2, "config.id", "no"};
      return fuzz::send(in, mine_.get(), refused, fds);
    }
    for (const int fd : {memory().segments.control_fd(), memory().readable.get(), catalogue_.control_fd(),
                         link_.segments().control_fd(), link_.segments().data_fd(), link_.consumer_event.get(),
                         link_.feeder_event.get(), self_.get()})
      fds.want(fd);
    const std::int32_t share = in.flag() ? FEEDLANE_SHARE_EVERY : FEEDLANE_SHARE_DEAL;
    sharing::Welcome welcome{sharing::welcome_magic,
                             shm::share_layout_hash,
                             0,
                             share,
                             0,
                             static_cast<std::int32_t>(in.pick(3)),
                             in.pick(2),
                             4};
    fuzz::send(in, mine_.get(), welcome, fds);
  }

  void step(fuzz::Input& in) {
    switch (in.pick(8)) {
      case 0: return describe(in);
      case 1:
        fuzz::edit(in, catalogue_.control<std::byte>(plan_.entries), plan_.catalogue_bytes - plan_.entries);
        return;
      case 2: {
        auto* const at = link_.segments().control<std::byte>(plan_.block);
        return fuzz::edit(in, at, plan_.delivery_bytes - plan_.block);
      }
      case 3: link_.revoke(round_ + in.pick(3), [](const sharing::Parcel&) {}); return;
      case 4: in.flag() ? link_.tell_evicted() : link_.tell_short(); return;
      case 5: link_.collect([](const sharing::Parcel&, bool) {}); return;
      default: return deliver(in);
    }
  }
  // Answers before it is asked, whatever it likes, and says no more: no answer is waited for.
  void answer(fuzz::Input& in) {
    for (std::uint32_t i = in.pick(4); i > 0; i--) {
      os::Fd memory;
      Error error;
      PROMISE(os::create_memfd("state", 100, memory, error) == FEEDLANE_OK);
      fuzz::Descriptors fds;
      if (in.flag()) fds.want(memory.get());
      sharing::Reply reply{sharing::reply_magic, round_ - in.pick(3), 100 + in.pick(2), {}};
      reply.why = {greeting::refused_magic, FEEDLANE_E_STATE, 0, 0, 0, "", "why not"};
      fuzz::send(in, mine_.get(), reply, fds);
    }
    (void)::shutdown(mine_.get(), SHUT_WR);
  }

 private:
  static const Memory& memory() {
    static const Memory made;
    return made;
  }
  [[nodiscard]] shm::CatalogueEntry& entry(std::uint32_t slot) const {
    return catalogue_.control<shm::CatalogueEntry>(plan_.entries)[slot];
  }

  // A sound batch, and perhaps a change of it.
  void describe(fuzz::Input& in) {
    const std::uint32_t slot = in.pick(slots);
    const shm::Segments& segments = memory().segments;
    feedlane_tensor tensors[2]{};
    for (std::uint32_t i = 0; i < 2; i++) {
      feedlane_tensor& t = tensors[i];
      t.name = i == 0 ? "image" : "label";
      t.dtype = {1, 8, 1};
      t.ndim = 2;
      t.shape[0] = 3;
      t.shape[1] = t.strides[0] = 7;
      t.strides[1] = 1;
      t.bytes = 21;
      t.data = segments.payload(slot) + std::size_t{i} * 256;
    }
    feedlane_batch batch{};
    batch.size = sizeof batch;
    batch.tensors = tensors;
    batch.tensor_count = in.pick(3);
    batch.count = 3;
    batch.indices = in.flag() ? segments.index_list(slot) : nullptr;
    batch.skipped_count = in.pick(3);
    batch.metadata = segments.payload(slot) + 512;
    batch.metadata_bytes = in.pick(9);
    sharing::write_entry(batch, segments, entry(slot));
    if (in.flag()) fuzz::edit(in, &entry(slot), offsetof(shm::CatalogueEntry, tensors) + 2 * sizeof(shm::TensorRecord));
  }
  void deliver(fuzz::Input& in) {
    sharing::Parcel parcel;
    parcel.round = round_ += 1 + (in.pick(8) == 7 ? in.pick(3) : 0);
    constexpr shm::DeliveryKind kinds[] = {
        shm::DeliveryKind::batch,  shm::DeliveryKind::batch,   shm::DeliveryKind::batch, shm::DeliveryKind::begin,
        shm::DeliveryKind::failed, shm::DeliveryKind::stopped, shm::DeliveryKind::end,   shm::DeliveryKind{9}};
    parcel.kind = kinds[in.pick(8)];
    parcel.slot = in.pick(slots);
    epoch_ += parcel.kind == shm::DeliveryKind::begin && in.flag() ? 1 : 0;
    parcel.epoch = in.pick(16) == 15 ? in.i64() : epoch_;
    parcel.batch = in.number();
    if (parcel.kind == shm::DeliveryKind::failed || parcel.kind == shm::DeliveryKind::stopped) {
      auto why = std::make_shared<Error>();
      why->code = in.pick(4) == 3 ? in.i32() : FEEDLANE_E_SAMPLE;
      std::memset(why->text, 'x', in.flag() ? sizeof why->text - 1 : 3);
      parcel.error = std::move(why);
    }
    link_.reserve(1);
    (void)link_.deliver(parcel);
    // Where it lies, unless others had to wait for room.
    const ring::Cells cells{link_.segments().control<std::byte>(plan_.cells), shm::delivery_cell_bytes, capacity};
    if (in.pick(4) == 3) fuzz::edit(in, cells.message(delivered_), offsetof(shm::DeliveryMessage, text) + 8);
    delivered_++;
  }

  shm::SharePlan plan_;
  shm::SegmentPair catalogue_;
  sharing::Link link_{1, 0, FEEDLANE_LAG_BLOCK, 0};
  os::Fd mine_;
  os::Fd self_;
  std::uint64_t round_ = 0, delivered_ = 0;
  std::int64_t epoch_ = 0;
};

class Trainer {
 public:
  explicit Trainer(std::unique_ptr<sharing::Consumer> c) : c_(std::move(c)) {}

  void step(fuzz::Input& in) {
    Error error;
    switch (in.pick(8)) {
      case 0: return begin(in);
      case 1: return release();
      case 2: check(c_->poll(error), error); return;
      case 3: check(c_->arm(error), error); return;
      case 4:
        if (in.pick(4) == 3) check(c_->stop(false, error), error);
        return;
      default: return next();
    }
  }
  void begin(fuzz::Input& in) {
    Error error;
    check(c_->begin(c_->info().next_epoch + in.pick(2), error), error);
  }
  void ask_for_states() {
    for (const std::uint64_t token : {held_.empty() ? std::uint64_t{7} : held_.back(), std::uint64_t{0}}) {
      std::vector<std::byte> state;
      Error error;
      check(c_->state(token, state, error), error);
      PROMISE(state.size() <= 4096);
    }
  }
  void release_all() {
    while (!held_.empty()) release();
  }

 private:
  static void check(Status s, const Error& error) { PROMISE(s >= 0 || error.code == s); }
  void next() {
    feedlane_batch batch{};
    Error error;
    const Status s = c_->next(0, batch, error);
    check(s, error);
    if (s != FEEDLANE_OK) return;
    look_at(batch);
    held_.push_back(batch.token);
  }
  void release() {
    if (held_.empty()) return;
    tensors::SlotTable::Left left;
    PROMISE(c_->leases().release(held_.front(), left) == FEEDLANE_OK && left.freed);
    held_.erase(held_.begin());
  }
  static void look_at(const feedlane_batch& b) {
    PROMISE(b.token != 0 && b.tensor_count <= FEEDLANE_MAX_TENSORS);
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < b.tensor_count; i++) {
      const feedlane_tensor& t = b.tensors[i];
      PROMISE(t.ndim >= 0 && t.ndim <= FEEDLANE_MAX_NDIM && std::strlen(t.name) < shm::name_bytes);
      for (std::uint64_t k = 0; k < t.bytes; k++) sum += static_cast<const std::uint8_t*>(t.data)[k];
    }
    for (std::uint64_t k = 0; k < b.metadata_bytes; k++) sum += static_cast<const std::uint8_t*>(b.metadata)[k];
    for (std::uint64_t k = 0; b.indices != nullptr && k < b.count; k++) sum += static_cast<std::uint64_t>(b.indices[k]);
    for (std::uint64_t k = 0; b.skipped != nullptr && k < b.skipped_count; k++)
      sum += static_cast<std::uint64_t>(b.skipped[k]);
    static volatile std::uint64_t seen = 0;  // so that all of them are read
    seen = sum;
    (void)seen;
  }

  std::unique_ptr<sharing::Consumer> c_;
  std::vector<std::uint64_t> held_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  Feeder feeder(in);
  os::Fd theirs;
  feeder.welcome(in, theirs);
  std::unique_ptr<sharing::Consumer> c;
  Error error;
  const Status s = sharing::Consumer::join(std::move(theirs), nullptr, os::Deadline::at(0), c, error);
  PROMISE((s == FEEDLANE_OK) == (c != nullptr) && (s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT || error.code == s));
  if (s != FEEDLANE_OK) return 0;
  Trainer trainer(std::move(c));
  trainer.begin(in);
  for (int i = 0; i < 200 && in.any(); i++) in.flag() ? feeder.step(in) : trainer.step(in);
  feeder.answer(in);
  trainer.ask_for_states();
  trainer.release_all();
  return 0;
}
