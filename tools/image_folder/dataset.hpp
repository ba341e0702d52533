// SPDX-License-Identifier: Apache-2.0
// The data set that a worker runs: reads, decodes, crops, resizes and normalises a picture into its row.
#pragma once

#include <feedlane/dataset.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "listing.hpp"
#include "options.hpp"
#include "picture.hpp"
#include "resizer.hpp"

namespace images {

class Dataset {
 public:
  /// `complaint`: what is wrong with the command line, for the trainer; empty: nothing.
  Dataset(Options options, std::string complaint) : options_(std::move(options)), complaint_(std::move(complaint)) {}
  /// Checks the options, the list and the fields. Throws if they don't fit together.
  void open(const feedlane::WorkerInfo& info);
  /// One picture into its row. Throws with the file's path; a read error that may pass is feedlane::Transient.
  void get(const feedlane::Row& row);
  /// Some other picture, drawn by the row's seed.
  std::optional<int64_t> substitute(int64_t failed, uint64_t seed, uint32_t tries) const;

 private:
  void read_fields(const feedlane_worker_info& info);
  void read(const std::string& path);
  View decode(uint64_t seed, Placement& at);

  const Options options_;
  const std::string complaint_;
  List list_;
  Size size_;
  bool is_float_ = false;
  Normalisation normalisation_{};
  Decoder decoder_;
  std::optional<Resizer> resizer_;
  std::vector<uint8_t> file_;
  Pixels pixels_;
};

}  // namespace images
