// SPDX-License-Identifier: Apache-2.0
/** @file sampler.hpp Samplers: what order the indices of an epoch come in. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error.hpp"
#include "state.hpp"

namespace feedlane {
inline namespace v1 {

/** How a sampler shuffles. */
enum class Shuffle : std::int32_t {
  torch = FEEDLANE_SHUFFLE_TORCH,     /**< as torch with a generator seeded with seed + epoch; 8 bytes an index */
  feistel = FEEDLANE_SHUFFLE_FEISTEL, /**< computed index by index, no memory */
  torch_loader =
      FEEDLANE_SHUFFLE_TORCH_LOADER, /**< as torch's DataLoader(shuffle=True) after torch.manual_seed(seed) */
};

/** What Sampler::random yields. */
struct RandomOptions {
  std::int64_t length = 0;          /**< size of the data set, > 0 */
  std::uint64_t seed = 0;           /**< epoch e is shuffled with seed + e */
  std::int64_t num_samples = 0;     /**< indices in an epoch; 0: length */
  bool replacement = false;         /**< whether every index is drawn from all of them */
  Shuffle shuffle = Shuffle::torch; /**< how */
};

/** What Sampler::weighted draws. */
struct WeightedOptions {
  std::uint64_t seed = 0;           /**< epoch e is drawn with seed + e */
  std::int64_t num_samples = 0;     /**< indices in an epoch; 0: as many as there are weights */
  bool without_replacement = false; /**< whether each index comes at most once */
};

/** Which part of a data set's order Sampler::distributed yields. */
struct DistributedOptions {
  std::int64_t length = 0;          /**< size of the data set */
  std::uint64_t seed = 0;           /**< epoch e is shuffled with seed + e; the same in every rank */
  int world = 0;                    /**< number of ranks; 0: both numbers as of detect_rank() */
  int rank = 0;                     /**< 0 .. world - 1 */
  bool no_shuffle = false;          /**< whether in the data set's order */
  bool drop_last = false;           /**< whether the list is cut rather than repeated, until every rank gets as many */
  Shuffle shuffle = Shuffle::torch; /**< how */
  bool detect_off = false;          /**< with world 0: rank 0 of 1 without a look at the environment */
};

/** Which process of how many this is. */
struct Rank {
  int rank = 0;        /**< 0 .. world - 1 */
  int world = 1;       /**< at least 1 */
  std::string source;  /**< whose variables said so; "none": 0 of 1 */
  std::string warning; /**< another source that says something else; empty if none does */
};
/** By what the process's launcher left in the environment; see feedlane_rank_detect. */
inline Rank detect_rank() {
  feedlane_rank r;
  feedlane_init(&r, sizeof r);
  detail::checked([&](feedlane_error* e) { return feedlane_rank_detect(&r, e); });
  return {r.rank, r.world, r.source, r.warning};
}

/** The base seed that torch's DataLoader(shuffle=True) draws for `epoch` after torch.manual_seed(manual_seed). */
inline std::uint64_t torch_base_seed(std::uint64_t manual_seed, std::int64_t epoch = 0) {
  std::uint64_t seed = 0;
  detail::checked([&](feedlane_error* e) { return feedlane_torch_base_seed(manual_seed, epoch, &seed, e); });
  return seed;
}

