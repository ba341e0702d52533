// SPDX-License-Identifier: Apache-2.0
// The part of a loader's configuration that concerns its workers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "feedlane/loader.h"
#include "os/placement.hpp"

namespace feedlane::supervisor {

struct Settings {
  std::uint32_t workers = 0;  // 0: inline
  std::int32_t start = FEEDLANE_START_SPAWN;
  std::vector<std::string> argv;
  bool is_own_program = false;  // workers run this program
  std::vector<std::string> environment;
  bool lifeline = true;  // workers die with the trainer
  std::int64_t start_timeout_ns = 0;
  std::int64_t stop_timeout_ns = 0;
  std::int64_t term_timeout_ns = 0;
  std::int64_t task_timeout_ns = FEEDLANE_FOREVER;
  std::uint32_t max_restarts = 0;
  std::vector<os::NumberSet> cpus;  // worker w runs on set w % size(); empty: on this process's processors

  [[nodiscard]] const os::NumberSet* cpus_of(std::uint32_t worker) const {
    return cpus.empty() ? nullptr : &cpus[worker % cpus.size()];
  }
  [[nodiscard]] bool has_task_timeout() const { return task_timeout_ns != FEEDLANE_FOREVER; }
  [[nodiscard]] bool has_start_timeout() const { return start_timeout_ns < FEEDLANE_FOREVER / 2; }
};

}  // namespace feedlane::supervisor
