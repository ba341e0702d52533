// SPDX-License-Identifier: Apache-2.0
// Perfetto's form of a trace. The numbers of fields and enumerators are those of perfetto/trace/trace_packet.proto and of what
// it includes: track_event.proto, track_descriptor.proto, clock_snapshot.proto, interned_data.proto.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "protobuf.hpp"
#include "trace_forms.hpp"
#include "words.hpp"

namespace observe {
namespace {

namespace packet {
constexpr std::uint32_t clock_snapshot = 6, timestamp = 8, sequence_id = 10, track_event = 11, interned_data = 12,
                        sequence_flags = 13, defaults = 59, track_descriptor = 60;
constexpr std::uint64_t state_cleared = 1, needs_state = 2;  // sequence_flags
}  // namespace packet
namespace defaults {
constexpr std::uint32_t timestamp_clock_id = 58;
}
namespace clock {
constexpr std::uint32_t clocks = 1, id = 1, timestamp = 2;
constexpr std::uint64_t realtime = 1, monotonic = 3, boottime = 6;
}  // namespace clock
namespace interned {
constexpr std::uint32_t categories = 1, event_names = 2, annotation_names = 3, iid = 1, name = 2;
}
namespace event {
constexpr std::uint32_t category_iids = 3, annotations = 4, type = 9, name_iid = 10, track_uuid = 11, name = 23,
                        counter_value = 30, flow_ids = 47, terminating_flow_ids = 48;
constexpr std::uint64_t begin = 1, end = 2, instant = 3, counter = 4;
}  // namespace event
namespace annotation {
constexpr std::uint32_t name_iid = 1, unsigned_value = 3, signed_value = 4, text = 6;
}
namespace track {
constexpr std::uint32_t uuid = 1, name = 2, process = 3, parent = 5, counter = 8, child_ordering = 11, rank = 12;
constexpr std::uint64_t by_rank = 3;  // child_ordering
constexpr std::uint32_t process_pid = 1, process_name = 6;
constexpr std::uint32_t counter_unit = 3, counter_unit_name = 6;
constexpr std::uint64_t unit_count = 2;
}  // namespace track

// Names that occur often are written once. An interned id is the position here, from 1.
constexpr std::array annotation_names = {"epoch",  "batch",   "attempt", "rows",    "bytes",   "task",
                                         "status", "worker",  "slot",    "version", "name",    "records",
                                         "lost",   "earlier", "ended",   "trace",   "workers", "loader"};
constexpr std::array phase_names = {"queued", "work", "ready", "held"};
constexpr std::uint64_t category_iid = 1;
constexpr std::uint64_t sequence = 1;

template <std::size_t N>
constexpr std::uint64_t iid_of(const std::array<const char*, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; i++)
    if (name == names[i]) return i + 1;
  return 0;
}

struct Packet {
  std::uint64_t time_ns;
  Message bytes;
};

class Writer {
 public:
  explicit Writer(const Recording& recording) : recording_(recording), timeline_(timeline_of(recording)) {
    // Unique among traces that may be merged: FNV-1a over what identifies the loader.
    for (const std::uint64_t part : {static_cast<std::uint64_t>(recording.pid), recording.info.created_ns})
      uuids_ = (uuids_ ^ part) * 0x100000001b3;
    uuids_ &= ~std::uint64_t{0xffffff};
  }

  std::string write() {
    add_head();
    const std::uint64_t process = uuids_ + 1, loader = uuids_ + 2;
    add_process(process);
    add_track(loader, process, "feedlane " + recording_.label(), 0, true);
    std::int32_t rank = 0;
    std::uint64_t uuid = loader;
    for (const Counter& counter : timeline_.counters) add_counter(counter, ++uuid, loader, rank++);
    for (const Track& track : timeline_.tracks) add_track(++uuid, loader, track.name, rank++, false);
    // The last track first: slots, workers, trainer. If a batch begins at the time of its dispatch, the order of the
    // events decides the direction of its flow.
    for (auto track = timeline_.tracks.rbegin(); track != timeline_.tracks.rend(); ++track, uuid--)
      for (const Slice& slice : track->slices) add_slice(slice, uuid);
    add_about(loader);
    return text();
  }

 private:
  void add_head() {
    for (const Clocks& moment : recording_.clocks) {
      Message snapshot;
      for (const auto& [id, ns] :
           {std::pair(clock::monotonic, moment.monotonic_ns), std::pair(clock::boottime, moment.boottime_ns),
            std::pair(clock::realtime, moment.realtime_ns)})
        snapshot.message(clock::clocks, Message().number(clock::id, id).number(clock::timestamp, ns));
      Message p;
      p.number(packet::sequence_id, sequence).message(packet::clock_snapshot, snapshot);
      head_.push_back(std::move(p));
    }
    Message names;
    names.message(interned::categories, Message().number(interned::iid, category_iid).text(interned::name, "feedlane"));
    intern(names, interned::event_names, phase_names);
    intern(names, interned::annotation_names, annotation_names);
    Message p;
    p.number(packet::sequence_id, sequence)
        .number(packet::sequence_flags, packet::state_cleared | packet::needs_state)
        .message(packet::defaults, Message().number(defaults::timestamp_clock_id, clock::monotonic))
        .message(packet::interned_data, names);
    head_.push_back(std::move(p));
  }

  template <std::size_t N>
  static void intern(Message& into, std::uint32_t field, const std::array<const char*, N>& names) {
    for (std::size_t i = 0; i < N; i++)
      into.message(field, Message().number(interned::iid, i + 1).text(interned::name, names[i]));
  }

