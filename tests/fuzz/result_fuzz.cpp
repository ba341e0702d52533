// SPDX-License-Identifier: Apache-2.0
// Result cells as the trainer receives them, with the slots and rows that two workers of any manners leave behind: what
// `next` yields is a batch that was asked for, each at most once, with all of it in its slot; and the trainer never waits
// for what can't come.
#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <vector>

#include "dataset/task.hpp"
#include "failing.hpp"
#include "input.hpp"
#include "loader/loader.hpp"
#include "os/clock.hpp"
#include "os/socket.hpp"
#include "support/kinds.hpp"
#include "tensors/slot.hpp"

using namespace feedlane;

namespace {

constexpr std::int64_t samples = 40;
constexpr std::int64_t batch_size = 4;
constexpr std::int32_t workers = 2;

// ---- the trainer ----

struct Kind {
  bool iterable, out_of_order, round_robin, policies, unbatched;
};
constexpr Kind kinds[] = {{false, false, false, false, false}, {false, true, false, true, false},
                          {true, false, false, true, false},   {false, false, true, true, false},
                          {true, true, false, false, false},   {false, false, false, true, true}};

std::unique_ptr<loader::Loader> make_loader(const Kind& k) {
  std::unique_ptr<sampler::Sampler> sampler;
  Error error;
  if (!k.iterable) PROMISE(test::make_sequential(k.unbatched ? 8 : samples, sampler, error) == FEEDLANE_OK);
  feedlane_field fields[2] = {};
  fields[0].size = fields[1].size = sizeof fields[0];
  fields[0].name = "image";
  fields[0].dtype = {1, 8, 1};
  fields[0].ndim = 2;
  fields[0].shape[0] = 3;
  fields[0].shape[1] = 5;
  fields[1].name = "label";
  fields[1].dtype = {0, 64, 1};
  feedlane_loader_config c{};
  c.size = sizeof c;
  c.fields = fields;
  c.field_count = 2;
  c.batch_size = k.unbatched ? FEEDLANE_UNBATCHED : batch_size;
  c.seed = 3;
  c.workers = workers;
  c.start = FEEDLANE_START_THREAD;
  c.iterable = k.iterable ? 1 : 0;
  c.iterable_length = k.iterable ? 10 : 0;
  c.deterministic = k.iterable && k.policies ? 1 : 0;
  c.out_of_order = k.out_of_order ? 1 : 0;
  c.dispatch = k.round_robin ? FEEDLANE_DISPATCH_ROUND_ROBIN : FEEDLANE_DISPATCH_LEAST_LOADED;
  c.retries = k.policies ? 1 : 0;
  c.skip_budget = k.policies ? 5 : 0;
  c.substitute = k.policies && !k.iterable ? 1 : 0;
  c.max_restarts = INT32_MAX;
  c.max_kills_per_batch = 2;
  c.prefetch_factor = 3;
  std::unique_ptr<loader::Loader> l;
  PROMISE(loader::Loader::create(&c, sampler.get(), nullptr, nullptr, {"/nowhere", "/nowhere"}, l, error) ==
          FEEDLANE_OK);
  return l;
}

loader::Loader& loader_of(std::uint32_t which) {
  static std::array<std::unique_ptr<loader::Loader>, std::size(kinds)> all;
  if (all[which] == nullptr) all[which] = make_loader(kinds[which]);
  return *all[which];
}

// ---- a worker that says what it likes ----

std::uint64_t now() { return static_cast<std::uint64_t>(os::now_ns()); }

class Liar {
 public:
  Liar(loader::Loader& l, os::Fd socket, const Kind& kind) : l_(l), socket_(std::move(socket)) {
    Error error;
    worker::Welcome welcome{};
    os::Received received;
    PROMISE(os::receive_message(socket_.get(), std::as_writable_bytes(std::span(&welcome, 1)), received, error) ==
            FEEDLANE_OK);
    id_ = welcome.worker;
    tasks_ = welcome.task_start;
    results_ = welcome.result_start;
    const shm::Geometry& g = l.memory().segments.plan().geometry;
    PROMISE(fields_.read(l.memory().segments.fields(), g.field_count, g.max_rows, error) == FEEDLANE_OK);
    if (kind.unbatched) fields_.leave_out_batch_dimension();
    task_.prepare(fields_, g, id_, nullptr);
  }
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;
  // It leaves, so that the loader can have another in its place.
  ~Liar() {
    if (!attached_) return;
    Error error;
    const worker::Leaving leaving{worker::leaving_magic};
    (void)os::send_message(socket_.get(), std::as_bytes(std::span(&leaving, 1)), {}, error);
  }

