// SPDX-License-Identifier: Apache-2.0
// A sampler's state as bytes: magic, kind, the facts that identify the definition, the epoch, the kind's own part, a
// checksum. If a state belongs to another sampler, the error has the name and the two values of the fact that differs.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "sampler/kinds.hpp"

namespace feedlane::sampler {

struct Fact {
  const char* name;
  std::uint64_t value;
};

// Writes one state: the constructor writes the head, finish() the checksum.
class StateWriter {
 public:
  StateWriter(std::vector<std::byte>& out, Kind kind, std::span<const Fact> facts, std::int64_t epoch);
  ByteWriter& more() { return writer_; }
  void finish();

 private:
  std::vector<std::byte>& out_;
  std::size_t start_;
  ByteWriter writer_;
};

// Checks a state except for the kind's own part, which the caller then reads from `more`.
Status open_state(std::span<const std::byte> state, Kind kind, std::span<const Fact> facts, std::int64_t epoch,
                  ByteReader& more, Error& error);
// Returns E_CORRUPT.
Status refuse_damaged(Error& error);

}  // namespace feedlane::sampler
