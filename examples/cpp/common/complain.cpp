// SPDX-License-Identifier: Apache-2.0
// Prints an error of the library as one line.
#include "complain.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace common {
namespace {

/// -1 means "none" in these.
void add_if_known(std::string& line, const char* name, int64_t number) {
  if (number >= 0) line += std::string(", ") + name + " " + std::to_string(number);
}

}  // namespace

void complain(const char* who, const feedlane::Error& error) {
  std::string line = std::string(who) + ": " + error.name() + ": ";
  line += error.text().empty() ? feedlane_status_text(error.code()) : error.text();
  if (!error.argument().empty()) line += ", argument " + std::string(error.argument());
  if (error.found() != 0 || error.needed() != 0) {
    line += ", found " + std::to_string(error.found()) + ", needed " + std::to_string(error.needed());
  }
  add_if_known(line, "worker", error.worker());
  add_if_known(line, "epoch", error.epoch());
  add_if_known(line, "batch", error.batch());
  add_if_known(line, "sample", error.sample());
  if (error.os_errno() != 0) line += std::string(", ") + std::strerror(error.os_errno());
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, line.c_str());
}

}  // namespace common
