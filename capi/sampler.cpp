// SPDX-License-Identifier: Apache-2.0
// feedlane/sampler.h: samplers and ranks.
#include "sampler.hpp"

#include <cstdlib>
#include <cstring>

#include "feedlane/sampler.h"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

const char* environment(const char* name) { return ::secure_getenv(name); }

}  // namespace

extern "C" {

int32_t feedlane_sampler_create(const feedlane_sampler_config* config, feedlane_sampler** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    feedlane_sampler_config c;
    Status s = read_versioned(config, c, "config", error);
    if (s != FEEDLANE_OK) return s;
    const bool has_inner = c.kind == FEEDLANE_SAMPLER_BATCH && c.inner != nullptr;
    if (has_inner) s = check_handle(c.inner, "config.inner", error);
    auto handle = std::make_unique<feedlane_sampler>();
    if (s == FEEDLANE_OK) s = handle->stamp.take(error);
    const sampler::Sampler* const inner = has_inner ? c.inner->sampler.get() : nullptr;
    if (s == FEEDLANE_OK) s = sampler::make(c, inner, environment, handle->sampler, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
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
    if (cap == 0) return error.refuse(FEEDLANE_E_ARGUMENT, "cap", 0, 1, "cap is 0: must be at least 1");
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
                          "the state has {} bytes, but cap is only {}", saved.size(), cap);
    std::memcpy(state, saved.data(), saved.size());
    return status;
  });
}

int32_t feedlane_sampler_load(feedlane_sampler* s, const void* state, uint64_t bytes, feedlane_error* err) {
  return call_one(s, "s", err, [&](Error& error) {
    if (state == nullptr && bytes != 0) return refuse_null(error, "state");
    if (bytes > PTRDIFF_MAX)
      return error.refuse(FEEDLANE_E_ARGUMENT, "bytes", INT64_MAX, PTRDIFF_MAX,
                          "bytes is larger than the address space");
    return s->sampler->load({static_cast<const std::byte*>(state), static_cast<std::size_t>(bytes)}, error);
  });
}

int32_t feedlane_sampler_destroy(feedlane_sampler** s) {
  return destroy(s, [](feedlane_sampler*) { return Status{FEEDLANE_OK}; });
}

}  // extern "C"