  void attach() {
    if (attached_) return;
    Error error;
    const worker::Attached attached{worker::attached_magic, shm::layout_hash};
    // A thread sends no pidfd; the kernel would refuse it (Linux 6.16), and the message with it.
    attached_ = os::send_message(socket_.get(), std::as_bytes(std::span(&attached, 1)), {}, error) == FEEDLANE_OK;
    PROMISE(attached_ || has_said_);  // who has said something else before may have been turned away
    say_ready(FEEDLANE_OK);
  }
  void say_ready(std::int32_t status) {
    Error error;
    has_said_ = true;
    const worker::Ready ready{worker::ready_magic, status, 0, "no data"};
    (void)os::send_message(socket_.get(), std::as_bytes(std::span(&ready, 1)), {}, error);
  }

  // Takes its next task, if there is one.
  void take() {
    const ring::Cells cells{l_.memory().segments.task_ring(id_), shm::loader_cell_bytes, capacity()};
    if (cells.sequence(tasks_).load(std::memory_order_acquire) != tasks_ + 1) return;
    shm::TaskMessage m;
    std::memcpy(&m, cells.message(tasks_++), sizeof m);
    PROMISE(m.slot < l_.memory().segments.plan().geometry.slots && m.rows >= 1);
    taken_.push_back(m);
    shm::WorkerRow& row = *l_.memory().segments.worker_row(id_);
    row.started_task.store(m.id, std::memory_order_relaxed);
    row.begun_through.store(m.id, std::memory_order_relaxed);
  }

  // Answers one of its tasks: as it should, but for what the input changes. Its stamps are any numbers: no reason to kill it.
  void answer(fuzz::Input& in) {
    shm::ResultMessage r{};
    if (!taken_.empty()) {
      const std::size_t which = in.pick(static_cast<std::uint32_t>(taken_.size()));
      const shm::TaskMessage m = taken_[which];
      taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(which));
      r = {m.id, m.slot, m.attempt, FEEDLANE_OK, m.rows, now(), now()};
      make(in, m, r);
    }
    const std::uint32_t how = in.pick(4);
    if (how == 2) r.begun_ns = in.u64(), r.committed_ns = in.u64();
    if (how == 3) fuzz::edit(in, &r, sizeof r);
    put(r);
    if (in.pick(16) == 15) put(r);  // once more
  }

