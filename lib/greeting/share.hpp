// SPDX-License-Identifier: Apache-2.0
// Messages between a feeder and a consumer over their socket. Each is one datagram:
//
//   consumer -> feeder: Asking, if the consumer has connected to a path
//   feeder -> consumer: Welcome, with the descriptors of WelcomeFd; or Refused
//   consumer -> feeder: Attached, with a pidfd of its process if the feeder wants one
//   feeder -> consumer: accepted, or Refused
//   consumer -> feeder: Request for a state; feeder -> consumer: Reply, with a memfd that holds it
//   consumer -> feeder: leaving, if it leaves by itself: from now on it takes no more messages
//   consumer -> feeder: left, once it has returned all batches and unmapped everything
//
// Before a consumer is accepted, nothing that it does counts. A consumer in the feeder's own process needs no
// observation: it sends no pidfd, and waits for no answer, because its own thread might have to send it.
#pragma once

#include <cstdint>

#include "greeting/messages.hpp"

namespace feedlane::sharing {

constexpr std::uint64_t asking_magic = 0x31474e494b534153;    // "SASKING1"
constexpr std::uint64_t welcome_magic = 0x324d4f434c455753;   // "SWELCOM2"
constexpr std::uint64_t attached_magic = 0x3148434154544153;  // "SATTACH1"
constexpr std::uint64_t request_magic = 0x3154534555514552;   // "REQUEST1"
constexpr std::uint64_t reply_magic = 0x315f5f594c504552;     // "REPLY__1"
constexpr std::uint64_t leaving_magic = 0x31474e4956414553;   // "SEAVING1"
constexpr std::uint64_t left_magic = 0x315f5f5f5446454c;      // "LEFT___1"

enum WelcomeFd : std::uint32_t {
  welcome_control,  // the loader's
  welcome_data,     // the loader's, opened for reading
  welcome_catalogue,
  welcome_delivery,
  welcome_returns,
  welcome_consumer_event,  // rings the consumer
  welcome_feeder_event,    // rings the feeder; for this consumer alone
  welcome_feeder,          // pidfd of the feeder
  welcome_fds
};

constexpr std::int64_t last_epoch = INT64_MAX - 1;

struct Asking {
  std::uint64_t magic;
  std::int32_t id;
  std::int32_t lag;
  std::int64_t evict_after_ns;
};
static_assert(sizeof(Asking) == 24);

struct Welcome {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::int32_t id;
  std::int32_t share;
  std::uint32_t wants_pidfd;  // 0: the kernel identifies the consumer, and descriptors are refused
  std::int32_t lag;
  std::int64_t epoch;          // the first that the consumer may begin
  std::int64_t epoch_batches;  // batches of this consumer in a full epoch, -1: unknown
};
static_assert(sizeof(Welcome) == 48);

struct Request {
  std::uint64_t magic;
  std::uint64_t round;  // round of the newest message that the state covers
};
static_assert(sizeof(Request) == 16);

struct Reply {
  std::uint64_t magic;
  std::uint64_t round;
  std::uint64_t bytes;  // size of the state in the memfd; 0: there is no state, see `why`
  greeting::Refused why;
};
static_assert(sizeof(Reply) == 504);

}  // namespace feedlane::sharing
