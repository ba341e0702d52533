// SPDX-License-Identifier: Apache-2.0
/** @file sampler.hpp Samplers: what order the indices of an epoch come in. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "custom_sampler.hpp"
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
/** By what the process's launcher left in the environment; see feedlane_rank_detect. What went wrong is in `error`. */
inline Rank detect_rank(Error& error) {
  feedlane_rank r{};
  r.size = sizeof r;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_rank_detect(&r, e); });
  if (error) return {};
  return {r.rank, r.world, r.source, r.warning};
}
/** The same; an error is thrown. */
inline Rank detect_rank() {
  return detail::or_raise([](Error& error) { return detect_rank(error); });
}

/** The base seed that torch's DataLoader(shuffle=True) draws for `epoch` after torch.manual_seed(manual_seed). */
inline std::uint64_t torch_base_seed(std::uint64_t manual_seed, std::int64_t epoch, Error& error) noexcept {
  std::uint64_t seed = 0;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_torch_base_seed(manual_seed, epoch, &seed, e); });
  return seed;
}
/** The same; an error is thrown. */
inline std::uint64_t torch_base_seed(std::uint64_t manual_seed, std::int64_t epoch = 0) {
  return detail::or_raise([&](Error& error) { return torch_base_seed(manual_seed, epoch, error); });
}

/** Move-only; one thread at a time. Loaders take a copy of their own. What makes one throws, or with an Error& returns one
 *  that refuses everything. */
