// SPDX-License-Identifier: Apache-2.0
// Result lanes -> ledger -> the trainer.
#include <algorithm>
#include <new>

#include "arena/slot.hpp"
#include "loader/loader.hpp"
#include "shm/shadow.hpp"
#include "shm/words.hpp"

namespace feedlane::loader {

using State = Record::State;

// ---- lanes -> ledger ----

// Bounded: what is taken of a worker is the result of a task that it has, of which there are so many; anything else shuts
// its lane.
void Loader::sweep() {
  for (ring::Lanes::Message m = lanes_.peek(); m.data != nullptr; m = lanes_.peek()) {
    const auto result = shm::read_once<shm::ResultMessage>(m.data);
    take_result(m.lane, result);  // if memory is short for it, it is still there
    lanes_.release(m.lane);
  }
}

void Loader::drain_lane(std::uint32_t worker) {
  while (lanes_.is_open(worker)) {
    const ring::Lanes::Message m = lanes_.peek_lane(worker);
    if (m.data == nullptr) return;
    const auto result = shm::read_once<shm::ResultMessage>(m.data);
    take_result(worker, result);
    lanes_.release(worker);
  }
}

void Loader::take_result(std::uint32_t worker, const shm::ResultMessage& result) {
  worker::Peer& peer = peers_[worker];
  Record* record = ledger_.match(result, worker);
  if (peer.is_fenced && peer.is_local()) unfence(worker);  // a thread that answers again
  if (result.status == FEEDLANE_ABANDONED && peer.forget_revoked(result.id)) return;
  if (record != nullptr && record->state == State::sent && result.status == FEEDLANE_ABANDONED &&
      peer.may_decline(result.id)) {
    record->state = State::pending;
    pending_++;
  } else if (record != nullptr && record->state == State::abandoned) {
    shm::add(counters_->late_results);
    abandoned_--;
    record->state = State::idle;
    slots_.put_back(result.slot);
  } else if (record == nullptr || read_result(*record, result.slot, result, unheard_) != FEEDLANE_OK) {
    return refuse_result(worker, result, record);
  }
  peer.unfinished--;
  // It has said that it is ready, and a trainer that never has to wait wouldn't hear it.
  if (peer.state() != worker::State::ready) should_listen_ = true;
  if (!config_.has_task_timeout()) return;
  peer.progress_ns = os::now_ns();
  peer.excused = 0;
}

void Loader::refuse_result(std::uint32_t worker, const shm::ResultMessage& result, Record* record) {
  if (record == nullptr)
    (void)unheard_.refuse(FEEDLANE_E_CORRUPT, "result.slot", result.slot, ledger_.slots(),
                          "worker %u sent a result for slot %u that it has no task for", worker, result.slot);
  disown(worker, record);
}

namespace {

Status refuse_status(const shm::ResultMessage& result, Error& error) {
  return error.refuse(FEEDLANE_E_CORRUPT, "result.status", result.status, FEEDLANE_E_SAMPLE, "status %d",
                      result.status);
}

}  // namespace

// Checks what the worker says of its slot and enters it into the ledger: last of all, as memory may be too short before,
// and then it is read once more. E_CORRUPT.
Status Loader::read_result(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error) {
  // What a worker has made nobody had in this process; an inline task has permitted what is its own.
  const arena::Look look(segments_, slot, config_.workers != 0);
  switch (result.status) {
    case FEEDLANE_OK: return read_made(record, slot, result, error);
    case FEEDLANE_E_SAMPLE:
      if (const Status s = read_failed(record, slot, result, error); s != FEEDLANE_OK) return s;
      break;
    case FEEDLANE_END:
      if (!config_.iterable) return refuse_status(result, error);
      shards_[record.home].exhausted = true;
      record.made.records.clear();
      ledger_.finish(slot, State::ended);
      return FEEDLANE_OK;
    case FEEDLANE_E_INIT:
      if (!config_.iterable) return refuse_status(result, error);
      if (const Status s = read_failed(record, slot, result, error); s != FEEDLANE_OK) return s;
      record.error.code = FEEDLANE_E_INIT;
      fail(record.error);
      break;
    default: return refuse_status(result, error);
  }
  if (config_.iterable) take_from_shard(record, result.rows, nullptr);
  ledger_.finish(slot, State::failed);
  return FEEDLANE_OK;
}

// What this loader's policies don't allow no worker has done. (Beyond the skip budget a batch fails when its turn comes.)
Status Loader::check_records(const std::vector<shm::SampleRecord>& records, Error& error) const {
  if (config_.substitute) return FEEDLANE_OK;
  for (const shm::SampleRecord& r : records)
    if (r.outcome == static_cast<std::int32_t>(shm::SampleOutcome::substituted))
      return error.refuse(FEEDLANE_E_CORRUPT, "record.outcome", r.outcome, 0,
                          "sample %u is said to have been substituted, but config.substitute is 0", r.position);
  return FEEDLANE_OK;
}

Status Loader::read_made(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error) {
  if (result.rows > record.rows)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.rows", result.rows, record.rows, "%u rows of %u", result.rows,
                        record.rows);
  const std::uint64_t limit = worker::Task::note_limit(record.rows, config_.iterable);
  arena::Made& made = record.made;
  Status s =
      arena::read_batch(arena::Slot::of(segments_, slot), record.id, config_.fields, result.rows, limit, made, error);
  if (s == FEEDLANE_OK) s = check_records(made.records, error);
  if (s != FEEDLANE_OK) return s;
  const std::uint64_t skipped = made.skipped();
  // A map-style batch has a row for every sample at most; one without rows is one whose samples were all left out.
  const bool may_be_empty = config_.iterable ? !made.records.empty() : skipped != 0;
  if ((!config_.iterable && result.rows + skipped > record.rows) || (result.rows == 0 && !may_be_empty))
    return error.refuse(FEEDLANE_E_CORRUPT, "result.rows", result.rows,
                        static_cast<std::int64_t>(record.rows - std::min<std::uint64_t>(record.rows, skipped)),
                        "%u rows, and %llu samples left out, of %u", result.rows,
                        static_cast<unsigned long long>(skipped), record.rows);
  record.made_rows = result.rows;
  if (config_.iterable) take_from_shard(record, result.rows + skipped, &made);
  ledger_.finish(slot, State::made);
  return FEEDLANE_OK;
}

