// SPDX-License-Identifier: Apache-2.0
// Runs a data set's callbacks: map-style, iterable and whole-batch tasks, retries, substitutes and skips.
#include "dataset/runner.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/versioned.hpp"
#include "os/clock.hpp"

namespace feedlane::dataset {
namespace {

// Maximum number of consecutive failures while a reopened shard skips delivered samples. The next one fails the shard.
constexpr std::uint32_t max_failures = 1000;

}  // namespace

void set_by_geometry(feedlane_worker_info& info, const shm::Geometry& geometry, std::uint32_t worker) {
  info.iterable = (geometry.flags & shm::geometry_iterable) != 0 ? 1 : 0;
  info.drop_last = (geometry.flags & shm::geometry_drop_last) != 0 ? 1 : 0;
  info.retries = static_cast<std::int32_t>(geometry.retries);
  info.retry_backoff_ns = static_cast<std::int64_t>(geometry.retry_backoff_ns);
  info.rank = static_cast<std::int32_t>(geometry.rank);
  info.world = static_cast<std::int32_t>(geometry.world);
  info.shard = static_cast<std::int64_t>(shm::shard_of(geometry, worker));
  info.shards = static_cast<std::int64_t>(shm::shards_of(geometry));
  info.seed = geometry.base_seed + shm::shard_of(geometry, worker);
}

Status DatasetRunner::take(const feedlane_dataset* dataset, const char* argument, Error& error) {
  if (const Status s = read_versioned(dataset, table_, argument, error); s != FEEDLANE_OK) return s;
  if (table_.get == nullptr && table_.fetch == nullptr && table_.next == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "{} has no callback: set get, fetch or next", argument);
  detail_.resize(shm::detail_bytes);
  return FEEDLANE_OK;
}

Status DatasetRunner::check_style(bool iterable, const char* argument, Error& error) const {
  if (table_.fetch != nullptr || (iterable ? table_.next != nullptr : table_.get != nullptr)) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1,
                      "{} data set needs the callback {} or fetch, but {} has neither",
                      iterable ? "an iterable" : "a map-style", iterable ? "next" : "get", argument);
}

void DatasetRunner::reset_report() {
  report_ = {};
  report_.size = sizeof report_;
  report_.worker = report_.attempt = -1;
  report_.epoch = report_.batch = report_.sample = -1;
  report_.detail = detail_.data();
  report_.detail_cap = detail_.size();
}

// As reset_report, but does nothing if the previous callback has written nothing that `translate` reads.
inline void DatasetRunner::renew_report() {
  // One branch: this is done for each sample.
  const std::uint64_t changed =
      static_cast<unsigned char>(report_.text[0]) | static_cast<std::uint32_t>(report_.os_errno | report_.transient) |
      report_.detail_len |
      (reinterpret_cast<std::uintptr_t>(report_.detail) ^ reinterpret_cast<std::uintptr_t>(detail_.data()));
  if (changed != 0) [[unlikely]]
    reset_report();
}

Status DatasetRunner::translate(Status code, Status returned, const feedlane_error& reported, const char* callback,
                                Error& error) {
  const std::size_t length = strnlen(reported.text, sizeof reported.text);
  if (length == 0) (void)error.fail(code, "{} returned {} ({})", callback, returned, feedlane_status_name(returned));
  else (void)error.fail(code, "{}", first(length, reported.text));
  error.os_errno = reported.os_errno;
  error.transient = reported.transient != 0;
  if (reported.detail == detail_.data())
    error.detail.assign(detail_.data(), std::min<std::uint64_t>(reported.detail_len, detail_.size()));
  last_code_ = returned;
  return code;
}

Status DatasetRunner::open(const feedlane_worker_info& info, Error& error) {
  info_ = info;
  self_ = table_.user_data;
  was_iterated_ = false;
  if (table_.open != nullptr) {
    reset_report();
    const Status s = table_.open(table_.user_data, &info_, &self_, &report_);
    if (s != FEEDLANE_OK) return translate(FEEDLANE_E_INIT, s, report_, "open", error);
  }
  is_open_ = true;
  return FEEDLANE_OK;
}

void DatasetRunner::close() {
  if (is_open_ && table_.close != nullptr) table_.close(self_);
  is_open_ = false;
}

// ---- one task ----

Status DatasetRunner::run(Task& task, Progress& p, Pace& pace, Error& error) {
  if (task.is_iterable()) return run_iterable(task, p, pace, error);
  return table_.fetch != nullptr ? run_fetch(task, p, pace, error) : run_map(task, p, pace, error);
}

