// SPDX-License-Identifier: Apache-2.0
#include "loader/loader.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

#include "os/event.hpp"
#include "os/process.hpp"

namespace feedlane::loader {
// ---- making it ----

Status Loader::create(const feedlane_loader_config* config, const Sampler* sampler, ForkedMain forked_main,
                      const os::SystemFiles& files, std::unique_ptr<Loader>& out, Error& error) {
  std::unique_ptr<Loader> loader(new Loader);
  loader->forked_main_ = forked_main;
  Status s = read_config(config, sampler, loader->config_, error);
  if (s == FEEDLANE_OK) s = loader->set_up(files, error);
  if (s == FEEDLANE_OK && loader->config_.workers != 0) s = loader->set_up_workers(files, error);
  if (s == FEEDLANE_OK) out = std::move(loader);
  return s;
}

Status Loader::set_up(const os::SystemFiles& files, Error& error) {
  // A slot for every batch asked for and for every one held, and a spare: a batch that is yielded just before the old one
  // is released leaves the window full.
  const std::uint32_t slots = config_.window() + config_.held + 1;
  shm::Geometry g{};
  g.workers = config_.workers;
  g.slots = slots;
  g.max_rows = static_cast<std::uint32_t>(config_.batch_size);
  g.field_count = static_cast<std::uint32_t>(config_.fields.all().size());
  g.ring_capacity = std::bit_ceil(slots);
  g.config_bytes = config_.worker_config.size();
  g.slot_bytes = config_.fields.slot_bytes();
  g.base_seed = config_.seed;
  shm::Plan plan;
  Status s = shm::make_plan(g, plan, error);
  if (s == FEEDLANE_OK) s = segments_.create(plan, files, error);
  if (s != FEEDLANE_OK) return s;
  config_.fields.write(segments_.fields());
  if (g.config_bytes != 0) std::memcpy(segments_.config(), config_.worker_config.data(), g.config_bytes);
  slots_.reset(slots);
  ledger_.reset(slots);
  const std::int64_t samples = config_.sampler->length();
  length_ = samples / config_.batch_size + (samples % config_.batch_size != 0 && !config_.drop_last ? 1 : 0);
  inline_task_.prepare(config_.fields, config_.seed, nullptr);
  s = os::create_event(wake_event_, error);
  if (s == FEEDLANE_OK) s = poller_.open(error);
  return s == FEEDLANE_OK ? poller_.add(wake_event_.get(), wake_tag, error) : s;
}

Status Loader::set_up_workers(const os::SystemFiles& files, Error& error) {
  peers_ = std::vector<worker::Peer>(config_.workers);
  to_ring_.resize(config_.workers);
  for (std::uint32_t w = 0; w < config_.workers; w++) {
    peers_[w].init(w, segments_);
    (void)lanes_.add({segments_.result_lane(w), shm::loader_cell_bytes, segments_.plan().geometry.ring_capacity}, 0,
                     &segments_.trainer_row(w)->result_position);
  }
  if (const int cpus = os::usable_cpus(files); static_cast<std::uint32_t>(cpus) < config_.workers) {
    (void)unheard_.refuse(FEEDLANE_E_LIMIT, "config.workers", config_.workers, cpus,
                          "%u workers, but this process may use %d processors", config_.workers, cpus);
    events_.push(FEEDLANE_EVENT_WARNING, unheard_);
  }
  sleeper_ = ring::Sleeper(&segments_.trainer_block()->sleeping);
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return error.os(errno, "timerfd_create");
  Status s = poller_.add(timer_.get(), timer_tag, error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), self_, error);
  // Threads may come before the first epoch begins.
  return s == FEEDLANE_OK && config_.start == FEEDLANE_START_THREAD ? start_missing(error) : s;
}

arena::Slot Loader::slot(std::uint32_t slot) const {
  return {segments_.slot_header(slot), segments_.payload(slot), segments_.plan().payload_of(slot),
          segments_.plan().geometry.slot_bytes};
}

// ---- an epoch ----

Status Loader::begin(std::int64_t epoch, Error& error) {
  if (epoch < 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, 0, "epoch %lld is negative",
                        static_cast<long long>(epoch));
  sleeper_cancel();
  abandon_epoch();
  begun_ = false;
  Status s = FEEDLANE_OK;
  if (failure_.code != FEEDLANE_OK || any_ending()) s = end_workers(error);
  failure_ = {};
  failure_told_ = false;
  if (s == FEEDLANE_OK) s = take_news(error);  // what happened since the last epoch
  if (s != FEEDLANE_OK) return s;
  s = config_.sampler->restart(epoch, error);
  if (s != FEEDLANE_OK) return s;
  epoch_ = epoch;
  next_batch_ = next_position_ = 0;
  exhausted_ = false;
  s = config_.workers == 0 ? begin_inline(error) : start_missing(error);
  if (s != FEEDLANE_OK) return s;
  begun_ = true;
  Counters::add(counters_.epochs);
  return config_.workers == 0 ? FEEDLANE_OK : dispatch(error);
}

