// SPDX-License-Identifier: Apache-2.0
// Reserves, publishes and drops entries.
#include <cstring>
#include <utility>

#include "arena/member.hpp"

namespace feedlane::arena {
namespace {

shm::ArenaRequest make_request(shm::ArenaRequestKind kind, const Key& key) {
  shm::ArenaRequest request{};
  request.kind = static_cast<std::uint32_t>(kind);
  request.key_bytes = key.bytes;
  std::memcpy(request.key, key.words.data(), sizeof request.key);
  return request;
}

}  // namespace

Status Member::reserve(const feedlane_put& put, os::Deadline deadline, feedlane_batch& out, Error& error) {
  EntryPlan plan;
  Status s = plan_entry(put, plan, error);
  if (s != FEEDLANE_OK) return s;
  if (plan.bytes > plan_.largest_entry())
    return error.refuse(FEEDLANE_E_LIMIT, "put", plan_.largest_entry(), plan.bytes,
                        "the entry has {} bytes: may have {}, a third of the arena", plan.bytes, plan_.largest_entry());
  std::uint32_t number = 0;
  if (!claim(number)) return refuse_held(error);
  Held& held = held_[number];
  std::uint64_t offset = 0;
  try {
    held.described.tensors.resize(plan.tensors.size());
    held.described.names.resize(plan.tensors.size());
    Lock lock = line_.lock();
    s = grants_.take(lock, plan.bytes, deadline, offset, error);
  } catch (...) {
    unclaim(number);
    throw;
  }
  if (s != FEEDLANE_OK) {
    unclaim(number);
    return s;
  }
  std::byte* const entry = payload_.data() + offset;
  write_contents(plan, put.metadata, entry);
  for (std::size_t i = 0; i < plan.tensors.size(); i++) {
    auto& name = held.described.names[i];
    copy_text(name.data(), name.size(), plan.tensors[i].name);
    feedlane_tensor& t = held.described.tensors[i];
    t = plan.tensors[i];
    t.name = name.data();
    t.data = entry + t.offset;
    t.offset += offset;
  }
  held.is_put = true;
  held.key = put.key == nullptr ? Key() : Key(put.key, put.key_bytes);
  held.flags = put.pinned != 0 ? std::uint32_t{shm::arena_pinned} : 0;
  held.offset = offset;
  held.bytes = plan.bytes;
  out = {};
  out.size = sizeof out;
  out.worker = static_cast<std::int32_t>(number_);
  out.tensors = held.described.tensors.data();
  out.tensor_count = held.described.tensors.size();
  if (plan.metadata_bytes != 0) out.metadata = entry + plan.metadata_offset;
  out.metadata_bytes = plan.metadata_bytes;
  out.token = slots_.lend(number);
  return s;
}

Status Member::publish(std::uint64_t token, os::Deadline deadline, Error& error) {
  {
    Lock lock = line_.lock();
    std::uint32_t number = 0;
    if (!slots_.is_held(token, number) || !held_[number].is_put)
      return error.refuse(FEEDLANE_E_STALE, "token", token, 0, "the token is not of a reservation");
    if (!slots_.is_sole(token))
      return error.fail(FEEDLANE_E_STATE,
                        "the reservation has more than one reference: release the others, they could change the entry");
    Held& held = held_[number];
    shm::ArenaRequest request = make_request(shm::ArenaRequestKind::publish, held.key);
    request.flags = held.flags;
    request.offset = held.offset;
    request.bytes = held.bytes;
    if (const Status s = line_.send(lock, request, deadline, error); s != FEEDLANE_OK) return s;
    held.bytes = 0;
    if (held.key.bytes != 0) line_.note_change();
    if (line_.owner() != nullptr) line_.pump();
  }
  (void)leases_of_host_.give_back(token);
  return FEEDLANE_OK;
}

Status Member::drop(const Key& key, os::Deadline deadline, Error& error) {
  Lock lock = line_.lock();
  const Status s = line_.send(lock, make_request(shm::ArenaRequestKind::drop_key, key), deadline, error);
  if (s == FEEDLANE_OK) line_.note_change();
  if (s == FEEDLANE_OK && line_.owner() != nullptr) line_.pump();
  return s;
}

Status Member::offer(os::Fd& theirs, Error& error) {
  const Lock lock = line_.lock();
  Owner* const owner = line_.owner();
  if (owner == nullptr) return error.fail(FEEDLANE_E_STATE, "only the owner of an arena can offer a place in it");
  return owner->offer(line_.is_asleep(), theirs, error);
}

}  // namespace feedlane::arena
