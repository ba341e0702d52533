// SPDX-License-Identifier: Apache-2.0
// The feeder of a shared loader: delivers the batches of its loader to consumers in other processes.
//
// Thread safety: one thread at a time, except where Source says "any thread".
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "loader/loader.hpp"
#include "loader/outlet.hpp"
#include "loader/source.hpp"
#include "os/clock.hpp"
#include "os/limits.hpp"
#include "sharing/audience.hpp"
#include "sharing/stock.hpp"

namespace feedlane::sharing {

class Feeder final : public loader::Source, private loader::Outlet {
 public:
  // Owns the loader, which must be configured with a share.
  static Status create(std::unique_ptr<loader::Loader> loader, const os::SystemFiles& files,
                       std::unique_ptr<Feeder>& out, Error& error);

  Status serve(std::int64_t timeout_ns, Error& error);
  [[nodiscard]] Audience& audience() { return audience_; }

  // ---- Source ----

  Status begin(std::int64_t epoch, Error& error) override;
  Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) override;
  Status poll(Error& error) override;
  Status arm(Error& error) override;
  [[nodiscard]] int wait_fd() const override { return loader_->wait_fd(); }
  Status state(std::uint64_t token, std::vector<std::byte>& out, Error& error) override;
  Status stop(bool for_good, Error& error) override;
  void abandon() noexcept override { loader_->abandon(); }
  void ask_to_end() noexcept override { loader_->ask_to_end(); }
  void interrupt() override { loader_->interrupt(); }
  void close() override { loader_->close(); }
  [[nodiscard]] lending::Leases& leases() override { return loader_->leases(); }
  bool next_event(feedlane_event& out) override { return loader_->next_event(out); }
  [[nodiscard]] feedlane_stats stats() const override { return loader_->stats(); }
  [[nodiscard]] feedlane_loader_info info() const override { return loader_->info(); }

 private:
  static constexpr std::uint32_t most_silent = 8;

  explicit Feeder(std::unique_ptr<loader::Loader> loader, const os::SystemFiles& files);
  // Number of batches in a full round.
  [[nodiscard]] std::size_t round_size() const { return audience_.deals() ? loader_->config().consumers : 1; }
  Status serve_epoch(os::Deadline deadline, Error& error);
  Status await_consumers(std::size_t wanted, os::Deadline deadline, Error& error);
  Status check_consumers(Error& error);
  Status wait_for_room(os::Deadline deadline, Error& error);
  void gather(Status status, const feedlane_batch& batch, Error& error);
  void finish_epoch();
  void cut_epoch();
  void come_back();
  void go_away() { left_ns_ = os::now_ns(); }
  void drop_gathered();

  // ---- Outlet ----

  [[nodiscard]] bool wants_batches() const override {
    return audience_.epoch.is_in_progress && !is_blocked_ && audience_.links().any_receiving() &&
           audience_.links().has_room();
  }
  [[nodiscard]] bool has_work() const override { return audience_.has_work(); }
  void prepare_wait(bool needs_slots) override {
    audience_.links().ring();
    audience_.prepare_wait(needs_slots);
  }
  void on_event() override { audience_.on_event(); }
  void work() override { (void)audience_.work(); }
  Status make_room(Error& error) override {
    const Status s = audience_.make_room(error);
    is_blocked_ = s != FEEDLANE_OK;
    return s;
  }
  [[nodiscard]] os::Deadline next_deadline() const override { return audience_.next_deadline(); }
  [[nodiscard]] int fd() const override { return audience_.fd(); }

  std::unique_ptr<loader::Loader> loader_;
  Stock stock_;
  Audience audience_;
  Parcels gathered_;                    // of the next round
  std::shared_ptr<Error> spare_error_;  // for a failed batch, allocated before `next`, which reports it only once
  std::int64_t left_ns_ = 0;            // when the host last left serve or poll; 0: it is in there, or has armed
  std::uint32_t silent_ = 0;            // batches since sleeping consumers were woken
  bool is_blocked_ = false;             // after PEER_DEAD or HUNG: nothing can be delivered until consumers act
  bool is_end_untold_ = false;          // poll has reached the end of the epoch, and serve has not returned END
};

}  // namespace feedlane::sharing
