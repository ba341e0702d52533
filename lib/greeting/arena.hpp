// SPDX-License-Identifier: Apache-2.0
// Messages between the owner of an arena and a member over their socket. Each is one datagram:
//
//   member -> owner: asking, if the member has connected to a path
//   owner -> member: ArenaWelcome, with the descriptors of ArenaWelcomeFd; or Refused
//   member -> owner: attached, with a pidfd of its process if the owner wants one
//   owner -> member: accepted, or Refused
//   member -> owner: SegmentRequest; owner -> member: SegmentReply, with the payload segment opened for reading
//   member -> owner: leaving: from now on it takes no more entries
//   member -> owner: left, once it has released all batches and unmapped everything
//
// A member in the owner's own process needs no observation: it sends no pidfd, and waits for no answer, because its own
// thread might have to send it.
#pragma once

#include <cstdint>

#include "greeting/messages.hpp"

namespace feedlane::arena {

constexpr std::uint64_t asking_magic = 0x31474e494b534141;           // "AASKING1"
constexpr std::uint64_t welcome_magic = 0x314d4f434c455741;          // "AWELCOM1"
constexpr std::uint64_t attached_magic = 0x3148434154544141;         // "AATTACH1"
constexpr std::uint64_t segment_request_magic = 0x3147455345525141;  // "AQRESEG1"
constexpr std::uint64_t segment_reply_magic = 0x3147455345505241;    // "ARPESEG1"
constexpr std::uint64_t leaving_magic = 0x31474e4956414541;          // "AEAVING1"
constexpr std::uint64_t left_magic = 0x315f5f5446454c41;             // "ALEFT__1"

enum ArenaWelcomeFd : std::uint32_t {
  welcome_control,
  welcome_answers,
  welcome_member,
  welcome_payload,       // this member's own, for writing
  welcome_member_event,  // rings the member
  welcome_owner_event,   // rings the owner; only for this member
  welcome_owner,         // pidfd of the owner
  welcome_fds
};

struct ArenaWelcome {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::uint32_t number;  // of the member, unique among all members of this arena
  std::uint32_t wants_pidfd;
  std::uint32_t segment;  // its payload segment
  std::uint32_t segment_generation;
};
static_assert(sizeof(ArenaWelcome) == 32);

struct SegmentRequest {
  std::uint64_t magic;
  std::uint32_t segment;
  std::uint32_t generation;
};
static_assert(sizeof(SegmentRequest) == 16);

struct SegmentReply {
  std::uint64_t magic;
  std::uint32_t segment;
  std::uint32_t generation;
  std::int32_t status;  // 0; or E_STALE: the segment is gone, or an error of the system
  std::uint32_t reserved;
};
static_assert(sizeof(SegmentReply) == 24);

}  // namespace feedlane::arena
