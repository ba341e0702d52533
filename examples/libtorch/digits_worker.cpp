// SPDX-License-Identifier: Apache-2.0
// The worker of `digits` as a program of its own: it doesn't load libtorch.
#include "../cpp/common/program.hpp"
#include "../cpp/digits_trainer/digits_dataset.hpp"

#include <cstdio>

int main() {
  if (feedlane::is_worker()) return common::run_worker<digits::DigitsDataset>();
  std::fputs("digits_worker: started by digits, not by hand\n", stderr);
  return common::exit_usage;
}