Status DatasetRunner::run_map(Task& task, Progress& p, Pace& pace, Error& error) {
  const std::uint64_t count = task.view().count;
  reset_report();
  for (Rows rows(task); p.position < count;) {
    if (p.retry_at_ns != 0)
      if (const Status s = pace.pause(p.retry_at_ns); s != FEEDLANE_OK) return s;
    p.retry_at_ns = 0;
    Status stop = FEEDLANE_OK;
    Status s = p.attempts.is_first() ? get_smooth(task, rows, p, pace, stop, error) : get(task, rows, p, error);
    if (stop != FEEDLANE_OK || p.position == count) return stop;
    s = s == FEEDLANE_OK ? finish_sample(task, p, true, error) : handle(task, p, error);
    if (s != FEEDLANE_OK) return s;
    if (p.position == count) break;
    if (s = pace.between(p.position); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

namespace {

// Accepts the same numbers of rows from a whole-batch fetch as from a commit. Skipped samples of a shard count as
// taken.
Status check_rows(const Task& task, Error& error) {
  const std::uint64_t count = task.view().count;
  const std::uint64_t limit = task.record_limit();
  const bool may_be_empty = task.is_iterable() ? task.records() != 0 : task.skipped() == count;
  if (task.rows() <= count && task.rows() + task.skipped() <= limit && (task.rows() != 0 || may_be_empty))
    return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_SAMPLE, "task->rows", std::min<std::uint64_t>(task.rows(), INT64_MAX),
                      std::min(count, limit - task.skipped()),
                      "fetch made {} rows and skipped {} samples, but the task has {} samples", task.rows(),
                      task.skipped(), count);
}

}  // namespace

Status DatasetRunner::run_fetch(Task& task, Progress& p, Pace& pace, Error& error) {
  for (;;) {
    if (p.retry_at_ns != 0)
      if (const Status s = pace.pause(p.retry_at_ns); s != FEEDLANE_OK) return s;
    p.retry_at_ns = 0;
    const Status s = fetch(task, error);
    if (s == FEEDLANE_END && task.is_iterable()) {
      exhausted_ = true;
      return s;
    }
    if (s == FEEDLANE_OK) {
      task.end_sample();
      if (const Status made = check_rows(task, error); made != FEEDLANE_OK) return made;
      p.made = task.rows();
      p.position = p.made + task.skipped();
      return s;
    }
    blame_sample(task, p, error);
    std::int64_t wait_ns = 0;
    if (!task.may_try_again(error.transient, last_code_, error.text, wait_ns)) return s;
    p.retry_at_ns = os::now_ns() + wait_ns;
  }
}

// Stores the index that fetch has reported as failed, if it belongs to the task.
void DatasetRunner::blame_sample(const Task& task, Progress& p, Error& error) const {
  const feedlane_task& view = task.view();
  if (report_.sample < 0 || task.is_iterable()) return;
  const auto* const found = std::find(view.indices, view.indices + view.count, report_.sample);
  if (found == view.indices + view.count) return;
  p.position = static_cast<std::uint64_t>(found - view.indices);
  error.sample = report_.sample;
}

Status DatasetRunner::handle(Task& task, Progress& p, Error& error) {
  p.attempts.note(last_code_, error.text);
  switch (decide(task.geometry(), p.attempts, error.transient,
                 [&](std::int64_t& other) { return choose_substitute(task, p, other); })) {
    case Decision::retry: p.retry_at_ns = os::now_ns() + backoff_ns(task.geometry(), p.attempts); return FEEDLANE_OK;
    case Decision::substitute: return FEEDLANE_OK;
    case Decision::skip:
      if (finish_sample(task, p, false, error) == FEEDLANE_OK) return FEEDLANE_OK;
      error.sample = -1;
      return FEEDLANE_E_SAMPLE;
    case Decision::fail: break;
  }
  Error no_room;
  if (p.attempts.total_retries != 0)
    (void)task.add_record(p.position, shm::SampleOutcome::retried, p.attempts, false, no_room);
  return error.code;
}

// False: there is no substitute, and the sample's error is the one to report.
bool DatasetRunner::choose_substitute(const Task& task, const Progress& p, std::int64_t& other) {
  if (table_.substitute == nullptr) return false;
  const feedlane_task& view = task.view();
  const Attempts& a = p.attempts;
  const std::int64_t failed = a.substitutes == 0 ? view.indices[p.position] : a.substitute;
  other = failed;
  reset_report();
  return table_.substitute(self_, failed, view.seeds[p.position], a.substitutes, &other, &report_) == FEEDLANE_OK;
}

Status DatasetRunner::finish_sample(Task& task, Progress& p, bool made, Error& error) {
  Status s = FEEDLANE_OK;
  if (!made || !p.attempts.is_first())
    s = task.add_record(p.position, made ? p.attempts.outcome() : shm::SampleOutcome::skipped, p.attempts, false,
                        error);
  if (made) p.made++;
  p.position++;
  p.attempts.reset();
  return s;
}

// ---- shards of iterable data sets ----

Status DatasetRunner::run_iterable(Task& task, Progress& p, Pace& pace, Error& error) {
  if (task.view().first != 0)
    if (const Status s = start_shard(task, p, pace, error); s != FEEDLANE_OK) return s;
  if (!p.is_made) {
    if (exhausted_) return FEEDLANE_END;
    const Status s = table_.next != nullptr ? fill_from_shard(task, p, pace, error) : run_fetch(task, p, pace, error);
    if (s != FEEDLANE_OK) return s;
    p.is_made = true;
  }
  return save_shard(task, error);
}

Status DatasetRunner::start_shard(Task& task, Progress& p, Pace& pace, Error& error) {
  const feedlane_task& view = task.view();
  if (!p.shard_started) {
    exhausted_ = false;
    Status s = FEEDLANE_OK;
    if (table_.restart != nullptr) {
      reset_report();
      s = table_.restart(self_, view.epoch, &report_);
      if (s != FEEDLANE_OK) return translate(FEEDLANE_E_INIT, s, report_, "restart", error);
    } else if (was_iterated_) {
      close();
      if (s = open(info_, error); s != FEEDLANE_OK) return s;
    }
    was_iterated_ = true;
    p.shard_started = true;
    p.to_skip = view.delivered;
    if (view.state != nullptr) {
      if (table_.load == nullptr)
        return error.refuse(FEEDLANE_E_INIT, "dataset.load", 0, 1,
                            "the shard has a saved state, but the data set has no callback `load`");
      reset_report();
      s = table_.load(self_, view.state, view.state_bytes, &report_);
      if (s != FEEDLANE_OK) return translate(FEEDLANE_E_INIT, s, report_, "load", error);
      p.to_skip = 0;
    }
  }
  return skip_delivered(task, p, pace, error);
}

// Makes and drops the samples that were delivered before this shard was reopened.
Status DatasetRunner::skip_delivered(Task& task, Progress& p, Pace& pace, Error& error) {
  const bool has_next = table_.next != nullptr;
  Rows rows(task);
  reset_report();
  while (p.to_skip != 0) {
    Progress before;
    before.position = 0 - p.to_skip;  // modulo 2^64: before the shard's present position
    Status s = has_next ? next(task, rows, before, error) : fetch(task, error);
    std::uint64_t taken = 1;
    if (!has_next) {
      // A whole-batch fetch takes as many samples as when they were delivered: see run_fetch.
      if (s == FEEDLANE_OK && check_rows(task, error) != FEEDLANE_OK) return error.code = FEEDLANE_E_INIT;
      taken = s == FEEDLANE_OK ? task.rows() + task.skipped() : 0;
      if (s == FEEDLANE_OK && taken == 0)
        s = error.refuse(FEEDLANE_E_SAMPLE, "task->rows", 0, 1, "fetch made no rows and skipped no samples");
    }
    if (s == FEEDLANE_END || taken > p.to_skip)
      return error.refuse(FEEDLANE_E_INIT, "dataset", task.view().delivered - p.to_skip, task.view().delivered,
                          "the reopened shard does not yield the {} samples that were already delivered: its data set "
                          "is not deterministic",
                          task.view().delivered);
    p.failures = s == FEEDLANE_OK ? 0 : p.failures + 1;
    if (p.failures > max_failures) return error.code = FEEDLANE_E_INIT;  // with the last failure's text
    p.to_skip -= taken;
    task.start_over();  // drops what the callbacks have put into the slot
    if (s = pace.check(0); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

Status DatasetRunner::fill_from_shard(Task& task, Progress& p, Pace& pace, Error& error) {
  const std::uint64_t count = task.view().count;
  // A batch ends early if it has no room for the next sample's record, or if it has taken as many samples as the
  // trainer accepts.
  const std::uint32_t room = task.slot().record_room;
  Rows rows(task);
  reset_report();
  while (p.made < count && p.position < task.record_limit() && (room == 0 || task.records() < room)) {
    if (p.retry_at_ns != 0)
      if (const Status s = pace.pause(p.retry_at_ns); s != FEEDLANE_OK) return s;
    p.retry_at_ns = 0;
    Status s = next(task, rows, p, error);
    if (s == FEEDLANE_END) {
      exhausted_ = true;
      break;
    }
    s = s == FEEDLANE_OK ? finish_sample(task, p, true, error) : handle(task, p, error);
    if (s != FEEDLANE_OK) return s;
    if (p.made == count) break;
    if (s = pace.check(p.position); s != FEEDLANE_OK) return s;
  }
  if (p.made == count || !exhausted_) return FEEDLANE_OK;
  if ((task.geometry().flags & shm::geometry_drop_last) != 0) p.made = 0;
  // Records are sent with a batch, even with one without rows; then the next task reports the end.
  return p.made == 0 && task.records() == 0 ? FEEDLANE_END : FEEDLANE_OK;
}

Status DatasetRunner::save_shard(Task& task, Error& error) {
  if (table_.save == nullptr) return FEEDLANE_OK;
  saved_.resize(task.geometry().list_bytes);
  std::uint64_t bytes = 0;
  reset_report();
  const Status s = table_.save(self_, saved_.data(), saved_.size(), &bytes, &report_);
  if (s != FEEDLANE_OK) return translate(FEEDLANE_E_SAMPLE, s, report_, "save", error);
  if (const Status set = task.set_state(saved_.data(), bytes, error); set != FEEDLANE_OK) {
    error.code = FEEDLANE_E_SAMPLE;
    return error.code;
  }
  return FEEDLANE_OK;
}

// ---- callbacks ----

Status DatasetRunner::get(const Task& task, Rows& rows, const Progress& p, Error& error) {
  const feedlane_task& view = task.view();
  const std::int64_t index = p.attempts.substitutes != 0 ? p.attempts.substitute : view.indices[p.position];
  renew_report();
  const Status s = table_.get(self_, &rows.at(p.made, index, view.seeds[p.position]), &report_);
  return s == FEEDLANE_OK ? s : refuse_sample(s, index, error);
}

// Makes the task's samples from p.position on, none of which has failed before. Returns an error if the sample at
// p.position failed. Otherwise all were made, or `stop` is the status of Pace::between that ended the run. Counts in
// local variables, because the compiler can't know that callbacks don't write `p`.
inline Status DatasetRunner::get_smooth(const Task& task, Rows& rows, Progress& p, Pace& pace, Status& stop,
                                        Error& error) {
  const feedlane_task& view = task.view();
  const std::uint64_t count = view.count;
  std::uint64_t made = p.made;
  std::uint64_t position = p.position;
  Status s = FEEDLANE_OK;
  for (;;) {
    renew_report();
    s = table_.get(self_, &rows.at(made, view.indices[position], view.seeds[position]), &report_);
    if (s != FEEDLANE_OK) [[unlikely]]
      break;
    made++;
    if (++position == count) break;
    stop = pace.between(position);
    if (stop != FEEDLANE_OK) break;
  }
  p.made = made;
  p.position = position;
  return s == FEEDLANE_OK ? s : refuse_sample(s, view.indices[position], error);
}

Status DatasetRunner::refuse_sample(Status returned, std::int64_t index, Error& error) {
  (void)translate(FEEDLANE_E_SAMPLE, returned, report_, "get", error);
  error.sample = index;
  return error.code;
}

Status DatasetRunner::next(const Task& task, Rows& rows, const Progress& p, Error& error) {
  const std::uint64_t position = task.shard_position() + p.position;
  const feedlane_row& row = rows.at(p.made, static_cast<std::int64_t>(position), task.shard_seed(position));
  renew_report();
  const Status s = table_.next(self_, &row, &report_);
  if (s == FEEDLANE_OK || s == FEEDLANE_END) return s;
  (void)translate(FEEDLANE_E_SAMPLE, s, report_, "next", error);
  error.sample = row.index;
  return error.code;
}

Status DatasetRunner::fetch(Task& task, Error& error) {
  task.start_over();  // drops what an earlier attempt has left
  reset_report();
  const Status s = table_.fetch(self_, &task.view(), &report_);
  if (s == FEEDLANE_OK || (s == FEEDLANE_END && task.is_iterable())) return s;
  return translate(FEEDLANE_E_SAMPLE, s, report_, "fetch", error);
}

}  // namespace feedlane::dataset
