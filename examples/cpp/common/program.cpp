// SPDX-License-Identifier: Apache-2.0
// Errors on stderr and the try block around a trainer.
#include "program.hpp"

#include <cerrno>
#include <cstdio>
#include <exception>

namespace common {

int refuse(const std::string& why, int exit_code) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  return exit_code;
}

int run_trainer(Parsed parsed, const char* usage, const std::string& complaint, const std::function<int()>& run) {
  switch (parsed) {
    case Parsed::help: std::fputs(usage, stdout); return 0;
    case Parsed::wrong: return refuse(complaint + "\n" + usage, exit_usage);
    case Parsed::run: break;
  }
  try {
    return run();
  } catch (const feedlane::Error& error) {
    complain("trainer", error);
  } catch (const std::exception& error) {
    refuse(error.what(), exit_failure);
  }
  return exit_failure;
}

}  // namespace common
