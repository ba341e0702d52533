// SPDX-License-Identifier: Apache-2.0
// The owner's ends of a member's rings.
#include "arena/peer.hpp"

#include <cstring>

#include "os/event.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::arena {

Status Peer::create(const os::SystemFiles& files, Error& error) {
  const shm::Parts all{plan_.member_bytes};
  Status s = pair_.create(shm::SegmentKind::arena_answers, plan_.answers_bytes, plan_.member_bytes, all, files, error);
  os::FileId file;
  if (s == FEEDLANE_OK) s = os::file_id(pair_.data_fd(), file, error);
  if (s == FEEDLANE_OK) s = os::create_event(member_event, error);
  if (s == FEEDLANE_OK) s = os::create_event(owner_event, error);
  if (s != FEEDLANE_OK) return s;
  file_ = file.inode;
  *pair_.control<shm::ArenaGeometry>(sizeof(shm::SegmentHeader)) = plan_.geometry;
  answers_words_ = pair_.control<shm::ArenaAnswers>(plan_.answers);
  words_.row = pair_.data<shm::ArenaMemberRow>(plan_.row);
  words_.leases = pair_.data<shm::Word64>(plan_.leases);
  words_.uses = pair_.data<shm::Word64>(plan_.uses);
  constexpr std::uint32_t capacity = shm::arena_ring_capacity;
  requests_ = ring::Consumer({pair_.data<std::byte>(plan_.request_cells), shm::arena_request_cell, capacity}, 0,
                             &answers_words_->request_position);
  answers_ = ring::Producer({pair_.control<std::byte>(plan_.answer_cells), shm::arena_answer_cell, capacity}, 0,
                            &words_.row->answer_position);
  deliveries_ = ring::Producer({pair_.control<std::byte>(plan_.delivery_cells), shm::arena_delivery_cell, capacity}, 0,
                               &words_.row->delivery_position);
  bell_ = ring::Doorbell(&words_.row->sleeping, member_event.get());
  queue_.resize(plan_.geometry.entries);
  grants.reserve(64);
  return s;
}

shm::ArenaRequest Peer::request() const { return shm::read_once<shm::ArenaRequest>(requests_.message(0)); }

bool Peer::answer(const shm::ArenaAnswer& answer) {
  if (answers_.reserve(1) == 0 || answers_.broken()) return false;
  std::memcpy(answers_.message(0), &answer, sizeof answer);
  answers_.commit(1);
  ring();
  return true;
}

void Peer::tell_cut_off() {
  // Relaxed: the member reads it when it finds no answer, and the doorbell follows.
  answers_words_->is_cut_off.store(1, std::memory_order_relaxed);
  ring();
}

void Peer::deliver(std::uint32_t entry, std::uint64_t word) {
  queue_[(taken_ + sent_ + unsent_) % queue_.size()] = {entry, word};
  unsent_++;
  send_more();
}

void Peer::send_more() {
  bool is_sent = false;
  for (; unsent_ != 0 && deliveries_.reserve(1) != 0 && !deliveries_.broken(); unsent_--, sent_++) {
    const shm::ArenaDelivery message{queue_[(taken_ + sent_) % queue_.size()].word};
    std::memcpy(deliveries_.message(0), &message, sizeof message);
    deliveries_.commit(1);
    is_sent = true;
  }
  if (is_sent) ring();
}

}  // namespace feedlane::arena