Status Loader::read_failed(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error) {
  const std::uint64_t limit = worker::Task::note_limit(record.rows, config_.iterable);
  Error why;
  std::int64_t position = -1;
  const arena::Slot where = arena::Slot::of(segments_, slot);
  Status s = arena::read_failure(where, record.id, limit, position, why, record.made.records, error);
  if (s == FEEDLANE_OK) s = check_records(record.made.records, error);
  if (s != FEEDLANE_OK) return s;
  if (result.rows > limit)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.rows", result.rows, static_cast<std::int64_t>(limit),
                        "%u samples of %llu", result.rows, static_cast<unsigned long long>(limit));
  why.code = FEEDLANE_E_SAMPLE;
  why.worker = maker_of(record);
  if (config_.iterable && position >= 0) why.sample = static_cast<std::int64_t>(shards_[record.home].taken) + position;
  else if (position >= 0 && position < record.rows) why.sample = segments_.index_list(slot)[position];
  record.error = std::move(why);
  return FEEDLANE_OK;
}

// Results of one worker come in the order of its tasks, so the last one says where its shard stands.
void Loader::take_from_shard(Record& record, std::uint64_t taken, const arena::Made* made) {
  Shard& shard = shards_[record.home];
  Blob state;  // before anything counts: memory may be too short
  if (made != nullptr && made->has_state)
    state = std::make_shared<const std::vector<std::byte>>(made->state.begin(), made->state.end());
  record.taken = taken;
  shard.taken += taken;
  // A batch that failed leaves the saved state behind what was taken: it can't be gone on from.
  if (made == nullptr && taken != 0 && shard.state != nullptr) {
    shard.state.reset();
    shard.lost_state = true;
  }
  if (state != nullptr) {
    shard.state = std::move(state);
    shard.lost_state = false;
  }
  record.shard_state = shard.state;
}

// ---- ledger -> the trainer ----

bool Loader::front_is_done() {
  settle_front();
  if (staging_ == nullptr || !ledger_.any_done()) return ledger_.any_done();
  stage_ahead();
  const std::uint32_t front = ledger_.front();
  return ledger_.at(front).state != State::made || staging_->is_ready(front);
}

// Tasks that end without a batch to yield: their shard had no more samples, or all of theirs were left out.
void Loader::settle_front() {
  while (ledger_.any_done()) {
    const std::uint32_t front = ledger_.front();
    Record& record = ledger_.at(front);
    if (record.state == State::made) check_skip_budget(record, front);
    const bool is_empty = record.state == State::made && record.made_rows == 0;
    if (record.state != State::ended && !is_empty) return;
    make_room(record);
    ledger_.pop_front();
    if (is_empty) tell_records(record, front);
    advance(record);
    record.state = State::idle;
    slots_.put_back(front);
  }
}

