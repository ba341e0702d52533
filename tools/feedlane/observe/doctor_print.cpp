// SPDX-License-Identifier: Apache-2.0
// Prints checks and findings, as text and as JSON.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "doctor.hpp"
#include "terminal.hpp"

namespace observe {
namespace {

// "1.5 GiB", "20000", "never"; `unit` is said for bytes alone.
std::string value_text(const Json& value, std::string_view unit) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  return unit == "bytes" ? bytes_text(value.get<double>()) : value.dump();
}

Json state_json(char state) { return state == 0 ? Json() : Json(std::string(1, state)); }

Json worker_json(const WorkerReport& w, std::int32_t number) {
  return {{"worker", number},
          {"pid", w.pid == 0 ? Json() : Json(w.pid)},
          {"state", state_name(w.now.state)},
          {"kernel_state", state_json(w.process.state)},
          {"waits_in", w.process.wait.empty() ? Json() : Json(w.process.wait)},
          {"generation", w.now.generation},
          {"tasks", w.tasks},
          {"mean_work_ns", w.mean_ns},
          {"task_ns", w.task_ns},
          {"queued", w.queued},
          {"epoch", or_null(w.now.epoch)},
          {"batch", or_null(w.now.batch)},
          {"row", or_null(w.now.row)}};
}

Json error_json(const feedlane_error_record& e, std::uint64_t at_ns) {
  const auto ago = [at_ns](std::uint64_t then) { return at_ns - std::min(at_ns, then); };
  return {{"kind", event_name(e.kind)},
          {"code", e.code},
          {"count", e.count},
          {"first_ago_ns", ago(e.first_ns)},
          {"last_ago_ns", ago(e.last_ns)},
          {"worker", or_null(e.worker)},
          {"batch", or_null(e.batch)},
          {"sample", or_null(e.sample)},
          {"text", e.text}};
}

Json held_json(const feedlane_batch_record& b, std::uint64_t at_ns) {
  return {{"slot", b.slot}, {"epoch", b.epoch}, {"batch", b.batch}, {"held_ns", at_ns - std::min(at_ns, b.yielded_ns)}};
}

State worst_of(const LoaderReport& r) {
  State worst = State::ok;
  for (const Finding& f : r.findings) worst = worse(worst, f.state);
  return worst;
}

// The word of a state, aligned, in its colour.
std::string label(State state) {
  const Colour colour = state == State::ok ? Colour::green : state == State::warning ? Colour::yellow : Colour::red;
  return coloured(fmt::format("{:<7}", word_of(state)), colour);
}

// What is printed of a worker.
std::string kernel_text(const WorkerReport& w) {
  if (w.process.state == 0) return "-";
  std::string text = fmt::format("{} {}", w.process.state, state_words(w.process.state));
  if (!w.process.wait.empty()) text += " in " + w.process.wait;
  return text;
}

void print_workers(const LoaderReport& r) {
  fmt::print("    {:>6} {:>8} {:>5} {:>9} {:>8} {:>10} {:>10}  {}\n", "worker", "pid", "gen.", "state", "batches",
             "each [ms]", "now [ms]", "kernel");
  for (std::size_t i = 0; i < r.workers.size(); i++) {
    const WorkerReport& w = r.workers[i];
    fmt::print("    {:>6} {:>8} {:>5} {:>9} {:>8} {:>10} {:>10}  {}\n", i, w.pid == 0 ? "-" : std::to_string(w.pid),
               w.now.generation, state_name(w.now.state), w.tasks,
               w.mean_ns == 0 ? "-" : fmt::format("{:.3f}", double(w.mean_ns) / 1e6),
               w.task_ns == 0 ? "-" : fmt::format("{:.3f}", double(w.task_ns) / 1e6), kernel_text(w));
  }
}

void print_errors(const LoaderReport& r) {
  if (r.errors.empty()) return;
  const auto ago = [&r](std::uint64_t then) {
    return duration(double(r.at_ns - std::min(r.at_ns, then)) / 1e9) + " ago";
  };
  fmt::print("    {:>6} {:>16} {:>16}  {}\n", "count", "first", "last", "what");
  for (const feedlane_error_record& e : r.errors) {
    std::string where;
    if (e.worker >= 0) where += fmt::format(", worker {}", e.worker);
    if (e.batch >= 0) where += fmt::format(", batch {}", e.batch);
    if (e.sample >= 0) where += fmt::format(", sample {}", e.sample);
    fmt::print("    {:>6} {:>16} {:>16}  {} {}: {}{}\n", e.count, ago(e.first_ns), ago(e.last_ns), event_name(e.kind),
               error_name(e.code), printable(e.text), where.empty() ? "" : " (newest: " + where.substr(2) + ")");
  }
}

// Whether the line of what bounds the run says it already.
bool is_said(const LoaderReport& r, const Finding& f) {
  return (r.diagnosis.bound == FEEDLANE_BOUND_DATA && f.kind == std::string_view("data")) ||
         (r.diagnosis.bound == FEEDLANE_BOUND_SLOTS && f.kind == std::string_view("slots")) ||
         (r.diagnosis.bound == FEEDLANE_BOUND_PROCESSORS && f.kind == std::string_view("processors"));
}

// What bounds the run. A finding about the worker that does says it better.
void print_bound(const LoaderReport& r) {
  const feedlane_diagnosis& d = r.diagnosis;
  const bool is_worker = d.bound == FEEDLANE_BOUND_WORKER;
  State state = State::ok;
  bool is_found = false;
  for (const Finding& f : r.findings) {
    is_found = is_found || (is_worker && f.worker == d.worker);
    if (is_said(r, f) || (is_worker && f.worker == d.worker)) state = worse(state, f.state);
  }
  if (is_found) {
    fmt::print("  {}  bound by worker {}\n", label(state), d.worker);
    return;
  }
  fmt::print("  {}  bound by {}\n           {}\n", label(state), bound_name(d.bound), printable(d.text));
  if (d.advice[0] != '\0') fmt::print("           {}\n", printable(d.advice));
}

}  // namespace

