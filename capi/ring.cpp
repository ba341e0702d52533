// SPDX-License-Identifier: Apache-2.0
// feedlane/ring.h: standalone rings, their receiving and sending ends.
#include "feedlane/ring.h"
#include "channel/receiver.hpp"
#include "channel/sender.hpp"
#include "handle.hpp"
#include "os/socket.hpp"

using namespace feedlane;
using namespace feedlane::capi;

struct feedlane_rx : MessageHandle {
  static const char* noun() { return "receiver"; }

  channel::Receiver receiver;

  void wake() { receiver.close(); }
};
struct feedlane_tx : MessageHandle {
  static const char* noun() { return "sender"; }

  std::unique_ptr<channel::Sender> sender;

  void wake() { sender->close(); }
};

namespace {

Status check_wait(uint32_t want, int64_t timeout_ns, const feedlane_span* got, Error& error) {
  if (got == nullptr) return refuse_null(error, "got");
  if (want == 0) return error.refuse(FEEDLANE_E_ARGUMENT, "want", 0, 1, "want is 0: must be at least 1");
  return check_timeout(timeout_ns, error);
}

// Whether check_wait accepts these arguments.
bool is_wait(uint32_t want, int64_t timeout_ns, const feedlane_span* got) {
  return got != nullptr && want != 0 && timeout_ns >= 0;
}

// Checks the arguments of calls that copy `count` messages from or to `messages`.
Status check_copy(const void* messages, uint32_t count, const char* count_name, int64_t timeout_ns, Error& error) {
  if (messages == nullptr) return refuse_null(error, "messages");
  if (count == 0) return error.refuse(FEEDLANE_E_ARGUMENT, count_name, 0, 1, "{} is 0: must be at least 1", count_name);
  return check_timeout(timeout_ns, error);
}
bool is_copy(const void* messages, uint32_t count, int64_t timeout_ns) {
  return messages != nullptr && count != 0 && timeout_ns >= 0;
}

// Separate functions with plain arguments, so that the calls below need no stack frame for them.
[[gnu::noinline]] int32_t receive_in_full(feedlane_rx* rx, void* messages, uint32_t want, int64_t timeout_ns,
                                          uint32_t* got, uint32_t* lane, feedlane_error* err) noexcept {
  if (got != nullptr) *got = 0;
  return call_guarded<MessageGuard>(rx, "rx", err, [&](Error& error) {
    Status s = got == nullptr ? refuse_null(error, "got") : check_copy(messages, want, "want", timeout_ns, error);
    uint32_t from = 0;
    if (s == FEEDLANE_OK)
      s = rx->receiver.receive(static_cast<std::byte*>(messages), want, timeout_ns, *got, from, error);
    if (s == FEEDLANE_OK && lane != nullptr) *lane = from;
    return s;
  });
}

[[gnu::noinline]] int32_t send_in_full(feedlane_tx* tx, const void* messages, uint32_t count, int64_t timeout_ns,
                                       uint32_t* sent, feedlane_error* err) noexcept {
  uint32_t done = 0;
  const int32_t status = call_guarded<MessageGuard>(tx, "tx", err, [&](Error& error) {
    const Status s = check_copy(messages, count, "count", timeout_ns, error);
    if (s != FEEDLANE_OK) return s;
    return tx->sender->send(static_cast<const std::byte*>(messages), count, timeout_ns, done, error);
  });
  if (sent != nullptr) *sent = done;
  return status;
}

}  // namespace

// Calls for messages start on a cache line. 16 bytes beyond one, the same instructions sent 25 million messages a
// second one by one instead of 33.
#define MESSAGE_CALL [[gnu::aligned(64)]]

