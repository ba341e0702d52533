// SPDX-License-Identifier: Apache-2.0
// From records of batches to tracks.
#include "trace_timeline.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "words.hpp"

namespace observe {
namespace {

using Record = feedlane_batch_record;

// The first of these stamps that has happened, or 0.
std::uint64_t first_of(std::initializer_list<std::uint64_t> stamps) {
  for (const std::uint64_t ns : stamps)
    if (ns != 0) return ns;
  return 0;
}

// When the worker was done with it: a worker that died wrote no stamp, and the trainer's next one stands for it.
std::uint64_t work_end(const Record& r) { return first_of({r.committed_ns, r.swept_ns, r.yielded_ns, r.released_ns}); }

Slice slice(const Record& r, std::uint64_t begin, std::uint64_t end, std::string name) {
  Slice s;
  s.begin_ns = begin;
  s.end_ns = end;
  s.name = std::move(name);
  s.record = &r;
  return s;
}

std::string batch_name(const Record& r) { return fmt::format("batch {}", r.batch); }

// The life of a batch in its slot, in phases that follow one another.
Slice slot_slice(const Record& r) {
  Slice whole = slice(r, r.dispatched_ns, r.released_ns, batch_name(r));
  whole.flow = Flow::step;
  const std::pair<const char*, std::uint64_t> steps[] = {
      {"queued", r.dispatched_ns}, {"work", r.begun_ns}, {"ready", r.committed_ns}, {"held", r.yielded_ns}};
  for (const auto& [name, since] : steps) {
    if (since == 0) continue;
    if (!whole.phases.empty()) whole.phases.back().end_ns = since;
    Slice phase;
    phase.begin_ns = since;
    phase.end_ns = r.released_ns;
    phase.name = name;
    whole.phases.push_back(std::move(phase));
  }
  return whole;
}

class Builder {
 public:
  explicit Builder(const std::vector<Record>& records) : records_(sorted(records)) {}

  Timeline build() {
    for (const Record* r : records_) add(*r);
    add_held();
    Timeline timeline;
    for (auto& [key, track] : tracks_) {
      order(track.slices);
      timeline.tracks.push_back(std::move(track));
    }
    if (!records_.empty()) timeline.first_ns = first_;
    timeline.counters.push_back(counter("batches ready", "batches", [](const Record& r) {
      return std::pair(r.worker < 0 ? 0 : r.committed_ns, first_of({r.yielded_ns, r.released_ns}));
    }));
    timeline.counters.push_back(counter("slots in use", "slots", [](const Record& r) {
      return std::pair(r.slot < 0 ? 0 : r.dispatched_ns, r.released_ns);
    }));
    return timeline;
  }

 private:
  // In the order of their dispatch, which is also that of their tasks.
  static std::vector<const Record*> sorted(const std::vector<Record>& records) {
    std::vector<const Record*> all;
    for (const Record& r : records)
      if (r.task != 0) all.push_back(&r);
    std::sort(all.begin(), all.end(), [](const Record* a, const Record* b) { return a->task < b->task; });
    return all;
  }

  Track& track(Group group, std::int32_t index, const std::string& name) {
    const auto [at, is_new] = tracks_.try_emplace({group, index});
    if (is_new) at->second = {group, index, name, {}};
    return at->second;
  }

  void add(const Record& r) {
    for (const std::uint64_t ns : {r.dispatched_ns, r.begun_ns, r.yielded_ns - std::min(r.exposed_ns, r.yielded_ns)})
      if (ns != 0 && (first_ == 0 || ns < first_)) first_ = ns;
    if (r.slot >= 0 && r.dispatched_ns != 0)
      track(Group::slot, r.slot, fmt::format("slot {}", r.slot)).slices.push_back(slot_slice(r));
    if (r.begun_ns != 0) add_work(r);
    if (r.yielded_ns != 0) add_next(r);
  }

