// SPDX-License-Identifier: Apache-2.0
// A consumer's epochs and batches: from the delivery ring to the trainer, and back to the feeder.
#include "sharing/consumer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "monitor/stats.hpp"
#include "os/memfd.hpp"
#include "ring/fence.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::sharing {
namespace {

// How long the feeder may take to answer.
constexpr std::int64_t answer_timeout_ns = 10'000'000'000;
constexpr std::uint64_t most_state_bytes = std::uint64_t{1} << 30;

shm::DeliveryMessage read_message(const std::byte* cell) {
  shm::DeliveryMessage m;
  std::memcpy(&m, cell, offsetof(shm::DeliveryMessage, text));
  const auto kind = static_cast<shm::DeliveryKind>(m.kind);
  if (kind == shm::DeliveryKind::failed || kind == shm::DeliveryKind::stopped) std::memcpy(&m, cell, sizeof m);
  return m;
}

// Reads the error of a failed batch or of a stopped epoch.
Status read_failure(const shm::DeliveryMessage& message, Error& error) {
  const bool is_batch = static_cast<shm::DeliveryKind>(message.kind) == shm::DeliveryKind::failed;
  if (message.status >= 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "message.status", message.status, -1,
                        "the feeder reports a failure with status {}, which is not an error", message.status);
  (void)error.fail(message.status, "{}", first(sizeof message.text, message.text));
  error.epoch = message.epoch;
  error.worker = is_batch ? message.worker : -1;
  error.batch = is_batch ? message.batch : -1;
  error.sample = is_batch ? message.sample : -1;
  return error.code;
}

// Waits for the reply to this request, and the descriptor that comes with it.
Status await_reply(int socket, int feeder, const Request& request, Reply& reply, os::Received& received, Error& error) {
  const os::Deadline deadline = os::Deadline::after(answer_timeout_ns);
  do {
    const Status s =
        os::await_message(socket, std::as_writable_bytes(std::span(&reply, 1)), deadline, received, error, feeder);
    if (s == FEEDLANE_TIMEOUT || (s == FEEDLANE_OK && deadline.remaining_ns() == 0))
      return error.fail(
          FEEDLANE_E_HUNG,
          "the feeder has not answered for {} s: it must call feedlane_loader_serve or feedlane_loader_poll",
          answer_timeout_ns / 1'000'000'000);
    if (s != FEEDLANE_OK) return s;
    if (received.bytes != sizeof reply || reply.magic != reply_magic)
      return error.refuse(FEEDLANE_E_CORRUPT, "reply", received.bytes, sizeof reply,
                          "the feeder's answer has {} bytes instead of {}", received.bytes, sizeof reply);
  } while (reply.round != request.round);  // skips a late reply to an earlier request
  return FEEDLANE_OK;
}

}  // namespace

// ---- an epoch ----

Status Consumer::begin(std::int64_t epoch, Error& error) {
  if (epoch < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, 0, "epoch {} is negative", epoch);
  if (epoch > last_epoch)
    return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, last_epoch, "epoch is {}: must be at most {}", epoch,
                        last_epoch);
  const std::int64_t least = next_epoch_.load(std::memory_order_relaxed);
  if (epoch < least)
    return error.refuse(FEEDLANE_E_STATE, "epoch", epoch, least,
                        "epoch {} is over or was already begun: this consumer's next epoch must be at least {}", epoch,
                        least);
  at_.wanted = epoch;
  next_epoch_.store(epoch + 1, std::memory_order_relaxed);  // only a number
  at_.is_begun = true;
  at_.is_over = false;
  set_newest(0);
  at_.missed = 0;
  at_.exposed_ns = 0;
  skip_old_epochs();
  shm::add(counters_.epochs);
  return FEEDLANE_OK;
}

Status Consumer::stop(bool for_good, Error&) {
  at_.is_begun = false;
  if (for_good) leave();  // batches that it has not taken go to its successor
  else skip_old_epochs();
  return FEEDLANE_OK;
}

// Returns batches of epochs that the trainer doesn't want; the feeder sends no more of them. A faulty feeder might send
// them without end, so at most as many messages are read as the ring holds.
void Consumer::skip_old_epochs() {
  const std::int64_t wanted = at_.is_begun ? at_.wanted : at_.wanted + 1;
  row().skip_before.store(static_cast<std::uint64_t>(wanted), std::memory_order_relaxed);  // see Link::wants
  for (std::uint32_t left = plan_.geometry.capacity; left > 0 && has_message(); left--) {
    const shm::DeliveryMessage m = read_message(ring_.message(0));
    if (m.epoch >= wanted) return;
    const bool has_slot = static_cast<shm::DeliveryKind>(m.kind) == shm::DeliveryKind::batch;
    if (take(m) && has_slot && m.slot < batches_.size()) give_back(m.slot, m.round);
  }
}

