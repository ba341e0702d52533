// SPDX-License-Identifier: Apache-2.0
// What this process was started as.
#pragma once

namespace feedlane::capi {

// Whether a trainer started this process to work: then it mustn't start workers itself, which would start more.
bool is_worker_process();

}  // namespace feedlane::capi
