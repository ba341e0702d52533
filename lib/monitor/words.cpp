// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people.
#include "monitor/words.hpp"

#include <cstdarg>
#include <cstdio>

namespace feedlane::monitor {

std::string text_of(const char* format, ...) {
  char text[640];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

// At each limit, three digits would round up to 1000.
std::string duration(double ns) {
  if (ns < 999.5) return text_of("%.0f ns", ns);
  if (ns < 999.5e3) return text_of("%.3g us", ns / 1e3);
  if (ns < 999.5e6) return text_of("%.3g ms", ns / 1e6);
  if (ns < 120e9) return text_of("%.3g s", ns / 1e9);
  return text_of("%.0f min", ns / 60e9);
}

}  // namespace feedlane::monitor
