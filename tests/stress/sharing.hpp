// SPDX-License-Identifier: Apache-2.0
// Feeders and consumers of the stress runs: a loader that is shared at a path, and consumers in processes of their own, each
// of which checks the order and the content of all that it is given.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>

#include "chaos.hpp"
#include "feedlane.h"
#include "shared.hpp"
#include "support/api.hpp"

namespace sharing {

struct Terms {
  std::int32_t share = FEEDLANE_SHARE_EVERY;
  std::int32_t consumers = 2;
  std::int64_t batches = 0;  // in an epoch
  std::string path;
  std::int32_t workers = 2;
  std::int64_t task_timeout_ns = 0;
  std::int32_t held = 2;

  [[nodiscard]] bool deals() const { return share == FEEDLANE_SHARE_DEAL; }
  // From one batch of a consumer to its next.
  [[nodiscard]] std::int64_t stride() const { return deals() ? consumers : 1; }
  // Of a consumer, in an epoch.
  [[nodiscard]] std::int64_t batches_of_each() const { return batches / stride(); }
};

inline void compare(const char* what, std::int64_t found, std::int64_t needed) {
  if (found != needed) stress::die(what, static_cast<std::uint64_t>(found), static_cast<std::uint64_t>(needed));
}

inline feedlane_error make_error() {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  return e;
}

// The child of a program that starts it ends with it.
inline void end_with_parent() { (void)::prctl(PR_SET_PDEATHSIG, SIGKILL); }

inline int work(std::int32_t fd) {
  const feedlane_dataset d = chaos::dataset();
  return feedlane_worker_run(fd, nullptr, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
}

inline feedlane_loader* create_feeder(const Terms& terms) {
  feedlane_sampler* sampler = nullptr;
  feedlane_error e = make_error();
  if (feedlane::test::sequential_sampler(terms.batches * chaos::batch_size, &sampler, &e) != FEEDLANE_OK)
    chaos::die("sampler", e);
  feedlane_loader* const feeder =
      chaos::create(nullptr, 0, terms.workers, terms.task_timeout_ns, [&](feedlane_loader_config& c) {
        c.sampler = sampler;
        c.share = terms.share;
        c.consumers = terms.consumers;
        c.share_path = terms.path.c_str();
        c.held = terms.held;
      });
  (void)feedlane_sampler_destroy(&sampler);
  return feeder;
}

// Sleeps until the feeder, or a consumer, has something to do.
inline void await_something(feedlane_loader* loader) {
  pollfd p{-1, POLLIN, 0};
  if (feedlane_loader_arm(loader, &p.fd) != FEEDLANE_OK) return;
  if (::poll(&p, 1, -1) < 0 && errno != EINTR) stress::die("poll", static_cast<std::uint64_t>(errno), 0);
}

// Whether the place has a consumer.
inline bool is_attached(feedlane_loader* feeder, std::int32_t place) {
  feedlane_consumer_stats s;
  feedlane_init(&s, sizeof s);
  for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder, n, &s) == FEEDLANE_OK; n++)
    if (s.id == place && s.state == FEEDLANE_CONSUMER_ATTACHED) return true;
  return false;
}

// How many consumers have joined.
inline std::int32_t attached(feedlane_loader* feeder) {
  std::int32_t count = 0;
  feedlane_consumer_stats s;
  feedlane_init(&s, sizeof s);
  for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder, n, &s) == FEEDLANE_OK; n++)
    count += s.state == FEEDLANE_CONSUMER_ATTACHED ? 1 : 0;
  return count;
}

// The process that feeds: epochs until SIGTERM, then the end of everything. One a process.
class Feeder {
 public:
  explicit Feeder(const Terms& terms) {
    loader_ = create_feeder(terms);
    struct sigaction stop {};
    stop.sa_handler = [](int) {
      should_stop_ = 1;
      (void)feedlane_loader_interrupt(loader_);
    };
    (void)::sigaction(SIGTERM, &stop, nullptr);
  }
  [[nodiscard]] feedlane_loader* get() const { return loader_; }
  [[nodiscard]] std::uint64_t epochs() const { return epochs_; }
  // Consumers that have left or ended, and those that were evicted.
  [[nodiscard]] std::uint64_t ends() const { return ends_; }
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

