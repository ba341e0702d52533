// SPDX-License-Identifier: Apache-2.0
// Writes stamps and counts times.
#include "loader/stamps.hpp"

#include <algorithm>
#include <atomic>

#include "monitor/histogram.hpp"
#include "os/quick_clock.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {
namespace {

// Relaxed: only monitors read these words. The records' own ordering suffices.
std::uint64_t read(const shm::Word64& word) { return word.load(std::memory_order_relaxed); }
void write(shm::Word64& word, std::uint64_t value) { word.store(value, std::memory_order_relaxed); }
void write(shm::Word64& word, std::int64_t value) { write(word, static_cast<std::uint64_t>(value)); }

std::uint64_t pair_of(std::uint32_t upper, std::uint32_t lower) { return std::uint64_t{upper} << 32 | lower; }

}  // namespace

void Stamps::use(const shm::Segments& segments) {
  segments_ = &segments;
  counters_ = segments.counters();
  trace_.use(segments);
  write(counters_->epoch, std::int64_t{-1});
  write(counters_->epoch_batches, std::int64_t{-1});
}

std::int64_t Stamps::tick() { return now_ns_ = os::QuickClock::now_ns(); }

// ---- a batch ----

// Without workers, the trainer's own batches use the first row.
shm::TimingRow& Stamps::timings_of(const shm::BatchRecord& record) const {
  const auto worker = static_cast<std::int32_t>(read(record.maker) >> 32);
  return *segments_->timing_row(worker < 0 ? 0 : static_cast<std::uint32_t>(worker));
}

void Stamps::settle(std::uint32_t slot) {
  shm::BatchRecord& record = *segments_->slot_record(slot);
  if (read(record.task) == 0) return;
  // Relaxed: the storing thread freed the slot afterwards, and SlotTable::take orders the two; see settle_all.
  const std::uint64_t released = read(record.released_ns);
  if (released != 0) {
    const std::uint64_t yielded = read(record.yielded_ns);
    monitor::observe(timings_of(record).hold, released > yielded ? released - yielded : 0);
    trace_.append(record, std::max(released, yielded));
  }
  write(record.task, std::uint64_t{0});
}

void Stamps::settle_all() {
  // Relaxed: if another thread's store is not visible yet, the batch is counted when the slot is taken.
  for (std::uint32_t slot = 0; slot < segments_->plan().geometry.slots; slot++)
    if (read(segments_->slot_record(slot)->released_ns) != 0) settle(slot);
}

void Stamps::on_send(const Entry& entry, std::int64_t epoch, std::uint32_t worker) {
  shm::BatchRecord& record = *segments_->slot_record(entry.slot);
  write(record.task, std::uint64_t{0});
  // Release fence: pairs with the acquire fence in monitor::read_slot.
  std::atomic_thread_fence(std::memory_order_release);
  write(record.epoch, epoch);
  write(record.batch, entry.batch);
  write(record.maker, pair_of(worker, entry.attempt));
  write(record.end, std::uint64_t{entry.slot});
  write(record.rows, std::uint64_t{entry.rows});
  write(record.bytes, std::uint64_t{0});
  write(record.dispatched_ns, now_ns_);
  for (shm::Word64* later : {&record.begun_ns, &record.committed_ns, &record.swept_ns, &record.yielded_ns,
                             &record.exposed_ns, &record.released_ns})
    write(*later, std::uint64_t{0});
  record.task.store(entry.id, std::memory_order_release);  // pairs with the acquire in monitor::read_slot
}

void Stamps::on_result(std::uint32_t slot, std::uint64_t begun_ns, std::uint64_t committed_ns) {
  shm::BatchRecord& record = *segments_->slot_record(slot);
  if (committed_ns > static_cast<std::uint64_t>(now_ns_)) (void)tick();  // it was committed after the last tick
  const auto now = static_cast<std::uint64_t>(now_ns_);
  const std::uint64_t begun = std::clamp(begun_ns, std::min(read(record.dispatched_ns), now), now);
  write(record.begun_ns, begun);
  const std::uint64_t committed = std::clamp(committed_ns, begun, now);
  write(record.committed_ns, committed);
  write(record.swept_ns, now);
  pace_.on_result(committed - begun, now_ns_);
}

