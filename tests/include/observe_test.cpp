// SPDX-License-Identifier: Apache-2.0
// Seeing in through the C++ interface: stamps, timings, the report, the progress line.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <feedlane/feedlane.hpp>
#include <memory>
#include <string>

namespace {

struct Numbers {
  explicit Numbers(const feedlane::WorkerInfo&) {}
  void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
};

struct Inline {
  feedlane::Sampler sampler = feedlane::Sampler::sequential(20);
  feedlane_dataset dataset = feedlane::dataset_of<Numbers>();
  feedlane::LoaderOptions options() {
    return {.sampler = &sampler,
            .fields = {feedlane::field<std::int64_t>("number")},
            .batch_size = 2,
            .dataset = &dataset,
            .name = "numbers",
            .trace = 16};
  }
};

std::string read(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

}  // namespace

TEST_CASE("batches have ordered time stamps, and after the loop the monitor has timings and a report") {
  Inline made;
  feedlane::Loader loader(made.options());
  std::uint64_t last = 0;
  for (const feedlane::Batch& batch : loader) {
    const feedlane_batch& s = batch.stamps();
    CHECK(last <= s.dispatched_ns);
    CHECK(s.dispatched_ns <= s.begun_ns);
    CHECK(s.begun_ns <= s.committed_ns);
    CHECK(s.committed_ns <= s.swept_ns);
    CHECK(s.swept_ns <= s.yielded_ns);
    last = s.yielded_ns;
  }
  CHECK(std::string(loader.monitor().info().name) == "numbers");
  CHECK(loader.monitor().info().trace == 16);
  CHECK(loader.monitor().timings().work.count == 10);
  CHECK(loader.monitor().timings(0).work.count == 0);  // there is no worker
  CHECK(loader.monitor().diagnose().batches == 10);
  CHECK(loader.monitor().report().find("epoch 0 of numbers: 10 batches of 10") == 0);
}

TEST_CASE("Progress writes one line to a file that is not a terminal, even if the loop is left early") {
  Inline made;
  feedlane::Loader loader(made.options());
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  REQUIRE(file != nullptr);
  {
    feedlane::Progress progress(loader, file.get());
    int taken = 0;
    for ([[maybe_unused]] const feedlane::Batch& batch : loader) {
      progress.update();
      if (++taken == 3) break;
    }
  }
  const std::string text = read(file.get());
  CHECK(text.find("epoch 0: 3 of 10 batches, ") == 0);
  CHECK(text.find("bound: ") != std::string::npos);
  CHECK(text.find('\n') == text.size() - 1);
  CHECK(text.find('\r') == std::string::npos);
}
