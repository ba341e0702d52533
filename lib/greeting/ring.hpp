// SPDX-License-Identifier: Apache-2.0
// Messages between the two ends of a standalone ring, over their socket:
//
//   sender -> receiver: asking, if the sender has connected by path
//   receiver -> sender: RingWelcome, or Refused
//   sender -> receiver: RingAttached, with a pidfd of its process if the receiver wants one
//   receiver -> sender: accepted, or Refused
//   sender -> receiver: leaving, if it closes the ring
//
// A connection by path holds no lane until it asks for one.
//
// The receiver takes no messages from a sender before it has accepted the sender. If the receiver can't observe the end
// of the sender's process, it refuses the sender and takes the lane back. A sender in the receiver's own process needs
// no observation. It sends no pidfd and can't be refused, and it doesn't wait for the answer, because its own thread
// might have to send that answer.
#pragma once

#include <cstdint>

#include "greeting/messages.hpp"
#include "ring/doorbell.hpp"

namespace feedlane::channel {

constexpr std::uint64_t ring_asking_magic = 0x31474e494b534152;    // "RASKING1"
constexpr std::uint64_t ring_welcome_magic = 0x35454d4f434c4752;   // "RGLCOME5"
constexpr std::uint64_t ring_attached_magic = 0x3444454843544752;  // "RGTCHED4"
constexpr std::uint64_t ring_leaving_magic = 0x31474e5641454c52;   // "RLEAVNG1"

enum RingWelcomeFd : std::uint32_t {
  ring_welcome_control,
  ring_welcome_data,            // of this sender's lane
  ring_welcome_sender_event,    // rings the sender
  ring_welcome_receiver_event,  // rings the receiver; only for this sender
  ring_welcome_receiver,        // pidfd of the receiver
  ring_welcome_fds
};

// Bits of `abilities`.
// This end issues a barrier for both ends before it sleeps; see ring/doorbell.hpp.
constexpr std::uint32_t ring_passes_barriers = 1;
// The kernel gives the receiver a pidfd of the sender. The sender must not send one, because the kernel may refuse it.
constexpr std::uint32_t ring_names_senders = 2;
inline std::uint32_t abilities_of(ring::FencedBy fenced_by) {
  return fenced_by == ring::FencedBy::sleeper ? ring_passes_barriers : 0;
}

struct RingWelcome {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::uint32_t lane;
  std::uint32_t abilities;
  std::uint64_t start;  // position at which the lane's producer starts
};
static_assert(sizeof(RingWelcome) == 32);

struct RingAttached {
  std::uint64_t magic;
  std::uint32_t abilities;
  std::uint32_t reserved;
};
static_assert(sizeof(RingAttached) == 16);

}  // namespace feedlane::channel
