// SPDX-License-Identifier: Apache-2.0
// A task in the form that callbacks see, and the contents that callbacks put into its slot.
#include "dataset/task.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/prefetch.hpp"
#include "base/splitmix.hpp"
#include "os/limits.hpp"
#include "os/memfd.hpp"
#include "shm/asan.hpp"
#include "shm/plan.hpp"

namespace feedlane::dataset {

void fill_seeds(const shm::Geometry& geometry, const shm::TaskMessage& message, std::span<std::uint64_t> out) {
  const std::uint64_t key = epoch_key(geometry.base_seed, message.epoch);
  auto position = static_cast<std::uint64_t>(message.first_position);  // wraps modulo 2^64, like seeds
  for (std::uint64_t& seed : out) {
    seed = row_seed(key, static_cast<std::int64_t>(position));
    position += message.stride;
  }
}

void Task::prepare(const tensors::Fields& fields, const shm::Geometry& geometry, std::uint32_t worker,
                   feedlane_worker* owner, const shm::TrainerBlock* trainer) {
  trainer_ = trainer;
  fields_ = &fields;
  geometry_ = geometry;
  shard_ = shm::shard_of(geometry, worker);
  tensors_.reserve(FEEDLANE_MAX_TENSORS);  // pointers to tensors stay valid while the data set adds some
  tensors_.resize(fields.all().size());
  seeds_.reserve(geometry.max_rows);  // so that `open` allocates nothing
  reserved_.assign(geometry.slots, geometry.reserved_bytes);
  view_.size = sizeof view_;
  view_.worker = owner;
  view_.rows = &rows_;
  view_.library = this;
}

void Task::open(const shm::TaskMessage& message, const std::int64_t* list, const tensors::Slot& slot) {
  message_ = message;
  slot_ = slot;
  seeds_.resize(message.rows);
  view_.id = message.id;
  view_.epoch = message.epoch;
  view_.batch = message.batch;
  view_.attempt = static_cast<std::int32_t>(message.attempt);
  view_.count = message.rows;
  view_.indices = list;
  view_.seeds = seeds_.data();
  view_.first = 0;
  view_.delivered = 0;
  view_.state = nullptr;
  view_.state_bytes = 0;
  if (is_iterable()) {
    view_.indices = nullptr;
    if ((message.flags & shm::task_first) != 0) {
      view_.first = 1;
      view_.delivered = static_cast<std::uint64_t>(message.first_position);
      view_.state_bytes = message.state_bytes;
      if (message.state_bytes != 0) view_.state = list;
      shard_position_ = view_.delivered;
    }
    for (std::uint32_t i = 0; i < message.rows; i++) seeds_[i] = shard_seed(shard_position_ + i);
  } else {
    fill_seeds(geometry_, message, seeds_);
  }
  set_out();
  whole_.reset();
  open_ = true;
}

void Task::prefetch_header() const { prefetch_for_write(&slot_.header->head, sizeof slot_.header->head); }

void Task::close() {
  open_ = false;
  if (std::exchange(unpoisoned_, false)) poison();
}

void Task::poison() const { shm::poison(slot_.payload, 0, shm::align_payload(slot_.payload_bytes)); }

void Task::unpoison() {
  unpoisoned_ = true;
  poison();
  for (const feedlane_tensor& t : tensors_) shm::unpoison(slot_.payload, t.offset - slot_.payload_offset, t.bytes);
}

void Task::start_over() {
  set_out();
  unpoison();
}

void Task::set_out() {
  const auto all = fields_->all();
  if (rows_as_declared_ == message_.rows) {
    for (std::size_t f = 0; f < all.size(); f++)
      tensors::move_tensor(tensors_[f], all[f], slot_.payload, slot_.payload_offset);
  } else {
    tensors_.resize(all.size());
    for (std::size_t f = 0; f < all.size(); f++)
      tensors_[f] = tensors::tensor_of(all[f], message_.rows, slot_.payload, slot_.payload_offset);
    names_.clear();
    rows_as_declared_ = message_.rows;
  }
  extras_ = {};
  used_ = fields_->slot_bytes();
  rows_ = message_.rows;
  skipped_ = 0;
  next_record_ = 0;
  failing_.drop();
  publish_tensors();
}

std::uint64_t Task::shard_seed(std::uint64_t position) const {
  return row_seed(epoch_key(geometry_.base_seed + shard_, message_.epoch), static_cast<std::int64_t>(position));
}

void Task::publish_tensors() {
  shapes_++;
  view_.tensors = tensors_.data();
  view_.tensor_count = static_cast<std::int32_t>(tensors_.size());
}

// ---- contents that the data set puts into the slot ----

// If the trainer has given memory back, memory that was reserved here beyond the reserved part of slots may be gone.
void Task::forget_given_back() {
  if (trainer_ == nullptr) return;
  // Acquire: pairs with the release store in Segments::trim_slot.
  const std::uint64_t count = trainer_->given_back.load(std::memory_order_acquire);
  if (std::exchange(given_back_, count) != count) reserved_.assign(geometry_.slots, geometry_.reserved_bytes);
}

// Makes sure that memory is reserved for the slot's payload up to `end`.
Status Task::reserve_up_to(std::uint64_t end, Error& error) {
  forget_given_back();
  std::uint64_t& there = reserved_[slot_.number];
  if (end <= there) return FEEDLANE_OK;
  // Written pages are already allocated. No other process changes the pages of this slot during the task.
  there = std::max(there, os::first_hole(slot_.data_fd, slot_.payload_offset + there) - slot_.payload_offset);
  if (end <= there) return FEEDLANE_OK;
  // Reserves full pages, and a quarter more, so that slowly growing batches don't need a system call each.
  const std::uint64_t grown = std::max(end, there + there / 4);
  const std::uint64_t until = std::min(slot_.payload_bytes, shm::align_payload(grown));
  Status s = os::check_room(until - there, os::SystemFiles{}, error);
  if (s == FEEDLANE_OK) s = os::reserve(slot_.data_fd, slot_.payload_offset + there, until - there, error);
  if (s == FEEDLANE_OK) there = until;
  return s;
}

Status Task::allocate(std::uint64_t bytes, tensors::Extent& out, Error& error) {
  const std::uint64_t offset = tensors::align_tensor(used_);
  if (bytes > shm::max_slot_bytes || offset + bytes > slot_.payload_bytes)
    return error.refuse(FEEDLANE_E_LIMIT, "config.slot_bytes", slot_.payload_bytes,
                        offset + std::min(bytes, shm::max_slot_bytes),
                        "this batch takes {} bytes, but a slot has only {}: raise config.slot_bytes",
                        offset + std::min(bytes, shm::max_slot_bytes), slot_.payload_bytes);
  if (const Status s = reserve_up_to(offset + bytes, error); s != FEEDLANE_OK) return s;
  out = {offset, bytes};
  used_ = offset + bytes;
  return FEEDLANE_OK;
}

Status Task::shape_tensor(std::int32_t index, const feedlane_field& full, feedlane_tensor* out, Error& error) {
  const auto declared = fields_->all();
  const auto count = static_cast<std::int32_t>(tensors_.size());
  const std::int32_t limit = std::min(count, FEEDLANE_MAX_TENSORS - 1);
  if (index < 0 || index > limit)
    return error.refuse(FEEDLANE_E_ARGUMENT, "index", index, limit,
                        "index is {}: must be 0 to {}; the batch has {} tensors, and at most {} are allowed", index,
                        limit, count, FEEDLANE_MAX_TENSORS);
  const auto at = static_cast<std::size_t>(index);
  const bool is_declared = at < declared.size();
  feedlane_dtype dtype = full.dtype;
  if (is_declared && dtype.bits == 0) dtype = declared[at].dtype;
  std::uint64_t bytes = 0;
  if (const tensors::Flaw f = tensors::check_shape(dtype, full.ndim, FEEDLANE_MAX_NDIM, full.shape, bytes);
      f.member != nullptr) {
    char argument[32];
    (void)format_to(argument, "full->{}", f.member);
    return error.refuse(FEEDLANE_E_ARGUMENT, argument, f.found, f.needed, "{} is {}: {}", argument, f.found, f.rule);
  }
  if (!is_declared && (full.name == nullptr || *full.name == '\0' || std::strlen(full.name) >= shm::name_bytes))
    return error.refuse(FEEDLANE_E_ARGUMENT, "full->name",
                        full.name == nullptr ? 0 : static_cast<std::int64_t>(std::strlen(full.name)),
                        shm::name_bytes - 1, "full->name must have 1 to 31 bytes, because the tensor is not declared");
  rows_as_declared_ = -1;
  // The declared place if the tensor fits there; otherwise a place after all others.
  tensors::Extent place;
  const std::uint64_t own = is_declared ? declared[at].row_bytes * geometry_.max_rows : 0;
  if (is_declared && bytes <= own) place = {declared[at].offset, bytes};
  else if (const Status s = allocate(bytes, place, error); s != FEEDLANE_OK) return s;
  feedlane_tensor t = tensors::row_major(dtype, full.ndim, full.shape);
  t.bytes = bytes;
  t.data = slot_.payload + place.offset;
  t.offset = slot_.payload_offset + place.offset;
  if (is_declared) {
    t.name = declared[at].name.c_str();
  } else {
    const std::size_t length = std::strlen(full.name) + 1;
    auto name = std::make_unique<char[]>(length);
    std::memcpy(name.get(), full.name, length);
    t.name = name.get();
    names_.push_back(std::move(name));
  }
  // Nothing fails from here on, so a tensor whose new shape is refused keeps its old shape.
  if (index < count) shm::poison(slot_.payload, tensors_[at].offset - slot_.payload_offset, tensors_[at].bytes);
  shm::unpoison(slot_.payload, place.offset, t.bytes);
  if (index == count) tensors_.push_back(t);  // `prepare` has reserved room for all
  else tensors_[at] = t;
  extras_.shaped |= std::uint64_t{1} << at;
  publish_tensors();
  if (out != nullptr) *out = t;
  return FEEDLANE_OK;
}

Status Task::copy_in(const char* argument, const void* bytes, std::uint64_t count, tensors::Extent& out, Error& error) {
  if (bytes == nullptr && count != 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, count, "{} is NULL, but count is {}", argument, count);
  if (const Status s = allocate(count, out, error); s != FEEDLANE_OK) return s;
  shm::unpoison(slot_.payload, out.offset, count);
  if (count != 0) std::memcpy(slot_.payload + out.offset, bytes, count);
  return FEEDLANE_OK;
}

Status Task::set_metadata(const void* bytes, std::uint64_t count, Error& error) {
  return copy_in("bytes", bytes, count, extras_.metadata, error);
}

Status Task::set_state(const void* bytes, std::uint64_t count, Error& error) {
  if (!is_iterable()) return error.fail(FEEDLANE_E_STATE, "FEEDLANE_STORE_STATE is only for iterable data sets");
  if (count > geometry_.list_bytes)
    return error.refuse(FEEDLANE_E_LIMIT, "count", count, geometry_.list_bytes,
                        "the state has {} bytes, but at most {} are allowed", count, geometry_.list_bytes);
  if (const Status s = copy_in("bytes", bytes, count, extras_.state, error); s != FEEDLANE_OK) return s;
  extras_.has_state = true;
  return FEEDLANE_OK;
}

Status Task::add_record(std::uint64_t position, shm::SampleOutcome outcome, const Attempts& attempts, bool whole,
                        Error& error) {
  if (extras_.records >= slot_.record_room || position >= record_limit())
    return error.refuse(FEEDLANE_E_LIMIT, "records", extras_.records, slot_.record_room,
                        "the slot has room for the records of only {} samples", slot_.record_room);
  if (outcome == shm::SampleOutcome::skipped) skipped_++;
  next_record_ = position + 1;
  shm::SampleRecord& r = slot_.records[extras_.records++];
  r = {};
  r.position = static_cast<std::uint32_t>(position);
  r.outcome = static_cast<std::int32_t>(outcome);
  r.code = attempts.code;
  r.retries = attempts.total_retries;
  r.substitute = attempts.substitute;
  r.whole = whole ? 1 : 0;
  copy_text(r.text, sizeof r.text, attempts.text);
  return FEEDLANE_OK;
}

Status Task::fail_sample(std::uint64_t position, const feedlane_error& failure,
                         feedlane_dataset_substitute_fn substitute, void* self, std::int64_t& index,
                         std::int64_t& wait_ns, Error& error) {
  if (position != failing_.position) end_sample();
  if (position < next_record_ || position >= record_limit())
    return error.refuse(FEEDLANE_E_ARGUMENT, "position", position,
                        position < next_record_ ? next_record_ : record_limit() - 1,
                        "position is {}: must be at least {} and below {}; samples fail in order of position, and one "
                        "that was skipped is finished",
                        position, next_record_, record_limit());
  failing_.position = position;
  Attempts& attempts = failing_.attempts;
  attempts.note(failure.code, failure.text);
  index = is_iterable()               ? static_cast<std::int64_t>(shard_position_ + position)
          : attempts.substitutes != 0 ? attempts.substitute
                                      : view_.indices[position];
  wait_ns = 0;
  Status chosen = FEEDLANE_OK;
  const auto choose = [&](std::int64_t& other) {
    if (substitute == nullptr || is_iterable()) return false;
    feedlane_error ignored{};
    ignored.size = sizeof ignored;
    chosen = substitute(self, index, view_.seeds[position], attempts.substitutes, &other, &ignored);
    return chosen == FEEDLANE_OK;
  };
  const Decision decision = decide(geometry_, attempts, failure.transient != 0, choose);
  if (chosen == FEEDLANE_INTERRUPTED) return chosen;
  if (decision == Decision::retry || decision == Decision::substitute) {
    if (decision == Decision::retry) wait_ns = backoff_ns(geometry_, attempts);
    else index = attempts.substitute;
    if (extras_.records < slot_.record_room) return FEEDLANE_AGAIN;  // end_sample has room for its record
  }
  Status s = FEEDLANE_E_SAMPLE;
  if (decision == Decision::fail) {
    Error no_room;
    if (attempts.total_retries != 0) (void)add_record(position, shm::SampleOutcome::retried, attempts, false, no_room);
    (void)error.fail(s, "{}", first(sizeof failure.text, failure.text));
  } else {
    s = add_record(position, shm::SampleOutcome::skipped, attempts, false, error);  // without room E_LIMIT
  }
  failing_.drop();
  return s;
}

// A sample whose failures decided nothing has no record.
void Task::end_sample() {
  if (failing_.position == FailingSample::none) return;
  const Attempts& attempts = failing_.attempts;
  Error no_room;
  if (!attempts.is_first()) (void)add_record(failing_.position, attempts.outcome(), attempts, false, no_room);
  failing_.drop();
}

bool Task::may_try_again(bool is_transient, Status code, const char* text, std::int64_t& wait_ns) {
  whole_.note(code, text);
  if (decide_retry(geometry_, whole_, is_transient)) {
    start_over();
    wait_ns = backoff_ns(geometry_, whole_);
    return true;
  }
  add_whole_record();
  return false;
}

// After the samples' records. If there is no room for it, the batch does without.
void Task::add_whole_record() {
  if (whole_.total_retries == 0) return;
  Error no_room;
  (void)add_record(0, shm::SampleOutcome::retried, whole_, true, no_room);
  whole_.reset();
}

// ---- the description that the trainer reads ----

std::uint64_t Task::describe(std::uint64_t rows) {
  std::uint64_t bytes = 0;
  const auto all = fields_->all();
  add_whole_record();
  if (rows != message_.rows) {
    rows_as_declared_ = -1;
    for (std::size_t f = 0; f < all.size(); f++)
      if ((extras_.shaped >> f & 1) == 0)
        tensors_[f] = tensors::tensor_of(all[f], static_cast<std::int64_t>(rows), slot_.payload, slot_.payload_offset);
  }
  for (const feedlane_tensor& t : tensors_) bytes += t.bytes;
  tensors::write_batch(slot_, message_.id, tensors_, extras_);
  return bytes;
}

void Task::describe_failure(std::int64_t position, bool transient, std::string_view text, std::string_view detail) {
  detail = detail.substr(0, tensors::detail_room(slot_));
  Error too_little;
  if (reserve_up_to(detail.size(), too_little) != FEEDLANE_OK) detail = detail.substr(0, reserved_[slot_.number]);
  shm::unpoison(slot_.payload, 0, detail.size());
  tensors::write_failure(slot_, message_.id, position, transient, text, detail, extras_.records);
}

}  // namespace feedlane::dataset
