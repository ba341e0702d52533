// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <feedlane/loader.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "../common/command_line.hpp"

namespace digits {

struct Options {
  bool sync = false;
  int32_t workers = 2;
  feedlane::Start start = feedlane::Start::spawn;
  int64_t epochs = 60;
  uint64_t seed = 1;
  std::string data;                       ///< directory of the IDX files
  std::string losses;                     ///< file to write, empty: none
  std::optional<int64_t> kill_worker_at;  ///< batch number
  bool quiet = false;
  bool digest = false;    ///< no training
  std::string worker;     ///< digest: command of a worker, words separated by spaces; empty: this program
  std::string feed;       ///< digest: a Unix socket to create, where consumers join; empty: not shared
  int32_t consumers = 1;  ///< with `feed`
  std::string join;       ///< digest: the feeder's socket; empty: not a consumer
};

extern const char* const usage;

/// `wrong`: `complaint` is a line that names the option.
common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint);

}  // namespace digits
