// SPDX-License-Identifier: Apache-2.0
// Where the batches of a shared loader go: the feeder, as the loader's own waits see it.
//
// Used by the loader's thread only.
#pragma once

#include "base/error.hpp"
#include "os/clock.hpp"

namespace feedlane::loader {

class Outlet {
 public:
  Outlet() = default;
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;
  virtual ~Outlet() = default;

  // Whether a batch could be delivered now.
  [[nodiscard]] virtual bool wants_batches() const = 0;
  // Before each wait. `needs_slots`: the loader would make more batches if it had a free slot.
  virtual void prepare_wait(bool needs_slots) = 0;
  // Whether a consumer has returned a batch that is waited for, or has anything else to tell. Reads a word a consumer.
  [[nodiscard]] virtual bool has_work() const = 0;
  // `fd` is readable.
  virtual void on_event() = 0;
  // Takes batches back, and handles what consumers have told.
  virtual void work() = 0;
  // Consumers hold every slot. OK: some were taken back, or it is worth while to wait; otherwise why it isn't.
  virtual Status make_room(Error& error) = 0;
  // By when it has something to do although nobody tells it to.
  [[nodiscard]] virtual os::Deadline next_deadline() const = 0;
  // A descriptor that is readable when consumers have something to tell.
  [[nodiscard]] virtual int fd() const = 0;
};

}  // namespace feedlane::loader