Status Consumer::next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) {
  if (!at_.is_begun) return error.fail(FEEDLANE_E_STATE, "call feedlane_loader_begin before feedlane_loader_next");
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  waiter_.cancel();
  std::int64_t since_ns = 0;  // when the wait began
  Status s = FEEDLANE_AGAIN;
  for (bool is_last = false; s == FEEDLANE_AGAIN;
       is_last = deadline.remaining_ns() == 0) {  // the feeder may ring for ever
    if (wakeups_.is_closed() || wakeups_.take_interruption()) s = FEEDLANE_INTERRUPTED;
    else s = read_messages(out, error);
    if (s == FEEDLANE_AGAIN) s = obstacle(error);
    if (s != FEEDLANE_AGAIN) break;
    if (is_last) {
      s = FEEDLANE_TIMEOUT;
      break;
    }
    if (since_ns == 0) since_ns = os::now_ns();
    const Status waited = wait(deadline, error);
    if (waited != FEEDLANE_OK && waited != FEEDLANE_TIMEOUT) s = waited;
  }
  if (since_ns != 0) {
    const std::int64_t waited_ns = std::max<std::int64_t>(os::now_ns() - since_ns, 1);
    shm::add(counters_.wait_ns, static_cast<std::uint64_t>(waited_ns));
    at_.exposed_ns += waited_ns;
  }
  if (s == FEEDLANE_OK) {
    out.exposed_ns = static_cast<std::uint64_t>(std::exchange(at_.exposed_ns, 0));
    out.yielded_ns = static_cast<std::uint64_t>(os::now_ns());
  }
  return s;
}

// Returns why `next` can't yield, after read_messages has found no message. AGAIN: it still may. No message of an ended
// feeder is lost, because is_feeder_gone_ is set before read_messages looks.
Status Consumer::obstacle(Error& error) {
  // Relaxed: the doorbell follows. Messages that were revoked before the eviction don't count.
  if (block().is_evicted.load(std::memory_order_relaxed) != 0)
    return error.refuse(FEEDLANE_E_HUNG, "consumer", role_.place, 0,
                        "the feeder has evicted this consumer (place {}), because it released no batch in time",
                        role_.place);
  if (is_feeder_gone_) return error.fail(FEEDLANE_E_PEER_DEAD, "the feeder has ended");
  if (is_short())
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", slots_.held(), 0,
                        "the trainer holds {} batches, and the feeder has no free slot: release a batch",
                        slots_.held());
  return FEEDLANE_AGAIN;
}

Status Consumer::read_messages(feedlane_batch& out, Error& error) {
  if (at_.is_over) return FEEDLANE_END;
  for (std::uint32_t left = plan_.geometry.capacity; left > 0 && has_message(); left--) {  // see skip_old_epochs
    const shm::DeliveryMessage m = read_message(ring_.message(0));
    const auto kind = static_cast<shm::DeliveryKind>(m.kind);
    if (m.epoch > at_.wanted && !is_revoked(m)) {
      // An observer may have missed its entire epoch: see Link::deliver.
      if (role_.lag == FEEDLANE_LAG_OBSERVE && at_.newest == 0) at_.is_over = true;
      if (at_.is_over) return FEEDLANE_END;
      return error.refuse(FEEDLANE_E_STATE, "epoch", at_.wanted, m.epoch,
                          "the feeder is in epoch {}, but this consumer has begun epoch {}", m.epoch, at_.wanted);
    }
    if (kind == shm::DeliveryKind::batch && m.slot >= batches_.size())
      return error.refuse(FEEDLANE_E_CORRUPT, "message.slot", m.slot, batches_.size(),
                          "the feeder sent a batch in slot {}, but it has only {} slots", m.slot, batches_.size());
    const bool is_wanted = m.epoch == at_.wanted;
    if (kind == shm::DeliveryKind::batch && is_wanted) {
      batches_[m.slot].described.reserve();
      const bool is_due = pool() != nullptr && !is_revoked(m) && !slots_.is_lent(m.slot);
      const Status s = is_due ? registered_.renew(m.slot, error) : FEEDLANE_OK;
      if (s != FEEDLANE_OK) return s;  // the message stays
    }
    const std::uint64_t gap = at_.last_round == 0 ? 0 : m.round - at_.last_round - 1;
    // Only an observer's rounds have gaps within an epoch: it misses batches that find no room.
    if (is_wanted && role_.share == FEEDLANE_SHARE_EVERY && kind != shm::DeliveryKind::begin) at_.missed += gap;
    if (!take(m)) {
      if (is_wanted && (kind == shm::DeliveryKind::batch || kind == shm::DeliveryKind::failed)) at_.missed++;
      if (is_wanted && role_.lag == FEEDLANE_LAG_OBSERVE) set_newest(m.round);  // its state includes what it missed
      continue;
    }
    if (!is_wanted) {
      if (kind == shm::DeliveryKind::batch) give_back(m.slot, m.round);
      continue;
    }
    set_newest(m.round);
    switch (kind) {
      case shm::DeliveryKind::begin:
        at_.missed = 0;
        epoch_batches_.store(std::max<std::int64_t>(m.batch, -1), std::memory_order_relaxed);  // only a number
        break;
      case shm::DeliveryKind::batch: return yield(m, out, error);
      case shm::DeliveryKind::failed:
      case shm::DeliveryKind::stopped: at_.is_begun = kind == shm::DeliveryKind::failed; return read_failure(m, error);
      case shm::DeliveryKind::end: at_.is_over = true; return FEEDLANE_END;
    }
  }
  return FEEDLANE_AGAIN;
}

