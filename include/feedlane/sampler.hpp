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
      FEEDLANE_SHUFFLE_TORCH, /**< torch's order with a generator seeded with seed + epoch; takes 8 bytes per index */
  feistel = FEEDLANE_SHUFFLE_FEISTEL, /**< a permutation computed index by index, in constant memory */
  torch_loader =
      FEEDLANE_SHUFFLE_TORCH_LOADER, /**< the order of torch's DataLoader(shuffle=True) after torch.manual_seed(seed) */
};

/** Configuration of Sampler::random. */
struct RandomOptions {
  std::int64_t length = 0;          /**< size of the data set, > 0 */
  std::uint64_t seed = 0;           /**< epoch e is shuffled with seed + e */
  std::int64_t num_samples = 0;     /**< indices in an epoch; 0: length */
  bool replacement = false;         /**< each index is drawn from all of them, with repetitions */
  Shuffle shuffle = Shuffle::torch; /**< how to shuffle */
};

/** Configuration of Sampler::weighted. */
struct WeightedOptions {
  std::uint64_t seed = 0;           /**< epoch e is drawn with seed + e */
  std::int64_t num_samples = 0;     /**< indices in an epoch; 0: the number of weights */
  bool without_replacement = false; /**< each index is drawn at most once */
};

/** Configuration of Sampler::distributed. */
struct DistributedOptions {
  std::int64_t length = 0; /**< size of the data set */
  std::uint64_t seed = 0;  /**< epoch e is shuffled with seed + e; all ranks need the same seed */
  int world = 0;           /**< number of ranks; 0: detect_rank() gives world and rank */
  int rank = 0;            /**< 0 .. world - 1 */
  bool no_shuffle = false; /**< keeps the data set's order */
  bool drop_last = false;  /**< to give every rank the same number, cuts the list; otherwise repeats its start */
  Shuffle shuffle = Shuffle::torch; /**< how to shuffle */
  bool detect_off = false;          /**< with world 0: rank 0 of 1, without reading the environment */
};

/** Configuration of Sampler::tokens. */
struct TokensOptions {
  std::int64_t max_tokens = 0; /**< largest number of tokens in a batch */
  std::int64_t max_rows = 0;   /**< largest number of samples in a batch */
  std::uint64_t seed = 0;      /**< epoch e is shuffled with seed + e; all ranks need the same seed */
  std::int64_t window = 0;     /**< number of shuffled samples to sort by length at a time; 0: 8192; 1: no sorting */
  bool padded = false;         /**< a batch's tokens are rows * longest length; otherwise the sum of the lengths */
  bool no_shuffle = false;     /**< keeps the data set's order, except within windows */
  bool drop_last = false;      /**< to give every rank the same number, omits batches; otherwise splits some */
  bool drop_long = false;      /**< omits samples with more than max_tokens; otherwise refuses them */
  int world = 0;               /**< number of ranks; 0: detect_rank() gives world and rank */
  int rank = 0;                /**< 0 .. world - 1 */
  bool detect_off = false;     /**< with world 0: rank 0 of 1, without reading the environment */
};

/** Configuration of Sampler::mixture. */
struct MixtureOptions {
  std::int64_t num_samples =
      0;                   /**< indices in an epoch, over all ranks; 0: the number of samples of all sources together */
  std::uint64_t seed = 0;  /**< all ranks need the same seed */
  std::int64_t window = 0; /**< number of the stream's samples to shuffle at a time; 0: 1024; 1: no shuffling */
  std::span<const std::int64_t> from = {}; /**< start of each stage in the stream, ascending from 0; empty: one stage */
  bool no_shuffle = false;                 /**< keeps each source's own order */
  bool drop_last = false;  /**< to give every rank the same number, cuts the epoch; otherwise repeats its start */
  int world = 0;           /**< number of ranks; 0: detect_rank() gives world and rank */
  int rank = 0;            /**< 0 .. world - 1 */
  bool detect_off = false; /**< with world 0: rank 0 of 1, without reading the environment */
};

/** The rank of this process and the number of ranks. */
struct Rank {
  int rank = 0;        /**< 0 .. world - 1 */
  int world = 1;       /**< at least 1 */
  std::string source;  /**< the launcher whose variables were used; "none": rank 0 of 1 */
  std::string warning; /**< names another source whose numbers differ; empty: there is none */
};
/** Reads the launcher's environment variables; see feedlane_rank_detect. The error is in `error`. */
inline Rank detect_rank(Error& error) {
  feedlane_rank r{};
  r.size = sizeof r;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_rank_detect(&r, e); });
  if (error) return {};
  return {r.rank, r.world, r.source, r.warning};
}
/** Throwing form of the above. */
inline Rank detect_rank() {
  return detail::or_raise([](Error& error) { return detect_rank(error); });
}

/** A sampler. Move-only; loaders copy it. Thread safety: one thread at a time. The functions that create a sampler
 *  throw; the non-throwing forms return, on failure, a sampler whose every call fails. */