  // Anything in its row, of which the trainer believes nothing.
  void scribble(fuzz::Input& in) {
    shm::WorkerRow& row = *l_.memory().segments.worker_row(id_);
    row.started_task.store(in.pick(8), std::memory_order_relaxed);
    row.started_sample.store(in.u64(), std::memory_order_relaxed);
    row.started_ns.store(in.u64(), std::memory_order_relaxed);
    row.begun_through.store(in.flag() ? in.u64() : in.u8(), std::memory_order_relaxed);
    row.sleeping.store(in.u8() & 1U, std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] std::uint32_t capacity() const { return l_.memory().segments.plan().geometry.ring_capacity; }
  [[nodiscard]] bool is_iterable() const { return task_.is_iterable(); }

  void make(fuzz::Input& in, const shm::TaskMessage& m, shm::ResultMessage& r) {
    const tensors::Slot slot = tensors::Slot::of(l_.memory().segments, m.slot);
    Error error;
    task_.open(m, l_.memory().segments.index_list(m.slot), slot);
    std::uint32_t skipped = 0;
    for (std::uint32_t i = 0; i < m.rows; i++) {
      if (in.pick(2) == 0) continue;
      if (fuzz::fail_sample(in, task_, i) == FEEDLANE_OK) skipped++;
    }
    if (!is_iterable()) r.rows -= skipped;
    if (in.pick(4) == 3) (void)task_.set_metadata("metadata", in.pick(9), error);
    if (in.pick(4) == 3) (void)task_.set_state("state", in.pick(6), error);
    switch (in.pick(16)) {
      case 15:
        r.status = FEEDLANE_E_SAMPLE;
        r.rows = is_iterable() ? in.pick(2) : 0;
        task_.describe_failure(std::int64_t{in.pick(8)} - 1, false, "it failed", "traceback");
        break;
      case 14:
        r.status = is_iterable() ? FEEDLANE_E_INIT : FEEDLANE_ABANDONED;
        r.rows = 0;
        task_.describe_failure(-1, false, "no shard", {});
        break;
      case 13:
        r.status = FEEDLANE_END;
        r.rows = 0;
        break;
      default: (void)task_.describe(r.rows); break;
    }
    task_.close();
    if (in.pick(4) != 3) return;
    fuzz::edit(in, &slot.header->head, sizeof slot.header->head);
    fuzz::edit(in, slot.header->tensors, 3 * sizeof slot.header->tensors[0]);
    if (slot.record_room != 0) fuzz::edit(in, slot.records, slot.record_room * sizeof(shm::SampleRecord));
  }

  void put(const shm::ResultMessage& r) {
    const ring::Cells cells{l_.memory().segments.result_lane(id_), shm::loader_cell_bytes, capacity()};
    std::memcpy(cells.message(results_), &r, sizeof r);
    cells.sequence(results_).store(results_ + 1, std::memory_order_release);
    results_++;
  }

  loader::Loader& l_;
  os::Fd socket_;
  tensors::Fields fields_;
  dataset::Task task_;
  std::uint32_t id_ = 0;
  std::uint64_t tasks_ = 0;
  std::uint64_t results_ = 0;
  bool attached_ = false;
  bool has_said_ = false;
  std::vector<shm::TaskMessage> taken_;
};

// ---- what the trainer gets ----

class Epoch {
 public:
  Epoch(loader::Loader& l, const Kind& kind) : l_(l), kind_(kind) { begin_again(); }

  // What is held goes on being held.
  void begin_again() {
    Error error;
    PROMISE(l_.begin(0, error) == FEEDLANE_OK);
    numbers_.clear();
    last_ = -1;
  }

  void next(fuzz::Input& in) {
    feedlane_batch b;
    Error error;
    const Status s = l_.next(0, b, error);
    switch (s) {
      case FEEDLANE_OK:
        look_at(b);
        held_.push_back(b.token);
        if (in.pick(4) != 3) release();
        break;
      case FEEDLANE_E_SAMPLE:
      case FEEDLANE_E_QUARANTINED:
        PROMISE(error.batch >= 0 && error.text[0] != '\0');
        PROMISE(kind_.iterable || numbers_.insert(error.batch).second);
        break;
      default: PROMISE(s >= 0 || error.code == s); break;
    }
  }
  void release() {
    if (held_.empty()) return;
    tensors::SlotTable::Left left;
    PROMISE(l_.leases().release(held_.front(), left) == FEEDLANE_OK && left.freed);
    PROMISE(l_.leases().release(held_.front(), left) == FEEDLANE_E_STALE);
    held_.erase(held_.begin());
  }
  void release_all() {
    while (!held_.empty()) release();
  }
  void save() {
    std::vector<std::byte> state;
    Error error;
    const Status s = l_.state(held_.empty() ? 0 : held_.back(), state, error);
    checkpoint::SavedState read;
    PROMISE(s != FEEDLANE_OK || checkpoint::read_state(state, read, error) == FEEDLANE_OK);
  }

