// SPDX-License-Identifier: Apache-2.0
// The trainer's side of a loader: implements next, begin and stop with parts that each do one thing.
//
//   Order       which batches an epoch has, from a sampler or from workers' shards, and how far the epoch has come
//   Dispatcher  order -> ledger -> workers; takes tasks back, and rescues tasks of dead and stuck workers
//   Crew        starts, reads, watches, replaces and stops the workers
//   Collector   results -> ledger, every word checked
//   Delivery    ledger -> the trainer, staged to registered buffers if configured
//   Inline      makes batches in `next` if there are no workers
//   Leases      batches that the trainer holds
//
// It starts no thread: next, poll, begin and stop detect deaths and replace workers.
//
// Thread safety: one thread at a time, except where a comment says "any thread".
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "feedlane/loader.h"
#include "lending/leases.hpp"
#include "loader/collector.hpp"
#include "loader/config.hpp"
#include "loader/crew.hpp"
#include "loader/delivery.hpp"
#include "loader/dispatcher.hpp"
#include "loader/failure.hpp"
#include "loader/inline.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/order.hpp"
#include "loader/outlet.hpp"
#include "loader/own_lender.hpp"
#include "loader/prefetch.hpp"
#include "loader/source.hpp"
#include "loader/stamps.hpp"
#include "loader/wakeups.hpp"
#include "monitor/events.hpp"
#include "monitor/snapshot.hpp"
#include "monitor/stats.hpp"
#include "os/clock.hpp"
#include "ring/waiter.hpp"

namespace feedlane::loader {

// Runs a forked worker: attaches through `fd` and processes tasks with the data set, in its parent's view of data,
// `inherited`. Returns the exit status.
using ForkedMain = int (*)(int fd, const feedlane_dataset& dataset, shm::Segments& inherited);

class Loader final : public Source {
 public:
  // `pool` is the object behind config->pinned.
  static Status create(const feedlane_loader_config* config, const sampler::Sampler* sampler, pinned::Pool* pool,
                       ForkedMain forked_main, const os::SystemFiles& files, std::unique_ptr<Loader>& out,
                       Error& error);

  Status begin(std::int64_t epoch, Error& error) override;
  Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) override;
  // Whether `next` would return a batch without waiting, and without calling anything of the user.
  [[nodiscard]] bool returns_at_once();
  Status poll(Error& error) override;
  Status arm(Error& error) override;
  [[nodiscard]] int wait_fd() const override { return waiter_.fd(); }
  Status state(std::uint64_t token, std::vector<std::byte>& out, Error& error) override;
  Status stop(bool for_good, Error& error) override;
  // Kills the remaining workers. Workers that cannot be killed are asked to end.
  void abandon() noexcept override;
  void ask_to_end() noexcept override { crew_.ask_to_end(); }
  // For workers that the host starts: open_worker, and Starter::take_offer, which any thread may call.
  [[nodiscard]] Crew& crew() { return crew_; }

  // ---- shared ----

  // Delivers batches to consumers through `outlet`, which must outlive the loader's use. Called before the first epoch.
  // `next` then also returns AGAIN: it waits for a live sampler, and the outlet wants no batches.
  Status use(Outlet& outlet, Error& error);
  // Sleeps until something happens here or at the outlet. OK, TIMEOUT, INTERRUPTED, E_OS.
  Status attend(os::Deadline deadline, Error& error);
  // The first epoch to begin: 0, or that of the saved state.
  [[nodiscard]] std::int64_t first_epoch() const;
  // The epoch's progress as of the newest yielded batch. `save` writes the state of such a progress.
  [[nodiscard]] const checkpoint::Progress& progress() const { return order_->progress(); }
  Status save(const checkpoint::Progress& progress, std::vector<std::byte>& out, Error& error) const;

  // ---- any thread ----

  void interrupt() override { wakeups_.interrupt(); }
  // Also makes run_stager return.
  void close() override;
  // Copies batches to registered buffers, until `close`.
  Status run_stager(Error& error);
  [[nodiscard]] lending::Leases& leases() override { return leases_; }
  bool next_event(feedlane_event& out) override { return events_.pop(out); }
  [[nodiscard]] monitor::EventQueue& events() { return events_; }
  [[nodiscard]] const Memory& memory() const { return memory_; }
  [[nodiscard]] const monitor::EpochFigures& figures() const { return figures_; }
  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] feedlane_stats stats() const override;
  // Before the first epoch, `batches` is the number of batches of an epoch from its beginning.
  [[nodiscard]] feedlane_loader_info info() const override;

 private:
  Loader();
  Status set_up(ForkedMain forked_main, pinned::Pool* pool, const os::SystemFiles& files, Error& error);
  Status next_made(os::Deadline deadline, feedlane_batch& out, Error& error);
  Status wait(os::Deadline deadline, bool wants_batch, Error& error);
  [[nodiscard]] bool has_news();
  [[nodiscard]] bool has_wake_up_work();
  Status obstacle(Error& error);
  Status finish_epoch(os::Deadline deadline, Error& error);
  void drop_epoch();

  Config config_;
  Memory memory_;
  Stamps stamps_;
  Prefetch prefetch_;
  monitor::EpochFigures figures_;
  monitor::EventQueue events_;
  ring::Waiter waiter_;
  Wakeups wakeups_;
  Failure failure_;
  Ledger ledger_;
  std::unique_ptr<Order> order_;
  supervisor::Roster roster_;
  Collector collector_;
  Dispatcher dispatcher_;
  Crew crew_;
  Delivery delivery_;
  Inline inline_;
  OwnLender lender_;
  lending::Leases leases_;
  Outlet* outlet_ = nullptr;  // nullptr: not shared
};

}  // namespace feedlane::loader
