// SPDX-License-Identifier: Apache-2.0
// The life of a loader: create, begin, next, stop.
#include "loader/loader.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "checkpoint/state.hpp"
#include "loader/resume.hpp"
#include "os/limits.hpp"
#include "os/process.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {

Loader::Loader()
    : collector_(config_, memory_, stamps_, ledger_, failure_),
      dispatcher_(config_, memory_, stamps_, prefetch_, ledger_, failure_, wakeups_, events_, roster_),
      crew_(config_, memory_.segments, events_, waiter_, roster_, ledger_, failure_, wakeups_, collector_, dispatcher_),
      delivery_(config_, memory_, stamps_, prefetch_, ledger_, events_),
      inline_(config_, memory_, stamps_, ledger_, failure_, wakeups_, waiter_.poller(), collector_),
      lender_(memory_, ledger_, wakeups_),
      leases_(lender_, events_) {}

// ---- creating ----

namespace {

void start_prefetch(const Config& config, const Memory& memory, Prefetch& prefetch) {
  std::uint32_t start = config.prefetch_factor;
  std::uint32_t limit = start;
  if (config.chooses_prefetch) {
    const std::uint32_t slots = memory.slots.size();
    const std::uint32_t beside = std::min(slots, config.slots_beside());
    // Rounded up, so that the last slots are used as well.
    limit = std::clamp((slots - beside + config.workers - 1) / config.workers, 1U, config.prefetch_factor);
    start = std::min(Prefetch::first, limit);
  }
  prefetch.use(config.workers, start, limit, memory.counters().prefetch);
}

}  // namespace

Status Loader::create(const feedlane_loader_config* config, const sampler::Sampler* sampler, pinned::Pool* pool,
                      ForkedMain forked_main, const os::SystemFiles& files, std::unique_ptr<Loader>& out,
                      Error& error) {
  (void)os::reap_abandoned();
  std::unique_ptr<Loader> loader(new Loader);
  Status s = read_config(config, sampler, loader->config_, error);
  if (s == FEEDLANE_OK) s = loader->set_up(forked_main, pool, files, error);
  if (s == FEEDLANE_OK) out = std::move(loader);
  return s;
}

Status Loader::set_up(ForkedMain forked_main, pinned::Pool* pool, const os::SystemFiles& files, Error& error) {
  order_ = make_order(config_, memory_.segments);
  Status s = read_resume(config_, *order_, error);
  const std::uint64_t state_bytes = order_->resume() ? largest_shard_state(order_->resume()->progress) : 0;
  if (s == FEEDLANE_OK) s = memory_.create(config_, state_bytes, files, events_, error);
  if (s != FEEDLANE_OK) return s;
  stamps_.use(memory_.segments);
  start_prefetch(config_, memory_, prefetch_);
  figures_.reserve(memory_.segments);
  ledger_.reset(memory_.slots.size(), config_.out_of_order);
  config_.epoch_batches = order_->count_batches();
  const auto* const sampler = order_->sampler();
  if (sampler != nullptr && *sampler->rank_warning() != '\0') {
    Error warning;
    (void)warning.fail(FEEDLANE_OK, "{}", sampler->rank_warning());
    events_.push(FEEDLANE_EVENT_WARNING, warning);
  }
  dispatcher_.use(*order_);
  collector_.use(*order_);
  delivery_.use(*order_);
  inline_.use(*order_);
  const bool has_workers = config_.workers != 0;
  ring::SleepFlag* const sleeping = has_workers ? &memory_.segments.trainer_block()->sleeping : nullptr;
  s = waiter_.open(error);
  if (s == FEEDLANE_OK) s = wakeups_.open(waiter_.poller(), sleeping, error);
  if (s == FEEDLANE_OK && sampler != nullptr && sampler->wake_fd() != 0)
    s = wakeups_.watch_sampler(waiter_.poller(), sampler->wake_fd(), error);
  if (s == FEEDLANE_OK && pool != nullptr) s = delivery_.use(*pool, error);
  if (s != FEEDLANE_OK || !has_workers) return s;
  waiter_.use(sleeping, ring::FencedBy::publisher, config_.workers + 1);
  // Runs in a forked child before any code of the user. The child does not inherit the writable view of control
  // (MADV_DONTFORK).
  const auto child_main = [this, forked_main](int fd) {
    crew_.starter().close_in_child();
    waiter_.poller() = {};
    wakeups_.close_in_child();
    ::_exit(forked_main(fd, config_.table, memory_.segments));
  };
  s = crew_.set_up(child_main, files, error);
  if (s == FEEDLANE_OK) dispatcher_.use(crew_.starter().launcher(), os::usable_cpus(files));
  return s;
}

