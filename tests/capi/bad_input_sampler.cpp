// SPDX-License-Identifier: Apache-2.0
// Bad input: the samplers over a list, weights, ranks, callbacks, and their states.
#include <cstdlib>
#include <limits>

#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  F() {
    (void)::unsetenv("WORLD_SIZE");
    callbacks.known.next = [](void*, std::int64_t*, std::uint64_t, std::uint64_t*, feedlane_error*) -> std::int32_t {
      return FEEDLANE_END;
    };
  }
  ~F() { (void)::unsetenv("RANK"); }
  F(const F&) = delete;
  F& operator=(const F&) = delete;

  const double* weigh(double a, double b) {
    weights[0] = a;
    weights[1] = b;
    return weights;
  }
  feedlane_sampler_config* draws(std::int64_t num_samples, std::int32_t without, std::int32_t reserved = 0) {
    weighted.known.num_samples = num_samples;
    weighted.known.without_replacement = without;
    weighted.known.reserved = reserved;
    return &weighted.known;
  }
  feedlane_sampler_config* ranks(std::int32_t world, std::int32_t which, std::int64_t samples = 10) {
    distributed.known.length = samples;
    distributed.known.world = world;
    distributed.known.rank = which;
    return &distributed.known;
  }
  feedlane_sampler_config* flag(std::int32_t feedlane_sampler_config::*member, std::int32_t value) {
    (void)ranks(2, 0);
    distributed.known.*member = value;
    return &distributed.known;
  }
  feedlane_sampler_config* no_shuffle_but_feistel() {
    distributed.known.no_shuffle = 1;
    return flag(&feedlane_sampler_config::shuffle, FEEDLANE_SHUFFLE_FEISTEL);
  }
  // Two lengths, and a budget of 10 for 2 ranks; `member` has another value.
  template <class T>
  feedlane_sampler_config* budget(T feedlane_sampler_config::*member, T value) {
    indices[0] = 3;
    indices[1] = 10;
    tokens.known.max_tokens = 10;
    tokens.known.max_rows = 4;
    tokens.known.world = 2;
    tokens.known.*member = value;
    return &tokens.known;
  }
  feedlane_sampler_config* budget() { return budget(&feedlane_sampler_config::world, 2); }
  // Two sources and two stages, for 2 ranks; `member` has another value.
  template <class T>
  feedlane_sampler_config* mix(T feedlane_sampler_config::*member, T value) {
    indices[0] = indices[1] = 3;
    std::fill(std::begin(weights), std::end(weights), 1.0);
    from[1] = 10;
    mixture.known.from = from;
    mixture.known.stages = 2;
    mixture.known.world = 2;
    mixture.known.*member = value;
    return &mixture.known;
  }
  feedlane_sampler_config* mix() { return mix(&feedlane_sampler_config::world, 2); }
  // The same with another number among the lengths, weights or stages.
  template <class T>
  feedlane_sampler_config* mix_with(T& place, T value) {
    (void)mix();
    place = value;
    return &mixture.known;
  }
  const std::int64_t* negative_length() {
    negative = -1;
    return &negative;
  }
  // An environment with RANK and without WORLD_SIZE.
  feedlane_sampler_config* half_a_source() {
    (void)::setenv("RANK", "1", 1);
    return ranks(0, 0);
  }
  feedlane_rank* half_a_rank() {
    (void)half_a_source();
    return &rank;
  }
  feedlane_rank* rank_sized(std::size_t size) {
    rank.size = size;
    return &rank;
  }
  feedlane_sampler_callbacks* table(std::int64_t samples, std::int64_t rows) {
    callbacks.known.length = samples;
    callbacks.known.batch_rows = rows;
    return &callbacks.known;
  }
  feedlane_sampler_callbacks* no_next() {
    callbacks.known.next = nullptr;
    return &callbacks.known;
  }
  template <class T>
  T* sized(Later<T>& config, std::size_t size) {
    config.known.size = size;
    return &config.known;
  }
  feedlane_sampler* s(std::int64_t samples = 4) {
    sampler = sequential(samples);
    return sampler.get();
  }
  feedlane_sampler* batches() {
    feedlane_sampler* handle = nullptr;
    (void)batch_sampler(s(), 2, 0, &handle, nullptr);
    sampler.reset(handle);
    return handle;
  }
  feedlane_sampler* custom() {
    feedlane_sampler* handle = nullptr;
    (void)custom_sampler(&callbacks.known, &handle, nullptr);
    sampler.reset(handle);
    return handle;
  }
  // The state of a sequential sampler, spoilt at one byte if wanted.
  const void* saved(std::int64_t epoch = 0, std::int64_t samples = 5, int spoilt = -1) {
    const Sampler other = sequential(samples);
    (void)feedlane_sampler_restart(other.get(), epoch, nullptr);
    (void)feedlane_sampler_save(other.get(), state, sizeof state, &bytes, nullptr);
    if (spoilt >= 0) state[spoilt] ^= 1;
    return state;
  }
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned(); }

  Sampler sampler;
  Out<feedlane_sampler> out;
  Later<feedlane_sampler_config> weighted{fresh<feedlane_sampler_config>()};
  Later<feedlane_sampler_config> mixture{fresh<feedlane_sampler_config>()};
  Later<feedlane_sampler_config> tokens{fresh<feedlane_sampler_config>()};
  Later<feedlane_sampler_config> distributed{fresh<feedlane_sampler_config>()};
  Later<feedlane_sampler_callbacks> callbacks{fresh<feedlane_sampler_callbacks>()};
  feedlane_rank rank = fresh<feedlane_rank>();
  double weights[4] = {};
  std::int64_t indices[4] = {};
  std::int64_t from[2] = {};
  std::int64_t negative = 0;
  unsigned char state[256] = {};
  std::uint64_t bytes = 0, got = 0;
};

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
using D = feedlane_sampler_config;
using Tokens = feedlane_sampler_config;
using Mixture = feedlane_sampler_config;
constexpr std::int64_t weighted_bytes = sizeof(feedlane_sampler_config);
constexpr std::int64_t tokens_bytes = sizeof(Tokens);
constexpr std::int64_t mixture_bytes = sizeof(Mixture);
constexpr std::int64_t distributed_bytes = sizeof(D);
constexpr std::int64_t callbacks_bytes = sizeof(feedlane_sampler_callbacks);
// mark, kind, one fact and their number, epoch, position, checksum
constexpr std::uint64_t state_bytes = 4 + 4 + 4 + 8 + 8 + 8 + 8;

