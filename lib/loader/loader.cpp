// SPDX-License-Identifier: Apache-2.0
#include "loader/loader.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "os/event.hpp"
#include "os/process.hpp"

namespace feedlane::loader {
namespace {

// Time that `next` spends without a batch to give, looking and asleep, as it passes: nothing before the first `start`.
class ExposedWait {
 public:
  explicit ExposedWait(shm::LoaderCounters& counters) : counters_(counters) {}
  ExposedWait(const ExposedWait&) = delete;
  ExposedWait& operator=(const ExposedWait&) = delete;
  ~ExposedWait() { count(); }
  void start() {
    if (since_ns_ == 0) since_ns_ = os::now_ns();
  }
  void count() {
    if (since_ns_ == 0) return;
    const std::int64_t now = os::now_ns();
    shm::add(counters_.wait_ns, static_cast<std::uint64_t>(now - since_ns_));
    since_ns_ = now;
  }
  // What follows is no wait for a batch.
  void end() {
    count();
    since_ns_ = 0;
  }

 private:
  shm::LoaderCounters& counters_;
  std::int64_t since_ns_ = 0;
};

}  // namespace

// ---- making it ----

Status Loader::create(const feedlane_loader_config* config, const Sampler* sampler, pinned::Pool* pool,
                      ForkedMain forked_main, const os::SystemFiles& files, std::unique_ptr<Loader>& out,
                      Error& error) {
  (void)os::reap_abandoned();
  std::unique_ptr<Loader> loader(new Loader);
  loader->forked_main_ = forked_main;
  Status s = read_config(config, sampler, loader->config_, error);
  if (s == FEEDLANE_OK) s = loader->read_resume(error);
  if (s == FEEDLANE_OK) s = loader->set_up(files, pool != nullptr, error);
  if (s == FEEDLANE_OK && pool != nullptr) s = loader->set_up_device(pool, error);
  if (s == FEEDLANE_OK && loader->config_.workers != 0) s = loader->set_up_workers(files, error);
  if (s == FEEDLANE_OK) out = std::move(loader);
  return s;
}

namespace {

// Beside the declared fields: metadata, tensors of other shapes. Address space until it is used.
constexpr std::uint64_t spare_bytes = std::uint64_t{64} << 10;
constexpr std::uint64_t shard_state_bytes = std::uint64_t{64} << 10;

}  // namespace

// `may_fill_slots`: their memory needn't be as little as can be.
Status Loader::plan_segments(const os::SystemFiles& files, bool may_fill_slots, Error& error) {
  shm::Geometry g{};
  g.workers = config_.workers;
  g.max_rows = static_cast<std::uint32_t>(config_.batch_size);
  g.field_count = static_cast<std::uint32_t>(config_.fields.all().size());
  g.flags = (config_.unbatched ? shm::geometry_unbatched : 0U) | (config_.iterable ? shm::geometry_iterable : 0U) |
            (config_.drop_last ? shm::geometry_drop_last : 0U) | (config_.skip_budget != 0 ? shm::geometry_skip : 0U) |
            (config_.substitute ? shm::geometry_substitute : 0U);
  g.config_bytes = config_.worker_config.size();
  // Memory comes in whole pages: all of the first one is used. Where fields are small, or none, a traceback needs it.
  const std::uint64_t fields = std::max<std::uint64_t>(config_.fields.slot_bytes(), 1);
  const std::uint64_t room = config_.slot_bytes != 0 ? config_.slot_bytes : fields + spare_bytes;
  g.reserved_bytes = std::max(fields, std::min<std::uint64_t>(room, shm::payload_alignment));
  g.list_bytes = std::uint64_t{g.max_rows} * sizeof(std::int64_t);
  if (config_.iterable) g.list_bytes = std::max(g.list_bytes, shard_state_bytes);
  if (resume_)  // with larger batches there was more room for what a shard saves
    for (const ShardProgress& shard : resume_->progress.shards)
      if (shard.state != nullptr) g.list_bytes = std::max<std::uint64_t>(g.list_bytes, shard.state->size());
  // Whatever a shard may save has room in a slot too.
  g.slot_bytes = config_.slot_bytes != 0
                     ? config_.slot_bytes
                     : fields + spare_bytes + (config_.iterable ? arena::align_tensor(g.list_bytes) : 0);
  g.base_seed = config_.seed;
  g.retries = config_.retries;
  g.retry_backoff_ns = static_cast<std::uint64_t>(config_.retry_backoff_ns);
  g.record_rows = config_.has_policies() ? g.max_rows : 0;
  // A slot for every batch asked for and for every one held, and a spare: a batch that is yielded just before the old one
  // is released leaves the window full.
  g.slots = config_.window() + config_.held + 1;
  // And one for each thread that may hang with another in its hands.
  if (config_.start == FEEDLANE_START_THREAD && config_.has_task_timeout()) g.slots += config_.workers;
  if (g.slot_bytes > shm::max_slot_bytes)
    return error.refuse(FEEDLANE_E_LIMIT, "config.fields", static_cast<std::int64_t>(g.slot_bytes),
                        static_cast<std::int64_t>(shm::max_slot_bytes),
                        "a batch takes %llu bytes with what a slot has beyond its fields, the largest slot has %llu",
                        static_cast<unsigned long long>(g.slot_bytes),
                        static_cast<unsigned long long>(shm::max_slot_bytes));
  if (const Status s = fit_budget(g, error); s != FEEDLANE_OK) return s;
  if (g.slots > shm::max_slots)
    return error.refuse(FEEDLANE_E_LIMIT, "config.prefetch_factor", g.slots, shm::max_slots,
                        "%u workers with %u batches each in flight, and those held, take %u slots, there are %u at most",
                        config_.workers, config_.prefetch_factor, g.slots, shm::max_slots);
  g.ring_capacity = std::bit_ceil(g.slots);
  if (may_fill_slots && config_.arena_bytes == 0 && shm::huge_page_for(g.slots * g.slot_bytes, files) != 0 &&
      g.slot_bytes - g.reserved_bytes <= g.reserved_bytes / 8) {
    // Huge pages want slots without the little address space that they have beyond their fields.
    shm::Geometry filled = g;
    filled.reserved_bytes = g.slot_bytes;
    if (create_segments(filled, files, error) == FEEDLANE_OK) return FEEDLANE_OK;
    error = {};  // it was too much
  }
  return create_segments(g, files, error);
}

Status Loader::create_segments(const shm::Geometry& g, const os::SystemFiles& files, Error& error) {
  shm::Plan plan;
  const Status s = shm::make_plan(g, plan, error);
  // Forked workers need no mapping of their own, so that registered memory can be kept from all harm. Elsewhere it is only
  // restored afterwards, and then memory can be given back: see SlotMemory.
  const bool is_registered = config_.is_pinned && config_.staged == 0;
  const bool is_forked = config_.workers != 0 && config_.start == FEEDLANE_START_FORK;
  const shm::Holes holes = is_registered && is_forked ? shm::Holes::forbidden : shm::Holes::allowed;
  return s == FEEDLANE_OK ? segments_.create(plan, files, error, holes) : s;
}

// Fewer slots than the window wants mean fewer batches in flight: order and results stay the same.
Status Loader::fit_budget(shm::Geometry& g, Error& error) {
  if (config_.arena_bytes == 0) return FEEDLANE_OK;
  const std::uint64_t each = shm::align_payload(g.reserved_bytes);
  const std::uint64_t fit = config_.arena_bytes / each;
  const std::uint64_t least = config_.held + 1;
  const auto found = static_cast<std::int64_t>(std::min<std::uint64_t>(config_.arena_bytes, INT64_MAX));
  if (fit < least)
    return error.refuse(FEEDLANE_E_LIMIT, "config.arena_bytes", found, static_cast<std::int64_t>(least * each),
                        "a batch takes %llu bytes; the %u held and one in flight need %llu, the whole window of %u "
                        "batches %llu, the budget is %lld",
                        static_cast<unsigned long long>(each), config_.held,
                        static_cast<unsigned long long>(least * each), config_.window(),
                        static_cast<unsigned long long>(g.slots * each), static_cast<long long>(found));
  if (fit >= g.slots) return FEEDLANE_OK;
  (void)unheard_.refuse(FEEDLANE_E_LIMIT, "config.arena_bytes", found, static_cast<std::int64_t>(g.slots * each),
                        "the budget has room for %llu slots, the window of %u batches and those held want %u: fewer "
                        "batches are made ahead",
                        static_cast<unsigned long long>(fit), config_.window(), g.slots);
  events_.push(FEEDLANE_EVENT_WARNING, unheard_);
  g.slots = static_cast<std::uint32_t>(fit);
  return FEEDLANE_OK;
}

Status Loader::set_up(const os::SystemFiles& files, bool is_pinned, Error& error) {
  // What is locked counts against a limit of its own.
  if (const Status s = plan_segments(files, !is_pinned, error); s != FEEDLANE_OK) return s;
  const shm::Geometry& g = segments_.plan().geometry;
  config_.fields.write(segments_.fields());
  if (g.config_bytes != 0) std::memcpy(segments_.config(), config_.worker_config.data(), g.config_bytes);
  counters_ = segments_.counters();
  counters_->huge_bytes.store(segments_.huge_bytes(files), std::memory_order_relaxed);  // nobody else is there yet
  slots_.reset(g.slots, *counters_, &segments_);
  slot_memory_.reset(segments_);
  segments_.forbid_payloads();
  ledger_.reset(g.slots, config_.out_of_order);
  expect_batches();
  length_ = epoch_batches_;
  if (config_.sampler != nullptr && *config_.sampler->rank_warning() != '\0') {
    (void)unheard_.fail(FEEDLANE_E_ARGUMENT, "%s", config_.sampler->rank_warning());
    unheard_.code = FEEDLANE_OK;
    events_.push(FEEDLANE_EVENT_WARNING, unheard_);
  }
  inline_task_.prepare(config_.fields, g, 0, nullptr);
  Status s = os::create_event(wake_event_, error);
  if (s == FEEDLANE_OK) s = poller_.open(error);
  return s == FEEDLANE_OK ? poller_.add_bell(wake_event_.get(), wake_tag, error) : s;
}

// How many batches the sampler has in this epoch, or the iterable data set is said to have.
void Loader::expect_batches() {
  if (config_.iterable && config_.iterable_length == 0) {
    epoch_batches_ = -1;
    return;
  }
  const std::int64_t samples = config_.iterable ? config_.iterable_length : config_.sampler->length();
  if (samples < 0 || (config_.sampler != nullptr && config_.sampler->batch_rows() > 0)) {
    epoch_batches_ = samples;
    return;
  }
  epoch_batches_ = config_.batches_of(samples);
}

Status Loader::set_up_workers(const os::SystemFiles& files, Error& error) {
  peers_ = std::vector<worker::Peer>(config_.workers);
  to_ring_.resize(config_.workers);
  oldest_.resize(config_.workers);
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
  spin_ = ring::Spin(config_.workers + 1);
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return error.os(errno, "timerfd_create");
  Status s = poller_.add(timer_.get(), timer_tag, error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), self_, error);
  // Threads may come before the first epoch begins.
  return s == FEEDLANE_OK && config_.start == FEEDLANE_START_THREAD ? start_missing(error) : s;
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
  if (failure_.code != FEEDLANE_OK || any_ending()) s = end_workers(patience_with_death_ns, error);
  // A process that can't be ended keeps its place; whoever is in the others goes on.
  if (s == FEEDLANE_E_HUNG && config_.start != FEEDLANE_START_THREAD) s = FEEDLANE_OK;
  failure_ = {};
  failure_told_ = false;
  start_error_ = {};
  slot_error_ = {};
  if (s == FEEDLANE_OK) s = take_news(error);  // what happened since the last epoch
  if (s != FEEDLANE_OK) return s;
  if (s = start_order(epoch, error); s != FEEDLANE_OK) return s;
  for (std::uint32_t w = 0; w < peers_.size(); w++)
    if (config_.iterable && peers_[w].is_fenced) lose_hung_shard(w);  // one that still hangs
  s = config_.workers == 0 ? begin_inline(error) : start_missing(error);
  if (s != FEEDLANE_OK) return s;
  begun_ = true;
  if (config_.workers != 0) s = dispatch(error);
  begun_ = s == FEEDLANE_OK;
  if (s != FEEDLANE_OK) return s;
  resume_.reset();  // only now: a `begin` that fails is called again
  shm::add(counters_->epochs);
  return s;
}