extern "C" {

int32_t feedlane_rx_create(const feedlane_ring_config* config, feedlane_rx** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    feedlane_ring_config c;
    Status s = read_versioned(config, c, "config", error);
    if (s != FEEDLANE_OK) return s;
    if (c.reserved != 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.reserved", c.reserved, 0, "config.reserved must be zero");
    if (c.path != nullptr) s = check_path(c.path, "config.path", error);
    if (s != FEEDLANE_OK) return s;
    shm::RingPlan plan;
    s = shm::make_ring_plan(c.message_bytes, c.capacity, c.lanes == 0 ? 1 : c.lanes, plan, error);
    auto handle = std::make_unique<feedlane_rx>();
    if (s == FEEDLANE_OK) s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = handle->receiver.create(plan, c.path == nullptr ? "" : c.path, os::SystemFiles{}, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

int32_t feedlane_rx_offer(feedlane_rx* rx, int32_t* fd, feedlane_error* err) {
  return call_one(rx, "rx", err, [&](Error& error) {
    if (fd == nullptr) return refuse_null(error, "fd");
    os::Fd theirs;
    const Status s = rx->receiver.offer(theirs, error);
    if (s == FEEDLANE_OK) *fd = theirs.release();
    return s;
  });
}

MESSAGE_CALL int32_t feedlane_rx_peek(feedlane_rx* rx, uint32_t want, int64_t timeout_ns, feedlane_span* got,
                                      feedlane_error* err) {
  return call_message(
      rx, "rx", err, [=] { return is_wait(want, timeout_ns, got) && rx->receiver.try_peek(want, *got); },
      [=](Error& error) {
        const Status s = check_wait(want, timeout_ns, got, error);
        return s == FEEDLANE_OK ? rx->receiver.peek(want, timeout_ns, *got, error) : s;
      });
}

MESSAGE_CALL int32_t feedlane_rx_release(feedlane_rx* rx, uint32_t lane, uint32_t count, feedlane_error* err) {
  return call_message(
      rx, "rx", err, [=] { return rx->receiver.try_release(lane, count); },
      [=](Error& error) { return rx->receiver.release(lane, count, error); });
}

MESSAGE_CALL int32_t feedlane_rx_receive(feedlane_rx* rx, void* messages, uint32_t want, int64_t timeout_ns,
                                         uint32_t* got, uint32_t* lane, feedlane_error* err) {
  return try_message(
      rx,
      [=] {
        uint32_t unused;
        return got != nullptr && is_copy(messages, want, timeout_ns) &&
               rx->receiver.try_receive(static_cast<std::byte*>(messages), want, *got,
                                        lane == nullptr ? unused : *lane);
      },
      [=] { return receive_in_full(rx, messages, want, timeout_ns, got, lane, err); });
}

int32_t feedlane_rx_arm(feedlane_rx* rx, int32_t* fd) {
  return call_one(rx, "rx", nullptr, [&](Error& error) {
    if (fd != nullptr) *fd = rx->receiver.wait_fd();
    return rx->receiver.arm(error);
  });
}

int32_t feedlane_rx_destroy(feedlane_rx** rx) {
  return destroy(rx, [](feedlane_rx*) { return Status{FEEDLANE_OK}; });
}

int32_t feedlane_rx_close(feedlane_rx* rx) { return capi::close(rx); }

int32_t feedlane_tx_attach(int32_t fd, const char* path, int64_t timeout_ns, feedlane_tx** out, uint32_t* message_bytes,
                           feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    const os::Deadline deadline = os::Deadline::after(timeout_ns);
    os::Fd socket;
    Status s = take_descriptor_or(path, "path", fd, socket, error);
    if (s != FEEDLANE_OK) return s;
    if (out == nullptr) return refuse_null(error, "out");
    auto handle = std::make_unique<feedlane_tx>();
    s = check_timeout(timeout_ns, error);
    if (s == FEEDLANE_OK && path != nullptr) s = check_path(path, "path", error);
    if (s == FEEDLANE_OK && path != nullptr) s = os::connect_to(path, deadline, socket, error);
    if (s == FEEDLANE_OK) s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = channel::Sender::attach(std::move(socket), deadline, handle->sender, error);
    if (s != FEEDLANE_OK) return s;
    if (message_bytes != nullptr) *message_bytes = handle->sender->message_bytes();
    *out = handle.release();
    return s;
  });
}

MESSAGE_CALL int32_t feedlane_tx_reserve(feedlane_tx* tx, uint32_t want, int64_t timeout_ns, feedlane_span* got,
                                         feedlane_error* err) {
  return call_message(
      tx, "tx", err, [=] { return is_wait(want, timeout_ns, got) && tx->sender->try_reserve(want, *got); },
      [=](Error& error) {
        const Status s = check_wait(want, timeout_ns, got, error);
        return s == FEEDLANE_OK ? tx->sender->reserve(want, timeout_ns, *got, error) : s;
      });
}

MESSAGE_CALL int32_t feedlane_tx_commit(feedlane_tx* tx, uint32_t count, feedlane_error* err) {
  return call_message(
      tx, "tx", err, [=] { return tx->sender->try_commit(count); },
      [=](Error& error) { return tx->sender->commit(count, error); });
}

MESSAGE_CALL int32_t feedlane_tx_send(feedlane_tx* tx, const void* messages, uint32_t count, int64_t timeout_ns,
                                      uint32_t* sent, feedlane_error* err) {
  return try_message(
      tx,
      [=] {
        const auto* const from = static_cast<const std::byte*>(messages);
        if (!is_copy(messages, count, timeout_ns) || !tx->sender->try_send(from, count)) return false;
        if (sent != nullptr) *sent = count;
        return true;
      },
      [=] { return send_in_full(tx, messages, count, timeout_ns, sent, err); });
}

int32_t feedlane_tx_destroy(feedlane_tx** tx) {
  return destroy(tx, [](feedlane_tx*) { return Status{FEEDLANE_OK}; });
}

int32_t feedlane_tx_close(feedlane_tx* tx) { return capi::close(tx); }

}  // extern "C"
