// SPDX-License-Identifier: Apache-2.0
// Samples that lie in memory, by a loader and by bare loops.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "batches.hpp"

namespace bench {

// Sample i: its bytes lie in memory already, as a data set that fits there has them.
struct Samples {
  Samples(std::uint64_t sample_bytes, std::uint64_t all_bytes)
      : bytes(sample_bytes),
        distinct(static_cast<std::uint32_t>(all_bytes / sample_bytes)),
        memory(distinct * sample_bytes, 1) {}
  std::uint64_t bytes;
  std::uint32_t distinct;  // samples; the others of an epoch are the same again
  std::vector<unsigned char> memory;
  [[nodiscard]] const unsigned char* at(std::int64_t i) const {
    return memory.data() + static_cast<std::uint32_t>(i) % distinct * bytes;
  }
};

// The data set's callback: one sample; one sample, while those of four rows later are prefetched; all of a batch.
enum class By : std::uint8_t { get, get_ahead, fetch };
const char* name_of(By by);

// Epochs of `count` samples in random order, in batches of `rows`.
class SampleEpochs : public Epochs {
 public:
  SampleEpochs(Samples& samples, By by, std::int32_t workers, std::int64_t count, std::int64_t rows);
  double samples_per_s() { return static_cast<double>(rows_) * epoch(); }

 private:
  std::int64_t rows_;
};

// What anybody would write: a permutation, and each batch collated into the same memory. By the `part`-th of `parts`,
// which calls `ready` before it begins. Nanoseconds.
std::int64_t loop_over(const Samples& samples, std::int64_t count, std::size_t rows, std::size_t part,
                       std::size_t parts, const std::function<void()>& ready);

}  // namespace bench