// The sampler and all that is known of the epoch's progress, at its start.
Status Loader::start_order(std::int64_t epoch, Error& error) {
  if (config_.sampler != nullptr) {
    if (const Status s = config_.sampler->restart(epoch, config_.seed, error); s != FEEDLANE_OK) return s;
    place_ = config_.sampler->place();
  }
  epoch_ = epoch;
  next_batch_ = next_position_ = 0;
  next_shard_ = 0;
  exhausted_ = false;
  progress_ = {};
  progress_.epoch = epoch;
  shards_.assign(config_.iterable ? config_.shards() : 0, {});
  progress_.shards.assign(shards_.size(), {});
  expect_batches();
  if (config_.sampler != nullptr)
    if (const Status s = save_sampler(progress_.sampler_state, error); s != FEEDLANE_OK) return s;
  return resume_ && resume_->progress.epoch == epoch ? resume(error) : FEEDLANE_OK;
}

Status Loader::next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) {
  if (!begun_) return error.fail(FEEDLANE_E_STATE, "feedlane_loader_begin comes before feedlane_loader_next");
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  return config_.workers == 0 ? next_inline(deadline, out, error) : next_made(deadline, out, error);
}

Status Loader::next_made(os::Deadline deadline, feedlane_batch& out, Error& error) {
  sleeper_cancel();
  bool has_listened = fenced_ == 0;
  ExposedWait waited(*counters_);
  for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // though a worker may ring for ever
    if (is_cut_short()) return FEEDLANE_INTERRUPTED;
    if (interrupted_.load(std::memory_order_relaxed) && interrupted_.exchange(false, std::memory_order_relaxed))
      return FEEDLANE_INTERRUPTED;
    if (const Status s = listen_now_and_then(error); s != FEEDLANE_OK) return s;
    sweep();
    // What is made is still yielded when workers die too often; a data set that can't be opened ends the epoch at once.
    if (failure_.code == FEEDLANE_E_INIT || failure_told_) return obstacle(error);
    if (front_is_done()) {
      waited.end();
      return yield(out, error);
    }
    if (deadline.remaining_ns() != 0) waited.start();
    feed();
    if (front_is_done()) continue;  // a shard that has nothing left needs no worker
    if (sampler_has_failed()) {
      error = std::exchange(sampler_error_, {});
      return error.code;
    }
    if (exhausted_ && ledger_.in_flight() == 0) {
      waited.end();
      return finish_epoch(deadline, error);
    }
    if (const Status s = obstacle(error); s != FEEDLANE_OK) {
      if (!std::exchange(has_listened, true)) {  // one that couldn't be ended may be gone by now
        if (const Status news = take_news(error); news != FEEDLANE_OK) return news;
        continue;
      }
      failure_told_ = failure_.code != FEEDLANE_OK;
      start_error_ = {};  // told; the next call tries again
      slot_error_ = {};
      return s;
    }
    if (is_last) return FEEDLANE_TIMEOUT;
    if (const Status s = wait(deadline, error); s != FEEDLANE_OK) return s;
    waited.count();  // for who watches a long one
  }
}

