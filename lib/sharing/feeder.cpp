// SPDX-License-Identifier: Apache-2.0
// An epoch of a shared loader: from the loader's batches to the consumers' delivery rings.
#include "sharing/feeder.hpp"

#include <new>
#include <utility>

#include "sharing/catalogue.hpp"

namespace feedlane::sharing {

// ---- creating ----

Feeder::Feeder(std::unique_ptr<loader::Loader> loader, const os::SystemFiles& files)
    : loader_(std::move(loader)), stock_(*loader_), audience_(*loader_, stock_, files) {}

Status Feeder::create(std::unique_ptr<loader::Loader> loader, const os::SystemFiles& files,
                      std::unique_ptr<Feeder>& out, Error& error) {
  std::unique_ptr<Feeder> feeder(new Feeder(std::move(loader), files));
  feeder->gathered_.reserve(feeder->round_size());
  Status s = feeder->audience_.open(error);
  // Checks the limit while the audience's descriptors are open. Worker threads have most of their descriptors already.
  loader::Crew& crew = feeder->loader_->crew();
  if (s == FEEDLANE_OK && crew.size() != 0 && !crew.starter().launcher().starts_early())
    s = crew.starter().check_descriptors(error);
  if (s == FEEDLANE_OK) s = feeder->loader_->use(*feeder, error);
  if (s == FEEDLANE_OK) out = std::move(feeder);
  return s;
}

// ---- an epoch ----

Status Feeder::begin(std::int64_t epoch, Error& error) {
  if (epoch <= audience_.epoch.number)
    return error.refuse(FEEDLANE_E_STATE, "epoch", epoch, audience_.epoch.number + 1,
                        "epoch {} was already begun: a shared loader can begin only a later one",
                        audience_.epoch.number);
  audience_.handle_pending();
  if (const Status s = audience_.shortage().check_backlogs(error); s != FEEDLANE_OK) return s;
  stock_.save_epoch();
  is_end_untold_ = false;
  const Status s = loader_->begin(epoch, error);
  if (s != FEEDLANE_OK) {
    cut_epoch();  // the epoch in progress is lost
    return s;
  }
  drop_gathered();
  audience_.shortage().end();
  const std::int64_t before = std::exchange(audience_.epoch.number, epoch);
  Parcel parcel;
  parcel.kind = shm::DeliveryKind::begin;
  try {
    audience_.announce(parcel);
  } catch (const std::bad_alloc&) {  // the epoch can be begun again, or stopped
    audience_.epoch.number = before;
    throw;
  }
  audience_.epoch.is_in_progress = true;
  audience_.host_bell.ring();  // only poll and serve check whether a ring is full
  return s;
}

Status Feeder::next(std::int64_t, feedlane_batch&, Error& error) {
  return error.refuse(FEEDLANE_E_STATE, "config.share", loader_->config().share, 0,
                      "a shared loader delivers its batches to consumers: call feedlane_loader_serve instead");
}

Status Feeder::serve(std::int64_t timeout_ns, Error& error) {
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  audience_.host_bell.silence();  // otherwise no wait would sleep
  if (std::exchange(is_end_untold_, false)) return FEEDLANE_END;
  come_back();
  const std::size_t wanted = audience_.epoch.number < 0 ? loader_->config().consumers : 0;
  const Status s =
      audience_.epoch.is_in_progress ? serve_epoch(deadline, error) : await_consumers(wanted, deadline, error);
  go_away();
  return s;
}

// A long absence of the host doesn't count against consumers. Short ones are normal if the host polls without arming.
void Feeder::come_back() {
  constexpr std::int64_t long_ns = 100'000'000;
  const std::int64_t away_ns = left_ns_ == 0 ? 0 : os::now_ns() - left_ns_;
  left_ns_ = 0;
  if (away_ns > long_ns) audience_.shortage().forgive(away_ns);
}

Status Feeder::serve_epoch(os::Deadline deadline, Error& error) {
  struct Ringing {
    Audience& audience;
    ~Ringing() { audience.links().ring(); }
  } const ringing{audience_};
  is_blocked_ = false;
  for (;;) {
    work();
    if (const Status s = check_consumers(error); s != FEEDLANE_OK) {
      is_blocked_ = true;
      Error ignored;  // workers' messages must be handled all the same
      return loader_->attend(os::Deadline::at(0), ignored) == FEEDLANE_INTERRUPTED ? FEEDLANE_INTERRUPTED : s;
    }
    if (!audience_.links().has_room()) {
      if (const Status s = wait_for_room(deadline, error); s != FEEDLANE_OK) return s;
      if (deadline.remaining_ns() == 0) return FEEDLANE_TIMEOUT;
      continue;
    }
    if (gathered_.size() == round_size()) {
      audience_.deliver(gathered_);
      continue;
    }
    if (spare_error_ == nullptr) spare_error_ = std::make_shared<Error>();
    // A consumer that sleeps is woken once for the batches that are ready.
    if (!loader_->returns_at_once() || ++silent_ >= most_silent) {
      silent_ = 0;
      audience_.links().ring();
    }
    feedlane_batch batch;
    const Status s = loader_->next(deadline.remaining_ns(), batch, error);
    if (s == FEEDLANE_AGAIN) continue;
    if (s == FEEDLANE_END) {
      finish_epoch();
      return s;
    }
    const bool is_of_batch = s == FEEDLANE_E_SAMPLE || s == FEEDLANE_E_QUARANTINED;
    if (s != FEEDLANE_OK && !is_of_batch) return s;
    audience_.shortage().end();
    gather(s, batch, error);
  }
}

// Checks that there is a consumer to deliver to.
Status Feeder::check_consumers(Error& error) {
  if (audience_.links().any_receiving()) return audience_.shortage().check_backlogs(error);
  return error.refuse(FEEDLANE_E_PEER_DEAD, "consumers", 0, 1,
                      "no consumer is connected: call feedlane_loader_open_consumer");
}

// Waits while a consumer's ring is full of messages without a slot, or because the consumer reads nothing.
Status Feeder::wait_for_room(os::Deadline deadline, Error& error) {
  audience_.note_shortage();
  if (audience_.links().has_room()) return FEEDLANE_OK;
  const Status s = loader_->attend(deadline.earlier(next_deadline()), error);
  return s == FEEDLANE_TIMEOUT && deadline.remaining_ns() != 0 ? FEEDLANE_OK : s;
}

void Feeder::gather(Status status, const feedlane_batch& batch, Error& error) {
  Parcel parcel;
  if (status == FEEDLANE_OK) {
    parcel.slot = stock_.add(batch.token);
    parcel.batch = batch.batch;
    write_entry(batch, loader_->memory().segments, audience_.entry(parcel.slot));
  } else {
    parcel.kind = shm::DeliveryKind::failed;
    parcel.batch = error.batch;
    *spare_error_ = std::exchange(error, {});
    parcel.error = std::exchange(spare_error_, nullptr);
  }
  gathered_.push_back(std::move(parcel));
}

void Feeder::finish_epoch() {
  if (audience_.deals() && loader_->config().share_tail && !gathered_.empty()) audience_.deliver(gathered_);
  drop_gathered();
  Parcel parcel;
  parcel.kind = shm::DeliveryKind::end;
  audience_.announce(parcel);
  audience_.epoch.is_in_progress = false;
  audience_.shortage().end();
}

void Feeder::drop_gathered() {
  for (const Parcel& parcel : gathered_)
    if (parcel.has_slot()) stock_.put_back(parcel.slot);
  gathered_.clear();
}

// Between epochs: waits until `wanted` consumers have joined or, if it is 0, until all have left. Handles their returns
// and requests while it waits.
Status Feeder::await_consumers(std::size_t wanted, os::Deadline deadline, Error& error) {
  for (;;) {
    work();
    const Links& links = audience_.links();
    if (wanted == 0 ? links.count_concerned() == 0 : links.count_attached() >= wanted) return FEEDLANE_END;
    if (const Status s = loader_->attend(deadline, error); s != FEEDLANE_OK) return s;
  }
}

Status Feeder::poll(Error& error) {
  audience_.host_bell.silence();
  work();
  if (is_end_untold_) return FEEDLANE_AGAIN;
  come_back();
  // Between epochs, ends of workers and messages of consumers must be handled too.
  const os::Deadline now = os::Deadline::at(0);
  const Status s = audience_.epoch.is_in_progress ? serve_epoch(now, error) : loader_->attend(now, error);
  go_away();
  if (s == FEEDLANE_END) is_end_untold_ = true;
  if (s == FEEDLANE_END || s == FEEDLANE_INTERRUPTED) return FEEDLANE_AGAIN;
  return s == FEEDLANE_TIMEOUT ? FEEDLANE_OK : s;
}

Status Feeder::arm(Error& error) {
  if (is_end_untold_) return FEEDLANE_AGAIN;
  left_ns_ = 0;                // an armed host is woken, so it is not away
  return loader_->arm(error);  // between epochs: until a consumer does something
}

Status Feeder::state(std::uint64_t token, std::vector<std::byte>& out, Error& error) {
  if (token != 0)
    return error.refuse(FEEDLANE_E_STATE, "token", token, 0,
                        "token must be 0, because only consumers hold batches of a shared loader");
  // Excludes batches gathered for the next round, which no consumer has.
  return stock_.has_recorded() ? stock_.state(UINT64_MAX, out, error) : loader_->state(0, out, error);
}

// Tells consumers that the epoch in progress, if there is one, was stopped. The state is that of the last full round.
void Feeder::cut_epoch() {
  if (!audience_.epoch.is_in_progress) return;
  Error why;
  (void)why.fail(FEEDLANE_E_STATE, "the feeder stopped epoch {} before its end", audience_.epoch.number);
  Parcel parcel;
  parcel.kind = shm::DeliveryKind::stopped;
  parcel.error = std::make_shared<const Error>(std::move(why));
  audience_.announce(parcel);
  audience_.epoch.is_in_progress = false;
  drop_gathered();
  audience_.shortage().end();
}

Status Feeder::stop(bool for_good, Error& error) {
  cut_epoch();
  return loader_->stop(for_good, error);
}

}  // namespace feedlane::sharing
