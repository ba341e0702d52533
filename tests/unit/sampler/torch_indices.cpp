// SPDX-License-Identifier: Apache-2.0
// Answers torch_indices_test.py through the C boundary. Each line of its input is a request, each line of its output the
// indices, pulled `cap` at a time and joined with commas:
//   random length seed epoch cap num_samples replacement shuffle
//   distributed length seed epoch cap world rank no_shuffle drop_last
//   subset length seed epoch cap                                       indices 1000, 1003, 1006 ...
#include <feedlane.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "../../support/api.hpp"

namespace {

feedlane_error error;

void check(int32_t status) {
  if (status >= 0) return;
  std::fprintf(stderr, "%s\n", error.text);
  std::exit(1);
}

feedlane_sampler* make_random(std::int64_t& epoch, std::uint64_t& cap) {
  auto config = feedlane::test::fresh<feedlane_sampler_config>();
  std::cin >> config.length >> config.seed >> epoch >> cap >> config.num_samples >> config.replacement >>
      config.shuffle;
  feedlane_sampler* sampler = nullptr;
  check(feedlane::test::random_sampler(&config, &sampler, &error));
  return sampler;
}

feedlane_sampler* make_distributed(std::int64_t& epoch, std::uint64_t& cap) {
  auto config = feedlane::test::fresh<feedlane_sampler_config>();
  std::cin >> config.length >> config.seed >> epoch >> cap >> config.world >> config.rank >> config.no_shuffle >>
      config.drop_last;
  feedlane_sampler* sampler = nullptr;
  check(feedlane::test::distributed_sampler(&config, &sampler, &error));
  return sampler;
}

feedlane_sampler* make_subset(std::int64_t& epoch, std::uint64_t& cap) {
  std::int64_t length = 0;
  std::uint64_t seed = 0;
  std::cin >> length >> seed >> epoch >> cap;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < length; i++) indices.push_back(1000 + 3 * i);
  feedlane_sampler* sampler = nullptr;
  check(feedlane::test::subset_sampler(indices.data(), indices.size(), 0, seed, &sampler, &error));
  return sampler;
}

void print(feedlane_sampler* sampler, std::int64_t epoch, std::uint64_t cap) {
  // From another epoch, so that going on and going back are both seen.
  check(feedlane_sampler_restart(sampler, epoch % 3, &error));
  check(feedlane_sampler_restart(sampler, epoch, &error));
  std::vector<std::int64_t> indices(cap);
  const char* comma = "";
  for (std::uint64_t got = 0; feedlane_sampler_next(sampler, indices.data(), cap, &got, &error) == FEEDLANE_OK;)
    for (std::uint64_t i = 0; i < got; i++) {
      std::printf("%s%" PRId64, comma, indices[i]);
      comma = ",";
    }
  std::putchar('\n');
  check(feedlane_sampler_destroy(&sampler));
}

}  // namespace

int main() {
  feedlane_init(&error, sizeof error);
  std::string what;
  while (std::cin >> what) {
    std::int64_t epoch = 0;
    std::uint64_t cap = 0;
    if (what == "random") {
      feedlane_sampler* const sampler = make_random(epoch, cap);
      print(sampler, epoch, cap);
    } else if (what == "distributed") {
      feedlane_sampler* const sampler = make_distributed(epoch, cap);
      print(sampler, epoch, cap);
    } else if (what == "subset") {
      feedlane_sampler* const sampler = make_subset(epoch, cap);
      print(sampler, epoch, cap);
    }
  }
}
