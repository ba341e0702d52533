// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <feedlane/loader.hpp>

#include <cstdint>
#include <string>

#include "../common/command_line.hpp"
#include "corpus.hpp"

namespace tokens {

struct Options {
  CorpusFiles files;
  int64_t batch = 32;
  int64_t epochs = 1;
  uint64_t seed = 1;
  int32_t workers = 2;
  feedlane::Start start = feedlane::Start::spawn;
  std::string state;  ///< file to save to, empty: none
  int64_t save_every = 100;
  bool resume = false;
  int64_t die_at = -1;  ///< batch number
  bool quiet = false;
  std::string generate;  ///< folder to make, empty: none
  int64_t shards = 4;
  int64_t tokens = 1 << 20;
};

extern const char* const usage;

/// `wrong`: `complaint` is a line that names the option.
common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint);

}  // namespace tokens