// In the order in which batches are yielded, so that which one goes beyond doesn't depend on timing.
void Loader::check_skip_budget(Record& record, std::uint32_t slot) {
  const std::uint64_t skipped = progress_.skipped + record.made.skipped();
  const auto budget = static_cast<std::uint64_t>(config_.skip_budget);
  if (record.made.skipped() == 0 || skipped <= budget) return;
  const auto first = std::find_if(record.made.records.begin(), record.made.records.end(), [](const auto& r) {
    return r.outcome == static_cast<std::int32_t>(shm::SampleOutcome::skipped);
  });
  (void)record.error.refuse(
      FEEDLANE_E_SAMPLE, "config.skip_budget", static_cast<std::int64_t>(skipped), config_.skip_budget,
      "%.*s; %llu samples of this epoch would be left out, the budget is %lld", static_cast<int>(sizeof first->text),
      first->text, static_cast<unsigned long long>(skipped), static_cast<long long>(config_.skip_budget));
  record.error.worker = maker_of(record);
  record.error.sample = config_.iterable ? -1 : segments_.index_list(slot)[first->position];
  record.state = State::failed;
  std::erase_if(record.made.records,
                [](const auto& r) { return r.outcome == static_cast<std::int32_t>(shm::SampleOutcome::skipped); });
}

// All the memory that it takes to yield the front, before anything has changed: what follows can't fail half-way.
void Loader::make_room(Record& record) {
  std::vector<YieldedBatch>& ahead = progress_.ahead;
  if (ahead.size() == ahead.capacity()) ahead.reserve(2 * ahead.size() + 4);
  record.progress.ahead.reserve(ahead.size() + 1);  // for hand_out
  record.progress.shards.reserve(progress_.shards.size());
  left_out_.reserve(record.made.skipped());
}

Status Loader::yield(feedlane_batch& out, Error& error) {
  const std::uint32_t front = ledger_.front();
  Record& record = ledger_.at(front);
  make_room(record);
  if (record.state == State::made)  // a dead worker may have changed what is behind the slot of a living one
    if (const Status s = slot_memory_.register_again(front, error); s != FEEDLANE_OK) return s;
  ledger_.pop_front();
  Status s = FEEDLANE_OK;
  tell_records(record, front);
  if (record.state == State::made) {
    s = hand_out(front, out);
  } else {
    error = std::move(record.error);
    error.epoch = epoch_;
    error.batch = config_.iterable ? progress_.batches : record.batch;
    error.attempt = static_cast<std::int32_t>(record.attempt);
    s = error.code;
    if (staging_ != nullptr) staging_->drop(front);
    slots_.put_back(front);
    advance(record);
  }
  record.state = State::idle;
  if (config_.workers == 0) return s;
  try {
    feed();
  } catch (const std::bad_alloc&) {  // what is yielded is more than what is to come: the next call tries again
  }
  return s;
}

Status Loader::hand_out(std::uint32_t slot, feedlane_batch& out) {
  Record& record = ledger_.at(slot);
  out = {};
  out.size = sizeof out;
  out.token = slots_.hand_out(slot);
  if (staging_ != nullptr) staging_->hand_out(slot, out.token);
  out.epoch = epoch_;
  out.batch = config_.iterable ? progress_.batches : record.batch;
  out.worker = maker_of(record);
  out.attempt = static_cast<std::int32_t>(record.attempt);
  out.tensors = record.made.tensors.data();
  out.tensor_count = record.made.tensors.size();
  out.count = record.made_rows;
  out.skipped_count = record.made.skipped();
  if (!record.made.metadata.empty()) {
    out.metadata = record.made.metadata.data();
    out.metadata_bytes = record.made.metadata.size();
  }
  if (!config_.iterable) leave_out_skipped(slot, out);
  shm::add(counters_->batches);
  shm::add(counters_->samples, record.made_rows);
  std::uint64_t bytes = 0;
  for (const feedlane_tensor& t : record.made.tensors) bytes += t.bytes;
  if (staging_ == nullptr) permit_tensors(record, slot);  // else they were when they were copied
  if (const auto& m = record.made.metadata; !m.empty()) {
    const std::byte* payload = segments_.payload(slot);
    shm::permit(payload, static_cast<std::uint64_t>(m.data() - payload), m.size());
  }
  shm::add(counters_->bytes, bytes);
  advance(record);
  record.progress = progress_;
  return FEEDLANE_OK;
}

