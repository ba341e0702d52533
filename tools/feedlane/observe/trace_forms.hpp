// SPDX-License-Identifier: Apache-2.0
// The forms that a trace is written in.
#pragma once

#include <string>

#include "trace_timeline.hpp"

namespace observe {

// A Perfetto trace: packets of TrackEvent, stamped with CLOCK_MONOTONIC, with snapshots that relate it to other clocks.
std::string perfetto_trace(const Recording& recording);

// Chrome's JSON object form. Times are microseconds since `baseTimeNanoseconds` of CLOCK_REALTIME, as in a file of torch's
// profiler.
std::string chrome_trace(const Recording& recording);

// The text of `file`, an object of Chrome's JSON, with the recording's events added, in the time of the file. Nothing else of the
// text changes. An error: `error` says why, and the result is empty.
std::string merged_trace(const Recording& recording, const std::string& file, std::string& error);

}  // namespace observe