#define SUBSET(what, status, argument, found, needed, ...) \
  REFUSES(subset_sampler, what, status, argument, found, needed, __VA_ARGS__, f.out.place(), e)
#define WEIGHTED(what, argument, found, needed, ...) \
  REFUSES(weighted_sampler, what, FEEDLANE_E_ARGUMENT, argument, found, needed, __VA_ARGS__, f.out.place(), e)
#define BATCH(what, argument, found, needed, ...) \
  REFUSES(batch_sampler, what, FEEDLANE_E_ARGUMENT, argument, found, needed, __VA_ARGS__, f.out.place(), e)
#define DISTRIBUTED(what, argument, found, needed, ...) \
  REFUSES(distributed_sampler, what, FEEDLANE_E_ARGUMENT, argument, found, needed, __VA_ARGS__, f.out.place(), e)
#define TOKENS(what, argument, found, needed, ...) \
  REFUSES(tokens_sampler, what, FEEDLANE_E_ARGUMENT, argument, found, needed, __VA_ARGS__, f.out.place(), e)
#define MIXTURE(what, argument, found, needed, ...) \
  REFUSES(mixture_sampler, what, FEEDLANE_E_ARGUMENT, argument, found, needed, __VA_ARGS__, f.out.place(), e)
#define CUSTOM(what, argument, found, needed, ...) \
  REFUSES(custom_sampler, what, FEEDLANE_E_ARGUMENT, argument, found, needed, __VA_ARGS__, f.out.place(), e)

