// SPDX-License-Identifier: Apache-2.0
// The subset sampler.
#include <algorithm>

#include "sampler/checks.hpp"
#include "sampler/content.hpp"
#include "sampler/kinds.hpp"
#include "sampler/listed.hpp"
#include "sampler/torch_random.hpp"

namespace feedlane::sampler {
namespace {

// Shared by copies of a sampler.
struct List {
  std::vector<std::int64_t> indices;
  std::uint64_t content;
};

// torch's SubsetRandomSampler, or its list in the given order.
class Subset final : public Listed {
 public:
  Subset(std::shared_ptr<const List> list, bool in_order, std::uint64_t seed)
      : list_(std::move(list)), in_order_(in_order), seed_(seed) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Subset>(list_, in_order_, seed_);
  }
  [[nodiscard]] std::int64_t length() const override { return static_cast<std::int64_t>(list_->indices.size()); }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::subset; }
  [[nodiscard]] std::vector<Fact> facts() const override {
    return {{"length", list_->indices.size()},
            {"in_order", in_order_ ? 1U : 0U},
            {"seed", in_order_ ? 0 : seed_},
            {"index checksum", list_->content}};
  }
  Status prepare(std::int64_t epoch, Error&) override {
    if (in_order_) return FEEDLANE_OK;
    order_.clear();
    TorchGenerator(seed_ + static_cast<std::uint64_t>(epoch)).randperm(length(), length(), order_);
    return FEEDLANE_OK;
  }
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const override {
    for (std::uint64_t i = 0; i < count; i++) {
      const std::size_t place = static_cast<std::size_t>(first) + i;
      indices[i] = list_->indices[in_order_ ? place : static_cast<std::size_t>(order_[place])];
    }
  }

  std::shared_ptr<const List> list_;
  bool in_order_;
  std::uint64_t seed_;
  std::vector<std::int64_t> order_;  // positions in the list
};

}  // namespace

Status make_subset(const feedlane_sampler_config& config, const Sampler*, const Environment&, Made& out, Error& error) {
  const std::uint64_t count = config.count;
  if (config.indices == nullptr && count != 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.indices", 0, 1, "config.indices is NULL, but config.count is {}",
                        count);
  if (const Status s = check_flag("config.no_shuffle", config.no_shuffle, error); s != FEEDLANE_OK) return s;
  auto list = std::make_shared<List>();
  list->indices.reserve(count);  // throws before anything is read if memory is short
  if (count != 0) list->indices.assign(config.indices, config.indices + count);
  list->content = content_of(std::span<const std::int64_t>(list->indices));
  out = std::make_unique<Subset>(std::move(list), config.no_shuffle != 0, config.seed);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
