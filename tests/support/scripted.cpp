// SPDX-License-Identifier: Apache-2.0
// The scripted data set: does with each sample what its plan says.
#include "scripted.hpp"

#include <unistd.h>

#include <algorithm>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "events.hpp"

namespace feedlane::test {
namespace {

struct Script {
  Plan plan;
  feedlane_worker_info info;
  std::int64_t nested;
  std::vector<std::string> names;
  std::int64_t position = 0;  // in the shard
};

std::int64_t try_a_loader() {
  const Sampler sampler = sequential(1);
  const feedlane_field one = field("index", int64_type);
  auto config = fresh<feedlane_loader_config>();
  config.sampler = sampler.get();
  config.fields = &one;
  config.field_count = 1;
  config.workers = 1;
  feedlane_loader* loader = nullptr;
  const std::int32_t status = feedlane_loader_create(&config, &loader, nullptr);
  (void)feedlane_loader_destroy(&loader);
  return status;
}

std::int32_t open(void*, const feedlane_worker_info* info, void** self, feedlane_error* err) {
  Plan plan;
  if (info->config_bytes == sizeof plan) std::memcpy(&plan, info->config, sizeof plan);
  if (plan.ignore_sigterm != 0) (void)std::signal(SIGTERM, SIG_IGN);
  send_report(plan.report_fd, {Report::opened, ::getpid(), -1, -1, info->generation, info->id});
  if (plan.gate_open == 1 || (plan.gate_open == 2 && info->id == 1)) (void)wait_readable(plan.gate_fd);
  if (plan.fail_open == -2 || (plan.fail_open >= 0 && plan.fail_open == info->id)) {
    (void)std::snprintf(err->text, sizeof err->text, "%s", fail_open_text);
    return FEEDLANE_E_OS;
  }
  auto* script = new Script{plan, *info, plan.nest != 0 ? try_a_loader() : 0, {}, 0};
  for (std::uint64_t f = 0; f < info->field_count; f++) script->names.emplace_back(info->fields[f].name);
  *self = script;
  return FEEDLANE_OK;
}

void close(void* self) {
  auto* script = static_cast<Script*>(self);
  send_report(script->plan.report_fd, {Report::closed, ::getpid(), -1, -1, 0, script->info.id});
  delete script;
}

std::int32_t fail(const Plan& plan, feedlane_error* err) {
  (void)std::snprintf(err->text, sizeof err->text, "%s", fail_text);
  err->transient = plan.transient;
  err->detail_len = std::min(static_cast<std::uint64_t>(plan.traceback_bytes), err->detail_cap);
  for (std::uint64_t i = 0; i < err->detail_len; i++) err->detail[i] = static_cast<char>('a' + i % 26);
  return FEEDLANE_E_SAMPLE;
}

// What happens before the sample is there.
std::int32_t act(const Script& script, std::int64_t index, const feedlane_task& task, feedlane_error* err) {
  const Plan& plan = script.plan;
  send_report(plan.report_fd, {Report::began, ::getpid(), index, task.batch, task.attempt, script.info.id});
  if ((plan.gate_index == index || plan.gate_index == -2) && !wait_readable(plan.gate_fd)) {
    (void)std::snprintf(err->text, sizeof err->text, "the gate was never opened");
    return FEEDLANE_E_SAMPLE;
  }
  const bool is_stuck = task.epoch == 0 && index >= plan.stuck_index && index < plan.stuck_index + plan.stuck_count &&
                        task.attempt < plan.stuck_attempts &&
                        (plan.stuck_worker < 0 || plan.stuck_worker == script.info.id);
  char byte = 0;
  if (is_stuck && plan.stuck_fd >= 0) (void)!::read(plan.stuck_fd, &byte, 1);
  const bool ends = plan.end_step == 0 ? index == plan.end_index : index % plan.end_step == plan.end_index;
  if (ends && task.attempt < plan.end_attempts) {
    if (plan.end_signal == 0) std::exit(3);
    (void)std::signal(plan.end_signal, SIG_DFL);  // what a sanitizer may have changed
    (void)::raise(plan.end_signal);
  }
  return plan.fail_index == index ? fail(plan, err) : FEEDLANE_OK;
}

std::int64_t number(const Script& script, const std::string& name, std::int64_t index, std::uint64_t seed,
                    const feedlane_task& task) {
  if (name == "index") return index;
  if (name == "seed") return static_cast<std::int64_t>(seed);
  if (name == "pid") return ::getpid();
  if (name == "group") return ::getpgrp();
  if (name == "worker") return script.info.id;
  if (name == "generation") return script.info.generation;
  if (name == "attempt") return task.attempt;
  if (name == "epoch") return task.epoch;
  if (name == "batch") return task.batch;
  if (name == "omp") return std::getenv("OMP_NUM_THREADS") == nullptr ? -1 : std::atoll(std::getenv("OMP_NUM_THREADS"));
  if (name == "config") return checksum(script.info.config, script.info.config_bytes);
  return name == "nested" ? script.nested : INT64_MIN;
}

void fill(const Script& script, std::size_t f, void* out, std::uint64_t bytes, std::int64_t index, std::uint64_t seed,
          const feedlane_task& task) {
  if (script.names[f] == "noise") {
    auto* noise = static_cast<unsigned char*>(out);
    for (std::uint64_t i = 0; i < bytes; i++)
      noise[i] = static_cast<unsigned char>((seed >> (i % 8 * 8)) + static_cast<std::uint64_t>(index) * 31 + i / 8);
    return;
  }
  const std::int64_t value = number(script, script.names[f], index, seed, task);
  std::memcpy(out, &value, std::min<std::uint64_t>(bytes, sizeof value));  // of a smaller field the lower bytes
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  const auto& script = *static_cast<Script*>(self);
  if (const std::int32_t s = act(script, row->index, *row->task, err); s != FEEDLANE_OK) return s;
  for (std::size_t f = 0; f < script.names.size(); f++)
    fill(script, f, row->fields[f], row->bytes[f], row->index, row->seed, *row->task);
  return FEEDLANE_OK;
}

std::int32_t next(void* self, const feedlane_row* row, feedlane_error* err) {
  auto& script = *static_cast<Script*>(self);
  if (script.position == scripted_shard_length) return FEEDLANE_END;
  const std::int64_t index = script.position++;
  if (const std::int32_t s = act(script, index, *row->task, err); s != FEEDLANE_OK) return s;
  for (std::size_t f = 0; f < script.names.size(); f++)
    fill(script, f, row->fields[f], row->bytes[f], index, row->seed, *row->task);
  return FEEDLANE_OK;
}

std::int32_t restart(void* self, std::int64_t, feedlane_error*) {
  static_cast<Script*>(self)->position = 0;
  return FEEDLANE_OK;
}

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* err) {
  const auto& script = *static_cast<Script*>(self);
  for (std::uint64_t i = 0; i < task->count; i++) {
    if (const std::int32_t s = act(script, task->indices[i], *task, err); s != FEEDLANE_OK) return s;
    for (std::size_t f = 0; f < script.names.size(); f++) {
      const feedlane_tensor& t = task->tensors[f];
      const std::uint64_t bytes = t.bytes / task->count;
      fill(script, f, static_cast<char*>(t.data) + i * bytes, bytes, task->indices[i], task->seeds[i], *task);
    }
  }
  return FEEDLANE_OK;
}

}  // namespace

std::int64_t checksum(const void* bytes, std::uint64_t count) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::uint64_t i = 0; i < count; i++) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3;
  return static_cast<std::int64_t>(hash);
}

feedlane_dataset scripted_dataset() {
  auto table = fresh<feedlane_dataset>();
  table.open = open;
  table.get = get;
  table.close = close;
  return table;
}

feedlane_dataset scripted_fetch_dataset() {
  feedlane_dataset table = scripted_dataset();
  table.fetch = fetch;
  return table;
}

feedlane_dataset scripted_shard_dataset() {
  feedlane_dataset table = scripted_dataset();
  table.get = nullptr;
  table.next = next;
  table.restart = restart;
  return table;
}

}  // namespace feedlane::test
