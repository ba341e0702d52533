// SPDX-License-Identifier: Apache-2.0
// The destination of a shared loader's batches: the loader's view of its feeder while it waits.
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
  // Called before each wait. `needs_slots`: the loader would make more batches if it had a free slot.
  virtual void prepare_wait(bool needs_slots) = 0;
  // Whether a consumer has returned a batch that the loader waits for, or has sent anything else. Reads one word per
  // consumer.
  [[nodiscard]] virtual bool has_work() const = 0;
  // `fd` is readable.
  virtual void on_event() = 0;
  // Takes batches back and handles the consumers' messages.
  virtual void work() = 0;
  // Called when consumers hold every slot. OK: slots were taken back, or waiting can help; an error says why it cannot.
  virtual Status make_room(Error& error) = 0;
  // When the outlet next has work even if no event arrives.
  [[nodiscard]] virtual os::Deadline next_deadline() const = 0;
  // Readable when consumers have sent something.
  [[nodiscard]] virtual int fd() const = 0;
};

}  // namespace feedlane::loader
