// SPDX-License-Identifier: Apache-2.0
// Chrome's form of a trace, and how it is added to a file of torch's profiler.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "trace_forms.hpp"
#include "words.hpp"

namespace observe {
namespace {

// Numbers of processes in JSON are made up, beyond those that Linux gives (at most 2^22), and so are those of threads: torch's
// profiler has rows of its own for the same process, and GPUs with small numbers.
constexpr std::int64_t first_pid = (std::int64_t{1} << 22) + 1;
constexpr std::int64_t pid_distance = 1 << 16;

// torch's profiler counts time from the last multiple of this, in the time since 1970: so do we, to be compared with ease.
constexpr std::uint64_t base_step_ns = 7'889'238'000'000'000;

std::string quoted(const std::string& text) { return json_text(Json(text)); }

class Writer {
 public:
  Writer(const Recording& recording, std::uint64_t base_ns, std::int64_t pid)
      : recording_(recording), timeline_(timeline_of(recording)), pid_(pid) {
    if (!recording.clocks.empty()) {
      const Clocks& now = recording.clocks.back();
      read_ns_ = now.monotonic_ns;
      shift_ns_ = static_cast<std::int64_t>(now.realtime_ns - now.monotonic_ns - base_ns);
    }
  }

  // The events, separated by commas.
  std::string events() {
    begin_event("M", "process_name", 0, timeline_.first_ns);
    add(R"(,"args":{{"name":{}}}}})",
        quoted(fmt::format("Feedlane loader {} of {} ({})", recording_.label(), recording_.program, recording_.pid)));
    begin_event("M", "process_sort_index", 0, timeline_.first_ns);
    add(R"(,"args":{{"sort_index":{}}}}})", recording_.pid);
    std::int64_t tid = pid_;
    for (const Track& track : timeline_.tracks) {
      tid++;
      const char* separator = track.group == Group::held ? " " : "";
      const std::string number = track.group == Group::held ? std::to_string(track.index + 1) : "";
      begin_event("M", "thread_name", tid, timeline_.first_ns);
      add(R"(,"args":{{"name":{}}}}})", quoted(track.name + separator + number));
      begin_event("M", "thread_sort_index", tid, timeline_.first_ns);
      add(R"(,"args":{{"sort_index":{}}}}})", tid - pid_);
    }
    // The last track first, as in a Perfetto trace.
    for (auto track = timeline_.tracks.rbegin(); track != timeline_.tracks.rend(); ++track, tid--)
      for (const Slice& slice : track->slices) add_slice(slice, tid);
    for (const Counter& counter : timeline_.counters)
      for (const auto& [ns, value] : counter.values) {
        begin_event("C", counter.name, 0, ns);
        add(R"(,"args":{{"{}":{}}}}})", counter.unit, value);
      }
    return fmt::to_string(text_);
  }

  // What the file says of the recording.
  [[nodiscard]] Json about() const {
    const Recording& r = recording_;
    return {{"version", r.info.version},
            {"pid", r.pid},
            {"loader", r.nth},
            {"name", r.info.name},
            {"program", r.program},
            {"workers", r.info.workers},
            {"trace", r.info.trace},
            {"records", r.records.size()},
            {"lost", r.lost},
            {"earlier", r.earlier},
            {"ended", r.ended},
            {"events_pid", pid_}};
  }

 private:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  void begin_event(const char* phase, const std::string& name, std::int64_t tid, std::uint64_t ns) {
    if (text_.size() != 0) add(",\n");
    add(R"({{"ph":"{}","cat":"feedlane","name":{},"pid":{},"tid":{},"ts":{})", phase, quoted(name), pid_, tid,
        microseconds(shifted(ns)));
  }

  // What another process says is a time may be any number: one beyond the range is the end of it.
  [[nodiscard]] std::int64_t shifted(std::uint64_t ns) const {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const auto time = static_cast<std::int64_t>(std::min(ns, static_cast<std::uint64_t>(most)));
    std::int64_t sum = 0;
    return __builtin_add_overflow(time, shift_ns_, &sum) ? most : sum;
  }

  static std::string microseconds(std::int64_t ns) {
    const char* sign = ns < 0 ? "-" : "";
    const std::uint64_t size = ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
    return fmt::format("{}{}.{:03}", sign, size / 1000, size % 1000);
  }

  // What has not ended lasts until the loader was read. (A "B" without "E" would say so too, but viewers take such events
  // beside complete ones for misplaced.)
  void add_slice(const Slice& slice, std::int64_t tid) {
    begin_event(slice.instant ? "i" : "X", slice.name, tid, slice.begin_ns);
    const std::uint64_t end = slice.end_ns != 0 ? slice.end_ns : std::max(read_ns_, slice.begin_ns);
    if (slice.instant) add(R"(,"s":"t")");
    else add(R"(,"dur":{})", microseconds(static_cast<std::int64_t>(end - slice.begin_ns)));
    add_arguments(slice);
    add("}}");
    if (slice.flow != Flow::none) add_flow(slice, tid);
    for (const Slice& phase : slice.phases) add_slice(phase, tid);
  }

  void add_arguments(const Slice& slice) {
    const bool is_open = !slice.instant && slice.end_ns == 0;
    if (slice.record == nullptr) {
      if (is_open) add(R"(,"args":{{"unfinished":true}})");
      return;
    }
    const feedlane_batch_record& r = *slice.record;
    add(R"(,"args":{{"epoch":{},"batch":{},"task":{},"worker":{},"slot":{})", r.epoch, r.batch, r.task, r.worker,
        r.slot);
    if (is_open) add(R"(,"unfinished":true)");
    if (slice.whole)
      add(R"(,"attempt":{},"rows":{},"bytes":{},"status":"{}")", r.attempt, r.rows, r.bytes,
          r.status == 0 ? "OK" : error_name(r.status));
    add("}}");
  }