// ---- an epoch ----

Status Loader::begin(std::int64_t epoch, Error& error) {
  if (epoch < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, 0, "epoch {} is negative", epoch);
  drop_epoch();
  Status s = FEEDLANE_OK;
  if (failure_.is_set() || roster_.any_ending()) s = crew_.end(supervisor::patience_with_death_ns, error);
  // A process that cannot be ended keeps its place, and the other workers continue.
  if (s == FEEDLANE_E_HUNG && crew_.starter().launcher().can_kill()) s = FEEDLANE_OK;
  failure_.clear();
  crew_.starter().error() = {};
  dispatcher_.slot_error() = {};
  if (s == FEEDLANE_OK && crew_.size() != 0) s = crew_.handle_events(error);  // what happened since the last epoch
  if (s == FEEDLANE_OK) s = order_->start(epoch, error);
  if (s != FEEDLANE_OK) return s;
  dispatcher_.restate_stuck();
  if (crew_.size() == 0) inline_.begin();
  else s = crew_.starter().start_missing(error);
  if (s != FEEDLANE_OK) return s;
  dispatcher_.set_begun(true);
  (void)stamps_.tick();
  if (crew_.size() != 0) s = dispatcher_.dispatch(error);
  dispatcher_.set_begun(s == FEEDLANE_OK);
  if (s != FEEDLANE_OK) return s;
  order_->resume().reset();
  stamps_.on_begin({epoch, order_->progress().batches, order_->batches()});
  shm::add(memory_.counters().epochs);
  figures_.begin(memory_.segments);
  return s;
}

void Loader::drop_epoch() {
  waiter_.cancel();
  dispatcher_.abandon_epoch(crew_.size() != 0, delivery_.staging());
  dispatcher_.set_begun(false);
  wakeups_.ask_sampler();
  stamps_.on_end();
  figures_.end();
}

Status Loader::next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) {
  if (!dispatcher_.has_begun())
    return error.fail(FEEDLANE_E_STATE, "call feedlane_loader_begin before feedlane_loader_next");
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  wakeups_.ask_sampler();  // also while batches are ready, when nothing waits for its descriptor
  Status s = crew_.size() != 0 ? next_made(deadline, out, error) : inline_.next(deadline, delivery_, out, error);
  if (s == FEEDLANE_END && crew_.size() == 0) s = finish_epoch(deadline, error);
  if (s < 0) events_.note(error);
  return s;
}

bool Loader::returns_at_once() {
  if (crew_.size() == 0 || !delivery_.is_ready()) return false;
  return order_->sampler() == nullptr || order_->sampler()->seekable();  // a user-defined sampler isn't
}

