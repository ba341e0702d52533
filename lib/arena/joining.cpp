// SPDX-License-Identifier: Apache-2.0
// How a member joins an arena, and maps the segments of others.
#include <fcntl.h>
#include <sys/mman.h>

#include <span>
#include <utility>

#include "arena/member.hpp"
#include "greeting/guest.hpp"
#include "os/memfd.hpp"

namespace feedlane::arena {
namespace {

constexpr greeting::Expected expected{welcome_magic, shm::arena_layout_hash, welcome_fds, "owner of an arena"};

Status check_payload(int fd, std::uint64_t needed, Error& error) {
  constexpr int needed_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (const int seals = os::get_seals(fd); seals < 0 || (seals & needed_seals) != needed_seals)
    return error.refuse(FEEDLANE_E_CORRUPT, "seals", seals, needed_seals,
                        "a payload segment has seals {} instead of {}", seals, needed_seals);
  std::uint64_t bytes = 0;
  if (const Status s = os::file_size(fd, bytes, error); s != FEEDLANE_OK) return s;
  if (bytes == needed) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_CORRUPT, "segment_bytes", bytes, needed,
                      "a payload segment has {} bytes, but its geometry requires {}", bytes, needed);
}

}  // namespace

Member::Member(Owner* owner, monitor::EventQueue& events) : line_(owner), leases_of_host_(*this, events) {}

Status Member::join(os::Fd socket, Owner* owner, monitor::EventQueue& events, os::Deadline deadline,
                    std::unique_ptr<Member>& out, Error& error) {
  std::unique_ptr<Member> m(new Member(owner, events));
  ArenaWelcome welcome{};
  Status s = m->receive_welcome(socket.get(), deadline, welcome, error);
  if (s == FEEDLANE_OK) s = m->line_.open(std::move(socket), welcome.wants_pidfd != 0, deadline, error);
  if (s == FEEDLANE_OK) out = std::move(m);
  return s;
}

Status Member::receive_welcome(int socket, os::Deadline deadline, ArenaWelcome& welcome, Error& error) {
  os::Received received;
  os::Fd peer;  // pidfd: a forked child of the owner may hold the socket's other end after the owner's death
  Status s = os::open_peer(socket, peer, error);
  if (s != FEEDLANE_OK) return s;
  // An offer's socket already has the welcome. A connection by path must ask for it.
  const greeting::Word asking{asking_magic};
  Error none;
  const bool is_offered = os::wait_readable(socket, os::Deadline::at(0), none) == FEEDLANE_OK;
  s = greeting::receive_welcome(socket, peer.get(), expected,
                                is_offered ? std::span<const std::byte>() : greeting::bytes_of(asking), deadline,
                                greeting::bytes_of(welcome), received, error);
  return s == FEEDLANE_OK ? read_welcome(welcome, received, error) : s;
}

Status Member::read_welcome(const ArenaWelcome& welcome, os::Received& received, Error& error) {
  Status s = control_.attach_control(shm::SegmentKind::arena_control, received.fds[welcome_control].get(), error);
  if (s == FEEDLANE_OK)
    s = pair_.attach(shm::SegmentKind::arena_answers, received.fds[welcome_answers].get(),
                     received.fds[welcome_member].get(), shm::Access::read_write, error);
  if (s != FEEDLANE_OK) return s;
  const auto geometry = *control_.control<shm::ArenaGeometry>(sizeof(shm::SegmentHeader));
  if (shm::make_arena_plan(geometry, plan_, error) != FEEDLANE_OK) return error.code = FEEDLANE_E_CORRUPT;
  s = control_.check_control_size(plan_.control_bytes, error);
  if (s == FEEDLANE_OK) s = pair_.check_sizes(plan_.answers_bytes, plan_.member_bytes, error);
  const int payload = received.fds[welcome_payload].get();
  if (s == FEEDLANE_OK) s = check_payload(payload, plan_.payload_bytes, error);
  if (s == FEEDLANE_OK)
    s = payload_.map(payload, plan_.payload_bytes, shm::Access::read_write, shm::Children::none, error);
  if (s == FEEDLANE_OK) s = line_.take(received, pair_, control_, plan_, error);
  if (s != FEEDLANE_OK) return s;
  payload_.advise(MADV_DONTDUMP);
  number_ = welcome.number;
  index_ = IndexView(control_, plan_);
  views_ = std::make_unique<Views>(geometry.segments, plan_.payload_bytes);
  row_ = pair_.data<shm::ArenaMemberRow>(plan_.row);
  lease_words_ = pair_.data<shm::Word64>(plan_.leases);
  use_words_ = pair_.data<shm::Word64>(plan_.uses);
  slots_.reset(geometry.leases, counters_);
  held_.resize(geometry.leases);
  claims_.emplace(geometry.leases);
  return s;
}

Status Member::open_segment(std::uint32_t segment, std::uint32_t generation, Error& error) {
  if (segment >= plan_.geometry.segments || generation == 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "entry.segment", segment, plan_.geometry.segments,
                        "the owner's index names segment {} of generation {}: there are {}, of generations from 1",
                        segment, generation, plan_.geometry.segments);
  if (Owner* const owner = line_.owner(); owner != nullptr) {
    const os::Fd* const own = owner->readable(segment, generation);
    return own == nullptr ? FEEDLANE_AGAIN : views_->map(segment, generation, own->get(), error);
  }
  os::Fd fd;
  Status s = line_.get_segment(segment, generation, fd, error);
  if (s == FEEDLANE_OK) s = check_payload(fd.get(), plan_.payload_bytes, error);
  return s == FEEDLANE_OK ? views_->map(segment, generation, fd.get(), error) : s;
}

}  // namespace feedlane::arena
