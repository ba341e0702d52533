// SPDX-License-Identifier: Apache-2.0
// Names of signals, and keeping the host's signal handlers out of a few system calls.
#pragma once

#include <csignal>

namespace feedlane::os {

// "SIGKILL"; "a real-time signal" for those without a name.
const char* signal_name(int number);

// Blocks signals in this thread, as long as it exists. Those that this process ignores stay as they are: the kernel drops them,
// but a blocked one it keeps and gives to another thread, whose wait ends with EINTR for nothing. SIGCHLD is the one that
// happens: a worker ends while the next one is started.
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
