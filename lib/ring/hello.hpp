// SPDX-License-Identifier: Apache-2.0
// What the two ends of a standalone ring say over their socket: the receiver welcomes, the sender says that it is there and
// gives a pidfd of its process, the receiver lets it in or refuses it; and the sender, if it goes by itself, that it leaves.
//
// Until it has been let in a sender writes nothing: the receiver may not be able to see its end, and takes the lane back.
// One in the receiver's own process has no end to be seen, gives no pidfd and waits for no answer: it can't be refused, and
// the thread that would answer may be its own.
#pragma once

#include <cstdint>

#include "ring/doorbell.hpp"

namespace feedlane::ring {

constexpr std::uint64_t ring_welcome_magic = 0x33454d4f434c4752;   // "RGLCOME3"
constexpr std::uint64_t ring_full_magic = 0x31304c4c55464752;      // "RGFULL01": no lane is free
constexpr std::uint64_t ring_attached_magic = 0x3344454843544752;  // "RGTCHED3"
constexpr std::uint64_t ring_accepted_magic = 0x3150454343414752;  // "RGACCEP1"
constexpr std::uint64_t ring_refused_magic = 0x3153554645524752;   // "RGREFUS1"
constexpr std::uint64_t ring_leaving_magic = 0x31474e5641454c52;   // "RLEAVNG1"

enum RingWelcomeFd : std::uint32_t {
  ring_welcome_control,
  ring_welcome_data,
  ring_welcome_sender_event,    // rings the sender
  ring_welcome_receiver_event,  // rings the receiver; this sender's own
  ring_welcome_receiver,        // pidfd of the receiver
  ring_welcome_fds
};

// What an end says of itself, in `abilities`.
constexpr std::uint32_t ring_passes_barriers = 1;  // before it sleeps, for both; see ring/doorbell.hpp
inline std::uint32_t abilities_of(const Sleeper& sleeper) {
  return sleeper.fenced_by() == FencedBy::sleeper ? ring_passes_barriers : 0;
}

struct RingWelcome {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::uint32_t lane;
  std::uint32_t abilities;
  std::uint64_t start;  // position of the lane's producer
};
static_assert(sizeof(RingWelcome) == 32);

struct RingWord {  // leaving, full, accepted
  std::uint64_t magic;
};
static_assert(sizeof(RingWord) == 8);

struct RingAttached {
  std::uint64_t magic;
  std::uint32_t abilities;
  std::uint32_t reserved;
};
static_assert(sizeof(RingAttached) == 16);

struct RingRefused {
  std::uint64_t magic;
  std::int32_t os_errno;  // what failed for the receiver; 0: the sender's process is out of its sight
  std::uint32_t reserved;
};
static_assert(sizeof(RingRefused) == 16);

}  // namespace feedlane::ring
