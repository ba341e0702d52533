// SPDX-License-Identifier: Apache-2.0
// A loader whose workers are the bare ones, and what its batches must be.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bare/orders.h"
#include "support/events.hpp"
#include "support/trainer.hpp"

namespace feedlane::test {

constexpr std::uint64_t row_bytes = 16;  // of the field "bytes"

struct Bare {
  explicit Bare(std::int64_t samples, std::int64_t batch_size = 1, std::int32_t workers = 2) : s(samples, batch_size) {
    s.workers(workers);
    s.argv = {BARE_WORKER, nullptr};
    s.fields({field("index", int64_type), field("seed", uint64_type), field("bytes", uint8_type, {row_bytes})});
    s.config.max_kills_per_batch = 1000;
  }
  Loader create() {
    s.connect();
    s.config.worker_config = &o;
    s.config.worker_config_bytes = sizeof o;
    feedlane_loader* loader = nullptr;
    Error e;
    const std::int32_t status = feedlane_loader_create(&s.config, &loader, &e);
    REQUIRE_MESSAGE(status == FEEDLANE_OK, e.text);
    return Loader(loader);
  }

  orders o{};
  Setup s;
};

// A pipe for the workers' reports.
class BareReports {
 public:
  BareReports() {
    int pair[2] = {-1, -1};
    (void)!::pipe2(pair, O_CLOEXEC);
    read_ = pair[0];
    write_ = pair[1];
    (void)::fcntl(write_, F_SETFD, 0);
  }
  BareReports(const BareReports&) = delete;
  BareReports& operator=(const BareReports&) = delete;
  ~BareReports() {
    (void)::close(read_);
    (void)::close(write_);
  }
  [[nodiscard]] int fd() const { return write_; }
  [[nodiscard]] std::optional<report> next(std::int64_t timeout_ns = patience_ns) const {
    report r{};
    if (!wait_readable(read_, timeout_ns) || ::read(read_, &r, sizeof r) != sizeof r) return std::nullopt;
    return r;
  }
  [[nodiscard]] std::optional<report> wait_for(std::int64_t what) const {
    for (;;) {
      const auto r = next();
      if (!r || r->what == what) return r;
    }
  }
  // How many of this kind have come.
  [[nodiscard]] int count(std::int64_t what) const {
    int n = 0;
    for (auto r = next(0); r; r = next(0)) n += r->what == what ? 1 : 0;
    return n;
  }

 private:
  int read_;
  int write_;
};

// Bytes of a row of the last field, so many of them.
inline std::string bytes_of(std::int64_t index, std::uint64_t width) {
  std::string bytes;
  for (std::uint64_t k = 0; k < width; k++) bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(index) + k));
  return bytes;
}

// What a row of the sample with this index is, byte for byte.
inline void check_row(const Taken& t, std::size_t row, std::int64_t index, std::uint64_t seed,
                      std::uint64_t width = row_bytes) {
  CHECK(t.value("index", row) == index);
  CHECK(t.seed(row) == seed);
  CHECK(t.bytes[2].substr(row * width, width) == bytes_of(index, width));
}

// Every batch of a sequential epoch: once, in order, whole.
inline void check_epoch(const std::vector<Taken>& all, std::int64_t samples, std::int64_t batch_size,
                        std::int64_t epoch) {
  check_sequence(all, samples, batch_size);
  for (const Taken& t : all) {
    CHECK(t.epoch == epoch);
    for (std::size_t row = 0; row < t.indices.size(); row++)
      check_row(t, row, t.indices[row], feedlane_row_seed(99, epoch, t.indices[row]));
  }
}

// Nobody was ended for what it said, and nobody has died.
inline void check_peace(const feedlane_loader* l) {
  const feedlane_stats stats = stats_of(l);
  CHECK(stats.invalid_results == 0);
  CHECK(stats.restarts == 0);
}

}  // namespace feedlane::test
