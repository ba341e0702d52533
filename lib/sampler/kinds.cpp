// SPDX-License-Identifier: Apache-2.0
// Makes a sampler of the kind that its configuration names.
#include "sampler/kinds.hpp"

#include <algorithm>

namespace feedlane::sampler {
namespace {

#define FEEDLANE_SAMPLER_CONSTANT(name, constant, number) constant,
constexpr std::int32_t last_kind = std::max({FEEDLANE_SAMPLER_KINDS(FEEDLANE_SAMPLER_CONSTANT)});
#undef FEEDLANE_SAMPLER_CONSTANT

}  // namespace

Status make(const feedlane_sampler_config& config, const Sampler* inner, const Environment& environment,
            std::unique_ptr<Sampler>& out, Error& error) {
  if (config.reserved != 0) return refuse(error, "config.reserved", config.reserved, 0, "must be 0");
  switch (config.kind) {
#define FEEDLANE_SAMPLER_CASE(name, constant, number) \
  case constant: return make_##name(config, inner, environment, out, error);
    FEEDLANE_SAMPLER_KINDS(FEEDLANE_SAMPLER_CASE)
#undef FEEDLANE_SAMPLER_CASE
    default:
      return refuse(error, "config.kind", config.kind, config.kind < 0 ? 0 : last_kind,
                    "must be one of FEEDLANE_SAMPLER_...");
  }
}

}  // namespace feedlane::sampler
