// SPDX-License-Identifier: Apache-2.0
// Names of signals, and blocking of signals around a few system calls.
#pragma once

#include <csignal>

namespace feedlane::os {

// A name such as "SIGKILL"; "a real-time signal" for signals without a name.
const char* signal_name(int number);

// Blocks signals in this thread for the lifetime of the object, except those that this process ignores. The kernel
// drops an ignored signal. A blocked one it would deliver to another thread, and end that thread's wait with EINTR.
// This matters for SIGCHLD, which arrives if a worker ends while the next one is started.
class SignalBlock {
 public:
  SignalBlock();
  ~SignalBlock();
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace feedlane::os
