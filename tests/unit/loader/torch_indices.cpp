// SPDX-License-Identifier: Apache-2.0
// For each line "length seed epoch cap" of its input: the random sampler's indices, pulled `cap` at a time and joined
// with commas. For torch_indices_test.py.
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <vector>

#include "loader/sampler.hpp"

int main() {
  std::int64_t length = 0, epoch = 0;
  std::uint64_t seed = 0, cap = 0;
  while (std::scanf("%" SCNd64 " %" SCNu64 " %" SCNd64 " %" SCNu64, &length, &seed, &epoch, &cap) == 4) {
    std::unique_ptr<feedlane::loader::Sampler> sampler;
    feedlane::Error error;
    if (feedlane::loader::make_random(length, seed, sampler, error) != FEEDLANE_OK ||
        sampler->restart(epoch, error) != FEEDLANE_OK) {
      std::fprintf(stderr, "%s\n", error.text);
      return 1;
    }
    std::vector<std::int64_t> indices(cap);
    const char* comma = "";
    for (std::uint64_t got = 0; sampler->next(indices.data(), cap, got, error) == FEEDLANE_OK;)
      for (std::uint64_t i = 0; i < got; i++) {
        std::printf("%s%" PRId64, comma, indices[i]);
        comma = ",";
      }
    std::putchar('\n');
  }
}
