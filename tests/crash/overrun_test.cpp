// SPDX-License-Identifier: Apache-2.0
// Under AddressSanitizer a data set that writes beyond its tensors, and a trainer that reads beyond a batch's or one that
// it has released, are reported. Other builds know nothing of it: there this is skipped.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "shm/asan.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

#ifndef FEEDLANE_ADDRESS_SANITIZER

TEST_CASE("overruns are reported by AddressSanitizer") {
  std::puts("not a build with AddressSanitizer: skipped");
  std::exit(77);
}

#else

namespace {

// What is written to standard error until nobody can any more.
class Errors {
 public:
  Errors() { REQUIRE(::pipe(pair_) == 0); }
  Errors(const Errors&) = delete;
  Errors& operator=(const Errors&) = delete;
  ~Errors() {
    close_writer();
    (void)::close(pair_[0]);
  }
  [[nodiscard]] int writer() const { return pair_[1]; }
  std::string all() {
    close_writer();
    std::string text;
    char some[4096];
    for (ssize_t got = 0; (got = ::read(pair_[0], some, sizeof some)) > 0;)
      text.append(some, static_cast<std::size_t>(got));
    return text;
  }

 private:
  void close_writer() {
    if (pair_[1] >= 0) (void)::close(pair_[1]);
    pair_[1] = -1;
  }
  int pair_[2] = {-1, -1};
};

// Writes one byte in its first process: `where` beyond the end of its tensor.
struct Overrun {
  std::int64_t where = 0;
  int errors = -1;

  static std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
    auto& overrun = *static_cast<Overrun*>(user_data);
    if (info->generation != 0) overrun.errors = -1;
    *self = user_data;
    return FEEDLANE_OK;
  }
  static std::int32_t get(void* self, const feedlane_row* row, feedlane_error*) {
    auto& overrun = *static_cast<Overrun*>(self);
    const feedlane_tensor& t = row->task->tensors[0];
    std::memset(row->fields[0], 7, t.bytes / static_cast<std::size_t>(t.shape[0]));
    if (overrun.errors < 0) return FEEDLANE_OK;
    (void)::dup2(overrun.errors, STDERR_FILENO);
    static_cast<volatile char*>(t.data)[static_cast<std::int64_t>(t.bytes) + overrun.where] = 1;
    return FEEDLANE_OK;
  }
};

struct Run {
  explicit Run(std::int32_t workers, std::int64_t samples = 3) : setup(samples, 2) {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &overrun;
    table.open = Overrun::open;
    table.get = Overrun::get;
    setup.forked(workers, table).fields({field("bytes", uint8_type, {13})});
  }
  Overrun overrun;
  Setup setup;
};

// What a child that does this writes to standard error, dying of it.
std::string report_of(const std::function<void()>& what) {
  Errors errors;
  Child child([&](Findings&) {
    (void)::dup2(errors.writer(), STDERR_FILENO);
    what();
  });
  const std::string text = errors.all();
  CHECK(child.finish() != "");
  return text;
}

}  // namespace

// promise: worker-beyond-tensor
TEST_CASE("a worker that writes a byte beyond its tensor is reported, and another worker makes its batch") {
  for (const std::int64_t where : {0, 5, 229, 4096}) {
    CAPTURE(where);
    Errors errors;
    Run run(1);
    run.overrun = {where, errors.writer()};
    const Loader l = run.setup.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    CHECK(taken.size() == 2);
    CHECK(stats_of(l.get()).restarts == 1);
    REQUIRE(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
    const std::string text = errors.all();
    CHECK_MESSAGE(text.find("use-after-poison") != std::string::npos, text);
    CHECK(text.find("WRITE of size 1") != std::string::npos);
  }
}

TEST_CASE("a worker that writes within its tensor is not reported") {
  for (const std::int32_t workers : {0, 1}) {
    Run run(workers, 50);
    const Loader l = run.setup.create();
    for (int epoch = 0; epoch < 3; epoch++)
      for (const Taken& t : take_epoch(l.get(), epoch)) CHECK(t.bytes[0] == std::string(13 * t.count, 7));
  }
}

TEST_CASE("inline overruns are reported too") {
  const std::string text = report_of([] {
    Run run(0);
    run.overrun = {0, STDERR_FILENO};
    const Loader l = run.setup.create();
    (void)take_epoch(l.get(), 0);
  });
  CHECK_MESSAGE(text.find("use-after-poison") != std::string::npos, text);
}

TEST_CASE("a trainer that reads beyond a batch, or after the batch's release, is reported") {
  for (const bool released : {false, true}) {
    for (const std::int32_t workers : {0, 1}) {
      CAPTURE(released);
      CAPTURE(workers);
      const std::string text = report_of([&] {
        Run run(workers);
        const Loader l = run.setup.create();
        begin(l.get(), 0);
        auto batch = fresh<feedlane_batch>();
        if (feedlane_loader_next(l.get(), patience_ns, &batch, nullptr) != FEEDLANE_OK) return;
        const auto* bytes = static_cast<const volatile char*>(batch.tensors[0].data);
        const std::size_t last = batch.tensors[0].bytes - 1;
        (void)bytes[last];  // may be read
        if (released) (void)feedlane_batch_release(l.get(), batch.token);
        (void)bytes[released ? 0 : last + 1];
      });
      CHECK_MESSAGE(text.find("use-after-poison") != std::string::npos, text);
      CHECK(text.find("READ of size 1") != std::string::npos);
    }
  }
}

#endif