Status Loader::next_made(os::Deadline deadline, feedlane_batch& out, Error& error) {
  waiter_.cancel();
  bool has_listened = roster_.stuck() == 0;
  const Stamps::Wait waited(stamps_);
  for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // although a worker may ring for ever
    (void)stamps_.tick();
    if (wakeups_.is_closed() || wakeups_.take_interruption()) return FEEDLANE_INTERRUPTED;
    if (const Status s = crew_.handle_overdue_events(error); s != FEEDLANE_OK) return s;
    if (outlet_ != nullptr) outlet_->work();
    if (delivery_.is_ready()) crew_.sweep_some();
    else crew_.sweep();
    if (failure_.ends_at_once()) return obstacle(error);
    if (delivery_.is_ready()) {
      stamps_.end_wait();
      const Status s = delivery_.yield(out, error);
      if (order_->is_cut()) dispatcher_.abandon_epoch(true, delivery_.staging());
      try {
        dispatcher_.feed(true);
      } catch (const std::bad_alloc&) {  // what is yielded is more than what is to come: the next call tries again
      }
      return s;
    }
    if (deadline.remaining_ns() != 0) stamps_.begin_wait();
    dispatcher_.feed();
    if (delivery_.is_ready()) continue;  // a shard that has nothing left needs no worker
    if (Error* const failure = dispatcher_.sampler_error(); failure != nullptr) {
      error = std::exchange(*failure, {});
      return error.code;
    }
    if (!dispatcher_.is_work_left()) {
      stamps_.end_wait();
      return finish_epoch(deadline, error);
    }
    if (const Status s = obstacle(error); s != FEEDLANE_OK) {
      if (!std::exchange(has_listened, true)) {  // one that could not be ended may be gone by now
        if (const Status news = crew_.handle_events(error); news != FEEDLANE_OK) return news;
        continue;
      }
      failure_.is_told = failure_.is_set();
      crew_.starter().error() = {};  // told; the next call tries again
      dispatcher_.slot_error() = {};
      return s;
    }
    if (is_last) {
      stamps_.note_absence();
      return FEEDLANE_TIMEOUT;
    }
    // It waits for consumers or for indices, not for data.
    if ((outlet_ != nullptr && dispatcher_.is_out_of_slots()) || dispatcher_.is_left_to_sampler()) stamps_.end_wait();
    // It may be long until the next batch finds out that a feeder has lost its consumers.
    if (outlet_ != nullptr && dispatcher_.is_left_to_sampler() && !outlet_->wants_batches()) return FEEDLANE_AGAIN;
    if (const Status s = wait(deadline, true, error); s != FEEDLANE_OK) return s;
  }
}

// Returns why `next` could wait for ever: SLOTS_HELD, E_HUNG, E_PEER_DEAD or a failure of the loader. OK: it cannot.
Status Loader::obstacle(Error& error) {
  if (failure_.is_set()) {
    error = failure_.error;
    return error.code;
  }
  if (const Status s = delivery_.obstacle(error); s != FEEDLANE_OK) return s;
  Status held = dispatcher_.obstacle(error);
  if (held == FEEDLANE_SLOTS_HELD && outlet_ != nullptr) {
    error = {};
    held = outlet_->make_room(error);
  }
  if (held != FEEDLANE_OK) return held;
  const bool any_there = roster_.any_there();
  if (!any_there && !crew_.starter().launcher().starts_workers())
    return error.refuse(FEEDLANE_E_PEER_DEAD, "workers", 0, 1,
                        "no worker is attached or expected: call feedlane_loader_open_worker");
  if (!any_there && crew_.starter().error().code != FEEDLANE_OK) {
    error = crew_.starter().error();
    return error.code;
  }
  if (dispatcher_.slot_error().code != FEEDLANE_OK) {
    error = dispatcher_.slot_error();
    return error.code;
  }
  // All starts have failed, or all processes are gone: they are started here, because nothing else would do it.
  const bool may_start = crew_.starter().launcher().owns_processes() && roster_.stuck() < crew_.size();
  return !any_there && may_start ? crew_.starter().start_missing(error) : FEEDLANE_OK;
}

// Asks workers that are not kept to end, and waits for them until the caller's deadline. `begin` and `stop` handle
// those that take longer.
Status Loader::finish_epoch(os::Deadline deadline, Error& error) {
  order_->progress().ended = true;
  stamps_.on_end();
  figures_.end();
  if (config_.keep_workers) return FEEDLANE_END;
  config_.dataset.close();
  const Status s = crew_.end_gently(deadline, error);
  return s < 0 ? s : FEEDLANE_END;
}

// ---- waiting ----

// See ring/waiter.hpp for the sequence.
bool Loader::has_wake_up_work() {
  return roster_.lanes().any() || dispatcher_.has_work() || delivery_.has_staging_work() || wakeups_.is_interrupted() ||
         wakeups_.is_closed() || (outlet_ != nullptr && outlet_->has_work());
}

