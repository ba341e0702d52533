// SPDX-License-Identifier: Apache-2.0
// Shards of random tokens to try the program with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tokens {

/// Writes `shards` files of about `tokens` tokens each into `folder`, the same ones every time. Throws.
void generate(const std::string& folder, int64_t shards, int64_t tokens, size_t token_bytes);

}  // namespace tokens
