// SPDX-License-Identifier: Apache-2.0
// What workers say of themselves in their rows and lanes, held against what the trainer knows. All of it is theirs to
// write, so a worker whose words can't be true is ended at once: what it has made may be lost already, and would be waited
// for until a deadline, or for ever without one.
#include <algorithm>

#include "loader/loader.hpp"
#include "shm/words.hpp"

namespace feedlane::loader {

using worker::Peer;

// Whenever the trainer looks, and with its doorbell armed before it sleeps: a worker rings after it has marked its task
// answered, so that nothing below is missed until the next ring.
void Loader::watch_workers() {
  look();
  std::fill(oldest_.begin(), oldest_.end(), UINT64_MAX);
  for (std::uint32_t slot = 0; slot < ledger_.slots(); slot++)
    if (const Record& r = ledger_.at(slot); r.is_out()) oldest_[r.worker] = std::min(oldest_[r.worker], r.id);
  for (std::uint32_t w = 0; w < peers_.size(); w++) watch_worker(w, last_look_ns_);
}

void Loader::watch_worker(std::uint32_t w, std::int64_t now) {
  Peer& peer = peers_[w];
  const auto get_on = [&] {
    peer.progress_ns = now;
    peer.excused = 0;
  };
  if (peer.state() != worker::State::ready) peer.progress_ns = now;
  if (!peer.has_attached() || !peer.is_live()) return;
  const Peer::Marks marks = peer.marks();  // before its lane: what they call answered must be there
  const std::uint64_t newest = peer.last_sent();
  const auto as_number = [](std::uint64_t word) { return static_cast<std::int64_t>(word); };
  if (marks.begun < peer.seen_task || marks.begun > newest) {
    (void)unheard_.refuse(FEEDLANE_E_CORRUPT, "row.begun_through", as_number(marks.begun), as_number(newest),
                          "worker %u says that it has begun task %llu; its newest is %llu, and it had begun %llu", w,
                          static_cast<unsigned long long>(marks.begun), static_cast<unsigned long long>(newest),
                          static_cast<unsigned long long>(peer.seen_task));
  } else if (marks.in_hand != 0 && (marks.in_hand < marks.begun || marks.in_hand > newest)) {
    (void)unheard_.refuse(FEEDLANE_E_CORRUPT, "row.started_task", as_number(marks.in_hand), as_number(newest),
                          "worker %u says that it has task %llu in hand; it has begun %llu, and its newest is %llu", w,
                          static_cast<unsigned long long>(marks.in_hand), static_cast<unsigned long long>(marks.begun),
                          static_cast<unsigned long long>(newest));
  } else if (lanes_.is_torn(w, peer.unfinished + static_cast<std::uint32_t>(peer.revoked()))) {
    (void)unheard_.fail(FEEDLANE_E_CORRUPT, "the result lane of worker %u holds what no worker leaves there", w);
  } else if (oldest_[w] <= marks.answered() && lanes_.peek_lane(w).data == nullptr) {
    (void)unheard_.refuse(FEEDLANE_E_CORRUPT, "result.id", as_number(marks.answered()), as_number(oldest_[w]),
                          "worker %u says that it has answered its tasks up to %llu, but there is no result of %llu", w,
                          static_cast<unsigned long long>(marks.answered()),
                          static_cast<unsigned long long>(oldest_[w]));
  } else {
    // Who has begun another task has got on: so often as it has tasks, whatever it says.
    if (marks.begun > peer.seen_task && ledger_.find(marks.begun, w) != nullptr) get_on();
    peer.seen_task = marks.begun;
    // So has who is leaving out what its shard delivered before, which takes as long as it took to make: so often as there
    // are such samples, whatever it says.
    const std::uint64_t passed_over = config_.iterable ? peer.passed_over() : 0;
    if (passed_over > peer.seen_passed_over && passed_over <= shards_[w].taken) {
      get_on();
      peer.seen_passed_over = passed_over;
    }
    return;
  }
  // The task it was at, if that can be told.
  Record* blamed = ledger_.find(marks.in_hand, w);
  if (blamed == nullptr) blamed = ledger_.find(marks.begun, w);
  disown(w, blamed != nullptr ? blamed : ledger_.find(oldest_[w], w));
}

// `unheard_` says why. Its tasks stay its own until it is observed dead, then go to others; what is left in its lane is not
// believed.
void Loader::disown(std::uint32_t w, Record* blamed) {
  Peer& peer = peers_[w];
  shm::add(counters_->invalid_results);
  unheard_.worker = static_cast<std::int32_t>(w);
  events_.push(FEEDLANE_EVENT_INVALID, unheard_);
  if (blamed != nullptr) {
    peer.refused_task = blamed->id;
    blamed->error = unheard_;
  }
  lanes_.shut(w);
  if (!peer.is_ending()) peer.cut_off(poller_);
}

}  // namespace feedlane::loader