namespace detail {

/** Runs `f`, which returns a status; what it throws becomes the callback's error. */
template <class F>
std::int32_t sampler_guarded(feedlane_error* err, F&& f) noexcept {
  // Without allocating: memory may be what `f` was short of.
  const auto say = [&](std::int32_t code, std::string_view text) {
    const std::size_t length = text.copy(err->text, sizeof err->text - 1);
    err->text[length] = '\0';
    return code;
  };
  try {
    return f();
  } catch (const Error& e) {
    return say(e.code(), e.text());
  } catch (const std::exception& e) {
    return say(FEEDLANE_E_SAMPLE, e.what());
  } catch (...) {
    return say(FEEDLANE_E_SAMPLE, "an exception that is no std::exception");
  }
}

/** The callback table of an object; see Sampler::custom. */
template <class T>
feedlane_sampler_callbacks sampler_callbacks(T& object) {
  feedlane_sampler_callbacks c;
  feedlane_init(&c, sizeof c);
  c.user_data = &object;
  c.next = [](void* user_data, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got, feedlane_error* err) {
    return sampler_guarded(err, [&]() -> std::int32_t {
      const std::span<std::int64_t> room(indices, static_cast<std::size_t>(cap));
      if constexpr (requires(T & t) { t.next(room); }) *got = static_cast<T*>(user_data)->next(room);
      else *got = (*static_cast<T*>(user_data))(room);
      return *got == 0 ? FEEDLANE_END : FEEDLANE_OK;
    });
  };
  if constexpr (requires(T & t) { t.restart(std::int64_t{}, std::uint64_t{}); })
    c.restart = [](void* user_data, std::int64_t epoch, std::uint64_t seed, feedlane_error* err) {
      return sampler_guarded(err, [&] { return static_cast<T*>(user_data)->restart(epoch, seed), FEEDLANE_OK; });
    };
  if constexpr (requires(T & t) { t.save(); })
    c.save = [](void* user_data, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* err) {
      return sampler_guarded(err, [&]() -> std::int32_t {
        const std::vector<std::byte> state = static_cast<T*>(user_data)->save();
        *bytes = state.size();
        if (state.size() > cap) return FEEDLANE_E_LIMIT;
        if (!state.empty()) std::memcpy(buffer, state.data(), state.size());
        return FEEDLANE_OK;
      });
    };
  if constexpr (requires(T & t) { t.load(std::span<const std::byte>()); })
    c.load = [](void* user_data, const void* buffer, std::uint64_t bytes, feedlane_error* err) {
      return sampler_guarded(err, [&] {
        static_cast<T*>(user_data)->load({static_cast<const std::byte*>(buffer), static_cast<std::size_t>(bytes)});
        return FEEDLANE_OK;
      });
    };
  c.drop = [](void* user_data) { delete static_cast<T*>(user_data); };
  if constexpr (requires(const T& t) { t.length(); }) c.length = object.length();
  if constexpr (requires(const T& t) { t.batch_rows(); }) c.batch_rows = object.batch_rows();
  return c;
}

}  // namespace detail