class Sampler {
 public:
  /** Yields what the C configuration says; its `size` is set here. For kinds without a function of this class. */
  static Sampler of(const feedlane_sampler_config& config) {
    return detail::or_raise([&](Error& error) { return of(config, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler of(feedlane_sampler_config config, Error& error) noexcept {
    config.size = sizeof config;
    Sampler s;
    detail::checked(error, [&](feedlane_error* e) { return feedlane_sampler_create(&config, &s.handle_, e); });
    return s;
  }
  /** Yields 0, 1, ... length - 1. */
  static Sampler sequential(std::int64_t length) {
    return detail::or_raise([&](Error& error) { return sequential(length, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler sequential(std::int64_t length, Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_SEQUENTIAL);
    config.length = length;
    return of(config, error);
  }
  /** Yields torch.randperm(length) of a generator seeded with `seed + epoch`. */
  static Sampler random(std::int64_t length, std::uint64_t seed) { return random({.length = length, .seed = seed}); }
  /** Yields permutations, or draws with replacement. */
  static Sampler random(const RandomOptions& o) {
    return detail::or_raise([&](Error& error) { return random(o, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler random(const RandomOptions& o, Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_RANDOM);
    config.length = o.length;
    config.seed = o.seed;
    config.num_samples = o.num_samples;
    config.replacement = o.replacement ? 1 : 0;
    config.shuffle = static_cast<std::int32_t>(o.shuffle);
    return of(config, error);
  }

  /** Yields these indices, shuffled anew for each epoch as torch's SubsetRandomSampler does. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed) {
    return detail::or_raise([&](Error& error) { return subset(indices, seed, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler subset(std::span<const std::int64_t> indices, std::uint64_t seed, Error& error) noexcept {
    return listed(indices, false, seed, error);
  }
  /** Yields these indices in the given order. */
  static Sampler list(std::span<const std::int64_t> indices) {
    return detail::or_raise([&](Error& error) { return list(indices, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler list(std::span<const std::int64_t> indices, Error& error) noexcept {
    return listed(indices, true, 0, error);
  }
  /** Yields indices from 0 to weights.size() - 1, with probabilities proportional to the weights. */
  static Sampler weighted(std::span<const double> weights, const WeightedOptions& o = {}) {
    return detail::or_raise([&](Error& error) { return weighted(weights, o, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler weighted(std::span<const double> weights, const WeightedOptions& o, Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_WEIGHTED);
    config.weights = weights.data();
    config.count = weights.size();
    config.num_samples = o.num_samples;
    config.seed = o.seed;
    config.without_replacement = o.without_replacement ? 1 : 0;
    return of(config, error);
  }
  /** Groups the indices of a copy of `inner` into batches: each next() returns one batch. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last = false) {
    return detail::or_raise([&](Error& error) { return batch(inner, batch_size, drop_last, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler batch(const Sampler& inner, std::int64_t batch_size, bool drop_last, Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_BATCH);
    config.inner = inner.handle_;
    config.batch_size = batch_size;
    config.drop_last = drop_last ? 1 : 0;
    return of(config, error);
  }
  /** Yields this rank's share of the indices, as torch's DistributedSampler does. */
  static Sampler distributed(const DistributedOptions& o) {
    return detail::or_raise([&](Error& error) { return distributed(o, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler distributed(const DistributedOptions& o, Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_DISTRIBUTED);
    config.length = o.length;
    config.world = o.world;
    config.rank = o.rank;
    config.seed = o.seed;
    config.no_shuffle = o.no_shuffle ? 1 : 0;
    config.drop_last = o.drop_last ? 1 : 0;
    config.shuffle = static_cast<std::int32_t>(o.shuffle);
    config.detect_off = o.detect_off ? 1 : 0;
    return of(config, error);
  }
  /** Yields batches of samples within a budget of tokens; lengths[i] is the number of tokens of sample i. */
  static Sampler tokens(std::span<const std::int64_t> lengths, const TokensOptions& o) {
    return detail::or_raise([&](Error& error) { return tokens(lengths, o, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler tokens(std::span<const std::int64_t> lengths, const TokensOptions& o, Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_TOKENS);
    config.lengths = lengths.data();
    config.count = lengths.size();
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
    return of(config, error);
  }
  /** Mixes sources in proportion to weights. Source i has lengths[i] indices, which follow those of source i - 1.
   *  `weights` has one row of lengths.size() numbers for each stage. */
  static Sampler mixture(std::span<const std::int64_t> lengths, std::span<const double> weights,
                         const MixtureOptions& o = {}) {
    return detail::or_raise([&](Error& error) { return mixture(lengths, weights, o, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  static Sampler mixture(std::span<const std::int64_t> lengths, std::span<const double> weights,
                         const MixtureOptions& o, Error& error) noexcept {
    const std::size_t stages = o.from.empty() ? 1 : o.from.size();
    if (lengths.empty() || weights.size() % lengths.size() != 0 || weights.size() / lengths.size() != stages) {
      error.refuse("weights", static_cast<std::int64_t>(weights.size()),
                   static_cast<std::int64_t>(lengths.size() * stages),
                   "the number of weights must be the number of sources, at least 1, times the number of stages");
      return {};
    }
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_MIXTURE);
    config.lengths = lengths.data();
    config.count = lengths.size();
    config.weights = weights.data();
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
    return of(config, error);
  }
  /**
   * A custom sampler. `object` is an object with
   *     std::size_t next(std::span<std::int64_t> indices);           // number of indices written; 0: the end
   * and optionally
   *     void restart(std::int64_t epoch, std::uint64_t seed);
   *     std::int64_t length() const;                                 // called once; 0: unknown
   *     std::int64_t batch_rows() const;                             // called once; > 0: each next returns one batch
   *     std::vector<std::byte> save() const;
   *     void load(std::span<const std::byte> state);
   * A live sampler has
   *     std::optional<std::size_t> next(std::span<std::int64_t> indices);  // nullopt: no index now
   *     int wake_fd() const;                                         // called once; see feedlane_sampler_callbacks
   * `object` may also be a function with the signature of next. An exception becomes the error of the call. To report errors without
   * exceptions, next may take an Error& as its last argument. Copies (such as a loader's) share the object.
   */
  template <class T>
  static Sampler custom(T object) {
    return detail::or_raise([&](Error& error) { return custom(std::move(object), error); });
  }
  /** Non-throwing form: the error is in `error`. */
  template <class T>
  static Sampler custom(T object, Error& error) {
    auto kept = std::make_unique<T>(std::move(object));
    const feedlane_sampler_callbacks callbacks = detail::sampler_callbacks(*kept);
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_CUSTOM);
    config.callbacks = &callbacks;
    Sampler s = of(config, error);
    if (!error) (void)kept.release();  // `drop` deletes it
    return s;
  }

  /** Afterwards `other` can only be assigned to or destroyed. */
  Sampler(Sampler&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), room_(std::move(other.room_)) {}
  /** Swaps the two objects. */
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
  /** Non-throwing form: the error is in `error`. */
  void restart(std::int64_t epoch, Error& error) noexcept {
    detail::checked(error, room_, [&](feedlane_error* e) { return feedlane_sampler_restart(handle_, epoch, e); });
  }
  /** Writes the next indices and returns their number: less than indices.size() only at the end, 0 afterwards. A batch
   *  sampler writes one batch. 0 also if a live sampler does not have enough indices now; it keeps the ones it has.
   *  Throws. */
  std::size_t next(std::span<std::int64_t> indices) {
    return detail::or_raise([&](Error& error) { return next(indices, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  std::size_t next(std::span<std::int64_t> indices, Error& error) noexcept {
    std::uint64_t got = 0;
    const std::int32_t s = detail::checked(error, room_, [&](feedlane_error* e) {
      return feedlane_sampler_next(handle_, indices.data(), indices.size(), &got, e);
    });
    return s == FEEDLANE_OK ? static_cast<std::size_t>(got) : 0;
  }
  /** The current position, for load(). Throws. */
  [[nodiscard]] std::vector<std::byte> save() {
    return detail::or_raise([&](Error& error) { return save(error); });
  }
  /** Non-throwing form: on failure empty, with the error in `error`. */
  [[nodiscard]] std::vector<std::byte> save(Error& error) {
    return detail::saved(error, room_, [&](void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* e) {
      return feedlane_sampler_save(handle_, buffer, cap, bytes, e);
    });
  }
  /** Continues after the saved position. Call this after restart() with the state's epoch. Throws. */
  void load(std::span<const std::byte> state) {
    detail::or_raise([&](Error& error) { load(state, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void load(std::span<const std::byte> state, Error& error) noexcept {
    detail::checked(error, room_,
                    [&](feedlane_error* e) { return feedlane_sampler_load(handle_, state.data(), state.size(), e); });
  }
  /** Number of indices in an epoch, or of batches if this is a batch sampler; -1: unknown. */
  [[nodiscard]] std::int64_t length() const noexcept {
    std::int64_t length = 0;
    (void)feedlane_sampler_length(handle_, &length);
    return length;
  }
  /** The handle for the C interface; this object still owns it. */
  [[nodiscard]] const feedlane_sampler* c() const noexcept { return handle_; }

 private:
  Sampler() = default;
  static feedlane_sampler_config config_of(std::int32_t kind) noexcept {
    feedlane_sampler_config config{};
    config.kind = kind;
    return config;
  }
  static Sampler listed(std::span<const std::int64_t> indices, bool in_order, std::uint64_t seed,
                        Error& error) noexcept {
    feedlane_sampler_config config = config_of(FEEDLANE_SAMPLER_SUBSET);
    config.indices = indices.data();
    config.count = indices.size();
    config.no_shuffle = in_order ? 1 : 0;
    config.seed = seed;
    return of(config, error);
  }
  feedlane_sampler* handle_ = nullptr;
  detail::Room room_;
};

}  // namespace v1
}  // namespace feedlane

#endif