Stamps::Exposure Stamps::on_yield(std::uint32_t slot, const Yielded& yielded) {
  const Exposure exposure{exposed_ns_, now_ns_, is_first_};
  shm::BatchRecord& record = *segments_->slot_record(slot);
  const bool was_sent = read(record.task) != 0;
  if (was_sent) {
    write(record.batch, yielded.batch);
    write(record.end, pair_of(static_cast<std::uint32_t>(yielded.status), slot));
    write(record.rows, yielded.rows);
    write(record.bytes, yielded.bytes);
    write(record.yielded_ns, now_ns_);
    write(record.exposed_ns, exposed_ns_);
    count_times(record);
  }
  if (is_first_) shm::add(counters_->start_wait_ns, exposed_ns_);
  write(counters_->yielded_ns, now_ns_);
  is_first_ = false;
  exposed_ns_ = 0;
  if (was_sent && yielded.status != FEEDLANE_OK) {  // the trainer gets no batch to release
    trace_.append(record, static_cast<std::uint64_t>(now_ns_));
    write(record.task, std::uint64_t{0});
  }
  return exposure;
}

void Stamps::count_times(shm::BatchRecord& record) {
  shm::TimingRow& row = timings_of(record);
  monitor::observe(is_first_ ? row.start : row.exposed, exposed_ns_);
  if (read(record.swept_ns) == 0) return;  // it failed without a result
  const std::uint64_t begun = read(record.begun_ns);
  const std::uint64_t committed = read(record.committed_ns);
  monitor::observe(row.queue, begun - read(record.dispatched_ns));
  monitor::observe(row.work, committed - begun);
  monitor::observe(row.ready, static_cast<std::uint64_t>(now_ns_) - committed);
}

void Stamps::list(std::uint32_t slot, feedlane_batch& out) const {
  const shm::BatchRecord& record = *segments_->slot_record(slot);
  out.dispatched_ns = read(record.dispatched_ns);
  out.begun_ns = read(record.begun_ns);
  out.committed_ns = read(record.committed_ns);
  out.swept_ns = read(record.swept_ns);
  out.yielded_ns = read(record.yielded_ns);
  out.exposed_ns = read(record.exposed_ns);
}

// ---- an epoch ----

void Stamps::on_begin(const Epoch& epoch) {
  write(counters_->epoch, epoch.number);
  write(counters_->epoch_first, epoch.first);
  write(counters_->epoch_done, std::uint64_t{0});
  write(counters_->epoch_batches, epoch.batches);
  write(counters_->begun_ns, now_ns_);
  write(counters_->in_epoch, std::uint64_t{1});
  exposed_ns_ = 0;
  is_first_ = true;
}

void Stamps::on_end() {
  if (since_ns_ != 0) {
    (void)tick();
    end_wait();
  }
  settle_all();
  write(counters_->in_epoch, std::uint64_t{0});
}

// ---- waiting ----

void Stamps::note_absence() { exposed_ns_ = std::max<std::uint64_t>(exposed_ns_, 1); }

// While `next` waits, the counter is reduced by the start time of the wait. A reader adds the current time, so whenever
// it reads, no wait is missed or counted twice.
void Stamps::begin_wait() {
  if (since_ns_ != 0) return;
  since_ns_ = now_ns_;
  write(counters_->waiting_since_ns, now_ns_);
  write(counters_->wait_ns, waited_ns_ - now_ns_);
}

void Stamps::end_wait() {
  if (since_ns_ == 0) return;
  const std::int64_t waited = std::max<std::int64_t>(now_ns_ - since_ns_, 1);
  waited_ns_ += waited;
  exposed_ns_ += static_cast<std::uint64_t>(waited);
  write(counters_->wait_ns, waited_ns_);
  write(counters_->waiting_since_ns, std::uint64_t{0});
  since_ns_ = 0;
}

}  // namespace feedlane::loader