  // From the slot over the worker to the trainer. Flows are told apart by category, name and id.
  void add_flow(const Slice& slice, std::int64_t tid) {
    const feedlane_batch_record& r = *slice.record;
    const bool is_first = slice.begin_ns == r.dispatched_ns && !slice.whole && slice.flow == Flow::step;
    begin_event(slice.flow == Flow::end ? "f"
                : is_first              ? "s"
                                        : "t",
                fmt::format("batch of {}", pid_), tid, slice.begin_ns);
    add(R"(,"id":{}{}}})", r.task, slice.flow == Flow::end ? R"(,"bp":"e")" : "");
  }

  const Recording& recording_;
  Timeline timeline_;
  std::int64_t pid_;
  std::uint64_t read_ns_ = 0;  // when the loader was read
  std::int64_t shift_ns_ = 0;  // from CLOCK_MONOTONIC to the time of the file
  fmt::memory_buffer text_;
};

// ---- another file ----

// Reads a text and tells how far it has come.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    ++at_;
    if (position_ != nullptr) *position_ = at_;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** position_;
};

// What has to be known of a file to add to it: where its events end, the time from which it counts, and the numbers of processes
// that are ours. The values themselves are not kept.
class Finder : public nlohmann::json_sax<Json> {
 public:
  Finder(const std::string& text, std::string& error) : text_(text), error_(error) {}

  bool find() {
    if (text_.compare(0, 2, "\x1f\x8b") == 0) return fail("it is compressed: gunzip it first");
    position_ = text_.data();
    const char* end = text_.data() + text_.size();
    if (!Json::sax_parse(Cursor(position_, &position_), Cursor(end, nullptr), this)) return false;
    if (events_end_ == 0) return fail("it has no array \"traceEvents\"");
    return true;
  }

  std::size_t events_end_ = 0;  // where the bracket is that closes the array of events
  bool has_events_ = false;
  std::uint64_t base_ns_ = 0;  // a file without it counts from 1970
  std::set<std::int64_t> pids_;
  bool has_feedlane_ = false;  // the member that chrome_trace writes

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(std::int64_t n) override { return number(n); }
  bool number_unsigned(std::uint64_t n) override {
    if (depth_ == 1 && key_ == "baseTimeNanoseconds") base_ns_ = n;
    return number(static_cast<std::int64_t>(n));
  }
  bool number_float(double, const std::string&) override { return value(); }
  bool string(std::string&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return fail("it is a JSON array, whose clock is unknown; torch 2 and later write an object");
    if (depth_ == 1) in_events_ = key_ == "traceEvents";
    return begin();
  }
  bool end_array() override {
    if (depth_ == 2 && in_events_) {
      events_end_ = static_cast<std::size_t>(position_ - text_.data()) - 1;
      if (text_[events_end_] != ']') return fail("the end of its events was not found");
      in_events_ = false;
    }
    return end();
  }
  bool key(std::string& name) override {
    key_ = name;
    has_feedlane_ = has_feedlane_ || (depth_ == 1 && name == "feedlane");
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& problem) override {
    return fail(fmt::format("it is not JSON: {}", problem.what()));
  }

 private:
  bool fail(const std::string& why) {
    error_ = why;
    return false;
  }
  bool number(std::int64_t n) {
    if (in_events_ && depth_ == 3 && key_ == "pid" && n >= first_pid) pids_.insert(n);
    return value();
  }
  bool value() {
    has_events_ = has_events_ || (in_events_ && depth_ == 2);
    return true;
  }
  bool begin() {
    (void)value();
    depth_++;
    return true;
  }
  bool end() {
    depth_--;
    return true;
  }

  const std::string& text_;
  std::string& error_;
  const char* position_ = nullptr;
  int depth_ = 0;
  bool in_events_ = false;
  std::string key_;
};

}  // namespace

std::string chrome_trace(const Recording& recording) {
  const std::uint64_t now_ns = recording.clocks.empty() ? 0 : recording.clocks.back().realtime_ns;
  const std::uint64_t base_ns = now_ns / base_step_ns * base_step_ns;
  Writer writer(recording, base_ns, first_pid);
  const std::string events = writer.events();
  return fmt::format(
      "{{\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": {},\n\"feedlane\": {},\n\"traceEvents\": "
      "[\n{}\n]}}\n",
      base_ns, json_text(writer.about()), events);
}

std::string merged_trace(const Recording& recording, const std::string& file, std::string& error) {
  Finder found(file, error);
  if (!found.find()) return "";
  std::int64_t pid = first_pid;
  while (found.pids_.count(pid) != 0) pid += pid_distance;
  Writer writer(recording, found.base_ns_, pid);
  std::string text = file.substr(0, found.events_end_);
  text += found.has_events_ ? ",\n" : "\n";
  text += writer.events();
  text += "\n]";
  const std::string member = found.has_feedlane_ ? fmt::format("feedlane_{}", pid) : "feedlane";
  text += fmt::format(",\n\"{}\": {}", member, json_text(writer.about()));
  text += file.substr(found.events_end_ + 1);
  return text;
}

}  // namespace observe
