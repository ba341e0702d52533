// SPDX-License-Identifier: Apache-2.0
// The worker of `tokens` as a program of its own: it doesn't load libtorch.
#include "../cpp/common/program.hpp"
#include "../cpp/token_shards/token_dataset.hpp"

#include <cstdio>

int main() {
  if (feedlane::is_worker()) return common::run_worker<tokens::TokenDataset>();
  std::fputs("tokens_worker: started by tokens, not by hand\n", stderr);
  return common::exit_usage;
}
