// SPDX-License-Identifier: Apache-2.0
// Monitors of loaders of this process, for tests.
#pragma once

#include <feedlane.h>

#include <cstdint>
#include <memory>
#include <type_traits>

namespace feedlane::test {

struct DestroyMonitor {
  void operator()(feedlane_monitor* m) const { (void)feedlane_monitor_destroy(&m); }
};
using MonitorHandle = std::unique_ptr<feedlane_monitor, DestroyMonitor>;

// Empty if `l` has no monitor.
inline MonitorHandle monitor_of(feedlane_loader* l) {
  feedlane_monitor* m = nullptr;
  (void)feedlane_monitor_of(l, &m, nullptr);
  return MonitorHandle(m);
}

// `f(monitor of l, arguments...)`; the status of feedlane_monitor_of if there is none.
template <class M, class... P>
std::int32_t observe(const feedlane_loader* l, std::int32_t (*f)(M*, P...), std::type_identity_t<P>... arguments) {
  feedlane_monitor* m = nullptr;
  const std::int32_t status = feedlane_monitor_of(const_cast<feedlane_loader*>(l), &m, nullptr);
  if (status != FEEDLANE_OK) return status;
  const MonitorHandle monitor(m);
  return f(m, arguments...);
}

// Reads one number of the loader's info.
inline std::int32_t read_info(feedlane_loader* l, std::int64_t feedlane_loader_info::*number, std::int64_t* out) {
  feedlane_loader_info info;
  feedlane_init(&info, sizeof info);
  const std::int32_t status = observe(l, feedlane_monitor_get_info, &info);
  if (status == FEEDLANE_OK) *out = info.*number;
  return status;
}
inline std::int32_t length_of(feedlane_loader* l, std::int64_t* batches) {
  return read_info(l, &feedlane_loader_info::batches, batches);
}
inline std::int32_t next_epoch_of(feedlane_loader* l, std::int64_t* epoch) {
  return read_info(l, &feedlane_loader_info::next_epoch, epoch);
}

}  // namespace feedlane::test
