// SPDX-License-Identifier: Apache-2.0
// An iterable data set whose shards hold numbers, and what has to come of them.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

namespace feedlane::test::shards {

using Numbers = std::vector<std::int64_t>;

// What the shards hold: sample k of shard w is w * 1000 + k. A forked worker has its own copy.
struct Shards {
  Numbers lengths;
  // Worker 0's first process, or the data set inline, does at this sample what `trouble` says.
  std::int64_t trouble_at = -1;
  enum Trouble { none, killed, broken, broken_once } trouble = none;
  std::int32_t fail_restart_in_epoch = -1;
  std::int64_t shrink_to = -1;  // what a replacement's shard holds
  bool waits = false;           // for the gate before its first sample: worker 0
  int gate_fd = -1;
  int report_fd = -1;
  Numbers rows_by_fetch;  // how many rows each fetch makes, by turns
  // of one worker
  std::int64_t worker = 0, generation = 0, position = 0, epoch = -1, loaded = -1, tried = -1;
  std::size_t fetches = 0;
};

inline Shards& at(void* self) { return *static_cast<Shards*>(self); }

inline std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
  Shards& s = at(user_data);
  s.worker = info->id < 0 ? 0 : info->id;
  s.generation = info->generation;
  s.position = 0;
  s.loaded = -1;
  s.fetches = 0;
  send_report(s.report_fd, {Report::opened, ::getpid(), -1, -1, info->iterable, info->id});
  *self = user_data;
  return FEEDLANE_OK;
}

inline void close(void* self) {
  send_report(at(self).report_fd, {Report::closed, ::getpid(), -1, -1, 0, at(self).worker});
}

inline std::int64_t length_of(const Shards& s) {
  if (s.generation > 0 && s.shrink_to >= 0 && s.worker == 0) return s.shrink_to;
  return s.lengths[static_cast<std::size_t>(s.worker)];
}

inline std::int32_t next(void* self, const feedlane_row* row, feedlane_error* err) {
  Shards& s = at(self);
  if (s.waits && s.worker == 0 && s.position == 0) (void)wait_readable(s.gate_fd);
  if (s.position >= length_of(s)) return FEEDLANE_END;
  if (s.trouble_at == s.position && s.worker == 0) {
    if (s.trouble == Shards::killed && s.generation == 0) (void)::raise(SIGKILL);
    const bool is_first_try = s.tried != s.position;
    s.tried = s.position;
    if (s.trouble == Shards::broken || (s.trouble == Shards::broken_once && is_first_try)) {
      (void)std::snprintf(err->text, sizeof err->text, "record %lld is torn", static_cast<long long>(s.position));
      err->transient = s.trouble == Shards::broken_once ? 1 : 0;
      if (s.trouble == Shards::broken) s.position++;
      return FEEDLANE_E_OS;
    }
  }
  const std::int64_t values[] = {s.worker * 1000 + s.position, row->index, static_cast<std::int64_t>(row->seed),
                                 s.loaded, s.generation};
  for (std::int32_t f = 0; f < row->task->tensor_count; f++) std::memcpy(row->fields[f], &values[f], sizeof values[f]);
  s.position++;
  return FEEDLANE_OK;
}

inline std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error*) {
  Shards& s = at(self);
  if (s.position >= length_of(s)) return FEEDLANE_END;
  if (s.trouble == Shards::killed && s.worker == 0 && s.generation == 0 && s.position >= s.trouble_at)
    (void)::raise(SIGKILL);
  const std::int64_t wanted = s.rows_by_fetch[s.fetches++ % s.rows_by_fetch.size()];
  const auto count = static_cast<std::int64_t>(task->count);
  const std::int64_t rows = std::min({wanted, count, length_of(s) - s.position});
  for (std::int64_t i = 0; i < rows; i++)
    static_cast<std::int64_t*>(task->tensors[0].data)[i] = s.worker * 1000 + s.position++;
  return rows == count ? FEEDLANE_OK : set_rows(task, static_cast<std::uint64_t>(rows));
}