class Sampler {
 public:
  /** 0, 1, ... length - 1. */
  static Sampler sequential(std::int64_t length) {
    return detail::or_raise([&](Error& error) { return sequential(length, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler sequential(std::int64_t length, Error& error) noexcept {
    return made(error,
                [&](feedlane_sampler** out, feedlane_error* e) { return feedlane_sampler_sequential(length, out, e); });
  }
  /** torch.randperm(length) with generator seed `seed + epoch`. */
  static Sampler random(std::int64_t length, std::uint64_t seed) { return random({.length = length, .seed = seed}); }
  /** Permutations, or draws with replacement. */
  static Sampler random(const RandomOptions& o) {
    return detail::or_raise([&](Error& error) { return random(o, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler random(const RandomOptions& o, Error& error) noexcept {
    feedlane_random_config config{};
    config.size = sizeof config;
    config.length = o.length;
    config.seed = o.seed;
    config.num_samples = o.num_samples;
    config.replacement = o.replacement ? 1 : 0;
    config.shuffle = static_cast<std::int32_t>(o.shuffle);
    return made(error,
                [&](feedlane_sampler** out, feedlane_error* e) { return feedlane_sampler_random(&config, out, e); });
  }

  /** These indices, for each epoch in another order: that of torch's SubsetRandomSampler. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed) {
    return detail::or_raise([&](Error& error) { return subset(indices, seed, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed, Error& error) noexcept {
    return listed(indices, false, seed, error);
  }
  /** These indices as they are. */
  static Sampler list(std::span<const std::int64_t> indices) {
    return detail::or_raise([&](Error& error) { return list(indices, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler list(std::span<const std::int64_t> indices, Error& error) noexcept {
    return listed(indices, true, 0, error);
  }
  /** Indices from 0 to weights.size() - 1, each as likely as its weight says. */
  static Sampler weighted(std::span<const double> weights, const WeightedOptions& o = {}) {
    return detail::or_raise([&](Error& error) { return weighted(weights, o, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler weighted(std::span<const double> weights, const WeightedOptions& o, Error& error) noexcept {
    feedlane_weighted_config config{};
    config.size = sizeof config;
    config.num_samples = o.num_samples;
    config.seed = o.seed;
    config.without_replacement = o.without_replacement ? 1 : 0;
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_weighted(weights.data(), weights.size(), &config, out, e);
    });
  }
  /** Batches of a copy of `inner`: each next() is one. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last = false) {
    return detail::or_raise([&](Error& error) { return batch(inner, batch_size, drop_last, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last, Error& error) noexcept {
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_batch(inner.handle_, batch_size, drop_last ? 1 : 0, out, e);
    });
  }
  /** This rank's part: that of torch's DistributedSampler. */
  static Sampler distributed(const DistributedOptions& o) {
    return detail::or_raise([&](Error& error) { return distributed(o, error); });
  }
  /** The same; what went wrong is in `error`. */
  static Sampler distributed(const DistributedOptions& o, Error& error) noexcept {
    feedlane_distributed_config config{};
    config.size = sizeof config;
    config.length = o.length;
    config.world = o.world;
    config.rank = o.rank;
    config.seed = o.seed;
    config.no_shuffle = o.no_shuffle ? 1 : 0;
    config.drop_last = o.drop_last ? 1 : 0;
    config.shuffle = static_cast<std::int32_t>(o.shuffle);
    config.detect_off = o.detect_off ? 1 : 0;
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_distributed(&config, out, e);
    });
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
   * or a function of next's form. What they throw is what the call answers; without exceptions next may take an Error& behind
   * its argument and say it there. Copies (a loader's) share the object.
   */
  template <class T>
  static Sampler custom(T object) {
    return detail::or_raise([&](Error& error) { return custom(std::move(object), error); });
  }
  /** The same; what went wrong is in `error`. */
  template <class T>
  static Sampler custom(T object, Error& error) {
    auto kept = std::make_unique<T>(std::move(object));
    const feedlane_sampler_callbacks callbacks = detail::sampler_callbacks(*kept);
    Sampler s = made(
        error, [&](feedlane_sampler** out, feedlane_error* e) { return feedlane_sampler_custom(&callbacks, out, e); });
    if (!error) (void)kept.release();  // `drop` deletes it
    return s;
  }

  /** `other` can only be assigned to or destroyed after. */
  Sampler(Sampler&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), room_(std::move(other.room_)) {}
  /** Exchanges the two. */
  Sampler& operator=(Sampler&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(room_, other.room_);
    return *this;
  }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  ~Sampler() { (void)feedlane_sampler_destroy(&handle_); }

  /** Starts an epoch (>= 0) over. Throws. */
  void restart(std::int64_t epoch) {
    detail::or_raise([&](Error& error) { restart(epoch, error); });
  }
  /** The same; what went wrong is in `error`. */
  void restart(std::int64_t epoch, Error& error) noexcept {
    detail::checked(error, room_, [&](feedlane_error* e) { return feedlane_sampler_restart(handle_, epoch, e); });
  }
  /** Fills from the front; fewer than asked only at the end, 0 after it. Throws. */
  std::size_t next(std::span<std::int64_t> indices) {
    return detail::or_raise([&](Error& error) { return next(indices, error); });
  }
  /** The same; what went wrong is in `error`. */
  std::size_t next(std::span<std::int64_t> indices, Error& error) noexcept {
    std::uint64_t got = 0;
    const std::int32_t s = detail::checked(error, room_, [&](feedlane_error* e) {
      return feedlane_sampler_next(handle_, indices.data(), indices.size(), &got, e);
    });
    return s == FEEDLANE_OK ? static_cast<std::size_t>(got) : 0;
  }
  /** Where it stands, for load(). Throws. */
  [[nodiscard]] std::vector<std::byte> save() {
    return detail::or_raise([&](Error& error) { return save(error); });
  }
  /** The same; empty, with the reason in `error`. */
  [[nodiscard]] std::vector<std::byte> save(Error& error) {
    return detail::saved(error, room_, [&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_sampler_save(handle_, buffer, cap, bytes, e);
    });
  }
  /** After restart() of the state's epoch: goes on behind what was saved. Throws. */
  void load(std::span<const std::byte> state) {
    detail::or_raise([&](Error& error) { load(state, error); });
  }
  /** The same; what went wrong is in `error`. */
  void load(std::span<const std::byte> state, Error& error) noexcept {
    detail::checked(error, room_,
                    [&](feedlane_error* e) { return feedlane_sampler_load(handle_, state.data(), state.size(), e); });
  }
  /** Indices in an epoch, batches of a batch sampler; -1: unknown. */
  [[nodiscard]] std::int64_t length() const noexcept {
    std::int64_t length = 0;
    (void)feedlane_sampler_length(handle_, &length);
    return length;
  }
  /** The handle, for the C interface; still owned by this. */
  [[nodiscard]] const feedlane_sampler* c() const noexcept { return handle_; }

 private:
  Sampler() = default;
  template <class Make>
  static Sampler made(Error& error, Make&& make) noexcept {
    Sampler s;
    detail::checked(error, [&](feedlane_error* e) { return make(&s.handle_, e); });
    return s;
  }
  static Sampler listed(std::span<const std::int64_t> indices, bool in_order, std::uint64_t seed,
                        Error& error) noexcept {
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_subset(indices.data(), indices.size(), in_order ? 1 : 0, seed, out, e);
    });
  }
  feedlane_sampler* handle_ = nullptr;
  detail::Room room_;
};

}  // namespace v1
}  // namespace feedlane

#endif
