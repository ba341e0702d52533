// SPDX-License-Identifier: Apache-2.0
// What the two ends of a standalone ring say over their socket: a sender that came by path asks for a lane; the receiver
// welcomes; the sender says that it is there, with a pidfd of its process if it was asked for one; the receiver lets it in or
// refuses it; and the sender, if it goes by itself, says that it leaves.
//
// Who has connected to the path and says nothing is given nothing and is nobody.
//
// Until it has been let in nothing of a sender's counts: the receiver may not be able to see its end, and takes the lane back.
// One in the receiver's own process has no end to be seen, gives no pidfd and waits for no answer: it can't be refused, and
// the thread that would answer may be its own.
#pragma once

#include <cstdint>

#include "ring/doorbell.hpp"

namespace feedlane::channel {

constexpr std::uint64_t ring_asking_magic = 0x31474e494b534152;    // "RASKING1"
constexpr std::uint64_t ring_welcome_magic = 0x34454d4f434c4752;   // "RGLCOME4"
constexpr std::uint64_t ring_full_magic = 0x31304c4c55464752;      // "RGFULL01": no lane is free
constexpr std::uint64_t ring_attached_magic = 0x3444454843544752;  // "RGTCHED4"
constexpr std::uint64_t ring_accepted_magic = 0x3150454343414752;  // "RGACCEP1"
constexpr std::uint64_t ring_refused_magic = 0x3153554645524752;   // "RGREFUS1"
constexpr std::uint64_t ring_leaving_magic = 0x31474e5641454c52;   // "RLEAVNG1"

enum RingWelcomeFd : std::uint32_t {
  ring_welcome_control,
  ring_welcome_data,            // of this sender's lane
  ring_welcome_sender_event,    // rings the sender
  ring_welcome_receiver_event,  // rings the receiver; this sender's own
  ring_welcome_receiver,        // pidfd of the receiver
  ring_welcome_fds
};

// What an end says of itself, in `abilities`.
constexpr std::uint32_t ring_passes_barriers = 1;  // before it sleeps, for both; see ring/doorbell.hpp
constexpr std::uint32_t ring_names_senders =
    2;  // the receiver, by the kernel: it wants no pidfd, which would be refused
inline std::uint32_t abilities_of(ring::FencedBy fenced_by) {
  return fenced_by == ring::FencedBy::sleeper ? ring_passes_barriers : 0;
}

struct RingWelcome {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::uint32_t lane;
  std::uint32_t abilities;
  std::uint64_t start;  // position of the lane's producer
};
static_assert(sizeof(RingWelcome) == 32);

struct RingWord {  // asking, leaving; full, accepted
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

}  // namespace feedlane::channel
