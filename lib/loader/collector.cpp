// SPDX-License-Identifier: Apache-2.0
// Validates the results of workers and records them in the ledger.
#include "loader/collector.hpp"

#include "shm/shared_read.hpp"
#include "tensors/slot.hpp"

namespace feedlane::loader {
namespace {

Status refuse_status(const shm::ResultMessage& result, Error& error) {
  return error.refuse(FEEDLANE_E_CORRUPT, "result.status", result.status, FEEDLANE_E_SAMPLE,
                      "the worker sent a result with the invalid status {}", result.status);
}

}  // namespace

Status Collector::collect(std::uint32_t worker, supervisor::TaskRing& tasks, const shm::ResultMessage& result,
                          std::uint64_t& blamed, Error& error) {
  blamed = 0;
  if (result.status == FEEDLANE_ABANDONED && tasks.forget_revoked(result.id)) return FEEDLANE_ABANDONED;
  const Entry* entry = ledger_.match(result, worker);
  if (entry == nullptr)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.slot", result.slot, ledger_.slots(),
                        "worker {} sent a result for slot {}, for which it has no task", worker, result.slot);
  if (entry->state == Entry::State::sent && result.status == FEEDLANE_ABANDONED && tasks.may_decline(result.id)) {
    ledger_.requeue(entry->slot);
  } else if (entry->state == Entry::State::abandoned) {
    shm::add(memory_.counters().late_results);
    ledger_.retire(entry->slot);
    memory_.slots.put_back(entry->slot);
  } else if (const Status s = read_result(*entry, result, error); s != FEEDLANE_OK) {
    blamed = entry->id;
    return s;
  }
  tasks.count_answer();
  return FEEDLANE_OK;
}

Status Collector::read_result(const Entry& entry, const shm::ResultMessage& result, Error& error) {
  Contents& contents = ledger_.contents(entry.slot);
  stamps_.on_result(entry.slot, result.begun_ns, result.committed_ns);
  // A worker's payload is poisoned in this process until now. An inline task already has access to its own payload.
  const tensors::PayloadAccess access(memory_.segments, entry.slot, config_.workers != 0);
  switch (result.status) {
    case FEEDLANE_OK: return read_made(entry, result, error);
    case FEEDLANE_E_SAMPLE:
      if (const Status s = read_failed(entry, result, error); s != FEEDLANE_OK) return s;
      break;
    case FEEDLANE_END:
      if (!order_->has_shards()) return refuse_status(result, error);
      order_->on_end(entry);
      contents.made.records.clear();
      ledger_.finish(entry.slot, Entry::State::ended);
      return FEEDLANE_OK;
    case FEEDLANE_E_INIT:
      if (!order_->has_shards()) return refuse_status(result, error);
      if (const Status s = read_failed(entry, result, error); s != FEEDLANE_OK) return s;
      contents.error.code = FEEDLANE_E_INIT;
      failure_.set(contents.error);
      break;
    default: return refuse_status(result, error);
  }
  order_->on_result(entry, result.rows, nullptr, contents);
  ledger_.fail(entry.slot);
  return FEEDLANE_OK;
}

// Refuses records of outcomes that the configuration does not allow. The skip budget is checked later, before the batch
// is yielded.
Status Collector::check_records(const std::vector<shm::SampleRecord>& records, Error& error) const {
  if (config_.substitute) return FEEDLANE_OK;
  for (const shm::SampleRecord& r : records)
    if (r.outcome == static_cast<std::int32_t>(shm::SampleOutcome::substituted))
      return error.refuse(FEEDLANE_E_CORRUPT, "record.outcome", r.outcome, 0,
                          "the worker reports a substitute for sample {}, but config.substitute is 0", r.position);
  return FEEDLANE_OK;
}

Status Collector::read_made(const Entry& entry, const shm::ResultMessage& result, Error& error) {
  if (result.rows > entry.rows)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.rows", result.rows, entry.rows,
                        "the worker sent a result with {} rows, but its task has only {}", result.rows, entry.rows);
  Contents& contents = ledger_.contents(entry.slot);
  tensors::Made& made = contents.made;
  Status s = tensors::read_batch(tensors::Slot::of(memory_.segments, entry.slot), entry.id, config_.fields, result.rows,
                                 order_->sample_limit(entry.rows), made, error);
  if (s == FEEDLANE_OK) s = check_records(made.records, error);
  if (s == FEEDLANE_OK) s = order_->check_rows(entry, result.rows, made, error);
  if (s != FEEDLANE_OK) return s;
  contents.made_rows = result.rows;
  order_->on_result(entry, result.rows + made.skipped(), &made, contents);
  ledger_.finish(entry.slot, Entry::State::made);
  return FEEDLANE_OK;
}

Status Collector::read_failed(const Entry& entry, const shm::ResultMessage& result, Error& error) {
  Contents& contents = ledger_.contents(entry.slot);
  const std::uint64_t limit = order_->sample_limit(entry.rows);
  Error why;
  std::int64_t position = -1;
  Status s = tensors::read_failure(tensors::Slot::of(memory_.segments, entry.slot), entry.id, limit, position, why,
                                   contents.made.records, error);
  if (s == FEEDLANE_OK) s = check_records(contents.made.records, error);
  if (s != FEEDLANE_OK) return s;
  if (result.rows > limit)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.rows", result.rows, limit,
                        "the worker sent a result for {} samples, but its task has only {}", result.rows, limit);
  why.code = FEEDLANE_E_SAMPLE;
  why.worker = config_.maker_of(entry.worker);
  why.sample = order_->sample_at(entry, position);
  contents.error = std::move(why);
  return FEEDLANE_OK;
}

}  // namespace feedlane::loader
