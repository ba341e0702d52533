// SPDX-License-Identifier: Apache-2.0
// What is told of samples that failed.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "support/trainer.hpp"

namespace feedlane::test::policies {

// What a record says, but for the worker's number.
using Told = std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                        std::int32_t, std::string>;

inline std::vector<Told> told_of_samples(feedlane_loader* l, std::int32_t workers) {
  std::vector<Told> all;
  for (const feedlane_event& e : events_of(l)) {
    if (e.kind < FEEDLANE_EVENT_SAMPLE_RETRIED) continue;
    CHECK((workers == 0 ? e.what.worker == -1 : e.what.worker >= 0 && e.what.worker < workers));
    all.emplace_back(e.kind, e.what.epoch, e.what.batch, e.what.sample, e.what.found, e.what.needed, e.what.code,
                     e.what.text);
  }
  return all;
}

// Each row is the sample that the batch says it is.
inline void check_rows(const std::vector<Taken>& taken) {
  for (const Taken& t : taken) {
    CHECK(t.count == t.indices.size());
    for (std::size_t row = 0; row < t.indices.size(); row++) CHECK(t.value("index", row) == t.indices[row]);
  }
}

}  // namespace feedlane::test::policies
