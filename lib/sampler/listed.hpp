// SPDX-License-Identifier: Apache-2.0
// Base of samplers whose epoch is a list with random access: seeking and saving need only the position in the list.
#pragma once

#include "sampler/sampler.hpp"
#include "sampler/state.hpp"

namespace feedlane::sampler {

class Listed : public Sampler {
 public:
  Status restart(std::int64_t epoch, std::uint64_t seed, Error& error) final;
  Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) final;
  Status save(std::int64_t position, std::vector<std::byte>& out, Error& error) const final;
  Status load(std::span<const std::byte> state, Error& error) final;

 protected:
  [[nodiscard]] virtual Kind kind() const = 0;
  // The facts that identify the definition. Their number depends only on the kind.
  [[nodiscard]] virtual std::vector<Fact> facts() const = 0;
  // Makes the list of `epoch`.
  virtual Status prepare(std::int64_t epoch, Error& error) = 0;
  // The `count` indices from `first` on; all are below length().
  virtual void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const = 0;
  // The earliest position that can still be saved.
  [[nodiscard]] virtual std::int64_t earliest() const { return 0; }
  // Saves the kind's additional data. `position` is INT64_MAX at the end, otherwise the caller's.
  virtual void save_more(std::int64_t, ByteWriter&) const {}
  // Reads this data, before `position` is compared with length().
  virtual Status load_more(std::int64_t, ByteReader&, Error&) { return FEEDLANE_OK; }

 private:
  std::int64_t epoch_ = 0;
  std::int64_t position_ = 0;
  bool prepared_ = false;
  bool ended_ = false;  // `next` was asked for more indices than were left
};

}  // namespace feedlane::sampler
