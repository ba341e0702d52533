// SPDX-License-Identifier: Apache-2.0
// Writes the report of an epoch.
#include "monitor/report.hpp"

#include "monitor/diagnosis.hpp"
#include "monitor/errors.hpp"
#include "monitor/histogram.hpp"
#include "monitor/words.hpp"

namespace feedlane::monitor {
namespace {

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

void add_epoch(const feedlane_diagnosis& d, const Snapshot& after, std::string& text) {
  const double seconds = static_cast<double>(d.interval_ns) / 1e9;
  const auto batches = static_cast<double>(d.batches);
  const std::string of = after.info.batches < 0 ? "" : text_of(" of %lld", static_cast<long long>(after.info.batches));
  text += text_of("epoch %lld%s%s: %llu batches%s in %.3g s: %.4g batches/s, %.4g samples/s, %.4g MB/s\n",
                  static_cast<long long>(after.info.epoch), *after.info.name == '\0' ? "" : " of ", after.info.name,
                  static_cast<unsigned long long>(d.batches), of.c_str(), seconds, ratio(batches, seconds),
                  ratio(static_cast<double>(d.samples), seconds), ratio(static_cast<double>(d.bytes) / 1e6, seconds));
  text += text_of("waited for batches: %s (%.1f %%), of that %s for the first; ready when asked: %.1f %%\n",
                  duration(static_cast<double>(d.exposed_ns)).c_str(),
                  100 * ratio(static_cast<double>(d.exposed_ns), static_cast<double>(d.interval_ns)),
                  duration(static_cast<double>(d.start_ns)).c_str(),
                  100 * ratio(static_cast<double>(d.ready), static_cast<double>(d.asked)));
}

void add_workers(const feedlane_diagnosis& d, const Snapshot& before, const Snapshot& after, std::string& text) {
  if (after.workers.empty()) return;
  text +=
      text_of("%-7s %8s %6s %9s %9s %9s %7s\n", "worker", "batches", "busy", "work p50", "p99", "wait for", "errors");
  for (std::size_t w = 0; w < after.workers.size(); w++) {
    const Durations work = between(before.work[w], after.work[w]);
    const Durations exposed = between(before.exposed[w], after.exposed[w]);
    text +=
        text_of("%-7zu %8llu %5.0f%% %9s %9s %9s %7llu\n", w, static_cast<unsigned long long>(work.count),
                100 * ratio(static_cast<double>(busy_between(before, after, w)), static_cast<double>(d.interval_ns)),
                duration(quantile(work, 0.5)).c_str(), duration(quantile(work, 0.99)).c_str(),
                duration(static_cast<double>(exposed.sum_ns)).c_str(),
                static_cast<unsigned long long>(difference(after.workers[w].errors, before.workers[w].errors)));
  }
}

// The counts cover the loader's whole lifetime, because the table keeps no history.
void add_errors(const Snapshot& after, const shm::Segments& segments, std::string& text) {
  feedlane_error_record e{};
  for (std::int32_t i = 0; read_error(segments, i, e) == FEEDLANE_OK; i++) {
    const auto ago = [&](std::uint64_t ns) { return duration(static_cast<double>(difference(after.at_ns, ns))); };
    const char* const what = e.kind == 0 ? "error" : "event";
    if (e.count == 1) text += text_of("%s, %s ago: %s\n", what, ago(e.last_ns).c_str(), e.text);
    else
      text += text_of("%s, %llu times, first %s ago, last %s ago: %s\n", what, static_cast<unsigned long long>(e.count),
                      ago(e.first_ns).c_str(), ago(e.last_ns).c_str(), e.text);
  }
}

}  // namespace

std::string report(const Snapshot& before, const Snapshot& after, const shm::Segments& segments) {
  const feedlane_diagnosis d = diagnose(before, after);
  std::string text;
  add_epoch(d, after, text);
  add_workers(d, before, after, text);
  text += text_of("bound: %s\n", d.text);
  if (*d.advice != '\0') text += text_of("advice: %s\n", d.advice);
  add_errors(after, segments, text);
  return text;
}

}  // namespace feedlane::monitor
