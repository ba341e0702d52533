// SPDX-License-Identifier: Apache-2.0
// feedlane/sampler.h: samplers, ranks, torch's base seeds.
#include "sampler.hpp"

#include <cstdlib>
#include <cstring>

#include "feedlane/sampler.h"
#include "sampler/torch_random.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

template <class Make>
int32_t create(feedlane_sampler** out, feedlane_error* err, Make&& make) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    auto handle = std::make_unique<feedlane_sampler>();
    Status s = handle->stamp.take(error);
    if (s == FEEDLANE_OK) s = make(handle->sampler, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

const char* environment(const char* name) { return ::secure_getenv(name); }

}  // namespace

extern "C" {

int32_t feedlane_sampler_sequential(int64_t length, feedlane_sampler** out, feedlane_error* err) {
  return create(out, err,
                [&](auto& sampler, Error& error) { return sampler::make_sequential(length, sampler, error); });
}

int32_t feedlane_sampler_random(const feedlane_random_config* config, feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_random_config c;
    const Status s = read_versioned(config, c, "config", error);
    return s == FEEDLANE_OK ? sampler::make_random(c, sampler, error) : s;
  });
}

int32_t feedlane_sampler_subset(const int64_t* indices, uint64_t count, int32_t in_order, uint64_t seed,
                                feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    return sampler::make_subset(indices, count, in_order, seed, sampler, error);
  });
}

int32_t feedlane_sampler_weighted(const double* weights, uint64_t count, const feedlane_weighted_config* config,
                                  feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_weighted_config c;
    const Status s = read_versioned(config, c, "config", error);
    return s == FEEDLANE_OK ? sampler::make_weighted(weights, count, c, sampler, error) : s;
  });
}

int32_t feedlane_sampler_batch(const feedlane_sampler* inner, int64_t batch_size, int32_t drop_last,
                               feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    const Status s = check_handle(inner, "inner", error);
    return s == FEEDLANE_OK ? sampler::make_batch(*inner->sampler, batch_size, drop_last, sampler, error) : s;
  });
}

int32_t feedlane_sampler_distributed(const feedlane_distributed_config* config, feedlane_sampler** out,
                                     feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_distributed_config c;
    const Status s = read_versioned(config, c, "config", error);
    return s == FEEDLANE_OK ? sampler::make_distributed(c, environment, sampler, error) : s;
  });
}

int32_t feedlane_sampler_tokens(const int64_t* lengths, uint64_t count, const feedlane_tokens_config* config,
                                feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_tokens_config c;
    const Status s = read_versioned(config, c, "config", error);
    return s == FEEDLANE_OK ? sampler::make_tokens(lengths, count, c, environment, sampler, error) : s;
  });
}

int32_t feedlane_sampler_mixture(const int64_t* lengths, uint64_t count, const double* weights,
                                 const feedlane_mixture_config* config, feedlane_sampler** out, feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_mixture_config c;
    const Status s = read_versioned(config, c, "config", error);
    return s == FEEDLANE_OK ? sampler::make_mixture(lengths, count, weights, c, environment, sampler, error) : s;
  });
}

int32_t feedlane_sampler_custom(const feedlane_sampler_callbacks* callbacks, feedlane_sampler** out,
                                feedlane_error* err) {
  return create(out, err, [&](auto& sampler, Error& error) {
    feedlane_sampler_callbacks c;
    const Status s = read_versioned(callbacks, c, "callbacks", error);
    return s == FEEDLANE_OK ? sampler::make_custom(c, sampler, error) : s;
  });
}

int32_t feedlane_rank_detect(feedlane_rank* out, feedlane_error* err) {
  return call(err, [&](Error& error) {
    sampler::RankSource found;
    Status s = check_output(out, "out", error);
    if (s == FEEDLANE_OK) s = sampler::detect_rank(environment, found, error);
    if (s != FEEDLANE_OK) return s;
    feedlane_rank rank{};
    rank.rank = found.rank;
    rank.world = found.world;
    copy_text(rank.source, sizeof rank.source, found.source);
    copy_text(rank.warning, sizeof rank.warning, found.warning);
    write_versioned(out, rank);
    return s;
  });
}

int32_t feedlane_torch_base_seed(uint64_t manual_seed, int64_t epoch, uint64_t* base_seed, feedlane_error* err) {
  return call(err, [&](Error& error) -> Status {
    if (base_seed == nullptr) return refuse_null(error, "base_seed");
    if (epoch < 0 || epoch > sampler::TorchEpochs::most)
      return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, epoch < 0 ? 0 : sampler::TorchEpochs::most,
                          "epoch {} is not between 0 and {}", epoch, sampler::TorchEpochs::most);
    *base_seed = sampler::TorchEpochs(manual_seed).at(epoch).base;
    return FEEDLANE_OK;
  });
}

int32_t feedlane_sampler_restart(feedlane_sampler* s, int64_t epoch, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (epoch < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "epoch", epoch, 0, "epoch {} is negative", epoch);
    return s->sampler->restart(epoch, 0, error);
  });
}

int32_t feedlane_sampler_next(feedlane_sampler* s, int64_t* indices, uint64_t cap, uint64_t* got, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (indices == nullptr) return refuse_null(error, "indices");
    if (got == nullptr) return refuse_null(error, "got");
    if (cap == 0) return error.refuse(FEEDLANE_E_ARGUMENT, "cap", 0, 1, "cap is 0: there is no room for an index");
    return s->sampler->next(indices, cap, *got, error);
  });
}

int32_t feedlane_sampler_length(const feedlane_sampler* s, int64_t* length) {
  return call_any(s, "s", nullptr, [&](Error& error) {
    if (length == nullptr) return refuse_null(error, "length");
    *length = s->sampler->length();
    return Status{FEEDLANE_OK};
  });
}

int32_t feedlane_sampler_save(feedlane_sampler* s, void* state, uint64_t cap, uint64_t* bytes, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (bytes == nullptr) return refuse_null(error, "bytes");
    if (state == nullptr && cap != 0) return refuse_null(error, "state");
    std::vector<std::byte> saved;
    const Status status = s->sampler->save(-1, saved, error);
    if (status != FEEDLANE_OK) return status;
    *bytes = saved.size();
    if (saved.size() > cap)
      return error.refuse(FEEDLANE_E_LIMIT, "cap", static_cast<int64_t>(cap), static_cast<int64_t>(saved.size()),
                          "the state has {} bytes, there is room for {}", saved.size(), cap);
    std::memcpy(state, saved.data(), saved.size());
    return status;
  });
}

int32_t feedlane_sampler_load(feedlane_sampler* s, const void* state, uint64_t bytes, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (state == nullptr && bytes != 0) return refuse_null(error, "state");
    if (bytes > PTRDIFF_MAX)
      return error.refuse(FEEDLANE_E_ARGUMENT, "bytes", INT64_MAX, PTRDIFF_MAX, "bytes is more than memory has");
    return s->sampler->load({static_cast<const std::byte*>(state), static_cast<std::size_t>(bytes)}, error);
  });
}

int32_t feedlane_sampler_destroy(feedlane_sampler** s) {
  return destroy(s, [](feedlane_sampler*) { return Status{FEEDLANE_OK}; });
}

}  // extern "C"
