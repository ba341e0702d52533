// SPDX-License-Identifier: Apache-2.0
// The pull form of a worker: attaching, taking tasks, sending results, waiting.
#include "worker/worker.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "dataset/allocator.hpp"
#include "greeting/guest.hpp"
#include "os/event.hpp"
#include "os/process.hpp"
#include "os/quick_clock.hpp"
#include "os/socket.hpp"
#include "ring/fence.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::worker {
namespace {

enum Tag : std::uint64_t { tag_own_event, tag_trainer, tag_socket };
constexpr greeting::Expected expected{welcome_magic, shm::layout_hash, welcome_fds, "trainer"};

}  // namespace

// ---- attaching ----

Status Worker::receive_welcome(int socket, os::Deadline deadline, shm::Segments* inherited, Error& error) {
  Welcome welcome{};
  os::Received received;
  if (const Status s =
          greeting::receive_welcome(socket, -1, expected, {}, deadline, greeting::bytes_of(welcome), received, error);
      s != FEEDLANE_OK)
    return s;
  os::refuse_descriptors(socket);  // no more are expected
  link_.wants_pidfd = welcome.wants_pidfd != 0;
  link_.lifeline = std::move(received.fds[welcome_lifeline]);
  link_.trainer = std::move(received.fds[welcome_trainer]);
  link_.own_event = std::move(received.fds[welcome_worker_event]);
  link_.trainer_event = std::move(received.fds[welcome_trainer_event]);
  if (segments_ != &own_) return open_rings(welcome, error);
  if (os::is_this_process(link_.trainer.get())) {  // the lifeline would kill the trainer itself
    link_.lifeline.reset();
    return error.refuse(FEEDLANE_E_ARGUMENT, "fd", socket, -1,
                        "the loader belongs to this process: workers must be other processes, and worker threads need "
                        "FEEDLANE_START_THREAD");
  }
  os::drop_inherited_lifelines();
  link_.is_tied = welcome.tied != 0;
  if (link_.is_tied)
    if (const Status s = os::tie_lifeline(link_.lifeline.get(), ::getpid(), error); s != FEEDLANE_OK) return s;
  const int control = received.fds[welcome_control].get();
  const int data = received.fds[welcome_data].get();
  const Status s = inherited == nullptr ? own_.attach(control, data, error)
                                        : own_.attach_inherited(control, data, *inherited, error);
  own_.keep_data_fd(std::move(received.fds[welcome_data]));
  return s == FEEDLANE_OK ? open_rings(welcome, error) : s;
}

Status Worker::open_rings(const Welcome& welcome, Error& error) {
  const shm::Geometry& geometry = segments_->plan().geometry;
  if (welcome.worker >= geometry.workers)
    return error.refuse(FEEDLANE_E_CORRUPT, "welcome.worker", welcome.worker, geometry.workers,
                        "the trainer's welcome message names worker {}, but the loader has {} workers", welcome.worker,
                        geometry.workers);
  id_ = welcome.worker;
  generation_ = welcome.generation;
  epoch_ = welcome.epoch;
  if (const Status s = fields_.read(segments_->fields(), geometry.field_count, geometry.max_rows, error);
      s != FEEDLANE_OK)
    return s;
  if ((geometry.flags & shm::geometry_unbatched) != 0) fields_.leave_out_batch_dimension();
  if (fields_.slot_bytes() > geometry.slot_bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, "geometry.slot_bytes", geometry.slot_bytes, fields_.slot_bytes(),
                        "the declared fields take {} bytes, but a slot has only {}", fields_.slot_bytes(),
                        geometry.slot_bytes);
  declared_ = fields_.as_declared();
  if (segments_ == &own_) own_.poison_payloads();
  row_ = segments_->worker_row(id_);
  trainer_row_ = segments_->trainer_row(id_);
  const auto capacity = geometry.ring_capacity;
  tasks_ = ring::Consumer({segments_->task_ring(id_), shm::loader_cell_bytes, capacity}, welcome.task_start,
                          &row_->task_position);
  results_ = ring::Producer({segments_->result_lane(id_), shm::loader_cell_bytes, capacity}, welcome.result_start,
                            &trainer_row_->result_position);
  trainer_bell_ = ring::Doorbell(&segments_->trainer_block()->sleeping, link_.trainer_event.get());
  // Relaxed: for monitors. glibc before 2.30 lacks gettid.
  row_->thread.store(static_cast<std::uint64_t>(::syscall(SYS_gettid)), std::memory_order_relaxed);
  waiter_.use(&row_->sleeping, ring::FencedBy::publisher, geometry.workers + 1);
  return FEEDLANE_OK;
}