Status Loader::wait(os::Deadline deadline, bool wants_batch, Error& error) {
  if (outlet_ != nullptr) outlet_->prepare_wait(dispatcher_.lacks_slot());
  const auto has_work = [this] { return has_wake_up_work(); };
  const bool has_begun = dispatcher_.has_begun();
  // Spinning doesn't notice a sampler's descriptor.
  if (has_begun && !dispatcher_.is_left_to_sampler()) {
    waiter_.expect(dispatcher_.engaged() + 1);
    if (waiter_.spin(deadline, has_work)) return FEEDLANE_OK;
    dispatcher_.engage_all();
  }
  os::Deadline first = os::Deadline::never();
  // Checks what another thread may have changed since the call of `obstacle`: if a stream's release ended before the
  // flag was set, it did not ring. With an outlet, `obstacle` has asked it for slots, and they come back as its work.
  const auto sweep = [&] {
    if (!has_begun || !wants_batch) return outlet_ != nullptr && has_work();
    return has_work() || (outlet_ == nullptr && dispatcher_.is_out_of_slots()) || delivery_.is_out_of_buffers() ||
           dispatcher_.is_left_to_stuck();
  };
  bool is_changed = false;
  const auto until = [&] {
    if (is_changed = crew_.audit(); is_changed) return os::Deadline::at(0);
    first = crew_.next_deadline().earlier(delivery_.copier_deadline());
    const os::Deadline ours = outlet_ == nullptr ? deadline : deadline.earlier(outlet_->next_deadline());
    return ours.earlier(first).earlier(crew_.next_look());
  };
  bool has_looked = false;
  const auto handle = [&](const os::Poller::Event& event) {
    if (!std::exchange(has_looked, true)) {
      (void)stamps_.tick();
      crew_.look();
    }
    if (event.tag == Wakeups::outlet_tag) outlet_->on_event();
    else crew_.handle(event);
  };
  const Status s = waiter_.sleep(sweep, until, handle, error);
  if (!has_looked) crew_.look();
  if (!first.is_never() && first.remaining_ns() == 0) {
    // Handles what workers have sent in time before the others are treated as late.
    crew_.sweep();
    (void)crew_.audit();
    if (const Status news = crew_.handle_events(error); news != FEEDLANE_OK) return news;
    if (has_begun) dispatcher_.feed();
  }
  return s == FEEDLANE_TIMEOUT && (is_changed || deadline.remaining_ns() != 0) ? FEEDLANE_OK : s;
}

bool Loader::has_news() {
  Error ignored;
  return dispatcher_.has_begun() &&
         (delivery_.is_ready() || dispatcher_.sampler_error() != nullptr || !dispatcher_.is_work_left() ||
          obstacle(ignored) != FEEDLANE_OK || wakeups_.is_interrupted());
}

Status Loader::poll(Error& error) {
  if (crew_.size() == 0) return dispatcher_.has_begun() && inline_.has_news() ? FEEDLANE_AGAIN : FEEDLANE_OK;
  waiter_.cancel();
  wakeups_.ask_sampler();
  (void)stamps_.tick();
  stamps_.end_wait();  // the host has work of its own
  if (const Status s = crew_.handle_events(error); s != FEEDLANE_OK) return s;
  crew_.sweep();
  dispatcher_.feed();
  if (dispatcher_.has_begun() && !delivery_.is_ready()) dispatcher_.engage_all();
  return has_news() ? FEEDLANE_AGAIN : FEEDLANE_OK;
}

Status Loader::arm(Error& error) {
  if (crew_.size() == 0) return dispatcher_.has_begun() && inline_.has_news() ? FEEDLANE_AGAIN : FEEDLANE_OK;
  crew_.look();
  if (dispatcher_.has_begun()) dispatcher_.engage_all();
  const bool wants_batches = outlet_ == nullptr || outlet_->wants_batches();
  // Before the deadlines are computed, because this check may find a shortage, which gives the outlet a deadline.
  if (outlet_ != nullptr && wants_batches && has_news()) {
    waiter_.cancel();
    return FEEDLANE_AGAIN;
  }
  if (outlet_ != nullptr) outlet_->prepare_wait(dispatcher_.lacks_slot());
  os::Deadline first = crew_.next_deadline().earlier(delivery_.copier_deadline()).earlier(crew_.next_look());
  if (outlet_ != nullptr) first = first.earlier(outlet_->next_deadline());
  if (const Status s = wakeups_.set_alarm(first, error); s != FEEDLANE_OK) return s;
  const auto is_ready = [=, this] { return (wants_batches && has_news()) || has_wake_up_work(); };
  const Status s = waiter_.arm(is_ready, error);
  if (s != FEEDLANE_OK) return s;
  if (crew_.audit()) {
    waiter_.cancel();
    return FEEDLANE_AGAIN;
  }
  if (!dispatcher_.has_begun()) return s;
  (void)stamps_.tick();
  if (!dispatcher_.is_left_to_sampler()) stamps_.begin_wait();  // the host sleeps, until it calls next or poll
  return s;
}

