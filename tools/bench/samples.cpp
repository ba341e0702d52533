// SPDX-License-Identifier: Apache-2.0
// The data set whose samples lie in memory, and the loop without a loader.
#include "samples.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "measure.hpp"

namespace bench {

namespace {

std::int32_t open_samples(void* user_data, const feedlane_worker_info* info, void** state, feedlane_error*) {
  if (info->id >= 0) pin(1 + static_cast<std::size_t>(info->id));
  *state = user_data;
  return FEEDLANE_OK;
}

std::int32_t get_sample(void* self, const feedlane_row* row, feedlane_error*) {
  const auto* samples = static_cast<const Samples*>(self);
  std::memcpy(row->fields[0], samples->at(row->index), samples->bytes);
  return FEEDLANE_OK;
}

// Prefetches the samples of the next rows: at the first one all of them, then one more each time.
std::int32_t get_sample_ahead(void* self, const feedlane_row* row, feedlane_error* err) {
  constexpr std::uint64_t ahead = 16, line = 64;
  const auto* samples = static_cast<const Samples*>(self);
  const feedlane_task& task = *row->task;
  const std::uint64_t end = std::min(row->row + ahead + 1, task.count);
  for (std::uint64_t i = row->row == 0 ? 1 : row->row + ahead; i < end; i++)
    for (std::uint64_t at = 0; at < samples->bytes; at += line) __builtin_prefetch(samples->at(task.indices[i]) + at);
  return get_sample(self, row, err);
}

std::int32_t fetch_samples(void* self, const feedlane_task* task, feedlane_error*) {
  const auto* samples = static_cast<const Samples*>(self);
  auto* row = static_cast<unsigned char*>(task->tensors[0].data);
  for (std::uint64_t i = 0; i < task->count; i++, row += samples->bytes)
    std::memcpy(row, samples->at(task->indices[i]), samples->bytes);
  return FEEDLANE_OK;
}

}  // namespace

const char* name_of(By by) {
  switch (by) {
    case By::get: return "get";
    case By::get_ahead: return "get, prefetching";
    case By::fetch: return "fetch";
  }
  return "";
}

SampleEpochs::SampleEpochs(Samples& samples, By by, std::int32_t workers, std::int64_t count, std::int64_t rows)
    : rows_(rows) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_sampler* order = sampler(FEEDLANE_SAMPLER_RANDOM, count);
  const feedlane_field field = bytes_field(samples.bytes);
  feedlane_dataset data;
  feedlane_init(&data, sizeof data);
  data.user_data = &samples;
  data.open = open_samples;
  switch (by) {
    case By::get: data.get = get_sample; break;
    case By::get_ahead: data.get = get_sample_ahead; break;
    case By::fetch: data.fetch = fetch_samples; break;
  }
  feedlane_loader_config c;
  feedlane_init(&c, sizeof c);
  c.sampler = order;
  c.dataset = &data;
  c.fields = &field;
  c.field_count = 1;
  c.batch_size = rows;
  c.drop_last = 1;
  c.workers = workers;
  if (workers != 0) {
    c.start = FEEDLANE_START_FORK;
    c.prefetch_factor = 4;
    c.keep_workers = 1;
  }
  open(c);
  (void)feedlane_sampler_destroy(&order);
}

std::int64_t loop_over(const Samples& samples, std::int64_t count, std::size_t rows, std::size_t part,
                       std::size_t parts, const std::function<void()>& ready) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < order.size(); i++) order[i] = static_cast<std::int64_t>(i);
  std::uint64_t seed = 1;
  for (std::size_t i = order.size(); i > 1; i--) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    std::swap(order[i - 1], order[(seed >> 33) % i]);
  }
  std::vector<unsigned char> batch(samples.bytes * rows);
  ready();
  const std::int64_t began = now_ns();
  for (std::size_t i = part * rows; i + rows <= order.size(); i += parts * rows) {
    for (std::size_t row = 0; row < rows; row++)
      std::memcpy(batch.data() + row * samples.bytes, samples.at(order[i + row]), samples.bytes);
    touch(batch.data(), batch.size());
  }
  return now_ns() - began;
}

}  // namespace bench
