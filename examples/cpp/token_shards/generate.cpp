// SPDX-License-Identifier: Apache-2.0
// Writes shards of random tokens to try the program with.
#include "generate.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "../common/random.hpp"

namespace tokens {
namespace {

constexpr size_t vocabulary = 50257;

template <class Token>
void write_shard(const std::string& path, size_t count, uint64_t seed) {
  common::Random random(seed);
  std::vector<Token> all(count);
  for (Token& token : all) token = static_cast<Token>(random.below(vocabulary));
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(count * sizeof(Token)));
  file.close();
  if (!file) throw std::runtime_error(path + ": can't be written");
}

}  // namespace

void generate(const std::string& folder, int64_t shards, int64_t tokens, size_t token_bytes) {
  std::filesystem::create_directories(folder);
  for (int64_t shard = 0; shard < shards; shard++) {
    char name[32];
    std::snprintf(name, sizeof name, "/shard-%05lld.bin", static_cast<long long>(shard));
    const auto seed = static_cast<uint64_t>(shard);
    const size_t count = static_cast<size_t>(tokens) + common::Random(seed).below(static_cast<size_t>(tokens) / 8 + 1);
    if (token_bytes == sizeof(uint16_t)) write_shard<uint16_t>(folder + name, count, seed);
    else write_shard<int32_t>(folder + name, count, seed);
  }
}

}  // namespace tokens
