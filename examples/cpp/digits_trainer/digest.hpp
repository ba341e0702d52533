// SPDX-License-Identifier: Apache-2.0
// The bytes of ten epochs of digits in one number, which trainers in all languages print alike: see examples/README.md.
#pragma once

#include <cstdint>
#include <string>

namespace digits {

/// Batches made by `workers` forked processes, or inline. What fails throws.
uint64_t digest(const std::string& directory, int32_t workers);

}  // namespace digits
