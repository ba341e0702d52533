// SPDX-License-Identifier: Apache-2.0
// Samplers of the library's inside, for tests that need one.
#pragma once

#include <cstdint>

#include "sampler/kinds.hpp"

namespace feedlane::test {

inline Status make_sequential(std::int64_t length, sampler::Made& out, feedlane::Error& error) {
  feedlane_sampler_config config{};
  config.length = length;
  return sampler::make_sequential(config, nullptr, {}, out, error);
}

inline Status make_batch(const sampler::Sampler& inner, std::int64_t batch_size, std::int32_t drop_last,
                         sampler::Made& out, feedlane::Error& error) {
  feedlane_sampler_config config{};
  config.batch_size = batch_size;
  config.drop_last = drop_last;
  return sampler::make_batch(config, &inner, {}, out, error);
}

}  // namespace feedlane::test
