// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena/fields.hpp"
#include "base/error.hpp"
#include "loader/sampler.hpp"
#include "worker/task.hpp"

namespace feedlane::loader {

// A loader's configuration, checked, copied, with every default filled in.
struct Config {
  std::unique_ptr<Sampler> sampler;
  bool has_dataset = false;  // inline, fork, thread
  feedlane_dataset table{};
  worker::DatasetRunner dataset;  // inline
  arena::Fields fields;
  std::vector<feedlane_field> declared;  // the same in the caller's form
  std::int64_t batch_size = 1;
  bool drop_last = false;
  std::uint64_t seed = 0;
  std::uint32_t workers = 0;
  std::int32_t start = FEEDLANE_START_SPAWN;
  std::uint32_t prefetch_factor = 2;
  bool keep_workers = false;
  std::uint32_t held = 1;
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  std::vector<std::byte> worker_config;
  std::int64_t start_timeout_ns = 0;
  std::int64_t stop_timeout_ns = 0;
  std::int64_t term_timeout_ns = 0;
  std::uint32_t max_restarts = 0;
  std::uint32_t max_kills_per_batch = 0;

  // Workers that the library starts, and so can start again.
  [[nodiscard]] bool starts_workers() const { return start == FEEDLANE_START_SPAWN || start == FEEDLANE_START_FORK; }
  // Batches asked for and not yet yielded, at most.
  [[nodiscard]] std::uint32_t window() const { return workers * prefetch_factor; }
};

// `sampler` is what config->sampler stands for.
Status read_config(const feedlane_loader_config* config, const Sampler* sampler, Config& out, Error& error);

}  // namespace feedlane::loader
