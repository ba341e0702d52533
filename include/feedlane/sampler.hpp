// SPDX-License-Identifier: Apache-2.0
/** @file sampler.hpp Samplers: the order of an epoch's indices. */
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
  torch =
      FEEDLANE_SHUFFLE_TORCH, /**< torch's order with a generator seeded with seed + epoch; 8 bytes for each index */
  feistel = FEEDLANE_SHUFFLE_FEISTEL, /**< computed index by index, in constant memory */
  torch_loader =
      FEEDLANE_SHUFFLE_TORCH_LOADER, /**< the order of torch's DataLoader(shuffle=True) after torch.manual_seed(seed) */
};

/** Configuration of Sampler::random. */
struct RandomOptions {
  std::int64_t length = 0;          /**< size of the data set, > 0 */
  std::uint64_t seed = 0;           /**< epoch e is shuffled with seed + e */
  std::int64_t num_samples = 0;     /**< indices in an epoch; 0: length */
  bool replacement = false;         /**< whether every index is drawn from all of them */
  Shuffle shuffle = Shuffle::torch; /**< how */
};

/** Configuration of Sampler::weighted. */
struct WeightedOptions {
  std::uint64_t seed = 0;           /**< epoch e is drawn with seed + e */
  std::int64_t num_samples = 0;     /**< indices in an epoch; 0: the number of weights */
  bool without_replacement = false; /**< whether each index comes at most once */
};

/** Configuration of Sampler::distributed. */
struct DistributedOptions {
  std::int64_t length = 0; /**< size of the data set */
  std::uint64_t seed = 0;  /**< epoch e is shuffled with seed + e; the same in every rank */
  int world = 0;           /**< number of ranks; 0: world and rank by detect_rank() */
  int rank = 0;            /**< 0 .. world - 1 */
  bool no_shuffle = false; /**< keeps the data set's order */
  bool drop_last = false;  /**< to give every rank the same number, cuts the list instead of repeating its start */
  Shuffle shuffle = Shuffle::torch; /**< how */
  bool detect_off = false;          /**< with world 0: rank 0 of 1, the environment is not read */
};

/** Configuration of Sampler::tokens. */
struct TokensOptions {
  std::int64_t max_tokens = 0; /**< tokens in a batch, at most */
  std::int64_t max_rows = 0;   /**< samples in a batch, at most */
  std::uint64_t seed = 0;      /**< epoch e is shuffled with seed + e; the same in every rank */
  std::int64_t window = 0;     /**< shuffled samples that are sorted by length together; 0: 8192; 1: none are sorted */
  bool padded = false;         /**< counts rows * the longest length instead of the sum of the lengths */
  bool no_shuffle = false;     /**< keeps the data set's order, except within windows */
  bool drop_last = false;      /**< to give every rank the same number, omits batches instead of splitting some */
  bool drop_long = false;      /**< omits samples with more than max_tokens instead of refusing them */
  int world = 0;               /**< number of ranks; 0: world and rank by detect_rank() */
  int rank = 0;                /**< 0 .. world - 1 */
  bool detect_off = false;     /**< with world 0: rank 0 of 1, the environment is not read */
};

/** Configuration of Sampler::mixture. */
struct MixtureOptions {
  std::int64_t num_samples =
      0;                   /**< indices in an epoch, of all ranks together; 0: the samples of all sources together */
  std::uint64_t seed = 0;  /**< the same in every rank */
  std::int64_t window = 0; /**< samples of the stream that are shuffled together; 0: 1024; 1: none */
  std::span<const std::int64_t> from = {}; /**< where in the stream each stage begins: 0, ascending; empty: one stage */
  bool no_shuffle = false;                 /**< keeps each source's own order */
  bool drop_last = false;  /**< to give every rank the same number, cuts the epoch instead of repeating its start */
  int world = 0;           /**< number of ranks; 0: world and rank by detect_rank() */
  int rank = 0;            /**< 0 .. world - 1 */
  bool detect_off = false; /**< with world 0: rank 0 of 1, the environment is not read */
};

/** Rank of this process and number of ranks. */
struct Rank {
  int rank = 0;        /**< 0 .. world - 1 */
  int world = 1;       /**< at least 1 */
  std::string source;  /**< the launcher whose variables were used; "none": 0 of 1 */
  std::string warning; /**< names another source with other numbers; empty if there is none */
};
/** Reads the launcher's environment variables; see feedlane_rank_detect. The error is in `error`. */
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

