// SPDX-License-Identifier: Apache-2.0
// Formats numbers in the text of a diagnosis and of a report.
#pragma once

#include <string>

namespace feedlane::monitor {

// Like printf, at most 639 bytes. Throws std::bad_alloc.
[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...);

// "250 us", "1.2 s".
std::string duration(double ns);

}  // namespace feedlane::monitor
