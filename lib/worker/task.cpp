// SPDX-License-Identifier: Apache-2.0
#include "worker/task.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/versioned.hpp"
#include "worker/seed.hpp"

namespace feedlane::worker {

void Task::prepare(const arena::Fields& fields, std::uint64_t base_seed, feedlane_worker* owner) {
  fields_ = &fields;
  base_seed_ = base_seed;
  tensors_.resize(fields.all().size());
  view_.size = sizeof view_;
  view_.tensor_count = static_cast<std::int32_t>(tensors_.size());
  view_.worker = owner;
}

void Task::open(const shm::TaskMessage& message, const std::int64_t* indices, const arena::Slot& slot) {
  message_ = message;
  slot_ = slot;
  const auto all = fields_->all();
  for (std::size_t f = 0; f < all.size(); f++)
    tensors_[f] = arena::tensor_of(all[f], message.rows, slot.payload, slot.payload_offset);
  seeds_.resize(message.rows);
  const std::uint64_t key = epoch_key(base_seed_, message.epoch);
  for (std::uint32_t i = 0; i < message.rows; i++) seeds_[i] = row_seed(key, message.first_position + i);
  view_.id = message.id;
  view_.epoch = message.epoch;
  view_.batch = message.batch;
  view_.attempt = static_cast<std::int32_t>(message.attempt);
  view_.indices = indices;
  view_.count = message.rows;
  view_.seeds = seeds_.data();
  view_.tensors = tensors_.data();
  open_ = true;
}

std::uint64_t Task::describe(std::int64_t rows) {
  std::uint64_t bytes = 0;
  const auto all = fields_->all();
  for (std::size_t f = 0; f < all.size(); f++) {
    if (rows != static_cast<std::int64_t>(message_.rows))
      tensors_[f] = arena::tensor_of(all[f], rows, slot_.payload, slot_.payload_offset);
    bytes += tensors_[f].bytes;
  }
  arena::write_batch(slot_, message_.id, tensors_);
  return bytes;
}

// ---- the data set ----

Status DatasetRunner::take(const feedlane_dataset* dataset, const char* argument, Error& error) {
  if (const Status s = read_versioned(dataset, table_, argument, error); s != FEEDLANE_OK) return s;
  if (table_.get == nullptr && table_.fetch == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "a data set has get or fetch, %s has neither", argument);
  detail_.resize(shm::detail_bytes);
  return FEEDLANE_OK;
}

void DatasetRunner::reset_report() {
  report_ = {};
  report_.size = sizeof report_;
  report_.worker = report_.attempt = -1;
  report_.epoch = report_.batch = report_.sample = -1;
  report_.detail = detail_.data();
  report_.detail_cap = detail_.size();
}

Status DatasetRunner::translate(Status code, Status returned, const feedlane_error& reported, const char* callback,
                                Error& error) {
  const std::size_t length = strnlen(reported.text, sizeof reported.text);
  if (length == 0) (void)error.fail(code, "%s returned %d (%s)", callback, returned, feedlane_status_name(returned));
  else (void)error.fail(code, "%.*s", static_cast<int>(length), reported.text);
  error.os_errno = reported.os_errno;
  error.transient = reported.transient != 0;
  if (reported.detail == detail_.data())
    error.detail.assign(detail_.data(), std::min<std::uint64_t>(reported.detail_len, detail_.size()));
  return code;
}

Status DatasetRunner::open(const feedlane_worker_info& info, Error& error) {
  self_ = table_.user_data;
  if (table_.open != nullptr) {
    reset_report();
    const Status s = table_.open(table_.user_data, &info, &self_, &report_);
    if (s != FEEDLANE_OK) return translate(FEEDLANE_E_INIT, s, report_, "open", error);
  }
  is_open_ = true;
  return FEEDLANE_OK;
}

void DatasetRunner::close() {
  if (is_open_ && table_.close != nullptr) table_.close(self_);
  is_open_ = false;
}

Status DatasetRunner::get(const Task& task, std::uint64_t row_index, Error& error) {
  const feedlane_task& view = task.view();
  void* fields[FEEDLANE_MAX_TENSORS];
  std::uint64_t bytes[FEEDLANE_MAX_TENSORS];
  for (std::size_t f = 0; f < task.tensors().size(); f++) {
    const feedlane_tensor& t = task.tensors()[f];
    bytes[f] = t.bytes / view.count;
    fields[f] = static_cast<std::byte*>(t.data) + row_index * bytes[f];
  }
  feedlane_row row{};
  row.size = sizeof row;
  row.index = view.indices[row_index];
  row.seed = view.seeds[row_index];
  row.fields = fields;
  row.bytes = bytes;
  row.task = &view;
  reset_report();
  const Status s = table_.get(self_, &row, &report_);
  if (s == FEEDLANE_OK) return s;
  (void)translate(FEEDLANE_E_SAMPLE, s, report_, "get", error);
  error.sample = row.index;
  return error.code;
}

Status DatasetRunner::fetch(const Task& task, Error& error) {
  reset_report();
  const Status s = table_.fetch(self_, &task.view(), &report_);
  return s == FEEDLANE_OK ? s : translate(FEEDLANE_E_SAMPLE, s, report_, "fetch", error);
}

}  // namespace feedlane::worker
