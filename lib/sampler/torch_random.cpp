// SPDX-License-Identifier: Apache-2.0
// torch's randint, randperm and seeds.
#include "sampler/torch_random.hpp"

#include <numeric>
#include <utility>

namespace feedlane::sampler {

void TorchGenerator::randint(std::int64_t n, std::int64_t count, std::vector<std::int64_t>& out) {
  const auto range = static_cast<std::uint64_t>(n);
  // From this range on torch draws 64 bits, because the remainder of 32 would be too skewed.
  const bool wide = range >= std::uint64_t{1} << 28;
  out.reserve(out.size() + static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; i++)
    out.push_back(static_cast<std::int64_t>((wide ? random64() : random()) % range));
}

void TorchGenerator::randperm(std::int64_t n, std::int64_t count, std::vector<std::int64_t>& out) {
  const std::size_t before = out.size();
  out.resize(before + static_cast<std::size_t>(n));
  const auto first = out.begin() + static_cast<std::ptrdiff_t>(before);
  std::iota(first, out.end(), std::int64_t{0});
  const auto at = [&](std::uint64_t i) -> std::int64_t& { return first[static_cast<std::ptrdiff_t>(i)]; };
  const auto length = static_cast<std::uint64_t>(n);
  // For this length and above, torch draws 64 bits per position and builds the permutation by an inside-out shuffle.
  if (length < UINT32_MAX / 20)
    for (std::uint64_t i = 0; i + 1 < length; i++) std::swap(at(i), at(i + random() % (length - i)));
  else
    for (std::uint64_t i = 0; i < length; i++) std::swap(at(i), at(random64() % (i + 1)));
  out.resize(before + static_cast<std::size_t>(count));
}

std::uint64_t TorchEpochs::seed(std::int64_t epoch) {
  if (epoch + 1 == next_) return last_;
  if (epoch < next_) {
    generator_ = TorchGenerator(manual_seed_);
    next_ = 0;
  }
  generator_.discard(static_cast<std::uint64_t>(epoch - next_) * draws);
  (void)generator_.seed();  // the base seed
  last_ = generator_.seed();
  next_ = epoch + 1;
  return last_;
}

}  // namespace feedlane::sampler