 private:
  void look_at(const feedlane_batch& b) {
    PROMISE(b.token != 0 && b.worker >= 0 && b.worker < workers && b.attempt >= 0);
    PROMISE(kind_.iterable || numbers_.insert(b.batch).second);
    const std::uint64_t stamps[] = {1, b.dispatched_ns, b.begun_ns, b.committed_ns, b.swept_ns, b.yielded_ns, now()};
    PROMISE(std::is_sorted(std::begin(stamps), std::end(stamps)));
    if (!kind_.out_of_order) {
      PROMISE(b.batch > last_);
      last_ = b.batch;
    }
    const shm::Plan& plan = l_.memory().segments.plan();
    const std::byte* begin = l_.memory().segments.payload(0);
    const auto size = static_cast<std::ptrdiff_t>(plan.geometry.slots * plan.slot_stride);
    const auto is_within = [&](const void* data, std::uint64_t bytes) {
      const auto at = static_cast<const std::byte*>(data) - begin;
      return at >= 0 && at <= size && bytes <= static_cast<std::uint64_t>(size - at);
    };
    PROMISE(b.tensor_count >= 2 && b.count <= batch_size && b.skipped_count <= 2 * batch_size);
    for (std::uint64_t t = 0; t < b.tensor_count; t++) PROMISE(is_within(b.tensors[t].data, b.tensors[t].bytes));
    PROMISE(b.metadata == nullptr || is_within(b.metadata, b.metadata_bytes));
    if (kind_.iterable) return;
    PROMISE(b.count + b.skipped_count <= batch_size);
    for (std::uint64_t i = 0; i < b.skipped_count; i++) PROMISE(b.skipped[i] >= 0 && b.skipped[i] < samples);
    if (!kind_.policies)
      for (std::uint64_t i = 0; i < b.count; i++)
        PROMISE(b.indices[i] == b.batch * batch_size + static_cast<std::int64_t>(i));
  }

  loader::Loader& l_;
  const Kind& kind_;
  std::set<std::int64_t> numbers_;
  std::int64_t last_ = -1;
  std::vector<std::uint64_t> held_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  const std::uint32_t which = in.pick(std::size(kinds));
  loader::Loader& l = loader_of(which);
  Error error;
  Epoch epoch(l, kinds[which]);
  std::array<std::unique_ptr<Liar>, workers> liars;
  for (int steps = 0; steps < 200 && in.any(); steps++) {
    const std::uint8_t step = in.u8();
    std::unique_ptr<Liar>& liar = liars[step >> 4 & 1];
    if (liar == nullptr) {
      os::Fd socket;
      if (l.crew().starter().take_offer(socket, error) == FEEDLANE_OK)
        liar = std::make_unique<Liar>(l, std::move(socket), kinds[which]);
      if (liar != nullptr && step != 0xff) liar->attach();
    }
    switch (step & 15) {
      case 0: epoch.release(); break;
      case 1: epoch.save(); break;
      case 2:
        if (liar != nullptr) liar->scribble(in);
        break;
      case 3: liar.reset(); break;
      case 4:
        if (liar != nullptr) liar->say_ready(FEEDLANE_E_INIT);
        break;
      case 5: PROMISE(l.poll(error) >= 0 || error.code < 0); break;
      case 6:
        if (in.pick(8) != 7) break;
        if (in.flag())  // after E_INIT `begin` waits for all to leave
          for (auto& other : liars) other.reset();
        if (liars[0] == nullptr && liars[1] == nullptr) epoch.begin_again();
        break;
      case 7: (void)l.arm(error); break;
      case 8:
      case 9: epoch.next(in); break;
      default:
        if (liar != nullptr) {
          liar->take();
          if ((step & 1) != 0) liar->answer(in);
        }
        break;
    }
  }
  // What they have said is still heard; then they leave, and nothing is left of them.
  for (int i = 0; i < 3; i++) epoch.next(in);
  epoch.release_all();
  for (auto& liar : liars) {
    if (liar != nullptr) liar->attach();
    liar.reset();
  }
  PROMISE(l.stop(false, error) == FEEDLANE_OK);
  feedlane_event event;
  while (l.next_event(event)) PROMISE(event.kind >= FEEDLANE_EVENT_WARNING && event.kind <= FEEDLANE_EVENT_WORKER_HUNG);
  const feedlane_stats stats = l.stats();
  PROMISE(stats.slots_held == 0 && stats.slots_free == stats.slots);
  return 0;
}