// Nothing but the trainer's own hands can free a slot. Looked at in this order: a stream that comes by in between has given
// its slot back before it is counted out.
bool Loader::is_out_of_slots() const {
  return !any_release_pending() && ledger_.in_flight() == 0 && !exhausted_ && slots_.free() == 0 &&
         abandoned_ == kept_by_fenced() && (fenced_ == 0 || held() > config_.held);
}

Status Loader::obstacle(Error& error) {
  if (failure_.code != FEEDLANE_OK) {
    error = failure_;
    return error.code;
  }
  if (staging_ != nullptr)
    if (const Status s = staging_obstacle(error); s != FEEDLANE_OK) return s;
  if (is_out_of_slots())
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held(), config_.held,
                        "the trainer holds %u batches, all slots there are", held());
  if (fenced_ != 0)
    if (const Status s = hung_obstacle(error); s != FEEDLANE_OK) return s;
  if (config_.start == FEEDLANE_START_EXTERNAL && !any_there())
    return error.refuse(FEEDLANE_E_PEER_DEAD, "workers", 0, 1,
                        "no worker is attached or offered: feedlane_loader_open_worker");
  if (start_error_.code != FEEDLANE_OK && !any_there()) {
    error = start_error_;
    return error.code;
  }
  if (slot_error_.code != FEEDLANE_OK) {
    error = slot_error_;
    return error.code;
  }
  // Every start so far has failed, or the processes are gone otherwise: nobody else would start them.
  if (config_.starts_workers() && !any_there() && fenced_ < peers_.size()) return start_missing(error);
  return FEEDLANE_OK;
}