  void add_process(std::uint64_t uuid) {
    Message process;
    process.number(track::process_pid, static_cast<std::uint64_t>(recording_.pid))
        .text(track::process_name, recording_.program);
    add_descriptor(Message().number(track::uuid, uuid).message(track::process, process));
  }
  void add_track(std::uint64_t uuid, std::uint64_t parent, const std::string& name, std::int32_t rank, bool is_group) {
    Message descriptor;
    descriptor.number(track::uuid, uuid).number(track::parent, parent).text(track::name, name);
    if (is_group) descriptor.number(track::child_ordering, track::by_rank);
    else descriptor.number(track::rank, static_cast<std::uint64_t>(rank));
    add_descriptor(descriptor);
  }
  void add_counter(const Counter& counter, std::uint64_t uuid, std::uint64_t parent, std::int32_t rank) {
    Message unit;
    unit.number(track::counter_unit, track::unit_count).text(track::counter_unit_name, counter.unit);
    add_descriptor(Message()
                       .number(track::uuid, uuid)
                       .number(track::parent, parent)
                       .text(track::name, counter.name)
                       .message(track::counter, unit)
                       .number(track::rank, static_cast<std::uint64_t>(rank)));
    for (const auto& [ns, value] : counter.values)
      add_event(ns, Message()
                        .number(event::type, event::counter)
                        .number(event::track_uuid, uuid)
                        .number(event::counter_value, static_cast<std::uint64_t>(value)));
  }
  void add_descriptor(const Message& descriptor) {
    Message p;
    p.number(packet::sequence_id, sequence).message(packet::track_descriptor, descriptor);
    head_.push_back(std::move(p));
  }

  void add_slice(const Slice& slice, std::uint64_t uuid) {
    Message m;
    m.number(event::type, slice.instant ? event::instant : event::begin).number(event::track_uuid, uuid);
    m.number(event::category_iids, category_iid);
    const std::uint64_t iid = slice.record == nullptr ? iid_of(phase_names, slice.name) : 0;
    if (iid != 0) m.number(event::name_iid, iid);
    else m.text(event::name, slice.name);
    if (slice.record != nullptr) annotate(m, slice);
    add_event(slice.begin_ns, m);
    for (const Slice& phase : slice.phases) add_slice(phase, uuid);
    if (slice.instant || slice.end_ns == 0) return;
    add_event(slice.end_ns, Message().number(event::type, event::end).number(event::track_uuid, uuid));
  }

  static void annotate(Message& m, const Slice& slice) {
    const feedlane_batch_record& r = *slice.record;
    add_signed(m, "epoch", r.epoch);
    add_signed(m, "batch", r.batch);
    add_unsigned(m, "task", r.task);
    add_signed(m, "worker", r.worker);
    add_signed(m, "slot", r.slot);
    if (slice.whole) {
      add_signed(m, "attempt", r.attempt);
      add_unsigned(m, "rows", r.rows);
      add_unsigned(m, "bytes", r.bytes);
      add_text(m, "status", r.status == 0 ? "OK" : error_name(r.status));
    }
    if (slice.flow != Flow::none)
      m.fixed64(slice.flow == Flow::end ? event::terminating_flow_ids : event::flow_ids, r.task);
  }

  // What the file is about, as a moment at its end.
  void add_about(std::uint64_t uuid) {
    const Recording& r = recording_;
    Message m;
    m.number(event::type, event::instant).number(event::track_uuid, uuid).text(event::name, "feedlane trace");
    m.number(event::category_iids, category_iid);
    add_text(m, "version", printable(r.info.version));
    add_text(m, "name", printable(r.info.name));
    add_signed(m, "loader", r.nth);
    add_signed(m, "workers", r.info.workers);
    add_unsigned(m, "trace", r.info.trace);
    add_unsigned(m, "records", r.records.size());
    add_unsigned(m, "lost", r.lost);
    add_unsigned(m, "earlier", r.earlier);
    add_unsigned(m, "ended", r.ended ? 1 : 0);
    add_event(r.clocks.empty() ? timeline_.first_ns : r.clocks.back().monotonic_ns, m);
  }

  static Message named(std::string_view name) {
    return std::move(Message().number(annotation::name_iid, iid_of(annotation_names, name)));
  }
  static void add_unsigned(Message& m, std::string_view name, std::uint64_t value) {
    m.message(event::annotations, named(name).number(annotation::unsigned_value, value));
  }
  static void add_signed(Message& m, std::string_view name, std::int64_t value) {
    m.message(event::annotations, named(name).number(annotation::signed_value, static_cast<std::uint64_t>(value)));
  }
  static void add_text(Message& m, std::string_view name, std::string_view value) {
    m.message(event::annotations, named(name).text(annotation::text, value));
  }

  void add_event(std::uint64_t ns, const Message& body) {
    Message p;
    p.number(packet::timestamp, ns).number(packet::sequence_id, sequence);
    p.number(packet::sequence_flags, packet::needs_state).message(packet::track_event, body);
    events_.push_back({ns, std::move(p)});
  }

  // Events of the same time stay in the order in which they were added, which nests them.
  std::string text() {
    std::stable_sort(events_.begin(), events_.end(),
                     [](const Packet& a, const Packet& b) { return a.time_ns < b.time_ns; });
    Message trace;
    for (const Message& p : head_) trace.message(1, p);
    for (const Packet& p : events_) trace.message(1, p.bytes);
    return trace.bytes();
  }

  const Recording& recording_;
  Timeline timeline_;
  std::uint64_t uuids_ = 0xcbf29ce484222325;
  std::vector<Message> head_;
  std::vector<Packet> events_;
};

}  // namespace

std::string perfetto_trace(const Recording& recording) { return Writer(recording).write(); }

}  // namespace observe
