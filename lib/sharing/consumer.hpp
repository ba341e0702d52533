// SPDX-License-Identifier: Apache-2.0
// A consumer of a shared loader: takes the batches that its feeder delivers, and returns them.
//
//   joining.cpp   the greeting
//   consumer.cpp  epochs, batches, waiting, states
//
// Thread safety: one thread at a time, except where Source and Lender say "any thread".
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "feedlane/share.h"
#include "greeting/share.hpp"
#include "lending/leases.hpp"
#include "lending/lender.hpp"
#include "loader/source.hpp"
#include "loader/wakeups.hpp"
#include "monitor/events.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/socket.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "ring/waiter.hpp"
#include "sharing/catalogue.hpp"
#include "sharing/registered_slots.hpp"
#include "shm/segment.hpp"
#include "shm/share_layout.hpp"
#include "tensors/slot_table.hpp"

namespace feedlane::sharing {

class Consumer final : public loader::Source, private lending::Lender {
 public:
  // Owns the socket in every case. OK when the feeder has accepted this consumer; see greeting/share.hpp. With a pool,
  // the slots are registered first.
  static Status join(os::Fd socket, pinned::Pool* pool, os::Deadline deadline, std::unique_ptr<Consumer>& out,
                     Error& error);
  // Connects to a feeder's path, and joins.
  static Status join(const std::string& path, const feedlane_consumer_config& config, pinned::Pool* pool,
                     os::Deadline deadline, std::unique_ptr<Consumer>& out, Error& error);
  // Leaves the feeder. All batches must have been returned.
  ~Consumer() override;

  // ---- Source ----

  Status begin(std::int64_t epoch, Error& error) override;
  Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) override;
  Status poll(Error& error) override;
  Status arm(Error& error) override;
  [[nodiscard]] int wait_fd() const override { return waiter_.fd(); }
  Status state(std::uint64_t token, std::vector<std::byte>& out, Error& error) override;
  Status stop(bool for_good, Error& error) override;
  void abandon() noexcept override { leave(); }
  void ask_to_end() noexcept override { leave(); }
  void interrupt() override { wakeups_.interrupt(); }
  void close() override { wakeups_.close(); }
  [[nodiscard]] lending::Leases& leases() override { return leases_; }
  bool next_event(feedlane_event& out) override { return events_.pop(out); }
  [[nodiscard]] feedlane_stats stats() const override;
  // The epoch, its number of batches, the next epoch that begin accepts, `pid`, `iterable` and `batch_size`. Only the
  // feeder has the rest.
  [[nodiscard]] feedlane_loader_info info() const override;

 private:
  Consumer();

  // ---- joining.cpp ----

  Status receive_welcome(int socket, std::span<const std::byte> request, os::Deadline deadline, Error& error);
  Status read_welcome(const Welcome& welcome, os::Received& received, Error& error);
  Status finish_joining(os::Fd socket, pinned::Pool* pool, os::Deadline deadline, Error& error);

  // ---- consumer.cpp ----

  // Reads messages up to one that determines the result of `next`: OK with a batch, END, an error. AGAIN: there is
  // none.
  Status read_messages(feedlane_batch& out, Error& error);
  Status yield(const shm::DeliveryMessage& message, feedlane_batch& out, Error& error);
  Status obstacle(Error& error);
  // Takes the message that was peeked. False: the feeder has revoked it.
  bool take(const shm::DeliveryMessage& message);
  [[nodiscard]] bool is_revoked(const shm::DeliveryMessage& message) const;
  void give_back(std::uint32_t slot, std::uint64_t round);
  void tell_return();
  void set_newest(std::uint64_t round);
  void skip_old_epochs();
  void leave() noexcept;
  Status wait(os::Deadline deadline, Error& error);
  Status handle(const os::Poller::Event& event, Error& error);
  [[nodiscard]] bool has_message() const { return ring_.peek(1) != 0; }
  [[nodiscard]] bool is_short() const;
  [[nodiscard]] bool has_something() const;

  // ---- Lender ----

  [[nodiscard]] tensors::SlotTable& slots() override { return slots_; }
  [[nodiscard]] pinned::Pool* pool() const override { return registered_.pool(); }
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors(std::uint32_t slot) const override {
    return batches_[slot].described.tensors;
  }
  [[nodiscard]] bool is_read_only(std::uint32_t) const override { return true; }
  void on_freed(std::uint32_t slot) override { give_back(slot, batches_[slot].round); }
  void expect_end() override { registered_.expect_end(); }
  void on_end() override {
    registered_.on_end();
    wakeups_.wake();  // the trainer may be short of slots
  }

  [[nodiscard]] const shm::DeliveryBlock& block() const { return *pair_.control<shm::DeliveryBlock>(plan_.block); }
  [[nodiscard]] shm::ConsumerRow& row() const { return *pair_.data<shm::ConsumerRow>(plan_.row); }

  // A batch that the trainer holds, by slot.
  struct Batch {
    Described described;
    std::uint64_t round = 0;
  };

  shm::SharePlan plan_;
  shm::Segments segments_;  // the loader's, for reading
  RegisteredSlots registered_;
  shm::SegmentPair catalogue_;  // for reading
  shm::SegmentPair pair_;       // delivery (for reading) and returns
  os::Fd socket_;
  os::Fd own_event_;
  os::Fd feeder_event_;
  os::Fd feeder_;  // pidfd
  bool wants_pidfd_ = false;
  bool is_feeder_gone_ = false;
  struct Role {
    std::int32_t place = 0;
    std::int32_t share = 0;
    std::int32_t lag = 0;
  } role_;
  std::atomic<std::int64_t> epoch_batches_{-1};
  std::atomic<std::int64_t> next_epoch_{0};  // the smallest epoch that begin accepts
  ring::Waiter waiter_;
  loader::Wakeups wakeups_;
  ring::Consumer ring_;
  ring::Doorbell bell_;
  shm::LoaderCounters counters_{};
  tensors::SlotTable slots_;
  std::vector<Batch> batches_;
  monitor::EventQueue events_;
  lending::Leases leases_;
  // How far the trainer and the messages have come.
  struct Position {
    std::int64_t wanted = -1;      // the epoch begun last; -1: none
    bool is_begun = false;         // it was begun and not stopped
    bool is_over = false;          // its end was read, or an observer missed all of it
    std::uint64_t newest = 0;      // the newest round that concerns the wanted epoch
    std::uint64_t last_round = 0;  // the newest round that was read
    std::uint64_t missed = 0;      // batches missed since the newest one yielded
    std::int64_t exposed_ns = 0;   // time waited since then
  } at_;
};

}  // namespace feedlane::sharing