  void add_work(const Record& r) {
    Slice s = slice(r, r.begun_ns, work_end(r), batch_name(r));
    s.flow = Flow::step;
    s.whole = true;
    Track& where = r.worker < 0 ? track(Group::made_inline, 0, "made inline")
                                : track(Group::worker, r.worker, fmt::format("worker {}", r.worker));
    where.slices.push_back(std::move(s));
  }

  void add_next(const Record& r) {
    Track& next = track(Group::next, 0, "next");
    if (r.exposed_ns != 0)
      next.slices.push_back(
          slice(r, r.yielded_ns - r.exposed_ns, r.yielded_ns, fmt::format("wait for {}", batch_name(r))));
    if (!has_failed(r)) return;
    Slice failure = slice(r, r.yielded_ns, r.yielded_ns, fmt::format("{}: {}", batch_name(r), error_name(r.status)));
    failure.instant = failure.whole = true;
    failure.flow = Flow::end;
    next.slices.push_back(std::move(failure));
  }

  // Batches that the trainer holds at the same time are on different tracks, as few as there can be.
  void add_held() {
    std::vector<const Record*> held;
    for (const Record* r : records_)
      if (r->yielded_ns != 0 && !has_failed(*r)) held.push_back(r);
    std::stable_sort(held.begin(), held.end(),
                     [](const Record* a, const Record* b) { return a->yielded_ns < b->yielded_ns; });
    std::set<std::int32_t> free;                            // tracks
    std::set<std::pair<std::uint64_t, std::int32_t>> used;  // until when, and which
    for (const Record* r : held) {
      while (!used.empty() && used.begin()->first <= r->yielded_ns) {
        free.insert(used.begin()->second);
        used.erase(used.begin());
      }
      const std::int32_t index = free.empty() ? static_cast<std::int32_t>(used.size()) : *free.begin();
      free.erase(index);
      used.emplace(r->released_ns == 0 ? UINT64_MAX : r->released_ns, index);
      Slice s = slice(*r, r->yielded_ns, r->released_ns, batch_name(*r));
      s.flow = Flow::end;
      track(Group::held, index, "held by the trainer").slices.push_back(std::move(s));
    }
  }

  // By time, and none longer than until the next one begins: what has not ended by then never will.
  static void order(std::vector<Slice>& slices) {
    std::stable_sort(slices.begin(), slices.end(),
                     [](const Slice& a, const Slice& b) { return a.begin_ns < b.begin_ns; });
    for (std::size_t i = 0; i + 1 < slices.size(); i++) {
      const std::uint64_t limit = slices[i + 1].begin_ns;
      limit_end(slices[i], limit);
      for (Slice& phase : slices[i].phases) limit_end(phase, limit);
    }
  }
  static void limit_end(Slice& s, std::uint64_t limit) {
    if (s.end_ns == 0 || s.end_ns > limit) s.end_ns = std::max(limit, s.begin_ns);
  }

  // How many batches are between the two moments that `span` returns; 0: not reached.
  template <typename Span>
  Counter counter(const char* name, const char* unit, Span span) {
    std::map<std::uint64_t, std::int64_t> changes;
    for (const Record* r : records_) {
      const auto [from, to] = span(*r);
      if (from == 0) continue;
      changes[from]++;
      if (to != 0) changes[to]--;
    }
    Counter result{name, unit, {}};
    std::int64_t now = 0;
    for (const auto& [ns, change] : changes) {
      if (change == 0) continue;
      now += change;
      result.values.emplace_back(ns, now);
    }
    return result;
  }

  std::vector<const Record*> records_;
  std::map<std::pair<Group, std::int32_t>, Track> tracks_;
  std::uint64_t first_ = 0;
};

}  // namespace

std::string Recording::label() const { return info.name[0] != '\0' ? printable(info.name) : std::to_string(nth); }

Timeline timeline_of(const Recording& recording) { return Builder(recording.records).build(); }

}  // namespace observe