// ---- shared ----

Status Loader::use(Outlet& outlet, Error& error) {
  const Status s = waiter_.poller().add(outlet.fd(), Wakeups::outlet_tag, error);
  if (s == FEEDLANE_OK) outlet_ = &outlet;
  return s;
}

std::int64_t Loader::first_epoch() const {
  if (!order_->resume()) return 0;
  const checkpoint::Progress& saved = order_->resume()->progress;
  return saved.epoch + (saved.ended ? 1 : 0);
}

Status Loader::attend(os::Deadline deadline, Error& error) {
  waiter_.cancel();
  if (wakeups_.is_closed() || wakeups_.take_interruption()) return FEEDLANE_INTERRUPTED;
  (void)stamps_.tick();
  stamps_.end_wait();  // it waits for consumers
  if (dispatcher_.has_begun()) {
    crew_.sweep();
    dispatcher_.feed();
  }
  return wait(deadline, false, error);
}

Status Loader::save(const checkpoint::Progress& progress, std::vector<std::byte>& out, Error& error) const {
  checkpoint::SavedState saved;
  const Status s = order_->save(progress, saved, error);
  if (s == FEEDLANE_OK) checkpoint::write_state(saved, out);
  return s;
}

// ---- states ----

Status Loader::state(std::uint64_t token, std::vector<std::byte>& out, Error& error) {
  const checkpoint::Progress* progress = &order_->progress();
  const std::int64_t epoch = progress->epoch;
  if (order_->resume() && token == 0) {
    out = config_.state;  // no epoch has begun since
    return FEEDLANE_OK;
  }
  if (token != 0) {
    std::uint32_t slot = 0;
    if (!memory_.slots.is_held(token, slot))
      return error.refuse(FEEDLANE_E_STALE, "token", token, 0,
                          "the token is not of a held batch: save the state before you release the batch");
    progress = &ledger_.at(slot).contents.progress;
  }
  if (progress->epoch < 0)
    return error.fail(FEEDLANE_E_STATE, "there is no state to save yet: call feedlane_loader_begin first");
  if (progress->epoch != epoch)
    return error.refuse(FEEDLANE_E_STATE, "token", progress->epoch, epoch,
                        "the batch belongs to epoch {}, but the loader has begun epoch {}", progress->epoch, epoch);
  return save(*progress, out, error);
}

// ---- the end ----

Status Loader::run_stager(Error& error) {
  Staging* const staging = delivery_.staging();
  if (staging == nullptr)
    return error.refuse(FEEDLANE_E_STATE, "config.staged", 0, 1,
                        "the loader has no staging buffers: set config.staged");
  if (config_.workers == 0)
    return error.refuse(FEEDLANE_E_STATE, "config.workers", 0, 1,
                        "without workers, feedlane_loader_next fills the staging buffers itself");
  return staging->run([this] { wakeups_.wake(); }, error);
}

Status Loader::stop(bool for_good, Error& error) {
  wakeups_.set_ending_for_good(for_good);
  drop_epoch();
  inline_.drop();
  config_.dataset.close();
  const Status s = crew_.end(supervisor::longest_death_ns, error);
  wakeups_.set_ending_for_good(false);
  return s;
}

void Loader::close() {
  wakeups_.close();
  if (delivery_.staging() != nullptr) delivery_.staging()->close();
}

void Loader::abandon() noexcept {
  crew_.abandon();
  stamps_.on_end();
  inline_.drop();
  config_.dataset.close();
}

feedlane_loader_info Loader::info() const {
  feedlane_loader_info info = monitor::read_info(memory_.segments);
  if (info.batches < 0) info.batches = config_.epoch_batches;
  return info;
}

feedlane_stats Loader::stats() const {
  feedlane_stats s = monitor::read_stats(memory_.segments);
  if (const auto* const sampler = order_->sampler(); sampler != nullptr)
    copy_text(s.rank_source, sizeof s.rank_source, sampler->rank_source());
  return s;
}

}  // namespace feedlane::loader
