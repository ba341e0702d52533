// SPDX-License-Identifier: Apache-2.0
/** @file ring.hpp Standalone rings: fixed-size messages from several senders to one receiver. See ring.h. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** An aggregate for designated initialisers. The defaults are those of feedlane_ring_config. */
struct RingOptions {
  std::uint32_t message_bytes = 0; /**< 1 .. 1 MiB */
  std::uint32_t capacity = 0;      /**< messages in a lane: a power of two */
  std::uint32_t lanes = 1;         /**< senders at the same time */
  std::string path{};              /**< a Unix socket to create, where senders may connect; empty: none */
};

/** Messages that are read or written in place. */
class Messages {
 public:
  /** Of the struct of the C interface. */
  Messages(const feedlane_span& span, std::uint32_t message_bytes) noexcept
      : span_(span), message_bytes_(message_bytes) {}
  /** Number of messages. */
  [[nodiscard]] std::uint32_t size() const noexcept { return span_.count; }
  /** The lane of all of them. */
  [[nodiscard]] std::uint32_t lane() const noexcept { return span_.lane; }
  /** The bytes of message `i`, less than size(). */
  [[nodiscard]] std::span<std::byte> operator[](std::uint32_t i) const noexcept {
    return {static_cast<std::byte*>(span_.data) + i * span_.stride, message_bytes_};
  }

 private:
  feedlane_span span_;
  std::uint32_t message_bytes_;
};

/** The receiving end of a ring. Move-only. Thread safety: one thread at a time; any thread may call close. Functions
 *  that wait return FEEDLANE_END once all senders have left and their messages were received. */
