// SPDX-License-Identifier: Apache-2.0
// Telling the user what Feedlane says is wrong.
#pragma once

#include <feedlane/error.hpp>

namespace common {

/// Prints all that `error` knows as one line on stderr. `who`: the trainer or one of its workers.
void complain(const char* who, const feedlane::Error& error);

}  // namespace common
