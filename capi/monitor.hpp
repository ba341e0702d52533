// SPDX-License-Identifier: Apache-2.0
// The handle of a monitor.
#pragma once

#include <memory>

#include "handle.hpp"
#include "monitor/monitor.hpp"

struct feedlane_monitor : feedlane::capi::Handle {
  std::unique_ptr<feedlane::monitor::Monitor> monitor;

  void wake() {}
};
