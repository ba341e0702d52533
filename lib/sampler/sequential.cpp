// SPDX-License-Identifier: Apache-2.0
// The sequential sampler: 0 to n - 1.
#include <numeric>

#include "sampler/kinds.hpp"
#include "sampler/listed.hpp"

namespace feedlane::sampler {
namespace {

class Sequential final : public Listed {
 public:
  explicit Sequential(std::int64_t length) : length_(length) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override { return std::make_unique<Sequential>(length_); }
  [[nodiscard]] std::int64_t length() const override { return length_; }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::sequential; }
  [[nodiscard]] std::vector<Fact> facts() const override { return {{"length", static_cast<std::uint64_t>(length_)}}; }
  Status prepare(std::int64_t, Error&) override { return FEEDLANE_OK; }
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const override {
    std::iota(indices, indices + count, first);
  }

  std::int64_t length_;
};

}  // namespace

Status make_sequential(const feedlane_sampler_config& config, const Sampler*, const Environment&, Made& out,
                       Error& error) {
  if (config.length < 0) return refuse(error, "config.length", config.length, 0, "must not be negative");
  out = std::make_unique<Sequential>(config.length);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