  // Returns in the middle of an epoch, also if it is told to stop between two: only those in an epoch can be told by stop.
  template <class F>
  void run(F&& after_epoch) {
    feedlane_error e = make_error();
    for (bool is_over = false; !is_over; epochs_++) {
      if (feedlane_loader_begin(loader_, static_cast<std::int64_t>(epochs_), &e) != FEEDLANE_OK) chaos::die("begin", e);
      is_over = !serve_epoch();
      after_epoch();
    }
  }
  // Consumers see the end and leave. Then every slot is free, but those of batches that wait for a place's next consumer.
  void finish() {
    feedlane_error e = make_error();
    if (feedlane_loader_stop(loader_, &e) != FEEDLANE_OK) chaos::die("stop", e);
    std::int32_t s = FEEDLANE_INTERRUPTED;
    while (s == FEEDLANE_INTERRUPTED) s = feedlane_loader_serve(loader_, chaos::patience_ns, &e);
    if (s != FEEDLANE_END) chaos::die(feedlane_status_name(s), e);
    feedlane_stats stats;
    feedlane_init(&stats, sizeof stats);
    (void)feedlane::test::observe(loader_, feedlane_monitor_get_stats, &stats);
    compare("slots that are free", static_cast<std::int64_t>(stats.slots_free) + waiting_slots(),
            static_cast<std::int64_t>(stats.slots));
    compare("results that made no sense", static_cast<std::int64_t>(stats.invalid_results), 0);
    compare("destroy", feedlane_loader_destroy(&loader_), FEEDLANE_OK);
  }

 private:
  // Until the epoch's end; false: this process was told to stop before.
  bool serve_epoch() {
    feedlane_error e = make_error();
    while (should_stop_ == 0) {
      const std::int32_t s = feedlane_loader_serve(loader_, FEEDLANE_FOREVER, &e);
      read_events();
      if (s == FEEDLANE_END) return true;
      if (s == FEEDLANE_E_PEER_DEAD || s == FEEDLANE_E_HUNG) await_something(loader_);
      else if (s != FEEDLANE_INTERRUPTED) chaos::die("serve", e);
    }
    return false;
  }
  void read_events() {
    feedlane_event event;
    feedlane_init(&event, sizeof event);
    while (feedlane_loader_event(loader_, &event) == FEEDLANE_OK) {
      ends_ += event.kind == FEEDLANE_EVENT_CONSUMER_LEFT ? 1 : 0;
      evictions_ += event.kind == FEEDLANE_EVENT_CONSUMER_EVICTED ? 1 : 0;
      if (std::getenv("FEEDLANE_CHAOS_SAY") != nullptr)
        std::fprintf(stderr, "event %d: %s\n", event.kind, event.what.text);
    }
  }
  static std::int64_t waiting_slots() {
    std::uint64_t waiting = 0;
    feedlane_consumer_stats s;
    feedlane_init(&s, sizeof s);
    for (std::int32_t n = 0; feedlane_loader_get_consumer(loader_, n, &s) == FEEDLANE_OK; n++) {
      compare("the state of a place in the end", s.state, FEEDLANE_CONSUMER_NONE);
      waiting += s.waiting;
    }
    return static_cast<std::int64_t>(waiting);
  }

  inline static volatile sig_atomic_t should_stop_ = 0;
  inline static feedlane_loader* loader_ = nullptr;
  std::uint64_t epochs_ = 0, ends_ = 0, evictions_ = 0;
};

// Whether batches come in order, each once: from anywhere in an epoch (or from the beginning of `epoch`), then to its end,
// then through the epochs.
class Order {
 public:
  explicit Order(const Terms& terms, std::int64_t place, std::int64_t epoch = -1)
      : terms_(terms), first_(terms.deals() ? place : 0), epoch_(epoch), next_(first_) {}