/** Move-only; one thread at a time. Loaders take a copy of their own. */
class Sampler {
 public:
  /** 0, 1, ... length - 1. */
  static Sampler sequential(std::int64_t length) {
    Sampler s;
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_sequential(length, &s.handle_, e); });
    return s;
  }
  /** torch.randperm(length) with generator seed `seed + epoch`. */
  static Sampler random(std::int64_t length, std::uint64_t seed) { return random({.length = length, .seed = seed}); }
  /** Permutations, or draws with replacement. */
  static Sampler random(const RandomOptions& o) {
    Sampler s;
    feedlane_random_config config;
    feedlane_init(&config, sizeof config);
    config.length = o.length;
    config.seed = o.seed;
    config.num_samples = o.num_samples;
    config.replacement = o.replacement ? 1 : 0;
    config.shuffle = static_cast<std::int32_t>(o.shuffle);
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_random(&config, &s.handle_, e); });
    return s;
  }

  /** These indices, for each epoch in another order: that of torch's SubsetRandomSampler. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed) {
    return subset(indices, false, seed);
  }
  /** These indices as they are. */
  static Sampler list(std::span<const std::int64_t> indices) { return subset(indices, true, 0); }
  /** Indices from 0 to weights.size() - 1, each as likely as its weight says. */
  static Sampler weighted(std::span<const double> weights, const WeightedOptions& o = {}) {
    Sampler s;
    feedlane_weighted_config config;
    feedlane_init(&config, sizeof config);
    config.num_samples = o.num_samples;
    config.seed = o.seed;
    config.without_replacement = o.without_replacement ? 1 : 0;
    detail::checked([&](feedlane_error* e) {
      return feedlane_sampler_weighted(weights.data(), weights.size(), &config, &s.handle_, e);
    });
    return s;
  }
  /** Batches of a copy of `inner`: each next() is one. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last = false) {
    Sampler s;
    detail::checked([&](feedlane_error* e) {
      return feedlane_sampler_batch(inner.handle_, batch_size, drop_last ? 1 : 0, &s.handle_, e);
    });
    return s;
  }
  /** This rank's part: that of torch's DistributedSampler. */
  static Sampler distributed(const DistributedOptions& o) {
    Sampler s;
    feedlane_distributed_config config;
    feedlane_init(&config, sizeof config);
    config.length = o.length;
    config.world = o.world;
    config.rank = o.rank;
    config.seed = o.seed;
    config.no_shuffle = o.no_shuffle ? 1 : 0;
    config.drop_last = o.drop_last ? 1 : 0;
    config.shuffle = static_cast<std::int32_t>(o.shuffle);
    config.detect_off = o.detect_off ? 1 : 0;
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_distributed(&config, &s.handle_, e); });
    return s;
  }
  /**
   * One of the user's own: an object with
   *     std::size_t next(std::span<std::int64_t> indices);           // how many it wrote; 0: the end
   * and, as it likes,
   *     void restart(std::int64_t epoch, std::uint64_t seed);
   *     std::int64_t length() const;                                 // asked once; 0: unknown
   *     std::int64_t batch_rows() const;                             // asked once; > 0: each next is one batch
   *     std::vector<std::byte> save() const;
   *     void load(std::span<const std::byte> state);
   * or a function of next's form. What they throw is what the call answers. Copies (a loader's) share the object.
   */
  template <class T>
  static Sampler custom(T object) {
    Sampler s;
    auto kept = std::make_unique<T>(std::move(object));
    const feedlane_sampler_callbacks callbacks = detail::sampler_callbacks(*kept);
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_custom(&callbacks, &s.handle_, e); });
    (void)kept.release();  // `drop` deletes it
    return s;
  }

  /** `other` can only be assigned to or destroyed after. */
  Sampler(Sampler&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Exchanges the two. */
  Sampler& operator=(Sampler&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  ~Sampler() { (void)feedlane_sampler_destroy(&handle_); }

  /** Starts an epoch (>= 0) over. */
  void restart(std::int64_t epoch) {
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_restart(handle_, epoch, e); });
  }
  /** Fills from the front; fewer than asked only at the end, 0 after it. */
  std::size_t next(std::span<std::int64_t> indices) {
    std::uint64_t got = 0;
    const std::int32_t s = detail::checked(
        [&](feedlane_error* e) { return feedlane_sampler_next(handle_, indices.data(), indices.size(), &got, e); });
    return s == FEEDLANE_END ? 0 : static_cast<std::size_t>(got);
  }
  /** Where it stands, for load(). */
  [[nodiscard]] std::vector<std::byte> save() {
    return detail::saved([&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_sampler_save(handle_, buffer, cap, bytes, e);
    });
  }
  /** After restart() of the state's epoch: goes on behind what was saved. */
  void load(std::span<const std::byte> state) {
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_load(handle_, state.data(), state.size(), e); });
  }
  /** Indices in an epoch, batches of a batch sampler; -1: unknown. */
  [[nodiscard]] std::int64_t length() const {
    std::int64_t length = 0;
    (void)feedlane_sampler_length(handle_, &length);
    return length;
  }
  /** The handle, for the C interface; still owned by this. */
  [[nodiscard]] const feedlane_sampler* c() const { return handle_; }

 private:
  Sampler() = default;
  static Sampler subset(std::span<const std::int64_t> indices, bool in_order, std::uint64_t seed) {
    Sampler s;
    detail::checked([&](feedlane_error* e) {
      return feedlane_sampler_subset(indices.data(), indices.size(), in_order ? 1 : 0, seed, &s.handle_, e);
    });
    return s;
  }
  feedlane_sampler* handle_ = nullptr;
};

}  // namespace v1
}  // namespace feedlane