const Row<F> rows[] = {
    SUBSET("indices NULL", FEEDLANE_E_ARGUMENT, "config.indices", 0, 1, nullptr, 3, 0, 0),
    SUBSET("no_shuffle -1", FEEDLANE_E_ARGUMENT, "config.no_shuffle", -1, 0, f.indices, 4, -1, 0),
    SUBSET("no_shuffle 2", FEEDLANE_E_ARGUMENT, "config.no_shuffle", 2, 1, f.indices, 4, 2, 0),
    SUBSET("more indices than memory", FEEDLANE_E_MEMORY, "", 0, 0, f.indices, UINT64_MAX, 0, 0),
    REFUSES(subset_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.indices, 4, 0, 0, nullptr, e),

    WEIGHTED("weights NULL", "config.weights", 0, 1, nullptr, 2, f.draws(0, 0)),
    WEIGHTED("no weights", "config.count", 0, 1, f.weights, 0, f.draws(0, 0)),
    WEIGHTED("config NULL", "config", 0, 1, f.weights, 2, nullptr),
    WEIGHTED("a negative one", "config.weights", 1, 0, f.weigh(1, -0.5), 2, f.draws(0, 0)),
    WEIGHTED("one that is no number", "config.weights", 0, 0, f.weigh(nan, 1), 2, f.draws(0, 0)),
    WEIGHTED("an infinite one", "config.weights", 1, 0, f.weigh(1, infinity), 2, f.draws(0, 0)),
    WEIGHTED("all zero", "config.weights", 0, 1, f.weigh(0, -0.0), 2, f.draws(0, 0)),
    WEIGHTED("num_samples -1", "config.num_samples", -1, 0, f.weigh(1, 1), 2, f.draws(-1, 0)),
    WEIGHTED("without_replacement -1", "config.without_replacement", -1, 0, f.weigh(1, 1), 2, f.draws(0, -1)),
    WEIGHTED("without_replacement 2", "config.without_replacement", 2, 1, f.weigh(1, 1), 2, f.draws(0, 2)),
    WEIGHTED("more than there are", "config.num_samples", 3, 2, f.weigh(1, 1), 2, f.draws(3, 1)),
    WEIGHTED("more than are above zero", "config.num_samples", 2, 1, f.weigh(0, 1), 2, f.draws(0, 1)),
    WEIGHTED("reserved", "config.reserved", 1, 0, f.weigh(1, 1), 2, f.draws(0, 0, 1)),
    REFUSES(weighted_sampler, "more weights than memory", FEEDLANE_E_MEMORY, "", 0, 0, f.weights, UINT64_MAX,
            f.draws(0, 0), f.out.place(), e),
    REFUSES(weighted_sampler, "size 7", FEEDLANE_E_ABI, "config", 7, weighted_bytes, f.weights, 2,
            f.sized(f.weighted, 7), f.out.place(), e),
    REFUSES(weighted_sampler, "a tail that says something", FEEDLANE_E_ABI, "config", weighted_bytes + 8,
            weighted_bytes, f.weights, 2, f.sized(f.weighted, weighted_bytes + 8), f.out.place(), e),
    REFUSES(weighted_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.weights, 2, f.draws(0, 0), nullptr, e),

    BATCH("inner NULL", "config.inner", 0, 1, nullptr, 2, 0),
    BATCH("inner yields batches", "config.inner", 2, 0, f.batches(), 2, 0),
    BATCH("batch_size 0", "config.batch_size", 0, 1, f.s(), 0, 0),
    BATCH("batch_size -1", "config.batch_size", -1, 1, f.s(), -1, 0),
    BATCH("the largest batch_size", "config.batch_size", INT64_MAX, 1 << 30, f.s(), INT64_MAX, 0),
    BATCH("drop_last -1", "config.drop_last", -1, 0, f.s(), 2, -1),
    BATCH("drop_last 2", "config.drop_last", 2, 1, f.s(), 2, 2),
    REFUSES(batch_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.s(), 2, 0, nullptr, e),
    REFUSES(feedlane_sampler_next, "no room for a batch", FEEDLANE_E_ARGUMENT, "cap", 1, 2, f.batches(), f.indices, 1,
            &f.got, e),

    DISTRIBUTED("config NULL", "config", 0, 1, nullptr),
    DISTRIBUTED("length -1", "config.length", -1, 0, f.ranks(2, 0, -1)),
    DISTRIBUTED("the largest length", "config.length", INT64_MAX, INT64_C(1) << 62, f.ranks(2, 0, INT64_MAX)),
    DISTRIBUTED("world -1", "config.world", -1, 0, f.ranks(-1, 0)),
    DISTRIBUTED("rank -1", "config.rank", -1, 0, f.ranks(2, -1)),
    DISTRIBUTED("rank as many as world", "config.rank", 2, 2, f.ranks(2, 2)),
    DISTRIBUTED("a rank without a world", "config.rank", 1, 0, f.ranks(0, 1)),
    DISTRIBUTED("no_shuffle 2", "config.no_shuffle", 2, 1, f.flag(&D::no_shuffle, 2)),
    DISTRIBUTED("drop_last -1", "config.drop_last", -1, 0, f.flag(&D::drop_last, -1)),
    DISTRIBUTED("shuffle as a loader", "config.shuffle", 2, 1, f.flag(&D::shuffle, FEEDLANE_SHUFFLE_TORCH_LOADER)),
    DISTRIBUTED("detect_off 2", "config.detect_off", 2, 1, f.flag(&D::detect_off, 2)),
    DISTRIBUTED("a shuffle and none", "config.shuffle", 1, 0, f.no_shuffle_but_feistel()),
    DISTRIBUTED("half a rank in the environment", "WORLD_SIZE", 0, 1, f.half_a_source()),
    REFUSES(distributed_sampler, "size 0", FEEDLANE_E_ABI, "config", 0, distributed_bytes, f.sized(f.distributed, 0),
            f.out.place(), e),
    REFUSES(distributed_sampler, "a tail that says something", FEEDLANE_E_ABI, "config", distributed_bytes + 8,
            distributed_bytes, f.sized(f.distributed, distributed_bytes + 8), f.out.place(), e),
    REFUSES(distributed_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.ranks(2, 0), nullptr, e),

    CUSTOM("callbacks NULL", "config.callbacks", 0, 1, nullptr),
    CUSTOM("no next", "callbacks.next", 0, 1, f.no_next()),
    CUSTOM("length -1", "callbacks.length", -1, 0, f.table(-1, 0)),
    CUSTOM("batch_rows -1", "callbacks.batch_rows", -1, 0, f.table(0, -1)),
    CUSTOM("the largest batch_rows", "callbacks.batch_rows", INT64_MAX, 1 << 30, f.table(0, INT64_MAX)),
    TOKENS("lengths NULL", "config.lengths", 0, 1, nullptr, 2, f.budget()),
    TOKENS("2^31 lengths", "config.count", std::int64_t{1} << 31, INT32_MAX, f.indices, std::uint64_t{1} << 31,
           f.budget()),
    TOKENS("a length above the budget", "config.lengths", 10, 9, f.indices, 2,
           f.budget(&Tokens::max_tokens, std::int64_t{9})),
    TOKENS("a negative length", "config.lengths", -1, 0, f.negative_length(), 1, f.budget()),
    TOKENS("no tokens", "config.max_tokens", 0, 1, f.indices, 2, f.budget(&Tokens::max_tokens, std::int64_t{0})),
    TOKENS("too many tokens", "config.max_tokens", std::int64_t{1} << 31, INT32_MAX, f.indices, 2,
           f.budget(&Tokens::max_tokens, std::int64_t{1} << 31)),
    TOKENS("no rows", "config.max_rows", 0, 1, f.indices, 2, f.budget(&Tokens::max_rows, std::int64_t{0})),
    TOKENS("too many rows", "config.max_rows", (1 << 30) + 1, 1 << 30, f.indices, 2,
           f.budget(&Tokens::max_rows, std::int64_t{(1 << 30) + 1})),
    TOKENS("a negative window", "config.window", -1, 0, f.indices, 2, f.budget(&Tokens::window, std::int64_t{-1})),
    TOKENS("padded 2", "config.padded", 2, 1, f.indices, 2, f.budget(&Tokens::padded, 2)),
    TOKENS("no_shuffle -1", "config.no_shuffle", -1, 0, f.indices, 2, f.budget(&Tokens::no_shuffle, -1)),
    TOKENS("drop_last 2", "config.drop_last", 2, 1, f.indices, 2, f.budget(&Tokens::drop_last, 2)),
    TOKENS("drop_long 2", "config.drop_long", 2, 1, f.indices, 2, f.budget(&Tokens::drop_long, 2)),
    TOKENS("detect_off 2", "config.detect_off", 2, 1, f.indices, 2, f.budget(&Tokens::detect_off, 2)),
    TOKENS("a negative world", "config.world", -1, 0, f.indices, 2, f.budget(&Tokens::world, -1)),
    TOKENS("too many ranks", "config.world", (1 << 20) + 1, 1 << 20, f.indices, 2,
           f.budget(&Tokens::world, (1 << 20) + 1)),
    TOKENS("a negative rank", "config.rank", -1, 0, f.indices, 2, f.budget(&Tokens::rank, -1)),
    TOKENS("a rank outside its world", "config.rank", 2, 1, f.indices, 2, f.budget(&Tokens::rank, 2)),
    TOKENS("reserved", "config.reserved", 1, 0, f.indices, 2, f.budget(&Tokens::reserved, 1)),
    REFUSES(tokens_sampler, "size 0", FEEDLANE_E_ABI, "config", 0, tokens_bytes, f.indices, 2, f.sized(f.tokens, 0),
            f.out.place(), e),
    REFUSES(tokens_sampler, "a tail that says something", FEEDLANE_E_ABI, "config", tokens_bytes + 8, tokens_bytes,
            f.indices, 2, f.sized(f.tokens, tokens_bytes + 8), f.out.place(), e),
    REFUSES(tokens_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.indices, 2, f.budget(), nullptr, e),
    MIXTURE("lengths NULL", "config.lengths", 0, 1, nullptr, 2, f.weights, f.mix()),
    MIXTURE("weights NULL", "config.weights", 0, 1, f.indices, 2, nullptr, f.mix()),
    MIXTURE("no sources", "config.count", 0, 1, f.indices, 0, f.weights, f.mix()),
    MIXTURE("too many sources", "config.count", 65537, 65536, f.indices, 65537, f.weights, f.mix()),
    MIXTURE("a negative length", "config.lengths", -1, 0, f.indices, 2, f.weights,
            f.mix_with(f.indices[1], std::int64_t{-1})),
    MIXTURE("too many samples", "config.lengths", INT64_MAX, (std::int64_t{1} << 62) - 3, f.indices, 2, f.weights,
            f.mix_with(f.indices[1], INT64_MAX)),
    MIXTURE("a negative weight", "config.weights", 1, 0, f.indices, 2, f.weights, f.mix_with(f.weights[3], -1.0)),
    MIXTURE("a weight that is no number", "config.weights", 0, 0, f.indices, 2, f.weights,
            f.mix_with(f.weights[2], nan)),
    MIXTURE("an infinite weight", "config.weights", 1, 0, f.indices, 2, f.weights, f.mix_with(f.weights[1], infinity)),
    MIXTURE("a weight of no samples", "config.weights", 0, 0, f.indices, 2, f.weights,
            f.mix_with(f.indices[0], std::int64_t{0})),
    MIXTURE("a stage without weights", "config.weights", 0, 1, f.indices, 1, f.weights, f.mix_with(f.weights[1], 0.0)),
    MIXTURE("stages without from", "config.stages", 2, 0, f.indices, 2, f.weights,
            f.mix(&Mixture::from, static_cast<const std::int64_t*>(nullptr))),
    MIXTURE("from without stages", "config.stages", 0, 1, f.indices, 2, f.weights,
            f.mix(&Mixture::stages, std::uint64_t{0})),
    MIXTURE("too many stages", "config.stages", INT64_MAX, 1 << 23, f.indices, 2, f.weights,
            f.mix(&Mixture::stages, UINT64_MAX)),
    MIXTURE("a first stage that isn't at 0", "config.from", 1, 0, f.indices, 2, f.weights,
            f.mix_with(f.from[0], std::int64_t{1})),
    MIXTURE("two stages at one place", "config.from", 0, 1, f.indices, 2, f.weights,
            f.mix_with(f.from[1], std::int64_t{0})),
    MIXTURE("a stage too far", "config.from", INT64_MAX, std::int64_t{1} << 62, f.indices, 2, f.weights,
            f.mix_with(f.from[1], INT64_MAX)),
    MIXTURE("a negative num_samples", "config.num_samples", -1, 0, f.indices, 2, f.weights,
            f.mix(&Mixture::num_samples, std::int64_t{-1})),
    MIXTURE("a negative window", "config.window", -1, 0, f.indices, 2, f.weights,
            f.mix(&Mixture::window, std::int64_t{-1})),
    MIXTURE("no_shuffle 2", "config.no_shuffle", 2, 1, f.indices, 2, f.weights, f.mix(&Mixture::no_shuffle, 2)),
    MIXTURE("drop_last -1", "config.drop_last", -1, 0, f.indices, 2, f.weights, f.mix(&Mixture::drop_last, -1)),
    MIXTURE("detect_off 2", "config.detect_off", 2, 1, f.indices, 2, f.weights, f.mix(&Mixture::detect_off, 2)),
    MIXTURE("a negative world", "config.world", -1, 0, f.indices, 2, f.weights, f.mix(&Mixture::world, -1)),
    MIXTURE("a rank outside its world", "config.rank", 2, 1, f.indices, 2, f.weights, f.mix(&Mixture::rank, 2)),
    MIXTURE("reserved", "config.reserved", 1, 0, f.indices, 2, f.weights, f.mix(&Mixture::reserved, 1)),
    REFUSES(mixture_sampler, "size 0", FEEDLANE_E_ABI, "config", 0, mixture_bytes, f.indices, 2, f.weights,
            f.sized(f.mixture, 0), f.out.place(), e),
    REFUSES(mixture_sampler, "a tail that says something", FEEDLANE_E_ABI, "config", mixture_bytes + 8, mixture_bytes,
            f.indices, 2, f.weights, f.sized(f.mixture, mixture_bytes + 8), f.out.place(), e),
    REFUSES(mixture_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.indices, 2, f.weights, f.mix(), nullptr,
            e),
    REFUSES(custom_sampler, "size 7", FEEDLANE_E_ABI, "config.callbacks", 7, callbacks_bytes, f.sized(f.callbacks, 7),
            f.out.place(), e),
    REFUSES(custom_sampler, "a tail that says something", FEEDLANE_E_ABI, "config.callbacks", callbacks_bytes + 8,
            callbacks_bytes, f.sized(f.callbacks, callbacks_bytes + 8), f.out.place(), e),
    REFUSES(custom_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.table(0, 0), nullptr, e),

    REFUSES(feedlane_rank_detect, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, nullptr, e),
    REFUSES(feedlane_rank_detect, "size 0", FEEDLANE_E_ABI, "out", 0, sizeof(feedlane_rank), f.rank_sized(0), e),
    REFUSES(feedlane_rank_detect, "half a rank in the environment", FEEDLANE_E_ARGUMENT, "WORLD_SIZE", 0, 1,
            f.half_a_rank(), e),

    REFUSES(feedlane_sampler_save, "s NULL", FEEDLANE_E_ARGUMENT, "s", 0, 1, nullptr, f.state, 256, &f.bytes, e),
    REFUSES(feedlane_sampler_save, "state NULL", FEEDLANE_E_ARGUMENT, "state", 0, 1, f.s(), nullptr, 1, &f.bytes, e),
    REFUSES(feedlane_sampler_save, "bytes NULL", FEEDLANE_E_ARGUMENT, "bytes", 0, 1, f.s(), f.state, 256, nullptr, e),
    REFUSES(feedlane_sampler_save, "no room", FEEDLANE_E_LIMIT, "cap", 0, state_bytes, f.s(), nullptr, 0, &f.bytes, e),
    REFUSES(feedlane_sampler_save, "a byte too little", FEEDLANE_E_LIMIT, "cap", state_bytes - 1, state_bytes, f.s(),
            f.state, state_bytes - 1, &f.bytes, e),
    REFUSES(feedlane_sampler_save, "a custom one without save", FEEDLANE_E_UNSUPPORTED, "sampler.save", 0, 1,
            f.custom(), f.state, 256, &f.bytes, e),
    REFUSES(feedlane_sampler_load, "s NULL", FEEDLANE_E_ARGUMENT, "s", 0, 1, nullptr, f.saved(), f.bytes, e),
    REFUSES(feedlane_sampler_load, "state NULL", FEEDLANE_E_ARGUMENT, "state", 0, 1, f.s(), nullptr, 8, e),
    REFUSES(feedlane_sampler_load, "more bytes than memory", FEEDLANE_E_ARGUMENT, "bytes", INT64_MAX, INT64_MAX, f.s(),
            f.state, UINT64_MAX, e),
    REFUSES(feedlane_sampler_load, "no bytes", FEEDLANE_E_CORRUPT, "state", 0, 0, f.s(5), f.saved(), 0, e),
    REFUSES(feedlane_sampler_load, "a byte too few", FEEDLANE_E_CORRUPT, "state", 0, 0, f.s(5), f.saved(),
            state_bytes - 1, e),
    REFUSES(feedlane_sampler_load, "a byte too many", FEEDLANE_E_CORRUPT, "state", 0, 0, f.s(5), f.saved(),
            state_bytes + 1, e),
    REFUSES(feedlane_sampler_load, "a spoilt position", FEEDLANE_E_CORRUPT, "state", 0, 0, f.s(5), f.saved(0, 5, 28),
            state_bytes, e),
    REFUSES(feedlane_sampler_load, "of another length", FEEDLANE_E_ARGUMENT, "state", 5, 4, f.s(4), f.saved(),
            state_bytes, e),
    REFUSES(feedlane_sampler_load, "of another epoch", FEEDLANE_E_ARGUMENT, "state", 1, 0, f.s(5), f.saved(1),
            state_bytes, e),
    REFUSES(feedlane_sampler_load, "of another kind", FEEDLANE_E_ARGUMENT, "state", 1, 6, f.batches(), f.saved(),
            state_bytes, e),
    REFUSES(feedlane_sampler_load, "a custom one without load", FEEDLANE_E_UNSUPPORTED, "sampler.load", 0, 1,
            f.custom(), f.saved(), state_bytes, e),
};

const Row<F> forked_rows[] = {
    REFUSES(batch_sampler, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.sampler.get(), 2, 0, f.out.place(), e),
    REFUSES(feedlane_sampler_save, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.sampler.get(), f.state, 256, &f.bytes, e),
    REFUSES(feedlane_sampler_load, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.sampler.get(), f.state, 256, e),
};

const Counted counted{rows}, counted_forked{forked_rows};

}  // namespace

TEST_CASE("bad input: samplers over lists, weights, ranks and callbacks, and their states") { check_rows(rows); }

TEST_CASE("bad input: states of a sampler in a forked child") {
  F f;
  (void)f.s();
  check_forked(f, forked_rows);
}
