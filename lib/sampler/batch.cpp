// SPDX-License-Identifier: Apache-2.0
// The batch sampler.
#include <algorithm>

#include "sampler/checks.hpp"
#include "sampler/feistel.hpp"
#include "sampler/kinds.hpp"
#include "sampler/state.hpp"

namespace feedlane::sampler {
namespace {

// torch's BatchSampler over a copy of another sampler.
class Batch final : public Sampler {
 public:
  Batch(std::unique_ptr<Sampler> inner, std::int64_t rows, bool drop_last)
      : inner_(std::move(inner)), rows_(rows), drop_last_(drop_last) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Batch>(inner_->clone(), rows_, drop_last_);
  }
  Status restart(std::int64_t epoch, std::uint64_t seed, Error& error) override {
    epoch_ = epoch;
    batches_ = 0;
    ended_ = false;
    return inner_->restart(epoch, seed, error);
  }
  Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) override;
  [[nodiscard]] std::int64_t length() const override {
    const std::int64_t indices = inner_->length();
    return indices < 0 ? -1 : indices / rows_ + (indices % rows_ != 0 && !drop_last_ ? 1 : 0);
  }
  [[nodiscard]] std::int64_t batch_rows() const override { return rows_; }
  [[nodiscard]] int wake_fd() const override { return inner_->wake_fd(); }
  [[nodiscard]] bool seekable() const override { return inner_->seekable(); }
  Status save(std::int64_t position, std::vector<std::byte>& out, Error& error) const override;
  Status load(std::span<const std::byte> state, Error& error) override;
  [[nodiscard]] Place place() const override { return inner_->place(); }
  [[nodiscard]] const char* rank_source() const override { return inner_->rank_source(); }
  [[nodiscard]] const char* rank_warning() const override { return inner_->rank_warning(); }

 private:
  [[nodiscard]] std::vector<Fact> facts() const {
    return {{"batch_size", static_cast<std::uint64_t>(rows_)}, {"drop_last", drop_last_ ? 1U : 0U}};
  }

  std::unique_ptr<Sampler> inner_;
  std::int64_t rows_;
  bool drop_last_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_ = 0;
  bool ended_ = false;
};

Status Batch::next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) {
  got = 0;
  Status s = check_room(cap, rows_, error);
  if (s != FEEDLANE_OK) return s;
  if (!ended_) {
    s = inner_->next(indices, static_cast<std::uint64_t>(rows_), got, error);
    if (s < 0 || s == FEEDLANE_AGAIN) return s;
    ended_ = s == FEEDLANE_END || got < static_cast<std::uint64_t>(rows_);
    if (ended_ && drop_last_) got = 0;
  }
  if (got == 0) return FEEDLANE_END;
  batches_++;
  return FEEDLANE_OK;
}

Status Batch::save(std::int64_t position, std::vector<std::byte>& out, Error& error) const {
  if (position < 0 || !seekable()) position = ended_ ? INT64_MAX : batches_;
  // A dropped last batch counts as yielded.
  const std::int64_t all = length();
  const bool at_end = all >= 0 && position >= all && (drop_last_ || position > all);
  const std::int64_t saved = all < 0 ? batches_ : std::min(position, all);
  std::vector<std::byte> inner;
  const bool beyond = at_end || position > INT64_MAX / rows_;
  const Status s = inner_->save(beyond ? INT64_MAX : position * rows_, inner, error);
  if (s != FEEDLANE_OK) return s;
  const std::vector<Fact> definition = facts();
  StateWriter state(out, Kind::batch, definition, epoch_);
  state.more().i64(saved);
  state.more().blob(inner);
  state.finish();
  return FEEDLANE_OK;
}

Status Batch::load(std::span<const std::byte> state, Error& error) {
  const std::vector<Fact> definition = facts();
  ByteReader more({});
  Status s = open_state(state, Kind::batch, definition, epoch_, more, error);
  if (s != FEEDLANE_OK) return s;
  const std::int64_t batches = more.i64();
  const auto inner = more.blob();
  if (!more.ok() || more.left() != 0 || batches < 0) return refuse_damaged(error);
  s = inner_->load(inner, error);
  if (s != FEEDLANE_OK) return s;
  // If the length of the inner sampler is unknown, any number is valid, and counting continues from it.
  const std::int64_t all = length();
  if (batches > (all < 0 ? Feistel::most : all)) return refuse_damaged(error);
  batches_ = batches;
  ended_ = false;
  return FEEDLANE_OK;
}

}  // namespace

Status make_batch(const feedlane_sampler_config& config, const Sampler* inner, const Environment&, Made& out,
                  Error& error) {
  if (inner == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, "config.inner", 0, 1, "config.inner is NULL");
  constexpr std::int64_t most = std::int64_t{1} << 30;  // same limit as a loader's batch_size
  if (inner->batch_rows() > 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.inner", inner->batch_rows(), 0,
                        "config.inner yields batches (of up to {} indices): it must yield single indices",
                        inner->batch_rows());
  const Ranged numbers[] = {{"config.batch_size", config.batch_size, 1, most},
                            {"config.drop_last", config.drop_last, 0, 1}};
  if (const Status s = check_ranges(numbers, error); s != FEEDLANE_OK) return s;
  out = std::make_unique<Batch>(inner->clone(), config.batch_size, config.drop_last != 0);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
