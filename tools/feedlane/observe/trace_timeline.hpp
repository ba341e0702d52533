// SPDX-License-Identifier: Apache-2.0
// What a trace consists of, whatever form it is written in: tracks with slices, and counters, made from records of batches.
#pragma once

#include <feedlane/monitor.hpp>
#include <string>
#include <vector>

namespace observe {

// The same moment on three clocks, ns.
struct Clocks {
  std::uint64_t monotonic_ns = 0;
  std::uint64_t boottime_ns = 0;
  std::uint64_t realtime_ns = 0;
};

// What was read of a loader.
struct Recording {
  std::int64_t pid = 0;
  int nth = 0;
  std::string program;
  feedlane_loader_info info{};
  std::vector<feedlane_batch_record> records;  // at most one for each task
  std::uint64_t earlier = 0;                   // records that the loader had overwritten before the first look
  std::uint64_t lost = 0;      // records that it overwrote later, between two looks, or that were not kept
  bool ended = false;          // the loader, or its process
  std::vector<Clocks> clocks;  // when reading began and when it ended

  // "name", or "0" for loader 0 without a name.
  [[nodiscard]] std::string label() const;
};

enum class Flow { none, step, end };

// Something that took time on a track. Slices of a track do not overlap; `phases` lie within theirs, one after another.
struct Slice {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;  // 0: it has not ended
  std::string name;
  const feedlane_batch_record* record = nullptr;  // null in phases
  Flow flow = Flow::none;
  bool instant = false;  // a moment, without an end
  bool whole = false;    // all of the record is worth showing, not only which batch it is
  std::vector<Slice> phases;
};

enum class Group { next, made_inline, held, worker, slot };

struct Track {
  Group group;
  std::int32_t index;  // of the worker or slot; of `held`: batches that are held at the same time have different ones
  std::string name;
  std::vector<Slice> slices;  // by time
};

struct Counter {
  std::string name;
  std::string unit;
  std::vector<std::pair<std::uint64_t, std::int64_t>> values;  // time in ns, value from then on
};

struct Timeline {
  std::vector<Track> tracks;  // by group, then index
  std::vector<Counter> counters;
  std::uint64_t first_ns = 0;  // the earliest stamp; 0: there are no records
};

// Refers to the recording's records.
Timeline timeline_of(const Recording& recording);

// Whether the batch failed: `next` returned an error for it.
inline bool has_failed(const feedlane_batch_record& r) { return r.status != 0; }

}  // namespace observe
