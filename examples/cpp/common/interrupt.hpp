// SPDX-License-Identifier: Apache-2.0
// Ctrl-C. The library installs no signal handlers, so the program does: its handler notes the wish and ends the
// loader's wait. Worker processes that the library starts have process groups of their own and never see the terminal's
// signal; worker threads block it.
#pragma once

#include <feedlane/loader.hpp>

namespace common {

void install_interrupt_handler();
bool interrupt_requested();

/// While this lives, Ctrl-C ends the waits of `loader`. One at a time; must end before the loader does.
class InterruptsLoader {
 public:
  explicit InterruptsLoader(feedlane::Loader& loader);
  ~InterruptsLoader();
  InterruptsLoader(const InterruptsLoader&) = delete;
  InterruptsLoader& operator=(const InterruptsLoader&) = delete;
};

}  // namespace common