class Receiver {
 public:
  /** Creates the ring. Throws. */
  explicit Receiver(const RingOptions& o) : message_bytes_(o.message_bytes) {
    detail::or_raise([&](Error& error) { create(o, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call fails. */
  Receiver(const RingOptions& o, Error& error) noexcept : message_bytes_(o.message_bytes) { create(o, error); }
  /** Every later call of `other` fails. */
  Receiver(Receiver&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), message_bytes_(other.message_bytes_) {}
  /** Swaps the two objects. */
  Receiver& operator=(Receiver&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(message_bytes_, other.message_bytes_);
    return *this;
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  /** Ends the ring. */
  ~Receiver() { (void)feedlane_rx_destroy(&handle_); }

  /** Reserves a lane and returns a connected socket for its sender, which the caller owns; -1: an error. */
  [[nodiscard]] int offer(Error& error) noexcept {
    std::int32_t fd = -1;
    detail::checked(error, [&](feedlane_error* e) { return feedlane_rx_offer(handle_, &fd, e); });
    return fd;
  }
  /** Throwing form of the above. */
  [[nodiscard]] int offer() {
    return detail::or_raise([&](Error& error) { return offer(error); });
  }
  /** Waits for messages of one lane, which stay in place until release. nullopt: outcome() says why. */
  [[nodiscard]] std::optional<Messages> peek(std::uint32_t want, std::chrono::nanoseconds timeout,
                                             Error& error) noexcept {
    feedlane_span span{};
    outcome_ = detail::checked(
        error, [&](feedlane_error* e) { return feedlane_rx_peek(handle_, want, timeout.count(), &span, e); });
    if (outcome_ != FEEDLANE_OK) return std::nullopt;
    return Messages(span, message_bytes_);
  }
  /** Throwing form of the above, by default without a timeout. */
  [[nodiscard]] std::optional<Messages> peek(std::uint32_t want,
                                             std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return peek(want, timeout, error); });
  }
  /** Releases the messages of the last peek. */
  void release(const Messages& messages, Error& error) noexcept {
    detail::checked(
        error, [&](feedlane_error* e) { return feedlane_rx_release(handle_, messages.lane(), messages.size(), e); });
  }
  /** Throwing form of the above. */
  void release(const Messages& messages) {
    detail::or_raise([&](Error& error) { release(messages, error); });
  }
  /** Waits for messages of one lane, copies as many as fit into `out` and releases them. Returns their number; 0:
   *  outcome() says why. */
  std::uint32_t receive(std::span<std::byte> out, std::chrono::nanoseconds timeout, Error& error) noexcept {
    std::uint32_t got = 0;
    const auto want = static_cast<std::uint32_t>(message_bytes_ == 0 ? 0 : out.size() / message_bytes_);
    outcome_ = detail::checked(error, [&](feedlane_error* e) {
      return feedlane_rx_receive(handle_, out.data(), want, timeout.count(), &got, nullptr, e);
    });
    return got;
  }
  /** Throwing form of the above, by default without a timeout. */
  std::uint32_t receive(std::span<std::byte> out, std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return receive(out, timeout, error); });
  }
  /** The status of the last peek or receive: FEEDLANE_OK, _END, _TIMEOUT, _INTERRUPTED or the code of the error. */
  [[nodiscard]] std::int32_t outcome() const noexcept { return outcome_; }
  /** Prepares to sleep in an event loop. Returns the descriptor to poll for reading, which the ring owns; nullopt: call
   *  peek or receive now. */
  [[nodiscard]] std::optional<int> arm(Error& error) noexcept {
    std::int32_t fd = -1;
    const std::int32_t status = detail::checked(error, [&](feedlane_error*) { return feedlane_rx_arm(handle_, &fd); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return fd;
  }
  /** Throwing form of the above. */
  [[nodiscard]] std::optional<int> arm() {
    return detail::or_raise([&](Error& error) { return arm(error); });
  }
  /** Ends the current wait with E_STATE; later calls fail. Thread safety: any thread. */
  void close() noexcept { (void)feedlane_rx_close(handle_); }

 private:
  void create(const RingOptions& o, Error& error) noexcept {
    auto c = detail::sized<feedlane_ring_config>();
    c.message_bytes = o.message_bytes;
    c.capacity = o.capacity;
    c.lanes = o.lanes;
    c.path = o.path.empty() ? nullptr : o.path.c_str();
    detail::checked(error, [&](feedlane_error* e) { return feedlane_rx_create(&c, &handle_, e); });
  }
  feedlane_rx* handle_ = nullptr;
  std::uint32_t message_bytes_;
  std::int32_t outcome_ = FEEDLANE_OK;
};

/** A sending end of a ring. Move-only. Thread safety: one thread at a time; any thread may call close. */
class Sender {
 public:
  /** Attaches through the descriptor of an offer, which it takes over. Throws. */
  explicit Sender(int fd, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    detail::or_raise([&](Error& error) { attach(fd, nullptr, timeout, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call fails. */
  Sender(int fd, std::chrono::nanoseconds timeout, Error& error) noexcept { attach(fd, nullptr, timeout, error); }
  /** Attaches through the socket at `path`. Throws. */
  explicit Sender(const std::string& path, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    detail::or_raise([&](Error& error) { attach(-1, path.c_str(), timeout, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call fails. */
  Sender(const std::string& path, std::chrono::nanoseconds timeout, Error& error) noexcept {
    attach(-1, path.c_str(), timeout, error);
  }
  /** Every later call of `other` fails. */
  Sender(Sender&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), message_bytes_(other.message_bytes_) {}
  /** Swaps the two objects. */
  Sender& operator=(Sender&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(message_bytes_, other.message_bytes_);
    return *this;
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  /** Leaves the ring. The receiver still gets all committed messages. */
  ~Sender() { (void)feedlane_tx_destroy(&handle_); }

  /** Size of a message. */
  [[nodiscard]] std::uint32_t message_bytes() const noexcept { return message_bytes_; }
  /** Waits for space and returns messages to fill. nullopt: outcome() says why. */
  [[nodiscard]] std::optional<Messages> reserve(std::uint32_t want, std::chrono::nanoseconds timeout,
                                                Error& error) noexcept {
    feedlane_span span{};
    outcome_ = detail::checked(
        error, [&](feedlane_error* e) { return feedlane_tx_reserve(handle_, want, timeout.count(), &span, e); });
    if (outcome_ != FEEDLANE_OK) return std::nullopt;
    return Messages(span, message_bytes_);
  }
  /** Throwing form of the above, by default without a timeout. */
  [[nodiscard]] std::optional<Messages> reserve(std::uint32_t want,
                                                std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return reserve(want, timeout, error); });
  }
  /** Publishes the first `count` reserved messages. */
  void commit(std::uint32_t count, Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_tx_commit(handle_, count, e); });
  }
  /** Throwing form of the above. */
  void commit(std::uint32_t count) {
    detail::or_raise([&](Error& error) { commit(count, error); });
  }
  /** Copies the messages in `messages` into the lane and publishes them. Returns the number of published messages,
   *  which is less than all of them after a timeout, a signal or an error; see feedlane_tx_send. */
  std::uint32_t send(std::span<const std::byte> messages, std::chrono::nanoseconds timeout, Error& error) noexcept {
    std::uint32_t sent = 0;
    const auto count = static_cast<std::uint32_t>(message_bytes_ == 0 ? 0 : messages.size() / message_bytes_);
    outcome_ = detail::checked(error, [&](feedlane_error* e) {
      return feedlane_tx_send(handle_, messages.data(), count, timeout.count(), &sent, e);
    });
    return sent;
  }
  /** Throwing form of the above, by default without a timeout. */
  std::uint32_t send(std::span<const std::byte> messages,
                     std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return send(messages, timeout, error); });
  }
  /** The status of the last reserve or send. */
  [[nodiscard]] std::int32_t outcome() const noexcept { return outcome_; }
  /** Ends the current wait with E_STATE; later calls fail. Thread safety: any thread. */
  void close() noexcept { (void)feedlane_tx_close(handle_); }

 private:
  void attach(int fd, const char* path, std::chrono::nanoseconds timeout, Error& error) noexcept {
    detail::checked(error, [&](feedlane_error* e) {
      return feedlane_tx_attach(fd, path, timeout.count(), &handle_, &message_bytes_, e);
    });
  }
  feedlane_tx* handle_ = nullptr;
  std::uint32_t message_bytes_ = 0;
  std::int32_t outcome_ = FEEDLANE_OK;
};

}  // namespace v1
}  // namespace feedlane

#endif