bool Loader::front_is_done() {
  if (ledger_.in_flight() == 0) return false;
  const Record::State state = ledger_.at(ledger_.front()).state;
  return state == Record::State::made || state == Record::State::failed;
}

Status Loader::next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) {
  if (!begun_) return error.fail(FEEDLANE_E_STATE, "feedlane_loader_begin comes before feedlane_loader_next");
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  if (config_.workers == 0) return next_inline(deadline, out, error);
  sleeper_cancel();
  for (;;) {
    if (interrupted_.load(std::memory_order_relaxed) && interrupted_.exchange(false, std::memory_order_relaxed))
      return FEEDLANE_INTERRUPTED;
    sweep();
    // What is made is still yielded when workers die too often; a data set that can't be opened ends the epoch at once.
    if (failure_.code == FEEDLANE_E_INIT || failure_told_) return obstacle(error);
    if (front_is_done()) return yield(out, error);
    if (const Status s = dispatch(error); s != FEEDLANE_OK) return s;
    if (exhausted_ && ledger_.in_flight() == 0) return finish_epoch(deadline, error);
    if (const Status s = obstacle(error); s != FEEDLANE_OK) {
      failure_told_ = failure_.code != FEEDLANE_OK;
      return s;
    }
    if (const Status s = wait(deadline, error); s != FEEDLANE_OK) return s;
  }
}

Status Loader::obstacle(Error& error) {
  if (failure_.code != FEEDLANE_OK) {
    error = failure_;
    return error.code;
  }
  if (ledger_.in_flight() == 0 && !exhausted_ && abandoned_ == 0 && slots_.free() == 0)
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held(), config_.held,
                        "the trainer holds %u batches, all slots there are", held());
  if (config_.start == FEEDLANE_START_EXTERNAL && !any_there())
    return error.refuse(FEEDLANE_E_PEER_DEAD, "workers", 0, 1,
                        "no worker is attached or offered: feedlane_loader_open_worker");
  // Every start so far has failed, or the processes are gone otherwise: nobody else would start them.
  if (config_.starts_workers() && !any_there()) return start_missing(error);
  return FEEDLANE_OK;
}

Status Loader::yield(feedlane_batch& out, Error& error) {
  const std::uint32_t front = ledger_.front();
  Record& record = ledger_.at(front);
  ledger_.pop_front();
  Status s = FEEDLANE_OK;
  if (record.state == Record::State::made) {
    s = hand_out(front, static_cast<std::int32_t>(record.worker), out);
  } else {
    error = std::move(record.error);
    error.epoch = epoch_;
    error.batch = record.batch;
    error.attempt = static_cast<std::int32_t>(record.attempt);
    s = error.code;
    slots_.put_back(front);
  }
  record.state = Record::State::idle;
  Error later;  // a sampler that fails says so in the next call, when nothing is left to yield
  (void)dispatch(later);
  return s;
}

Status Loader::hand_out(std::uint32_t slot, std::int32_t worker, feedlane_batch& out) {
  const Record& record = ledger_.at(slot);
  out = {};
  out.size = sizeof out;
  out.token = slots_.hand_out(slot);
  out.epoch = epoch_;
  out.batch = record.batch;
  out.worker = worker;
  out.attempt = static_cast<std::int32_t>(record.attempt);
  out.tensors = record.tensors.data();
  out.tensor_count = record.tensors.size();
  out.indices = segments_.index_list(slot);
  out.count = record.made_rows;
  Counters::add(counters_.batches);
  Counters::add(counters_.samples, record.made_rows);
  std::uint64_t bytes = 0;
  for (const feedlane_tensor& t : record.tensors) bytes += t.bytes;
  Counters::add(counters_.bytes, bytes);
  return FEEDLANE_OK;
}

// Workers that aren't kept are asked to end, and their ends waited for as long as the caller has time; begin and stop see
// to those that take longer.
Status Loader::finish_epoch(os::Deadline deadline, Error& error) {
  if (config_.keep_workers) return FEEDLANE_END;
  config_.dataset.close();
  ask_all_to_end();
  const Status s = wait_for_ends(deadline.earlier(os::Deadline::after(config_.stop_timeout_ns)), true, error);
  return s < 0 ? s : FEEDLANE_END;
}

Status Loader::stop(Error& error) {
  sleeper_cancel();
  abandon_epoch();
  begun_ = false;
  drop_inline();
  config_.dataset.close();
  return end_workers(error);
}

// ---- waiting ----

void Loader::sleeper_cancel() {
  if (!peers_.empty()) sleeper_.cancel();
}

bool Loader::something_to_do() const {
  return lanes_.any() || can_pull() || interrupted_.load(std::memory_order_relaxed);
}