Status Worker::watch_trainer(int socket, Error& error) {
  Status s = waiter_.open(error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add_bell(link_.own_event.get(), tag_own_event, error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add(link_.trainer.get(), tag_trainer, error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add(socket, tag_socket, error);
  return s;
}

Status Worker::set_up(int socket, os::Deadline deadline, shm::Segments* inherited, Error& error) {
  const Status s = receive_welcome(socket, deadline, inherited, error);
  return s == FEEDLANE_OK ? watch_trainer(socket, error) : s;
}

namespace {

// Sends the trainer the reason. Otherwise it would see only the end of this process, and standard error may be lost.
void send_refusal(int socket, const Error& why) {
  Ready message{};
  message.magic = ready_magic;
  message.status = why.code;
  copy_text(message.text, sizeof message.text, why.text);
  Error ignored;
  (void)greeting::send(socket, message, {}, ignored);
}

}  // namespace

Status Worker::attach(os::Fd socket, std::int64_t timeout_ns, feedlane_worker* handle, const shm::Segments* local,
                      std::unique_ptr<Worker>& out, Error& error, shm::Segments* inherited) {
  std::unique_ptr<Worker> w(new Worker);
  if (local != nullptr) w->segments_ = local;
  Status s = w->set_up(socket.get(), os::Deadline::after(timeout_ns), inherited, error);
  if (s == FEEDLANE_OK) {
    // Called early, because both open files when first used. A data set that sandboxes its worker may forbid that
    // later.
    (void)os::QuickClock::now_ns();
    (void)dataset::allocator();
    w->task_.prepare(w->fields_, w->segments_->plan().geometry, w->id_, handle, w->segments_->trainer_block());
    const Attached attached{attached_magic, shm::layout_hash};
    s = greeting::send_attached(socket.get(), greeting::bytes_of(attached), w->link_.wants_pidfd, error);
  }
  if (s != FEEDLANE_OK) {
    if (s < 0) send_refusal(socket.get(), error);
    return s;
  }
  w->link_.socket = std::move(socket);
  w->has_attached_ = true;
  out = std::move(w);
  return s;
}

Worker::~Worker() {
  if (!has_attached_) {  // no Leaving is sent, but the process may be tied
    if (link_.lifeline) os::untie_lifeline(link_.lifeline.get());
    return;
  }
  // started_task stays unchanged: the trainer gives a task in hand to another worker once this one can't write any
  // more.
  own_.unmap();
  // The trainer closes its end of the lifeline when it has received Leaving.
  os::untie_lifeline(link_.lifeline.get());
  link_.lifeline.reset();
  greeting::say(link_.socket.get(), leaving_magic);
}

feedlane_worker_info Worker::info() const {
  const shm::Geometry& geometry = segments_->plan().geometry;
  feedlane_worker_info i{};
  i.size = sizeof i;
  i.id = static_cast<std::int32_t>(id_);
  i.count = static_cast<std::int32_t>(geometry.workers);
  i.generation = static_cast<std::int32_t>(generation_);
  i.config = geometry.config_bytes == 0 ? nullptr : segments_->config();
  i.config_bytes = geometry.config_bytes;
  i.fields = declared_.data();
  i.field_count = declared_.size();
  i.epoch = epoch_;
  dataset::set_by_geometry(i, geometry, id_);
  return i;
}

Status Worker::ready(Status status, const char* text, Error& error) {
  if (is_ready_) return error.fail(FEEDLANE_E_STATE, "feedlane_worker_ready was already called");
  Ready message{};
  message.magic = ready_magic;
  message.status = status;
  copy_text(message.text, sizeof message.text, text == nullptr ? feedlane_status_text(status) : text);
  const Status s = greeting::send(link_.socket.get(), message, {}, error);
  if (s == FEEDLANE_E_PEER_DEAD) trainer_gone_ = true;  // `next` returns END
  else if (s != FEEDLANE_OK) return s;
  is_ready_ = true;
  is_unfit_ = status < 0;
  return FEEDLANE_OK;
}

// ---- tasks ----

bool Worker::is_done() const {
  // Acquire: pairs with the release store in TaskRing::ring_done.
  return trainer_gone_ || trainer_row_->done_through.load(std::memory_order_acquire) > generation_;
}

std::uint64_t Worker::abandon_before() const {
  // Relaxed: only saves work; the trainer's ledger decides what counts.
  return segments_->trainer_block()->abandon_before.load(std::memory_order_relaxed);
}

// Called after the store of begun_through. The fence pairs with the one in TaskRing::revoke: either the worker sees the
// revocation, or the trainer sees the task begun. So they never both take the task.
bool Worker::is_revoked(std::uint64_t task) const {
  ring::doorbell_fence();
  // The end is loaded first. Acquire: pairs with the release stores in TaskRing::set_revoked. Every new range clears
  // the old beginning before it stores its end, so after a load of its end the beginning of an earlier range can't be
  // loaded. If the beginning of a later range is loaded, the result is an empty range, because a later range doesn't
  // begin before this end.
  const std::uint64_t until = trainer_row_->revoked_until.load(std::memory_order_acquire);
  return task < until && task >= trainer_row_->revoked_from.load(std::memory_order_acquire);
}

Status Worker::check() const {
  if (is_done()) return FEEDLANE_END;
  // Skipping samples that were delivered before produces no result, so this counter shows the trainer the progress.
  if (task_.is_open() && task_.view().delivered != 0) shm::add(row_->passed_over, 1);
  return task_.is_open() && task_.message().id < abandon_before() ? FEEDLANE_ABANDONED : FEEDLANE_OK;
}

Status Worker::take_task(const feedlane_task** task, Error& error) {
  const shm::Geometry& geometry = segments_->plan().geometry;
  while (tasks_.peek(1) != 0) {
    const auto message = shm::read_once<shm::TaskMessage>(tasks_.message(0));
    if (message.slot >= geometry.slots || message.rows == 0 || message.rows > geometry.max_rows ||
        message.state_bytes > geometry.list_bytes)
      return error.refuse(FEEDLANE_E_CORRUPT, "task.slot", message.slot, geometry.slots,
                          "the trainer sent an invalid task: slot {} of {}, and {} rows of {}", message.slot,
                          geometry.slots, message.rows, geometry.max_rows);
    if (task_since_ns_ == 0) task_since_ns_ = os::now_ns();
    // Marks for the trainer and for monitors. TaskRing::revoke depends on begun_through, through the fences. Release:
    // pairs with TaskRing::marks: a reader that sees this task begun sees the results of all tasks before it.
    row_->started_sample.store(0, std::memory_order_relaxed);
    row_->started_ns.store(static_cast<std::uint64_t>(task_since_ns_), std::memory_order_relaxed);
    row_->started_task.store(message.id, std::memory_order_relaxed);
    row_->begun_through.store(message.id, std::memory_order_release);
    task_.open(message, segments_->index_list(message.slot), tensors::Slot::of(*segments_, message.slot));
    tasks_.release(1);
    // Prefetches the next task and this slot's header for the end of this task. The trainer was the last to read the
    // header.
    tasks_.prefetch();
    task_.prefetch_header();
    const bool is_another_s = is_revoked(message.id);
    if (message.id >= abandon_before() && !is_another_s) {
      task_.unpoison();
      *task = &task_.view();
      return FEEDLANE_OK;
    }
    const Status s = is_another_s ? decline_task(error) : finish_task(FEEDLANE_ABANDONED, 0, 0, error);
    if (s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_AGAIN;
}

// An untied worker notices the trainer's end when it sleeps, which it doesn't do while it has tasks. So it also checks
// here, at most once a millisecond, because a check is a system call.
void Worker::check_trainer() {
  if (link_.is_tied || done_ns_ - checked_ns_ < check_every_ns) return;
  checked_ns_ = done_ns_;
  if (os::has_ended(link_.trainer.get())) trainer_gone_ = true;
}

Status Worker::next(std::int64_t timeout_ns, const feedlane_task** task, Error& error) {
  if (!is_ready_) return error.fail(FEEDLANE_E_STATE, "call feedlane_worker_ready before feedlane_worker_next");
  if (task_.is_open()) return error.fail(FEEDLANE_E_STATE, "commit or fail the current task first");
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  waiter_.cancel();  // the caller may have armed before
  check_trainer();
  for (;;) {
    if (closed_.load(std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;  // see `close`
    if (is_done() || is_unfit_) return FEEDLANE_END;
    if (const Status s = take_task(task, error); s != FEEDLANE_AGAIN) return s;
    task_since_ns_ = 0;
    const std::int64_t before = os::now_ns();
    const Status s = sleep(deadline, error);
    shm::add(row_->wait_ns, static_cast<std::uint64_t>(os::now_ns() - before));
    if (s != FEEDLANE_OK) return s;
  }
}

Status Worker::sleep(os::Deadline deadline, Error& error) {
  const auto has_work = [this] { return tasks_.peek(1) != 0 || is_done(); };
  // Relaxed: only decides whether spinning pays.
  waiter_.expect(static_cast<std::uint32_t>(segments_->trainer_block()->engaged.load(std::memory_order_relaxed)) + 1);
  if (waiter_.spin(deadline, has_work)) return FEEDLANE_OK;
  return waiter_.sleep_until(
      deadline, has_work, [this](const os::Poller::Event& event) { handle(event); }, error);
}

// The trainer sends nothing over the socket after the welcome, so an event there, or at its pidfd, means its end.
void Worker::handle(const os::Poller::Event& event) {
  if (event.tag != tag_own_event) trainer_gone_ = true;
}

void Worker::close() {
  // Relaxed: the event wakes the worker; the flag only says why. The event is written whatever the sleeping flag says,
  // because the poller keeps it.
  closed_.store(true, std::memory_order_relaxed);
  os::ring_event(link_.own_event.get());
}

Status Worker::arm() {
  if (tasks_.peek(1) != 0 || is_done() || task_.is_open()) return FEEDLANE_AGAIN;
  Error ignored;
  // Consumes earlier rings, which would wake the caller at once.
  (void)waiter_.poll(
      1, [this](const os::Poller::Event& event) { handle(event); }, ignored);
  return waiter_.arm([this] { return tasks_.peek(1) != 0 || is_done(); }, ignored);
}

Status Worker::finish_task(Status status, std::uint32_t rows, std::uint64_t bytes, Error& error) {
  // Counted before the result is sent: a trainer that has the last batch finds it in the counters.
  shm::add(row_->tasks, 1);
  shm::add(row_->samples, rows);
  shm::add(row_->bytes, bytes);
  shm::add(row_->errors, status < 0 ? 1 : 0);
  done_ns_ = std::max(os::QuickClock::now_ns(), task_since_ns_);  // the two clocks may differ slightly
  shm::add(row_->work_ns, static_cast<std::uint64_t>(done_ns_ - task_since_ns_));
  task_.close();  // the trainer owns the slot from the commit on
  scratch_.clear();
  const Status s = send_result(status, rows, error);
  task_since_ns_ = has_callbacks_ ? done_ns_ : 0;
  return s;
}

// Answers ABANDONED for a revoked task. Not counted, because this worker never began it.
Status Worker::decline_task(Error& error) {
  task_.close();
  return send_result(FEEDLANE_ABANDONED, 0, error);
}

Status Worker::send_result(Status status, std::uint32_t rows, Error& error) {
  const shm::TaskMessage& task = task_.message();
  if (results_.reserve(1) == 0)  // the trainer never sends more tasks than the lane has cells
    return error.fail(FEEDLANE_E_CORRUPT, "the result lane is full, so the trainer's position in it must be invalid");
  const shm::ResultMessage message{task.id,
                                   task.slot,
                                   task.attempt,
                                   status,
                                   rows,
                                   static_cast<std::uint64_t>(task_since_ns_),
                                   static_cast<std::uint64_t>(done_ns_)};
  std::memcpy(results_.message(0), &message, sizeof message);
  results_.commit(1);
  // Before the doorbell, so that the trainer, once awake, finds no task in progress. Release: pairs with
  // TaskRing::marks: a reader that sees 0 sees the result.
  row_->started_task.store(0, std::memory_order_release);
  (void)trainer_bell_.ring();
  return FEEDLANE_OK;
}

Status Worker::commit(std::uint64_t rows, Error& error) {
  if (!task_.is_open()) return error.fail(FEEDLANE_E_STATE, "no task is in progress: call feedlane_worker_next first");
  task_.end_sample();
  const std::uint64_t skipped = task_.skipped();
  // The number of rows that the task may still have. A map-style batch without rows is one whose samples were all
  // skipped.
  const std::uint64_t most = task_.is_iterable() ? task_.message().rows : task_.message().rows - skipped;
  // In a shard, an incomplete batch may also have been dropped after some of its samples were retried.
  const bool may_be_empty = task_.is_iterable() ? task_.records() != 0 : skipped != 0;
  const std::uint64_t least = may_be_empty ? 0 : 1;
  if (rows < least || rows > most || (rows == 0 && most != 0 && !task_.is_iterable()))
    return error.refuse(FEEDLANE_E_ARGUMENT, "rows", rows, most, "rows is {}: must be 1 to {}", rows, most);
  const std::uint64_t bytes = task_.describe(rows);
  task_.advance_shard(rows + skipped);
  return finish_task(FEEDLANE_OK, static_cast<std::uint32_t>(rows), bytes, error);
}

Status Worker::exhausted(Error& error) {
  if (!task_.is_open()) return error.fail(FEEDLANE_E_STATE, "no task is in progress: call feedlane_worker_next first");
  if (!task_.is_iterable())
    return error.fail(FEEDLANE_E_STATE, "only tasks of iterable data sets can be exhausted: commit or fail this one");
  return finish_task(FEEDLANE_END, 0, 0, error);
}

Status Worker::finish_failed(Status status, std::int64_t position, bool transient, std::string_view text,
                             std::string_view detail, std::uint64_t taken, Error& error) {
  task_.describe_failure(position, transient, text, detail);
  task_.advance_shard(taken);
  return finish_task(status, static_cast<std::uint32_t>(taken), 0, error);
}

Status Worker::fail(std::int64_t position, bool transient, std::string_view text, std::string_view detail,
                    std::uint64_t taken, Error& error) {
  if (!task_.is_open()) return error.fail(FEEDLANE_E_STATE, "no task is in progress: call feedlane_worker_next first");
  const auto limit = static_cast<std::int64_t>(task_.record_limit());
  if (position < -1 || position >= limit)
    return error.refuse(FEEDLANE_E_ARGUMENT, "position", position, limit,
                        "position is {}: must be -1 or below {}, the number of samples", position, limit);
  return finish_failed(FEEDLANE_E_SAMPLE, position, transient, text, detail, taken, error);
}

Status Worker::fail_shard(std::string_view text, std::string_view detail, Error& error) {
  return finish_failed(FEEDLANE_E_INIT, -1, false, text, detail, 0, error);
}

// New tasks and other events wake the worker early; then it sleeps again.
Status Worker::pause(std::int64_t until_ns, Error& error) {
  Status s = FEEDLANE_OK;
  while ((s = check()) == FEEDLANE_OK && os::now_ns() < until_ns) {
    s = waiter_.sleep([this] { return check() != FEEDLANE_OK; }, [=] { return os::Deadline::at(until_ns); },
                      [this](const os::Poller::Event& event) { handle(event); }, error);
    if (s < 0 || s == FEEDLANE_INTERRUPTED) return s;
  }
  return s;
}

void* Worker::scratch(std::uint64_t bytes, std::uint64_t alignment) {
  return task_.is_open() ? scratch_.allocate(bytes, alignment == 0 ? 16 : alignment) : nullptr;
}

}  // namespace feedlane::worker