// Workers that aren't kept are asked to end, and their ends waited for as long as the caller has time; begin and stop see
// to those that take longer.
Status Loader::finish_epoch(os::Deadline deadline, Error& error) {
  progress_.ended = true;
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
  return end_workers(longest_death_ns, error);
}

void Loader::close() {
  closed_.store(true, std::memory_order_relaxed);  // see is_cut_short
  os::signal_event(wake_event_.get());
  close_staging();
}

Status Loader::stop_for_good(Error& error) {
  ends_for_good_ = true;
  const Status s = stop(error);
  ends_for_good_ = false;
  return s;
}

feedlane_stats Loader::stats() const {
  feedlane_stats s = read_stats(segments_);
  if (config_.sampler != nullptr) copy_text(s.rank_source, sizeof s.rank_source, config_.sampler->rank_source());
  return s;
}

void Loader::interrupt() {
  // Relaxed: the descriptor is what wakes, the flag only says why.
  interrupted_.store(true, std::memory_order_relaxed);
  os::signal_event(wake_event_.get());
}

Status Loader::release(std::uint64_t token, arena::SlotTable::Left& left) {
  const Status s = slots_.release(token, left);
  // A trainer asleep in next may have been short of slots for new tasks.
  if (left.freed) wake();
  return s;
}

const std::vector<feedlane_tensor>& Loader::tensors(std::uint64_t token) const {
  std::uint32_t slot = 0;
  (void)slots_.slot_of(token, slot);  // it is held, so it is one
  return ledger_.at(slot).made.tensors;
}

}  // namespace feedlane::loader