void Loader::permit_tensors(const Record& record, std::uint32_t slot) const {
  const std::byte* payload = segments_.payload(slot);
  for (const feedlane_tensor& t : record.made.tensors)
    shm::permit(payload, static_cast<std::uint64_t>(static_cast<std::byte*>(t.data) - payload), t.bytes);
}

// The list of indices becomes what the rows are, and behind it what was left out. The worker has no use for it any more.
void Loader::leave_out_skipped(std::uint32_t slot, feedlane_batch& out) {
  const Record& record = ledger_.at(slot);
  std::int64_t* list = segments_.index_list(slot);
  out.indices = list;
  if (record.made.records.empty()) return;
  left_out_.clear();
  auto next = record.made.records.begin();
  std::uint32_t kept = 0;
  for (std::uint32_t position = 0; position < record.rows; position++) {
    const bool has_record = next != record.made.records.end() && next->position == position && next->whole == 0;
    const auto outcome = has_record ? static_cast<shm::SampleOutcome>(next->outcome) : shm::SampleOutcome::retried;
    if (outcome == shm::SampleOutcome::skipped) left_out_.push_back(list[position]);
    else list[kept++] = outcome == shm::SampleOutcome::substituted ? next->substitute : list[position];
    if (next != record.made.records.end() && next->position == position) ++next;
  }
  std::copy(left_out_.begin(), left_out_.end(), list + kept);
  out.skipped = list + kept;
}

void Loader::tell_records(const Record& record, std::uint32_t slot) {
  for (const shm::SampleRecord& r : record.made.records) {
    const auto outcome = static_cast<shm::SampleOutcome>(r.outcome);
    if (r.retries != 0) shm::add(counters_->retried);
    if (outcome == shm::SampleOutcome::substituted) shm::add(counters_->substituted);
    if (outcome == shm::SampleOutcome::skipped) shm::add(counters_->skipped);
    Error& e = unheard_;
    (void)e.fail(r.code, "%.*s", static_cast<int>(sizeof r.text), r.text);
    e.epoch = epoch_;
    e.batch = config_.iterable ? progress_.batches : record.batch;
    e.worker = maker_of(record);
    e.attempt = static_cast<std::int32_t>(record.attempt);
    if (r.whole == 0 && !config_.iterable) e.sample = segments_.index_list(slot)[r.position];
    if (r.whole == 0 && config_.iterable)
      e.sample = static_cast<std::int64_t>(progress_.shards[record.home].taken) + r.position;
    e.found = r.retries;
    e.needed = outcome == shm::SampleOutcome::substituted ? r.substitute : 0;
    events_.push(outcome == shm::SampleOutcome::skipped       ? FEEDLANE_EVENT_SAMPLE_SKIPPED
                 : outcome == shm::SampleOutcome::substituted ? FEEDLANE_EVENT_SAMPLE_SUBSTITUTED
                                                              : FEEDLANE_EVENT_SAMPLE_RETRIED,
                 e);
  }
}

// The trainer has, or will never have, this batch.
void Loader::advance(Record& record) {
  const bool was_made = record.state == State::made;
  if (was_made) progress_.skipped += record.made.skipped();
  if (!config_.iterable) {
    progress_.yield(
        {record.batch, record.rows, static_cast<std::uint32_t>(config_.batch_size), std::move(record.sampler_state)});
    return;
  }
  const std::uint32_t home = record.home;
  ShardProgress& shard = progress_.shards[home];
  shard.taken += record.taken;
  // What took nothing left the shard where it was.
  if (record.taken != 0) shard.state = record.shard_state;
  progress_.next_shard = (home + 1) % static_cast<std::uint32_t>(progress_.shards.size());
  const bool is_silent = record.state == State::ended || (was_made && record.made_rows == 0);
  if (!is_silent) progress_.batches++;
  if (was_made) {
    const auto before = progress_.positions;
    progress_.positions += record.made_rows;
    if (config_.iterable_length != 0 && before <= config_.iterable_length &&
        progress_.positions > config_.iterable_length) {
      (void)unheard_.refuse(FEEDLANE_E_LIMIT, "config.iterable_length", progress_.positions, config_.iterable_length,
                            "the data set has more samples than the %lld it was said to have",
                            static_cast<long long>(config_.iterable_length));
      events_.push(FEEDLANE_EVENT_WARNING, unheard_);
    }
  }
  if (record.state != State::ended) return;
  shard.ended = true;
  exhausted_ = std::all_of(progress_.shards.begin(), progress_.shards.end(), [](const auto& s) { return s.ended; });
}

}  // namespace feedlane::loader
