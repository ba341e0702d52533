// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <feedlane/loader.hpp>

#include <cstdint>
#include <string>

#include "../common/command_line.hpp"

namespace images {

enum class OnError { raise, skip, substitute };

struct Options {
  std::string folder;
  int32_t workers = 2;
  feedlane::Start start = feedlane::Start::spawn;
  int64_t batch = 64;
  int64_t epochs = 2;
  uint64_t seed = 1;
  uint32_t side = 224;
  bool bytes = false;
  OnError on_error = OnError::raise;
  bool checksum = false;
  bool quiet = false;
  std::string generate;  ///< folder to make, empty: none
  int64_t count = 1000;  ///< of pictures to make
};

extern const char* const usage;

/// `wrong`: `complaint` is a line that names the option.
common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint);

}  // namespace images
