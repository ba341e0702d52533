// SPDX-License-Identifier: Apache-2.0
// A function for each kind of sampler: what a test would write out each time before feedlane_sampler_create.
#pragma once

#include <feedlane.h>

#include <cstdint>

namespace feedlane::test {

inline feedlane_sampler_config sampler_config(std::int32_t kind) {
  feedlane_sampler_config config;
  feedlane_init(&config, sizeof config);
  config.kind = kind;
  return config;
}

inline std::int32_t sequential_sampler(std::int64_t length, feedlane_sampler** out, feedlane_error* err) {
  feedlane_sampler_config config = sampler_config(FEEDLANE_SAMPLER_SEQUENTIAL);
  config.length = length;
  return feedlane_sampler_create(&config, out, err);
}

inline std::int32_t subset_sampler(const std::int64_t* indices, std::uint64_t count, std::int32_t no_shuffle,
                                   std::uint64_t seed, feedlane_sampler** out, feedlane_error* err) {
  feedlane_sampler_config config = sampler_config(FEEDLANE_SAMPLER_SUBSET);
  config.indices = indices;
  config.count = count;
  config.no_shuffle = no_shuffle;
  config.seed = seed;
  return feedlane_sampler_create(&config, out, err);
}

inline std::int32_t batch_sampler(const feedlane_sampler* inner, std::int64_t batch_size, std::int32_t drop_last,
                                  feedlane_sampler** out, feedlane_error* err) {
  feedlane_sampler_config config = sampler_config(FEEDLANE_SAMPLER_BATCH);
  config.inner = inner;
  config.batch_size = batch_size;
  config.drop_last = drop_last;
  return feedlane_sampler_create(&config, out, err);
}

inline std::int32_t custom_sampler(const feedlane_sampler_callbacks* callbacks, feedlane_sampler** out,
                                   feedlane_error* err) {
  feedlane_sampler_config config = sampler_config(FEEDLANE_SAMPLER_CUSTOM);
  config.callbacks = callbacks;
  return feedlane_sampler_create(&config, out, err);
}

// These write the kind, and the arrays, into `config`, which may be NULL.
inline std::int32_t sampler_of(std::int32_t kind, feedlane_sampler_config* config, feedlane_sampler** out,
                               feedlane_error* err) {
  if (config != nullptr) config->kind = kind;
  return feedlane_sampler_create(config, out, err);
}
inline std::int32_t random_sampler(feedlane_sampler_config* config, feedlane_sampler** out, feedlane_error* err) {
  return sampler_of(FEEDLANE_SAMPLER_RANDOM, config, out, err);
}
inline std::int32_t distributed_sampler(feedlane_sampler_config* config, feedlane_sampler** out, feedlane_error* err) {
  return sampler_of(FEEDLANE_SAMPLER_DISTRIBUTED, config, out, err);
}
inline std::int32_t weighted_sampler(const double* weights, std::uint64_t count, feedlane_sampler_config* config,
                                     feedlane_sampler** out, feedlane_error* err) {
  if (config != nullptr) {
    config->weights = weights;
    config->count = count;
  }
  return sampler_of(FEEDLANE_SAMPLER_WEIGHTED, config, out, err);
}
inline std::int32_t tokens_sampler(const std::int64_t* lengths, std::uint64_t count, feedlane_sampler_config* config,
                                   feedlane_sampler** out, feedlane_error* err) {
  if (config != nullptr) {
    config->lengths = lengths;
    config->count = count;
  }
  return sampler_of(FEEDLANE_SAMPLER_TOKENS, config, out, err);
}
inline std::int32_t mixture_sampler(const std::int64_t* lengths, std::uint64_t count, const double* weights,
                                    feedlane_sampler_config* config, feedlane_sampler** out, feedlane_error* err) {
  if (config != nullptr) {
    config->weights = weights;
    config->lengths = lengths;
    config->count = count;
  }
  return sampler_of(FEEDLANE_SAMPLER_MIXTURE, config, out, err);
}

}  // namespace feedlane::test
