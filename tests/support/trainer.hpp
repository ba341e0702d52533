// SPDX-License-Identifier: Apache-2.0
// The trainer's side of a test: a configuration with everything it points to, and epochs taken whole.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api.hpp"
#include "scripted.hpp"

namespace feedlane::test {

// The path of tests/capi/test_worker.cpp's program.
extern const char* const worker_program;

// Change what a test is about, then create(). Fields: index and seed, unless said otherwise.
struct Setup {
  // Inline, over the scripted data set.
  explicit Setup(std::int64_t samples, std::int64_t batch_size = 1);
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  ~Setup() = default;

  // Processes of the test worker instead, in one of its forms: "get", "fetch", "pull" ...
  Setup& workers(std::int32_t count, const char* form = "get");
  Setup& external(std::int32_t count);
  // A data set of the test's own: inline with 0, else in so many forked processes.
  Setup& forked(std::int32_t count, const feedlane_dataset& table);
  Setup& fields(std::vector<feedlane_field> list);

  // With the pointers of `config` brought up to date; REQUIREs success.
  Loader create();
  std::int32_t try_create(Loader& out, feedlane_error* err);
  void connect();

  Sampler sampler;
  feedlane_dataset dataset;
  std::vector<feedlane_field> field_list;
  std::vector<const char*> argv;
  Plan plan;
  feedlane_loader_config config;
};

// A batch's content, copied out and released.
struct Taken {
  std::int32_t status = 0;
  std::int64_t epoch = -1, batch = -1;
  std::int32_t worker = -2, attempt = -1;
  std::vector<std::int64_t> indices;
  std::vector<std::string> names;
  std::vector<std::string> bytes;  // of each tensor
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<feedlane_dtype> dtypes;
  std::uint64_t count = 0;
  std::vector<std::int64_t> skipped;
  std::string metadata;
  // of an error
  std::int64_t sample = -1, found = 0, needed = 0;
  std::string text, argument;

  // Field `name` of a row, as int64.
  [[nodiscard]] std::int64_t value(const std::string& name, std::size_t row = 0) const;
  [[nodiscard]] std::uint64_t seed(std::size_t row = 0) const { return static_cast<std::uint64_t>(value("seed", row)); }
};

Taken copy_of(const feedlane_batch& batch);
// One call of next, with patience. Repeated while it is INTERRUPTED by nobody's interrupt.
Taken take(feedlane_loader* l, feedlane_error* err = nullptr, std::int64_t timeout_ns = patience_ns);

void begin(feedlane_loader* l, std::int64_t epoch);
// Until END; REQUIREs that every batch is there.
std::vector<Taken> take_rest(feedlane_loader* l);
std::vector<Taken> take_epoch(feedlane_loader* l, std::int64_t epoch);

// Until END or an error of the whole loader, errors of single batches among them. The latter is the last one then.
std::vector<Taken> take_outcomes(feedlane_loader* l);
// All that the loader has to tell.
std::vector<feedlane_event> events_of(feedlane_loader* l);
// Those of one kind.
std::vector<feedlane_event> events_of(feedlane_loader* l, std::int32_t kind);
feedlane_stats stats_of(const feedlane_loader* l);
feedlane_worker_stats worker_of(const feedlane_loader* l, std::int32_t worker);

// Polls until the trainer has heard of all of its workers that they are ready.
void wait_until_ready(feedlane_loader* l, std::int32_t workers);

// What every epoch over a sequential sampler must be: batches 0, 1, ... with the indices in order, none missing.
void check_sequence(const std::vector<Taken>& taken, std::int64_t samples, std::int64_t batch_size);

}  // namespace feedlane::test
