// SPDX-License-Identifier: Apache-2.0
// The bytes of ten epochs of digits in one number, which trainers in all languages print alike: see examples/README.md.
#pragma once

#include "options.hpp"

namespace digits {

/// Makes batches and prints their digest; delivers them to consumers, with options.feed; or prints the digest of another
/// program's batches, with options.join. What fails throws.
void run_digest(const Options& options);

/// The worker of a digest in any language; worker_config is the directory of the IDX files. Returns the exit code.
int run_digest_worker();

}  // namespace digits