inline std::int32_t restart(void* self, std::int64_t epoch, feedlane_error* err) {
  Shards& s = at(self);
  if (s.worker == 0 && s.fail_restart_in_epoch == epoch) {
    (void)std::snprintf(err->text, sizeof err->text, "the shard is gone");
    return FEEDLANE_E_OS;
  }
  s.position = 0;
  s.epoch = epoch;
  s.tried = -1;
  s.fetches = 0;
  return FEEDLANE_OK;
}

inline std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
  *bytes = sizeof(std::int64_t);
  if (cap < 65536) return FEEDLANE_E_LIMIT;
  std::memcpy(buffer, &at(self).position, sizeof(std::int64_t));
  return FEEDLANE_OK;
}

inline std::int32_t load(void* self, const void* buffer, std::uint64_t bytes, feedlane_error*) {
  if (bytes != sizeof(std::int64_t)) return FEEDLANE_E_CORRUPT;
  std::memcpy(&at(self).position, buffer, sizeof(std::int64_t));
  at(self).loaded = at(self).position;
  return FEEDLANE_OK;
}

struct Iterable : Setup {
  // As many workers as shards; inline the first shard is the whole.
  Iterable(Numbers lengths, std::int64_t batch_size, bool without_workers = false) : Setup(0, batch_size) {
    shards.lengths = std::move(lengths);
    auto table = fresh<feedlane_dataset>();
    table.user_data = &shards;
    table.open = open;
    table.close = close;
    table.next = next;
    table.restart = restart;
    forked(without_workers ? 0 : static_cast<std::int32_t>(shards.lengths.size()), table);
    fields({field("value", int64_type), field("index", int64_type), field("seed", uint64_type),
            field("loaded", int64_type), field("generation", int64_type)});
    config.iterable = 1;
  }
  // Whole batches, of so many rows by turns.
  Iterable& fetching(Numbers rows) {
    shards.rows_by_fetch = std::move(rows);
    dataset.next = nullptr;
    dataset.fetch = fetch;
    return *this;
  }
  Shards shards;
};

inline Numbers values_of(const std::vector<Taken>& taken) {
  Numbers all;
  for (const Taken& t : taken)
    for (std::size_t row = 0; t.status == FEEDLANE_OK && row < t.count; row++) all.push_back(t.value("value", row));
  return all;
}

inline Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Every sample of every shard once.
inline Numbers all_of(const Numbers& lengths) {
  Numbers all;
  for (std::size_t w = 0; w < lengths.size(); w++)
    for (std::int64_t k = 0; k < lengths[w]; k++) all.push_back(static_cast<std::int64_t>(w) * 1000 + k);
  return all;
}

// What comes when batches of the shards that have any left are taken by turns.
inline std::vector<Numbers> by_turns(const Numbers& lengths, std::int64_t batch_size) {
  std::vector<Numbers> batches;
  Numbers given(lengths.size());
  for (bool any = true; any;) {
    any = false;
    for (std::size_t w = 0; w < lengths.size(); w++) {
      if (given[w] == lengths[w]) continue;
      any = true;
      batches.emplace_back();
      for (std::int64_t i = 0; i < batch_size && given[w] < lengths[w]; i++)
        batches.back().push_back(static_cast<std::int64_t>(w) * 1000 + given[w]++);
    }
  }
  return batches;
}

inline void check_batches(const std::vector<Taken>& taken, const std::vector<Numbers>& expected) {
  REQUIRE(taken.size() == expected.size());
  for (std::size_t i = 0; i < taken.size(); i++) {
    CHECK(taken[i].batch == static_cast<std::int64_t>(i));
    CHECK(taken[i].count == expected[i].size());
    CHECK(values_of({taken[i]}) == expected[i]);
  }
}

}  // namespace feedlane::test::shards
