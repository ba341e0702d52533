// SPDX-License-Identifier: Apache-2.0
// The list of the kinds of samplers, and their factories. Each kind has its own file.
#pragma once

#include <cstdint>
#include <memory>

#include "sampler/sampler.hpp"

namespace feedlane::sampler {

// X(name, constant in feedlane/sampler.h, number in saved states). The numbers never change.
#define FEEDLANE_SAMPLER_KINDS(X)                 \
  X(sequential, FEEDLANE_SAMPLER_SEQUENTIAL, 1)   \
  X(random, FEEDLANE_SAMPLER_RANDOM, 2)           \
  X(subset, FEEDLANE_SAMPLER_SUBSET, 3)           \
  X(weighted, FEEDLANE_SAMPLER_WEIGHTED, 4)       \
  X(distributed, FEEDLANE_SAMPLER_DISTRIBUTED, 5) \
  X(batch, FEEDLANE_SAMPLER_BATCH, 6)             \
  X(custom, FEEDLANE_SAMPLER_CUSTOM, 7)           \
  X(tokens, FEEDLANE_SAMPLER_TOKENS, 8)           \
  X(mixture, FEEDLANE_SAMPLER_MIXTURE, 9)

#define FEEDLANE_SAMPLER_KIND(name, constant, number) name = number,
enum class Kind : std::uint32_t { FEEDLANE_SAMPLER_KINDS(FEEDLANE_SAMPLER_KIND) };
#undef FEEDLANE_SAMPLER_KIND

using Made = std::unique_ptr<Sampler>;

// Each kind checks and uses what it needs of the first three arguments, see `make`. The batch sampler uses a copy of
// `inner`. A custom sampler calls `drop` when its last copy is destroyed, but only if the factory succeeded.
#define FEEDLANE_SAMPLER_FACTORY(name, constant, number)                                                          \
  Status make_##name(const feedlane_sampler_config& config, const Sampler* inner, const Environment& environment, \
                     Made& out, Error& error);
FEEDLANE_SAMPLER_KINDS(FEEDLANE_SAMPLER_FACTORY)
#undef FEEDLANE_SAMPLER_FACTORY

}  // namespace feedlane::sampler