// ---- batches ----

// Whether the feeder has revoked the message. An observer loses batches, but no begin and no end. Other consumers lose
// every message, because they were evicted.
bool Consumer::is_revoked(const shm::DeliveryMessage& message) const {
  const auto kind = static_cast<shm::DeliveryKind>(message.kind);
  const bool is_control = kind != shm::DeliveryKind::batch && kind != shm::DeliveryKind::failed;
  // Relaxed: in `take`, the fence orders it after the store to `taken`. Elsewhere it is a hint.
  return !(role_.lag == FEEDLANE_LAG_OBSERVE && is_control) &&
         block().revoked_through.load(std::memory_order_relaxed) >= message.round;
}

bool Consumer::take(const shm::DeliveryMessage& message) {
  // Release: the reads of the message happen before. Pairs with Link::taken.
  row().taken.store(message.round, std::memory_order_release);
  ring::doorbell_fence();  // pairs with the fence in Link::revoke_through
  const bool is_gone = is_revoked(message);
  ring_.release(1);
  at_.last_round = message.round;
  const bool has_slot = static_cast<shm::DeliveryKind>(message.kind) == shm::DeliveryKind::batch;
  // A revoked batch is returned unread: the feeder may have seen it taken, and then waits for its return. Other
  // messages need no return, but the feeder may wait until they are taken. A feeder without slots asks the holders of
  // slots only once every batch is taken, so it must learn of that too.
  if (is_gone && has_slot && message.slot < batches_.size())
    give_back(message.slot, message.round | shm::returned_unread);
  else if (!has_slot || !has_message()) tell_return();
  return !is_gone;
}

void Consumer::set_newest(std::uint64_t round) {
  at_.newest = round;
  row().newest.store(round, std::memory_order_relaxed);  // see Link::oldest
}

// Thread safety: any thread.
void Consumer::give_back(std::uint32_t slot, std::uint64_t round) {
  // Release: the trainer's reads of the slot happen before its next use. Pairs with Link::returned.
  pair_.data<shm::Word64>(plan_.returned)[slot].store(round, std::memory_order_release);
  tell_return();
}

void Consumer::tell_return() {
  row().returns.fetch_add(1, std::memory_order_release);  // pairs with Link::returns
  ring::doorbell_fence();                                 // pairs with the one in Sleeper::prepare
  // Relaxed: either a feeder that stored 1 before it looks at the returns sees this one, or the 1 is seen here.
  const auto& feeder = *catalogue_.control<shm::FeederBlock>(plan_.feeder);
  if (feeder.wants_returns.load(std::memory_order_relaxed) != 0) (void)bell_.ring();
}

Status Consumer::yield(const shm::DeliveryMessage& message, feedlane_batch& out, Error& error) {
  Batch& batch = batches_[message.slot];
  if (slots_.is_lent(message.slot))
    return error.refuse(FEEDLANE_E_CORRUPT, "message.slot", message.slot, 0,
                        "the feeder sent a batch in slot {}, which the trainer still holds", message.slot);
  const auto& entry = catalogue_.control<shm::CatalogueEntry>(plan_.entries)[message.slot];
  if (const Status s = read_entry(entry, message.slot, segments_, batch.described, out, error); s != FEEDLANE_OK) {
    give_back(message.slot, message.round);
    return s;
  }
  batch.round = message.round;
  out.token = slots_.lend(message.slot);
  out.missed = std::exchange(at_.missed, 0);
  shm::add(counters_.batches);
  shm::add(counters_.samples, out.count);
  std::uint64_t bytes = 0;
  for (const feedlane_tensor& t : batch.described.tensors) bytes += t.bytes;
  shm::add(counters_.bytes, bytes);
  return FEEDLANE_OK;
}

