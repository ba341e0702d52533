// SPDX-License-Identifier: Apache-2.0
// A sampler of any kind and definition, out of fuzz input. Orders that take memory are kept short.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "input.hpp"
#include "sampler/sampler.hpp"
#include "support/make_sampler.hpp"

namespace feedlane::fuzz {

// The user's own: counts up; its state is where it stands.
struct Counter {
  std::int64_t next = 0;
  std::int64_t end = 5;
  static std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error*) {
    static_cast<Counter*>(self)->next = 0;
    return FEEDLANE_OK;
  }
  static std::int32_t give(void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error*) {
    auto* c = static_cast<Counter*>(self);
    *got = c->next < c->end ? 1 : 0;
    if (*got == 0) return FEEDLANE_END;
    *indices = c->next++;
    return FEEDLANE_OK;
  }
  static std::int32_t save(void* self, void* out, std::uint64_t, std::uint64_t* bytes, feedlane_error*) {
    std::memcpy(out, &static_cast<Counter*>(self)->next, 8);
    *bytes = 8;
    return FEEDLANE_OK;
  }
  static std::int32_t load(void* self, const void* in, std::uint64_t bytes, feedlane_error*) {
    if (bytes != 8) return FEEDLANE_E_CORRUPT;
    std::memcpy(&static_cast<Counter*>(self)->next, in, 8);
    return FEEDLANE_OK;
  }
};

