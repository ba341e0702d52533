// SPDX-License-Identifier: Apache-2.0
// A failing sample of a task, as code that makes complete batches reports it.
#pragma once

#include <cstdint>

#include "dataset/task.hpp"
#include "input.hpp"

namespace feedlane::fuzz {

// Reports the sample at this position once, with a substitute function that answers as the input says.
inline Status fail_sample(Input& in, dataset::Task& task, std::uint64_t position) {
  feedlane_error failure{};
  failure.size = sizeof failure;
  failure.code = FEEDLANE_E_SAMPLE;
  failure.transient = in.flag() ? 1 : 0;
  failure.text[0] = 'x';
  std::uint32_t answer = in.pick(4);
  const auto substitute = [](void* self, std::int64_t failed, std::uint64_t, std::uint32_t, std::int64_t* other,
                             feedlane_error*) -> std::int32_t {
    static constexpr std::int32_t answers[] = {FEEDLANE_OK, FEEDLANE_OK, FEEDLANE_END, FEEDLANE_INTERRUPTED};
    *other = failed + 7;
    return answers[*static_cast<const std::uint32_t*>(self)];
  };
  std::int64_t index = 0;
  std::int64_t wait_ns = 0;
  Error error;
  return task.fail_sample(position, failure, in.flag() ? feedlane_dataset_substitute_fn{substitute} : nullptr, &answer,
                          index, wait_ns, error);
}

}  // namespace feedlane::fuzz
