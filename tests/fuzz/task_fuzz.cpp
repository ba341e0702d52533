// SPDX-License-Identifier: Apache-2.0
// Cells of a task ring as a worker receives them, and what a data set then does: a cell that makes no sense is E_CORRUPT;
// of any other the worker makes a result that the trainer accepts.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "dataset/runner.hpp"
#include "failing.hpp"
#include "input.hpp"
#include "os/clock.hpp"
#include "os/event.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "tensors/slot.hpp"
#include "worker/worker.hpp"

using namespace feedlane;

namespace {

constexpr std::uint32_t max_rows = 5;
constexpr std::uint32_t capacity = 4;

// A worker of one kind and the trainer's half of it, for the life of the process.
class Bench {
 public:
  Bench(std::uint32_t flags, std::uint32_t field_count, std::uint32_t record_rows, std::uint32_t retries) {
    const shm::FieldRecord all[] = {{"image", 1, 8, 1, 3, {3, 4, 5}}, {"label", 0, 64, 1, 0, {}}};
    Error error;
    PROMISE(fields.read(all, field_count, max_rows, error) == FEEDLANE_OK);
    if ((flags & shm::geometry_unbatched) != 0) fields.leave_out_batch_dimension();
    shm::Geometry g{};
    g.workers = 1;
    g.world = 1;
    g.slots = 2;
    g.max_rows = max_rows;
    g.field_count = field_count;
    g.ring_capacity = capacity;
    g.flags = flags;
    g.reserved_bytes = std::max<std::uint64_t>(fields.slot_bytes(), 1);
    g.slot_bytes = fields.slot_bytes() + 20000;
    g.list_bytes = 64;
    g.base_seed = 5;
    g.retries = retries;
    g.retry_backoff_ns = 1;
    g.record_rows = record_rows;
    shm::Plan plan;
    PROMISE(shm::make_plan(g, plan, error) == FEEDLANE_OK);
    PROMISE(segments.create(plan, {"/nowhere", "/nowhere"}, error) == FEEDLANE_OK);
    fields.write(segments.fields());
    attach();
  }