// ---- waiting ----

// Whether the feeder lacks the slots that the trainer holds here, and nothing was delivered or returned since it asked
// for them.
bool Consumer::is_short() const {
  // A release that waits for a stream may free a slot. Relaxed: see Link::tell_short.
  return at_.last_round != 0 && slots_.held() != 0 && !registered_.any_release_pending() &&
         block().short_after.load(std::memory_order_relaxed) == at_.last_round &&
         block().short_returns.load(std::memory_order_relaxed) == row().returns.load(std::memory_order_relaxed);
}

bool Consumer::has_something() const {
  return has_message() || is_feeder_gone_ || wakeups_.is_interrupted() || wakeups_.is_closed() ||
         block().is_evicted.load(std::memory_order_relaxed) != 0 || is_short();
}

Status Consumer::wait(os::Deadline deadline, Error& error) {
  const auto is_ready = [this] { return has_something(); };
  if (waiter_.spin(deadline, is_ready)) return FEEDLANE_OK;
  return waiter_.sleep_until(
      deadline, is_ready, [&](const os::Poller::Event& event) { return handle(event, error); }, error);
}

Status Consumer::poll(Error& error) {
  waiter_.cancel();
  const auto handler = [&](const os::Poller::Event& event) { return handle(event, error); };
  if (const Status s = waiter_.poll(1, handler, error); s != FEEDLANE_OK) return s;
  return at_.is_begun && (has_something() || at_.is_over) ? FEEDLANE_AGAIN : FEEDLANE_OK;
}

Status Consumer::arm(Error& error) {
  if (at_.is_begun && at_.is_over) return FEEDLANE_AGAIN;
  return waiter_.arm([this] { return at_.is_begun && has_something(); }, error);
}

// ---- states ----

Status Consumer::state(std::uint64_t token, std::vector<std::byte>& out, Error& error) {
  Request request{request_magic, at_.newest};
  if (token != 0) {
    std::uint32_t slot = 0;
    if (!slots_.is_held(token, slot))
      return error.refuse(FEEDLANE_E_STALE, "token", token, 0,
                          "the token is not of a held batch: save the state before you release the batch");
    request.round = batches_[slot].round;
  } else if (request.round == 0) {
    return error.fail(FEEDLANE_E_STATE, "there is no state to save yet: this consumer has not received a batch yet");
  }
  if (is_feeder_gone_)
    return error.fail(FEEDLANE_E_PEER_DEAD, "the feeder has ended, and only the feeder can save the state");
  Status s = greeting::send(socket_.get(), request, {}, error);
  Reply reply{};
  os::Received received;
  if (s == FEEDLANE_OK) s = await_reply(socket_.get(), feeder_.get(), request, reply, received, error);
  if (s != FEEDLANE_OK) return s;
  if (received.fd_count != 1) return greeting::read_refused(reply.why, error);
  std::uint64_t bytes = 0;
  const int fd = received.fds[0].get();
  const bool is_memory = os::get_seals(fd) >= 0;  // reading another file may take for ever
  if (is_memory) s = os::file_size(fd, bytes, error);
  if (s != FEEDLANE_OK) return s;
  if (!is_memory || reply.bytes > std::min(bytes, most_state_bytes))
    return error.refuse(FEEDLANE_E_CORRUPT, "reply.bytes", reply.bytes, std::min(bytes, most_state_bytes),
                        "the feeder announced a state of {} bytes, but sent a file of {}", reply.bytes, bytes);
  out.resize(reply.bytes);
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return error.os(n < 0 ? errno : ENODATA, "reading a state of {} bytes", out.size());
    done += static_cast<std::size_t>(n);
  }
  return s;
}

feedlane_loader_info Consumer::info() const {
  feedlane_loader_info info{};
  info.size = sizeof info;
  info.pid = ::getpid();
  info.iterable = (segments_.plan().geometry.flags & shm::geometry_iterable) != 0 ? 1 : 0;
  info.batch_size = segments_.plan().geometry.max_rows;
  info.next_epoch = next_epoch_.load(std::memory_order_relaxed);
  info.epoch = counters_.epochs.load(std::memory_order_relaxed) == 0 ? -1 : info.next_epoch - 1;
  info.batch = -1;
  info.batches = epoch_batches_.load(std::memory_order_relaxed);
  return info;
}

feedlane_stats Consumer::stats() const {
  feedlane_stats s = monitor::read_counters(counters_);
  s.slots = slots_.size();
  return s;
}

}  // namespace feedlane::sharing