// `counter` must outlive the sampler. Nothing if the definition is refused. `bound`: indices are below it.
inline std::unique_ptr<sampler::Sampler> make_sampler(Input& in, Counter& counter, std::int64_t& bound) {
  std::unique_ptr<sampler::Sampler> s;
  Error error;
  const std::uint32_t kind = in.pick(9);
  const bool is_small = in.pick(4) != 3;
  const std::int64_t length = is_small ? in.pick(24) : in.i64();
  bound = length;
  const auto no_environment = [](const char*) -> const char* { return nullptr; };
  const auto make = [&](const feedlane_sampler_config& c) {
    (void)sampler::make(c, nullptr, no_environment, s, error);
  };
  switch (kind) {
    case 0: {
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_SEQUENTIAL);
      c.length = length;
      make(c);
      break;
    }
    case 1:
    case 2: {
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_RANDOM);
      c.length = length;
      c.seed = in.u8();
      c.num_samples = in.pick(4) == 3 ? in.number() : 0;
      c.replacement = static_cast<std::int32_t>(in.pick(2));
      c.shuffle = static_cast<std::int32_t>(in.pick(3));
      const bool takes_memory = c.shuffle != FEEDLANE_SHUFFLE_FEISTEL;
      if (takes_memory && (c.length > 4096 || c.num_samples > 4096)) c.shuffle = FEEDLANE_SHUFFLE_FEISTEL;
      make(c);
      break;
    }
    case 3: {
      std::vector<std::int64_t> indices;
      for (std::uint32_t i = in.pick(8); i > 0; i--) indices.push_back(in.pick(100));
      bound = 100;
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_SUBSET);
      c.indices = indices.data();
      c.count = indices.size();
      c.no_shuffle = static_cast<std::int32_t>(in.pick(3));
      c.seed = in.u8();
      make(c);
      break;
    }
    case 4: {
      std::vector<double> weights;
      for (std::uint32_t i = in.pick(8); i > 0; i--) weights.push_back(in.flag() ? in.u8() : in.take<double>());
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_WEIGHTED);
      c.num_samples = in.pick(10);
      c.without_replacement = static_cast<std::int32_t>(in.pick(3));
      c.reserved = in.pick(8) == 7 ? 1 : 0;
      bound = static_cast<std::int64_t>(weights.size());
      c.weights = weights.data();
      c.count = weights.size();
      make(c);
      break;
    }
    case 5: {
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_DISTRIBUTED);
      c.length = length;
      c.world = in.flag() ? static_cast<std::int32_t>(in.pick(5)) : in.i32();
      c.rank = in.flag() || c.world <= 0 ? static_cast<std::int32_t>(in.pick(5)) : in.i32() % c.world;
      c.no_shuffle = static_cast<std::int32_t>(in.pick(2));
      c.drop_last = static_cast<std::int32_t>(in.pick(3));
      c.shuffle = static_cast<std::int32_t>(in.pick(2));
      if (length > 4096 && c.no_shuffle == 0) c.shuffle = FEEDLANE_SHUFFLE_FEISTEL;
      c.detect_off = 1;
      make(c);
      break;
    }
    case 6: {
      std::vector<std::int64_t> lengths;
      for (std::uint32_t i = in.pick(24); i > 0; i--) lengths.push_back(in.pick(8) == 7 ? in.i64() : in.pick(20));
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_TOKENS);
      c.max_tokens = in.flag() ? 1 + in.pick(40) : in.i64();
      c.max_rows = 1 + in.pick(6);
      c.seed = in.u8();
      c.window = in.pick(9);
      c.padded = static_cast<std::int32_t>(in.pick(2));
      c.no_shuffle = static_cast<std::int32_t>(in.pick(2));
      c.drop_last = static_cast<std::int32_t>(in.pick(2));
      c.drop_long = static_cast<std::int32_t>(in.pick(2));
      c.world = static_cast<std::int32_t>(in.pick(5));
      c.rank = c.world > 0 ? static_cast<std::int32_t>(in.pick(5)) : 0;
      c.detect_off = 1;
      bound = static_cast<std::int64_t>(lengths.size());
      c.lengths = lengths.data();
      c.count = lengths.size();
      make(c);
      break;
    }
    case 8: {
      std::vector<std::int64_t> lengths(1 + in.pick(5)), from(1 + in.pick(4));
      std::vector<double> weights(lengths.size() * from.size());
      bound = 0;
      for (std::int64_t& l : lengths) {
        l = in.pick(8) == 7 ? in.number() : in.pick(12);
        bound = l < 0 || l > INT64_MAX - bound ? bound : bound + l;
      }
      for (double& w : weights) w = in.pick(8) == 7 ? in.take<double>() : in.pick(4);
      for (std::size_t i = 1; i < from.size(); i++)
        from[i] = in.pick(8) == 7 ? in.number() : std::min(from[i - 1], INT64_MAX - 40) + in.pick(40);
      feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_MIXTURE);
      c.num_samples = in.flag() ? in.pick(50) : in.number();
      c.seed = in.u8();
      c.window = in.flag() ? in.pick(20) : in.number();
      c.from = from.data();
      c.stages = from.size();
      c.no_shuffle = static_cast<std::int32_t>(in.pick(2));
      c.drop_last = static_cast<std::int32_t>(in.pick(2));
      c.world = static_cast<std::int32_t>(in.pick(5));
      c.rank = c.world > 0 ? static_cast<std::int32_t>(in.pick(5)) : 0;
      c.detect_off = 1;
      c.lengths = lengths.data();
      c.count = lengths.size();
      c.weights = weights.data();
      make(c);
      break;
    }
    default: {
      feedlane_sampler_callbacks c{};
      c.size = sizeof c;
      counter.end = bound = in.pick(12);
      c.user_data = &counter;
      c.next = &Counter::give;
      if (in.flag()) c.restart = &Counter::restart;
      if (in.flag()) c.save = &Counter::save;
      if (in.flag()) c.load = &Counter::load;
      c.length = in.flag() ? 0 : in.number();
      c.batch_rows = in.flag() ? 0 : in.pick(4);
      feedlane_sampler_config config = test::sampler_config(FEEDLANE_SAMPLER_CUSTOM);
      config.callbacks = &c;
      make(config);
      bound = INT64_MAX;  // its state may say anything
      break;
    }
  }
  if (s == nullptr || in.pick(3) != 0) return s;
  std::unique_ptr<sampler::Sampler> batches;
  feedlane_sampler_config c = test::sampler_config(FEEDLANE_SAMPLER_BATCH);
  c.batch_size = in.pick(4) == 3 ? in.number() : 1 + in.pick(4);
  c.drop_last = static_cast<std::int32_t>(in.pick(2));
  (void)sampler::make(c, s.get(), no_environment, batches, error);
  return batches != nullptr && batches->batch_rows() <= 64 ? std::move(batches) : std::move(s);
}

}  // namespace feedlane::fuzz