  void attach() {
    os::Fd theirs, worker_event, trainer_event, self;
    Error error;
    PROMISE(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
    PROMISE(os::create_event(worker_event, error) == FEEDLANE_OK);
    PROMISE(os::create_event(trainer_event, error) == FEEDLANE_OK);
    PROMISE(os::open_pidfd(::getppid(), self, error) == FEEDLANE_OK);
    const worker::Welcome welcome{worker::welcome_magic, shm::layout_hash, 0, 0, 0, 0, 0, 0, 0};
    const int fds[] = {segments.control_fd(), segments.data_fd(),  worker_event.get(),
                       trainer_event.get(),   trainer_event.get(), self.get()};
    PROMISE(os::send_message(mine.get(), std::as_bytes(std::span(&welcome, 1)), fds, error) == FEEDLANE_OK);
    PROMISE(worker::Worker::attach(std::move(theirs), 0, nullptr, nullptr, worker, error) == FEEDLANE_OK);
    PROMISE(worker->ready(FEEDLANE_OK, nullptr, error) == FEEDLANE_OK);
  }

  // The worker stands where its row says; what is behind that is for us to write.
  void send(std::uint32_t ahead, const shm::TaskMessage& task) {
    const std::uint64_t at = segments.worker_row(0)->task_position.load(std::memory_order_acquire) + ahead;
    const ring::Cells cells{segments.task_ring(0), shm::loader_cell_bytes, capacity};
    std::memcpy(cells.message(at), &task, sizeof task);
    cells.sequence(at).store(at + 1, std::memory_order_release);
  }
  void clear(std::uint32_t ahead) {
    const std::uint64_t at = segments.worker_row(0)->task_position.load(std::memory_order_acquire) + ahead;
    ring::Cells{segments.task_ring(0), shm::loader_cell_bytes, capacity}.sequence(at).store(0,
                                                                                            std::memory_order_release);
  }
  void take_back(std::uint32_t count) {
    const std::uint64_t at = segments.worker_row(0)->task_position.load(std::memory_order_acquire);
    const ring::Cells cells{segments.task_ring(0), shm::loader_cell_bytes, capacity};
    for (std::uint32_t i = 0; i < count; i++) cells.sequence(at + i).store(0, std::memory_order_release);
  }

  // What the worker has answered. False: nothing more.
  bool answer(shm::ResultMessage& out) {
    const ring::Cells cells{segments.result_lane(0), shm::loader_cell_bytes, capacity};
    if (cells.sequence(answered).load(std::memory_order_acquire) != answered + 1) return false;
    std::memcpy(&out, cells.message(answered), sizeof out);
    segments.trainer_row(0)->result_position.store(++answered, std::memory_order_release);
    return true;
  }

  [[nodiscard]] bool is_iterable() const { return (segments.plan().geometry.flags & shm::geometry_iterable) != 0; }

  shm::Segments segments;
  tensors::Fields fields;
  os::Fd mine;
  std::unique_ptr<worker::Worker> worker;
  std::uint64_t answered = 0;
};

Bench& bench(std::uint32_t which) {
  static const std::array all{
      std::make_unique<Bench>(0, 2, 0, 0),
      std::make_unique<Bench>(shm::geometry_skip | shm::geometry_substitute, 2, max_rows, 2),
      std::make_unique<Bench>(shm::geometry_iterable, 1, 0, 0),
      std::make_unique<Bench>(shm::geometry_iterable | shm::geometry_skip, 2, max_rows, 1),
      std::make_unique<Bench>(shm::geometry_iterable | shm::geometry_drop_last, 0, max_rows, 1),
      std::make_unique<Bench>(shm::geometry_unbatched | shm::geometry_skip, 2, max_rows, 0),
  };
  return *all[which % all.size()];
}

shm::TaskMessage sound_task(fuzz::Input& in, const Bench& b, std::uint64_t id) {
  shm::TaskMessage t{};
  t.id = id;
  t.epoch = in.pick(3);
  t.batch = in.pick(8);
  t.first_position = in.pick(8);
  t.slot = in.pick(2);
  t.rows = (b.segments.plan().geometry.flags & shm::geometry_unbatched) != 0 ? 1 : 1 + in.pick(max_rows);
  t.stride = 1;
  if (b.is_iterable()) {
    t.flags = in.pick(4) == 3 ? 0U : std::uint32_t{shm::task_first};
    t.state_bytes = in.pick(4) == 3 ? in.pick(65) : 0;
  }
  return t;
}

// ---- a data set that does as the input says ----

struct Script {
  fuzz::Input& in;
  Bench& bench;
  int calls = 0;
};

std::int32_t outcome(Script& s, feedlane_error* err) {
  const std::uint32_t how = s.in.pick(16);
  if (++s.calls > 40) return FEEDLANE_END;  // a shard that has to be gone through again isn't endless
  if (how < 10) return FEEDLANE_OK;
  err->transient = how & 1;
  if (how == 13) (void)std::snprintf(err->text, sizeof err->text, "sample %d", s.calls);
  if (how == 14) std::memset(err->text, 'x', sizeof err->text);
  if (how == 15 && err->detail != nullptr) {
    err->detail_len = s.in.u32();
    std::memset(err->detail, 'd', 16);
  }
  return how == 12 ? FEEDLANE_END : how == 11 ? s.in.i32() : FEEDLANE_E_SAMPLE;
}

void content(fuzz::Input& in, dataset::Task& task, int steps);

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  for (std::int32_t f = 0; f < row->task->tensor_count; f++) std::memset(row->fields[f], 3, row->bytes[f]);
  return outcome(*static_cast<Script*>(self), err);
}
std::int32_t fetch(void* self, const feedlane_task*, feedlane_error* err) {
  auto& s = *static_cast<Script*>(self);
  content(s.in, s.bench.worker->task(), 3);
  return outcome(s, err);
}
std::int32_t restart(void* self, std::int64_t, feedlane_error* err) {
  return outcome(*static_cast<Script*>(self), err);
}
std::int32_t open(void* self, const feedlane_worker_info*, void** out, feedlane_error* err) {
  *out = self;
  return outcome(*static_cast<Script*>(self), err);
}
std::int32_t save(void* self, void*, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* err) {
  auto& s = *static_cast<Script*>(self);
  *bytes = s.in.u8() % (cap + 2);
  return outcome(s, err);
}
std::int32_t load(void* self, const void*, std::uint64_t, feedlane_error* err) {
  return outcome(*static_cast<Script*>(self), err);
}
std::int32_t substitute(void* self, std::int64_t failed, std::uint64_t, std::uint32_t, std::int64_t* other,
                        feedlane_error* err) {
  *other = failed + 1;
  return outcome(*static_cast<Script*>(self), err);
}

class NoPause final : public worker::WorkerPace {
 public:
  explicit NoPause(worker::Worker& worker) : WorkerPace(worker) {}
  Status pause(std::int64_t) override { return look(); }
};

// As worker::run does, but for the last resort: what isn't answered here is failed by the caller.
void run_dataset(fuzz::Input& in, Bench& b) {
  Script script{in, b};
  feedlane_dataset table{};
  table.size = sizeof table;
  table.user_data = &script;
  const std::uint8_t has = in.u8();
  if ((has & 1) != 0) table.get = &get;
  if ((has & 2) != 0) table.fetch = &fetch;
  if ((has & 4) != 0) table.next = &get;
  if ((has & 8) != 0) table.restart = &restart;
  if ((has & 16) != 0) table.save = &save;
  if ((has & 32) != 0) table.load = &load;
  if ((has & 64) != 0) table.substitute = &substitute;
  if ((has & 128) != 0) table.open = &open;
  dataset::DatasetRunner runner;
  dataset::Progress progress;
  Error reason, error;
  NoPause pace(*b.worker);
  if (runner.take(&table, "dataset", error) != FEEDLANE_OK) return;
  if (runner.check_style(b.is_iterable(), "dataset", error) != FEEDLANE_OK) return;
  if (runner.open(b.worker->info(), error) != FEEDLANE_OK) return;
  Status s = FEEDLANE_ABANDONED;
  for (int tries = 0; tries < 2 && s == FEEDLANE_ABANDONED; tries++)  // what was interrupted goes on
    s = runner.run(b.worker->task(), progress, pace, reason);
  if (s == FEEDLANE_OK) s = b.worker->commit(progress.made, reason);
  else if (s == FEEDLANE_END && b.is_iterable()) s = b.worker->exhausted(reason);
  else if (s == FEEDLANE_E_INIT && b.is_iterable()) s = b.worker->fail_shard(reason.text, reason.detail, error);
  if (s < 0 && b.worker->task().is_open()) {
    const bool blames_sample = reason.sample >= 0;
    const auto position = blames_sample ? static_cast<std::int64_t>(progress.position) : -1;
    (void)b.worker->fail(position, reason.transient, reason.text, reason.detail,
                         progress.position + (blames_sample ? 1 : 0), error);
  }
  runner.close();
}

// What any data set may add to the task in hand.
void content(fuzz::Input& in, dataset::Task& task, int steps) {
  Error error;
  std::array<std::byte, 80> bytes{};
  for (int i = 0; i < steps; i++) switch (in.pick(6)) {
      case 0: {
        feedlane_field full{};
        full.size = sizeof full;
        const std::string name = in.text(40);
        full.name = in.pick(8) == 7 ? nullptr : name.c_str();
        full.dtype = in.flag() ? feedlane_dtype{2, 32, 1} : feedlane_dtype{in.u8(), in.u8(), in.u16()};
        full.ndim = in.flag() ? static_cast<std::int32_t>(in.pick(9)) : in.i32();
        for (std::int64_t& extent : full.shape) extent = in.flag() ? std::int64_t{in.pick(8)} : in.number();
        feedlane_tensor out{};
        const Status s = task.shape_tensor(static_cast<std::int32_t>(in.number()), full, &out, error);
        if (s == FEEDLANE_OK && out.bytes != 0) {  // it is there, all of it
          static_cast<std::byte*>(out.data)[0] = std::byte{1};
          static_cast<std::byte*>(out.data)[out.bytes - 1] = std::byte{2};
        }
        break;
      }
      case 1: {
        const void* from = in.pick(8) == 7 ? nullptr : bytes.data();
        (void)task.set_metadata(from, in.u8() % (bytes.size() + 1), error);
        break;
      }
      case 2: (void)task.set_state(bytes.data(), in.u8() % (bytes.size() + 1), error); break;
      case 3: *task.view().rows = static_cast<std::uint64_t>(in.number()); break;
      default: {
        const auto position = static_cast<std::uint64_t>(in.number());
        (void)fuzz::fail_sample(in, task, position);
        break;
      }
    }
}

// What stands behind the task in hand makes no difference to it. What is shown of it is of the size that may be.
void look_ahead(fuzz::Input& in, Bench& b) {
  const std::uint32_t count = 1 + in.pick(capacity);
  for (std::uint32_t i = 0; i < count; i++) {
    shm::TaskMessage message = sound_task(in, b, i + 1);
    fuzz::edit(in, &message, sizeof message);
    b.send(i, message);
  }
  worker::Worker::Ahead room;
  feedlane_ahead shown{};
  std::uint64_t after = in.u8();
  for (std::uint32_t i = 0; i <= capacity; i++) {
    const Status s = b.worker->ahead(after, room, shown);
    if (s == FEEDLANE_END) break;
    PROMISE(s == FEEDLANE_OK && i < capacity && shown.id > after && !b.is_iterable());
    PROMISE(shown.count >= 1 && shown.count <= max_rows && shown.indices == room.indices.data());
    PROMISE(room.indices.size() >= shown.count && room.seeds.size() >= shown.count && shown.seeds == room.seeds.data());
    after = shown.id;
  }
  for (std::uint32_t i = 0; i < count; i++) b.clear(i);
}

// The pull form, in any order.
void pull_form(fuzz::Input& in, Bench& b) {
  worker::Worker& w = *b.worker;
  Error error;
  const feedlane_task* again = nullptr;
  for (int i = 0; i < 12 && w.task().is_open(); i++) switch (in.pick(12)) {
      case 0: (void)w.commit(static_cast<std::uint64_t>(in.number()), error); break;
      case 1: {
        const std::int64_t position = in.number();
        const auto taken = b.is_iterable() && position >= 0 ? static_cast<std::uint64_t>(position) + 1 : 0;
        const std::string text(in.u16() % 600, 't');
        (void)w.fail(position, (text.size() & 1) != 0, text, in.text(255), taken, error);
        break;
      }
      case 2: (void)w.exhausted(error); break;
      case 3: (void)NoPause(w).between(in.u8()); break;
      case 4: {
        const std::uint64_t size = in.u16();
        void* memory = w.scratch(size, in.flag() ? 0 : 64);
        if (memory != nullptr) std::memset(memory, 1, size);
        break;
      }
      case 5: PROMISE(w.next(0, &again, error) == FEEDLANE_E_STATE); break;
      case 6: (void)w.check(); break;
      case 7: PROMISE(w.arm() == FEEDLANE_AGAIN); break;
      case 8: (void)w.pause(in.flag() ? 0 : 1, error); break;
      case 9: look_ahead(in, b); break;
      default: content(in, w.task(), 1); break;
    }
}

// What the trainer makes of an answer.
void check_answer(const Bench& b, const shm::TaskMessage& task, const shm::ResultMessage& r, bool had_in_hand) {
  PROMISE(r.id == task.id && r.slot == task.slot && r.attempt == task.attempt);
  if (had_in_hand) {
    PROMISE(r.begun_ns == b.segments.worker_row(0)->started_ns.load(std::memory_order_relaxed));
    PROMISE(0 < r.begun_ns && r.begun_ns <= r.committed_ns &&
            r.committed_ns <= static_cast<std::uint64_t>(os::now_ns()));
  }
  const std::uint64_t limit = dataset::Task::record_limit(task.rows, b.is_iterable());
  const tensors::Slot slot = tensors::Slot::of(b.segments, r.slot);
  Error error, why;
  tensors::Made made;
  std::int64_t position = 0;
  switch (r.status) {
    case FEEDLANE_OK: {
      PROMISE(had_in_hand && r.rows <= task.rows);
      PROMISE(tensors::read_batch(slot, r.id, b.fields, r.rows, limit, made, error) == FEEDLANE_OK);
      const bool may_be_empty = b.is_iterable() ? !made.records.empty() : made.skipped() != 0;
      PROMISE(b.is_iterable() || r.rows + made.skipped() <= task.rows);
      PROMISE(r.rows != 0 || may_be_empty);
      break;
    }
    case FEEDLANE_E_INIT: PROMISE(b.is_iterable()); [[fallthrough]];
    case FEEDLANE_E_SAMPLE:
      PROMISE(had_in_hand && r.rows <= limit);
      PROMISE(tensors::read_failure(slot, r.id, limit, position, why, made.records, error) == FEEDLANE_OK);
      break;
    case FEEDLANE_END: PROMISE(had_in_hand && b.is_iterable()); break;
    default: PROMISE(r.status == FEEDLANE_ABANDONED && !had_in_hand); break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  Bench& b = bench(in.u8());
  worker::Worker& w = *b.worker;
  shm::TrainerRow& row = *b.segments.trainer_row(0);
  shm::Word64& abandon_before = b.segments.trainer_block()->abandon_before;
  const feedlane_task* task = nullptr;
  Error error;
  shm::ResultMessage result{};
  abandon_before.store(in.pick(8) == 7 ? in.pick(8) : 0, std::memory_order_relaxed);
  row.revoked_from.store(in.pick(8) == 7 ? in.pick(8) : 0, std::memory_order_relaxed);
  row.revoked_until.store(in.pick(8) == 7 ? in.pick(8) : 0, std::memory_order_relaxed);
  if (in.pick(8) == 7) PROMISE(w.arm() == FEEDLANE_OK);

  for (std::uint64_t id = 1, rounds = 1 + in.pick(3); id <= rounds; id++) {
    shm::TaskMessage message = sound_task(in, b, id);
    fuzz::edit(in, &message, sizeof message);
    for (std::uint32_t i = 0; i < max_rows; i++) b.segments.index_list(0)[i] = b.segments.index_list(1)[i] = in.u8();
    b.send(0, message);
    const Status s = w.next(0, &task, error);
    if (s == FEEDLANE_E_CORRUPT) {
      b.take_back(1);
      break;
    }
    if (s == FEEDLANE_TIMEOUT) {  // it was given up, or is another's
      PROMISE(b.answer(result));
      check_answer(b, message, result, false);
      continue;
    }
    PROMISE(s == FEEDLANE_OK && task == &w.task().view() && task->count == message.rows);
    for (std::uint64_t i = 0; i < task->count; i++) PROMISE(task->seeds[i] == task->seeds[i]);
    if (in.flag()) run_dataset(in, b);
    else pull_form(in, b);
    if (w.task().is_open()) PROMISE(w.fail(-1, false, "", {}, 0, error) == FEEDLANE_OK);
    PROMISE(b.answer(result));
    check_answer(b, message, result, true);
    PROMISE(w.commit(1, error) == FEEDLANE_E_STATE);
  }
  PROMISE(!b.answer(result));
  if (in.pick(16) == 15) {  // the done-event
    row.done_through.store(1, std::memory_order_release);
    PROMISE(w.next(0, &task, error) == FEEDLANE_END && w.check() == FEEDLANE_END);
    row.done_through.store(0, std::memory_order_release);
  }
  return 0;
}