/** A sampler. Move-only. Thread safety: one thread at a time. Loaders copy it. The functions that create one throw; with an
 *  Error& they return, on failure, a sampler whose every call fails. */
class Sampler {
 public:
  /** 0, 1, ... length - 1. */
  static Sampler sequential(std::int64_t length) {
    return detail::or_raise([&](Error& error) { return sequential(length, error); });
  }
  /** The same without exceptions: the error is in `error`. */
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
  /** The same without exceptions: the error is in `error`. */
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

  /** These indices, shuffled anew for each epoch, as by torch's SubsetRandomSampler. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed) {
    return detail::or_raise([&](Error& error) { return subset(indices, seed, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed, Error& error) noexcept {
    return listed(indices, false, seed, error);
  }
  /** These indices in the given order. */
  static Sampler list(std::span<const std::int64_t> indices) {
    return detail::or_raise([&](Error& error) { return list(indices, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  static Sampler list(std::span<const std::int64_t> indices, Error& error) noexcept {
    return listed(indices, true, 0, error);
  }
  /** Indices from 0 to weights.size() - 1, with probabilities proportional to the weights. */
  static Sampler weighted(std::span<const double> weights, const WeightedOptions& o = {}) {
    return detail::or_raise([&](Error& error) { return weighted(weights, o, error); });
  }
  /** The same without exceptions: the error is in `error`. */
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
  /** Batches of a copy of `inner`: each next() returns one batch. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last = false) {
    return detail::or_raise([&](Error& error) { return batch(inner, batch_size, drop_last, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last, Error& error) noexcept {
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_batch(inner.handle_, batch_size, drop_last ? 1 : 0, out, e);
    });
  }
  /** This rank's share, as of torch's DistributedSampler. */
  static Sampler distributed(const DistributedOptions& o) {
    return detail::or_raise([&](Error& error) { return distributed(o, error); });
  }
  /** The same without exceptions: the error is in `error`. */
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
  /** Batches of samples within a budget of tokens; lengths[i] is the number of tokens of sample i. */
  static Sampler tokens(std::span<const std::int64_t> lengths, const TokensOptions& o) {
    return detail::or_raise([&](Error& error) { return tokens(lengths, o, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  static Sampler tokens(std::span<const std::int64_t> lengths, const TokensOptions& o, Error& error) noexcept {
    feedlane_tokens_config config{};
    config.size = sizeof config;
    config.max_tokens = o.max_tokens;
    config.max_rows = o.max_rows;
    config.seed = o.seed;
    config.window = o.window;
    config.padded = o.padded ? 1 : 0;
    config.no_shuffle = o.no_shuffle ? 1 : 0;
    config.drop_last = o.drop_last ? 1 : 0;
    config.drop_long = o.drop_long ? 1 : 0;
    config.world = o.world;
    config.rank = o.rank;
    config.detect_off = o.detect_off ? 1 : 0;
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_tokens(lengths.data(), lengths.size(), &config, out, e);
    });
  }
  /** Sources in proportion to weights. Source i has the lengths[i] indices behind those of source i - 1. `weights` has as many
   *  numbers as `lengths` for each stage. */
  static Sampler mixture(std::span<const std::int64_t> lengths, std::span<const double> weights,
                         const MixtureOptions& o = {}) {
    return detail::or_raise([&](Error& error) { return mixture(lengths, weights, o, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  static Sampler mixture(std::span<const std::int64_t> lengths, std::span<const double> weights,
                         const MixtureOptions& o, Error& error) noexcept {
    const std::size_t stages = o.from.empty() ? 1 : o.from.size();
    if (lengths.empty() || weights.size() % lengths.size() != 0 || weights.size() / lengths.size() != stages) {
      error.refuse(
          "weights", static_cast<std::int64_t>(weights.size()), static_cast<std::int64_t>(lengths.size() * stages),
          "the number of weights is not that of the sources, of which there must be one, times that of the stages");
      return {};
    }
    feedlane_mixture_config config{};
    config.size = sizeof config;
    config.num_samples = o.num_samples;
    config.seed = o.seed;
    config.window = o.window;
    config.from = o.from.empty() ? nullptr : o.from.data();
    config.stages = o.from.size();
    config.no_shuffle = o.no_shuffle ? 1 : 0;
    config.drop_last = o.drop_last ? 1 : 0;
    config.world = o.world;
    config.rank = o.rank;
    config.detect_off = o.detect_off ? 1 : 0;
    return made(error, [&](feedlane_sampler** out, feedlane_error* e) {
      return feedlane_sampler_mixture(lengths.data(), lengths.size(), weights.data(), &config, out, e);
    });
  }
  /**
   * A custom sampler: an object with
   *     std::size_t next(std::span<std::int64_t> indices);           // number of indices written; 0: the end
   * and optionally
   *     void restart(std::int64_t epoch, std::uint64_t seed);
   *     std::int64_t length() const;                                 // called once; 0: unknown
   *     std::int64_t batch_rows() const;                             // called once; > 0: each next returns one batch
   *     std::vector<std::byte> save() const;
   *     void load(std::span<const std::byte> state);
   * or a function with the signature of next. An exception becomes the error of the call; without exceptions next may take an
   * Error& as its last argument and report there. Copies (such as a loader's) share the object.
   */
  template <class T>
  static Sampler custom(T object) {
    return detail::or_raise([&](Error& error) { return custom(std::move(object), error); });
  }
  /** The same without exceptions: the error is in `error`. */
  template <class T>
  static Sampler custom(T object, Error& error) {
    auto kept = std::make_unique<T>(std::move(object));
    const feedlane_sampler_callbacks callbacks = detail::sampler_callbacks(*kept);
    Sampler s = made(
        error, [&](feedlane_sampler** out, feedlane_error* e) { return feedlane_sampler_custom(&callbacks, out, e); });
    if (!error) (void)kept.release();  // `drop` deletes it
    return s;
  }

  /** `other` can then only be assigned to or destroyed. */
  Sampler(Sampler&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), room_(std::move(other.room_)) {}
  /** Swaps the two. */
  Sampler& operator=(Sampler&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(room_, other.room_);
    return *this;
  }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  ~Sampler() { (void)feedlane_sampler_destroy(&handle_); }

  /** Starts an epoch (>= 0) from its beginning. Throws. */
  void restart(std::int64_t epoch) {
    detail::or_raise([&](Error& error) { restart(epoch, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  void restart(std::int64_t epoch, Error& error) noexcept {
    detail::checked(error, room_, [&](feedlane_error* e) { return feedlane_sampler_restart(handle_, epoch, e); });
  }
  /** Writes the next indices and returns their number: fewer than `indices` holds only at the end, 0 after it. Throws. */
  std::size_t next(std::span<std::int64_t> indices) {
    return detail::or_raise([&](Error& error) { return next(indices, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  std::size_t next(std::span<std::int64_t> indices, Error& error) noexcept {
    std::uint64_t got = 0;
    const std::int32_t s = detail::checked(error, room_, [&](feedlane_error* e) {
      return feedlane_sampler_next(handle_, indices.data(), indices.size(), &got, e);
    });
    return s == FEEDLANE_OK ? static_cast<std::size_t>(got) : 0;
  }
  /** The present position, for load(). Throws. */
  [[nodiscard]] std::vector<std::byte> save() {
    return detail::or_raise([&](Error& error) { return save(error); });
  }
  /** The same without exceptions: empty, with the error in `error`. */
  [[nodiscard]] std::vector<std::byte> save(Error& error) {
    return detail::saved(error, room_, [&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_sampler_save(handle_, buffer, cap, bytes, e);
    });
  }
  /** Call after restart() with the state's epoch: continues after the saved position. Throws. */
  void load(std::span<const std::byte> state) {
    detail::or_raise([&](Error& error) { load(state, error); });
  }
  /** The same without exceptions: the error is in `error`. */
  void load(std::span<const std::byte> state, Error& error) noexcept {
    detail::checked(error, room_,
                    [&](feedlane_error* e) { return feedlane_sampler_load(handle_, state.data(), state.size(), e); });
  }
  /** Number of indices of an epoch, or of batches for a batch sampler; -1: unknown. */
  [[nodiscard]] std::int64_t length() const noexcept {
    std::int64_t length = 0;
    (void)feedlane_sampler_length(handle_, &length);
    return length;
  }
  /** The handle for the C interface; this object still owns it. */
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
