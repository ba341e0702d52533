// SPDX-License-Identifier: Apache-2.0
// How this process was started.
#pragma once

namespace feedlane::capi {

// Whether a trainer started this process as a worker. A worker must not start workers, because each of them would start
// more.
bool is_worker_process();

}  // namespace feedlane::capi
