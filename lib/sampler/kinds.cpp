// SPDX-License-Identifier: Apache-2.0
// Makes a sampler of the kind that its configuration names.
#include "sampler/kinds.hpp"

namespace feedlane::sampler {

Status make(const feedlane_sampler_config& config, const Sampler* inner, const Environment& environment,
            std::unique_ptr<Sampler>& out, Error& error) {
  if (config.reserved != 0) return refuse(error, "config.reserved", config.reserved, 0, "must be 0");
  switch (config.kind) {
    case FEEDLANE_SAMPLER_SEQUENTIAL: return make_sequential(config, out, error);
    case FEEDLANE_SAMPLER_RANDOM: return make_random(config, out, error);
    case FEEDLANE_SAMPLER_SUBSET: return make_subset(config, out, error);
    case FEEDLANE_SAMPLER_WEIGHTED: return make_weighted(config, out, error);
    case FEEDLANE_SAMPLER_BATCH: return make_batch(config, inner, out, error);
    case FEEDLANE_SAMPLER_DISTRIBUTED: return make_distributed(config, environment, out, error);
    case FEEDLANE_SAMPLER_TOKENS: return make_tokens(config, environment, out, error);
    case FEEDLANE_SAMPLER_MIXTURE: return make_mixture(config, environment, out, error);
    case FEEDLANE_SAMPLER_CUSTOM: return make_custom(config, out, error);
    default:
      return refuse(error, "config.kind", config.kind, config.kind < 0 ? 0 : FEEDLANE_SAMPLER_CUSTOM,
                    "must be one of FEEDLANE_SAMPLER_...");
  }
}

}  // namespace feedlane::sampler