Status Loader::wait(os::Deadline deadline, Error& error) {
  if (peers_.empty()) return FEEDLANE_TIMEOUT;
  sleeper_.prepare();
  if (something_to_do() && begun_) {
    sleeper_.cancel();
    return FEEDLANE_OK;
  }
  const std::int64_t before = os::now_ns();
  const os::Deadline starts = next_start_deadline();
  std::array<os::Poller::Event, 64> events{};
  std::size_t count = 0;
  Status s = poller_.wait(deadline.earlier(starts), events, count, error);
  sleeper_.cancel();
  for (std::size_t i = 0; i < count; i++) handle(events[i]);
  Counters::add(counters_.wait_ns, static_cast<std::uint64_t>(os::now_ns() - before));
  if (!starts.is_never() && starts.remaining_ns() == 0) {
    // Who has attached meanwhile must be heard before the others are given up.
    if (const Status news = take_news(error); news != FEEDLANE_OK) return news;
    if (s == FEEDLANE_TIMEOUT && deadline.remaining_ns() != 0) s = FEEDLANE_OK;
  }
  return s;
}

// Deaths, messages and deadlines that have come, without waiting for more.
Status Loader::take_news(Error& error) {
  std::array<os::Poller::Event, 64> events{};
  std::size_t count = 0;
  Status s = FEEDLANE_OK;
  while (s != FEEDLANE_TIMEOUT) {
    s = poller_.wait(os::Deadline::at(0), events, count, error);
    if (s < 0) return s;
    for (std::size_t i = 0; i < count; i++) handle(events[i]);
  }
  if (next_start_deadline().remaining_ns() == 0) check_start_deadlines();
  return FEEDLANE_OK;
}

Status Loader::poll(Error& error) {
  if (peers_.empty()) return begun_ ? FEEDLANE_AGAIN : FEEDLANE_OK;
  sleeper_cancel();
  Status s = take_news(error);
  if (s == FEEDLANE_OK) {
    sweep();
    s = dispatch(error);
  }
  if (s != FEEDLANE_OK) return s;
  return next_has_news() ? FEEDLANE_AGAIN : FEEDLANE_OK;
}

bool Loader::next_has_news() {
  return begun_ && (front_is_done() || (exhausted_ && ledger_.in_flight() == 0) || obstacle(unheard_) != FEEDLANE_OK ||
                    interrupted_.load(std::memory_order_relaxed));
}

Status Loader::arm(Error& error) {
  if (peers_.empty()) return begun_ ? FEEDLANE_AGAIN : FEEDLANE_OK;
  itimerspec time{};
  if (const os::Deadline first = next_start_deadline(); !first.is_never()) {
    const std::int64_t left = std::max<std::int64_t>(first.remaining_ns(), 1);  // 0 would disarm it
    time.it_value.tv_sec = left / 1'000'000'000;
    time.it_value.tv_nsec = left % 1'000'000'000;
  }
  if (::timerfd_settime(timer_.get(), 0, &time, nullptr) != 0) return error.os(errno, "timerfd_settime");
  sleeper_.prepare();
  if (!something_to_do() && !next_has_news()) return FEEDLANE_OK;
  sleeper_.cancel();
  return FEEDLANE_AGAIN;
}

void Loader::interrupt() {
  // Relaxed: the descriptor is what wakes, the flag only says why.
  interrupted_.store(true, std::memory_order_relaxed);
  os::signal_event(wake_event_.get());
}

Status Loader::release(std::uint64_t token, bool& freed) {
  const Status s = slots_.release(token, freed);
  // A trainer asleep in next may have been short of slots for new tasks.
  if (freed && !peers_.empty()) (void)ring::Doorbell(&segments_.trainer_block()->sleeping, wake_event_.get()).ring();
  return s;
}

// ---- watching ----

feedlane_stats Loader::stats() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  feedlane_stats s{};
  s.size = sizeof s;
  s.batches = read(counters_.batches);
  s.samples = read(counters_.samples);
  s.bytes = read(counters_.bytes);
  s.epochs = read(counters_.epochs);
  s.wait_ns = read(counters_.wait_ns);
  s.restarts = read(counters_.restarts);
  s.redispatched = read(counters_.redispatched);
  s.quarantined = read(counters_.quarantined);
  s.invalid_results = read(counters_.invalid_results);
  s.late_results = read(counters_.late_results);
  s.slots = slots_.size();
  s.slots_free = slots_.free();
  s.slots_held = slots_.held();
  s.control_bytes = segments_.plan().control_bytes;
  s.data_bytes = segments_.plan().data_bytes;
  return s;
}

Status Loader::worker_stats(std::int32_t worker, feedlane_worker_stats& out) const {
  if (worker < 0) return FEEDLANE_E_ARGUMENT;
  if (static_cast<std::size_t>(worker) >= peers_.size()) return FEEDLANE_END;
  const worker::Peer& peer = peers_[static_cast<std::size_t>(worker)];
  const shm::WorkerRow* row = segments_.worker_row(static_cast<std::uint32_t>(worker));
  const auto read = [](const shm::Word64& counter) { return counter.load(std::memory_order_relaxed); };
  out = {};
  out.size = sizeof out;
  out.pid = peer.pid();
  out.state = static_cast<std::int32_t>(peer.state());
  out.generation = static_cast<std::int32_t>(peer.generation());
  out.tasks = read(row->tasks);
  out.samples = read(row->samples);
  out.bytes = read(row->bytes);
  out.errors = read(row->errors);
  out.work_ns = read(row->work_ns);
  out.wait_ns = read(row->wait_ns);
  return FEEDLANE_OK;
}

}  // namespace feedlane::loader
