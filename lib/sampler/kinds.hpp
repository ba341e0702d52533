// SPDX-License-Identifier: Apache-2.0
// The factories of all kinds of samplers. Each kind has its own file.
#pragma once

#include <memory>

#include "sampler/sampler.hpp"

namespace feedlane::sampler {

using Made = std::unique_ptr<Sampler>;

Status make_sequential(const feedlane_sampler_config& config, Made& out, Error& error);
Status make_random(const feedlane_sampler_config& config, Made& out, Error& error);
Status make_subset(const feedlane_sampler_config& config, Made& out, Error& error);
Status make_weighted(const feedlane_sampler_config& config, Made& out, Error& error);
// Uses a copy of `inner`.
Status make_batch(const feedlane_sampler_config& config, const Sampler* inner, Made& out, Error& error);
Status make_distributed(const feedlane_sampler_config& config, const Environment& environment, Made& out, Error& error);
Status make_tokens(const feedlane_sampler_config& config, const Environment& environment, Made& out, Error& error);
Status make_mixture(const feedlane_sampler_config& config, const Environment& environment, Made& out, Error& error);
// After success, `drop` is called when the last copy is destroyed.
Status make_custom(const feedlane_sampler_config& config, Made& out, Error& error);

}  // namespace feedlane::sampler
