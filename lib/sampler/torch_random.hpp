// SPDX-License-Identifier: Apache-2.0
// Reproduces torch's random numbers on CPU, draw by draw, so that a trainer ported from torch keeps its data order.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace feedlane::sampler {

// torch.Generator() after manual_seed(seed): mt19937, seeded with the low 32 bits.
class TorchGenerator {
 public:
  explicit TorchGenerator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  std::uint32_t random() { return static_cast<std::uint32_t>(engine_()); }
  std::uint64_t random64() {
    const std::uint64_t high = random();
    return high << 32 | random();
  }
  void discard(std::uint64_t count) { engine_.discard(count); }
  // torch.empty((), dtype=torch.int64).random_(): how DataLoader and RandomSampler draw seeds.
  std::uint64_t seed() { return random64() & INT64_MAX; }
  // Appends `count` numbers of torch.randint(n).
  void randint(std::int64_t n, std::int64_t count, std::vector<std::int64_t>& out);
  // Appends torch.randperm(n)[:count].
  void randperm(std::int64_t n, std::int64_t count, std::vector<std::int64_t>& out);

 private:
  std::mt19937 engine_;
};

// The seeds that the sampler of DataLoader(shuffle=True) draws from the default generator. Before each of them an
// iterator draws its base seed, which is no concern of a sampler.
class TorchEpochs {
 public:
  // Largest epoch. Each earlier epoch costs four draws, so a call takes less than a second whatever epoch a saved state
  // names.
  static constexpr std::int64_t most = std::int64_t{1} << 24;
  static constexpr std::uint64_t draws = 4;

  explicit TorchEpochs(std::uint64_t manual_seed) : manual_seed_(manual_seed), generator_(manual_seed) {}
  // Seed of `epoch` (0 to most), counted from manual_seed. The next epoch costs four draws; an earlier epoch costs a
  // replay from the start.
  std::uint64_t seed(std::int64_t epoch);

 private:
  std::uint64_t manual_seed_;
  TorchGenerator generator_;
  std::int64_t next_ = 0;   // the epoch whose draws come next
  std::uint64_t last_ = 0;  // of the epoch before `next_`
};

}  // namespace feedlane::sampler
