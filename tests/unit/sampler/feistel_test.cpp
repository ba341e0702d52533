// SPDX-License-Identifier: Apache-2.0
// The shuffle without a table: a bijection for every length.
#include "sampler/feistel.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using feedlane::sampler::Feistel;
using feedlane::sampler::feistel_key;

namespace {

// Whether each index comes once.
bool is_bijection(std::int64_t n, std::uint64_t key) {
  const Feistel f(n, key);
  std::vector<bool> seen(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; i++) {
    const std::int64_t index = f.at(i);
    if (index < 0 || index >= n || seen[static_cast<std::size_t>(index)]) return false;
    seen[static_cast<std::size_t>(index)] = true;
  }
  return true;
}

}  // namespace

// promise: sampler-feistel
TEST_CASE("a feistel shuffle is a bijection for every length up to 2,000") {
  for (std::int64_t n = 0; n <= 2000; n++) CHECK_MESSAGE(is_bijection(n, static_cast<std::uint64_t>(n) * 77), n);
}

TEST_CASE("a feistel shuffle is a bijection for larger lengths, at and next to powers of two") {
  for (const std::int64_t n : {4095, 4096, 4097, 16383, 16384, 16385, 65536, 99991, 262145, 1000000})
    CHECK_MESSAGE(is_bijection(n, 5), n);
}

// promise: sampler-feistel
TEST_CASE("at the largest lengths every position still has its own index") {
  for (const std::int64_t n : {INT64_C(1000000000000), Feistel::most - 1, Feistel::most}) {
    const Feistel f(n, 9);
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i < 1000; i++) {
      found.push_back(f.at(i));
      found.push_back(f.at(n - 1 - i));
      found.push_back(f.at(n / 2 + i));
    }
    CHECK(*std::min_element(found.begin(), found.end()) >= 0);
    CHECK(*std::max_element(found.begin(), found.end()) < n);
    CHECK_MESSAGE(*std::max_element(found.begin(), found.end()) > n / 2, "from the whole range");
    std::sort(found.begin(), found.end());
    CHECK(std::adjacent_find(found.begin(), found.end()) == found.end());
  }
}

TEST_CASE("a different key gives a different order") {
  const Feistel a(1000, feistel_key(1, 0));
  for (const std::uint64_t key : {feistel_key(2, 0), feistel_key(1, 1), feistel_key(0, 0)}) {
    const Feistel b(1000, key);
    int same = 0;
    for (std::int64_t i = 0; i < 1000; i++) same += a.at(i) == b.at(i) ? 1 : 0;
    CHECK_MESSAGE(same < 10, "one is expected by chance");
  }
}

TEST_CASE("every order of three indices and every position of ten are about equally likely") {
  constexpr int keys = 60000;
  int orders[27] = {};
  int places[10][10] = {};
  for (int k = 0; k < keys; k++) {
    const Feistel three(3, feistel_key(static_cast<std::uint64_t>(k), 0));
    orders[three.at(0) * 9 + three.at(1) * 3 + three.at(2)]++;
    const Feistel ten(10, feistel_key(static_cast<std::uint64_t>(k), 0));
    for (std::int64_t i = 0; i < 10; i++) places[i][ten.at(i)]++;
  }
  // Chi-square; the bounds are passed by chance about once in a million keys.
  double three = 0, ten = 0;
  for (const int order : orders)
    if (order != 0) three += (order - keys / 6.0) * (order - keys / 6.0) / (keys / 6.0);
  for (const auto& row : places)
    for (const int count : row) ten += (count - keys / 10.0) * (count - keys / 10.0) / (keys / 10.0);
  CHECK_MESSAGE(three < 36, "5 degrees of freedom");
  CHECK_MESSAGE(ten < 160, "81 degrees of freedom");
}