Json to_json(const Finding& f) {
  return {{"kind", f.kind}, {"state", word_of(f.state)}, {"worker", or_null(f.worker)},
          {"text", f.text}, {"advice", f.advice},        {"command", f.command}};
}

void print(const Finding& f) {
  fmt::print("  {}  {}\n", label(f.state), printable(f.text));
  if (!f.advice.empty()) fmt::print("           {}\n", printable(f.advice));
  if (!f.command.empty()) fmt::print("           $ {}\n", f.command);
}

const char* word_of(State state) { return state == State::ok ? "ok" : state == State::warning ? "warning" : "problem"; }

Json to_json(const Check& c) {
  return {{"check", c.name}, {"state", word_of(c.state)}, {"found", c.found}, {"needed", c.needed}, {"unit", c.unit},
          {"note", c.note},  {"advice", c.advice}};
}

Json to_json(const LoaderReport& r) {
  Json workers = Json::array();
  for (std::size_t w = 0; w < r.workers.size(); w++)
    workers.push_back(worker_json(r.workers[w], static_cast<std::int32_t>(w)));
  Json held = Json::array();
  for (const feedlane_batch_record& b : r.held) held.push_back(held_json(b, r.at_ns));
  Json errors = Json::array();
  for (const feedlane_error_record& e : r.errors) errors.push_back(error_json(e, r.at_ns));
  Json findings = Json::array();
  for (const Finding& f : r.findings) findings.push_back(to_json(f));
  const feedlane_diagnosis& d = r.diagnosis;
  const feedlane_stats& s = r.stats;
  return {{"pid", r.pid},
          {"loader", r.nth},
          {"name", r.info.name},
          {"program", r.program},
          {"start", r.info.workers == 0 ? "inline" : start_name(r.info.start)},
          {"state", word_of(worst_of(r))},
          {"bound", bound_name(d.bound)},
          {"bound_worker", or_null(d.worker)},
          {"text", d.text},
          {"advice", d.advice},
          {"interval_ns", d.interval_ns},
          {"batches", d.batches},
          {"samples", d.samples},
          {"exposed_ns", d.exposed_ns},
          {"trainer_kernel_state", state_json(r.trainer.state)},
          {"restarts",
           {{"signal", s.restarts_signal},
            {"exit", s.restarts_exit},
            {"hung", s.restarts_hung},
            {"invalid", s.restarts_invalid},
            {"unattached", s.restarts_unattached}}},
          {"workers", std::move(workers)},
          {"held", std::move(held)},
          {"errors", std::move(errors)},
          {"findings", std::move(findings)}};
}

void print(const std::vector<Check>& checks) {
  fmt::print("machine\n");
  for (const Check& c : checks) {
    const std::string needed = c.needed.is_null() ? "" : fmt::format("needs {}", value_text(c.needed, c.unit));
    std::string line = fmt::format("{:<14} {:<20} {:<22} {}", c.name, value_text(c.found, c.unit), needed, c.note);
    line.resize(line.find_last_not_of(' ') + 1);
    fmt::print("  {}  {}\n", label(c.state), line);
    if (!c.advice.empty()) fmt::print("           {}\n", c.advice);
  }
}

void print(const LoaderReport& r) {
  const feedlane_diagnosis& d = r.diagnosis;
  const double seconds = double(d.interval_ns) / 1e9;
  const std::string name = r.info.name[0] == '\0' ? "" : fmt::format(" \"{}\"", printable(r.info.name));
  fmt::print("\nloader {} of process {}{}: {}\n", r.nth, r.pid, name, r.program);
  print_bound(r);
  fmt::print("           {} batches in {}, {:.1f} per second; next waited for {}\n", d.batches, duration(seconds),
             seconds > 0 ? double(d.batches) / seconds : 0.0, duration(double(d.exposed_ns) / 1e9));
  for (const Finding& f : r.findings)
    if (!is_said(r, f)) print(f);
  if (!r.workers.empty()) print_workers(r);
  print_errors(r);
}

}  // namespace observe