  void take(std::int64_t epoch, std::int64_t batch) {
    if (epoch_ >= 0) {
      compare("the epoch of a batch", epoch, epoch_);
      compare("the batch that follows", batch, next_);
    }
    compare("the batch's place", batch % terms_.stride(), first_);
    epoch_ = epoch;
    next_ = batch + terms_.stride();
    count_++;
  }
  // The end of this epoch.
  void end(std::int64_t epoch) {
    if (epoch_ >= 0) {
      compare("the epoch that ends", epoch, epoch_);
      compare("the number of batches in the epoch", next_, first_ + terms_.batches_of_each() * terms_.stride());
    }
    epoch_ = epoch + 1;
    next_ = first_;
    ends_++;
  }
  [[nodiscard]] bool is_last(std::int64_t batch) const {
    return batch == first_ + (terms_.batches_of_each() - 1) * terms_.stride();
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::uint64_t ends() const { return ends_; }

 private:
  const Terms& terms_;
  std::int64_t first_;  // number of the place's first batch
  std::int64_t epoch_;
  std::int64_t next_;
  std::uint64_t count_ = 0, ends_ = 0;
};

// Batches that are held for some time, and must be whole at their end too.
class Hold {
 public:
  Hold(feedlane_loader* loader, std::size_t most) : loader_(loader), most_(most) {}
  void take(const feedlane_batch& batch) {
    chaos::check(batch, batch.epoch);
    held_.push_back(batch);
    while (held_.size() > most_) release();
  }
  void release_all() {
    while (!held_.empty()) release();
  }

 private:
  void release() {
    chaos::check(held_.front(), held_.front().epoch);
    compare("release", feedlane_batch_release(loader_, held_.front().token), FEEDLANE_OK);
    held_.pop_front();
  }
  feedlane_loader* loader_;
  std::size_t most_;
  std::deque<feedlane_batch> held_;
};

inline feedlane_loader* join(const Terms& terms, std::int32_t place, std::int32_t lag = FEEDLANE_LAG_BLOCK,
                             std::int64_t evict_after_ns = 0) {
  feedlane_consumer_config c;
  feedlane_init(&c, sizeof c);
  c.id = place;
  c.lag = lag;
  c.evict_after_ns = evict_after_ns;
  feedlane_error e = make_error();
  feedlane_loader* consumer = nullptr;
  if (feedlane_loader_join(-1, terms.path.c_str(), &c, FEEDLANE_FOREVER, &consumer, &e) != FEEDLANE_OK)
    chaos::die("join", e);
  return consumer;
}

// Takes batches until next returns an error, epoch after epoch. Returns that. Calls `each` with every batch and end.
inline std::int32_t take_all(feedlane_loader* consumer, Order& order, Hold& hold, feedlane_error& e,
                             const std::function<void()>& each = {}) {
  for (;;) {
    std::int64_t epoch = -1;
    compare("next_epoch", feedlane::test::next_epoch_of(consumer, &epoch), FEEDLANE_OK);
    if (feedlane_loader_begin(consumer, epoch, &e) != FEEDLANE_OK) chaos::die("begin", e);
    std::int32_t s = FEEDLANE_OK;
    do {
      feedlane_batch batch;
      feedlane_init(&batch, sizeof batch);
      s = feedlane_loader_next(consumer, FEEDLANE_FOREVER, &batch, &e);
      if (s == FEEDLANE_SLOTS_HELD) {
        hold.release_all();
        continue;
      }
      if (each) each();
      if (s != FEEDLANE_OK) break;
      order.take(batch.epoch, batch.batch);
      compare("batches that were missed", static_cast<std::int64_t>(batch.missed), 0);
      hold.take(batch);
    } while (true);
    hold.release_all();
    if (s != FEEDLANE_END) return s;
    order.end(epoch);
  }
}

// Takes batches until the feeder is told to stop.
inline void take_until_stopped(feedlane_loader* consumer, Order& order, Hold& hold,
                               const std::function<void()>& each = {}) {
  feedlane_error e = make_error();
  compare("the last status", take_all(consumer, order, hold, e, each), FEEDLANE_E_STATE);
  if (std::string(e.text).find("stopped") == std::string::npos) chaos::die("another end than that of the feeder", e);
  compare("destroy", feedlane_loader_destroy(&consumer), FEEDLANE_OK);
}

}  // namespace sharing
