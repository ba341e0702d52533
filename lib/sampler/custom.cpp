// SPDX-License-Identifier: Apache-2.0
// The sampler that calls user-defined callbacks.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <new>

#include "base/versioned.hpp"
#include "sampler/checks.hpp"
#include "sampler/kinds.hpp"
#include "sampler/state.hpp"

namespace feedlane::sampler {
namespace {

constexpr std::uint64_t most_state_bytes = std::uint64_t{1} << 30;

// The user's table, shared by a sampler and its copies. Calls the callbacks and checks their results.
class Callbacks {
 public:
  explicit Callbacks(const feedlane_sampler_callbacks& table) : table_(table), detail_(std::size_t{64} * 1024) {}
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;
  ~Callbacks() {
    if (adopted_ && table_.drop != nullptr) table_.drop(table_.user_data);
  }
  void adopt() { adopted_ = true; }
  [[nodiscard]] const feedlane_sampler_callbacks& table() const { return table_; }

  // Calls `f` with the table and a fresh error struct. Returns the positive statuses in `allowed`, and refuses others.
  template <class F>
  Status call(const char* name, std::initializer_list<Status> allowed, Error& error, F&& f) {
    feedlane_error report;
    feedlane_init(&report, sizeof report);
    report.detail = detail_.data();
    report.detail_cap = detail_.size();
    const Status s = f(table_, &report);
    if (s == FEEDLANE_OK || std::find(allowed.begin(), allowed.end(), s) != allowed.end()) return s;
    return translate(name, s, report, error);
  }

 private:
  Status translate(const char* name, Status returned, const feedlane_error& report, Error& error) const;

  feedlane_sampler_callbacks table_;
  bool adopted_ = false;      // if set, the destructor calls `drop`
  std::vector<char> detail_;  // room for tracebacks
};

Status Callbacks::translate(const char* name, Status returned, const feedlane_error& report, Error& error) const {
  const Status s = from_callback(name, returned, report, error);
  if (s == returned && report.detail == detail_.data()) {
    try {
      error.detail.assign(detail_.data(), std::min<std::uint64_t>(report.detail_len, detail_.size()));
    } catch (const std::bad_alloc&) {  // keeps only the text, because memory may be short
      error.detail.clear();
    }
  }
  return s;
}

class Custom final : public Sampler {
 public:
  explicit Custom(std::shared_ptr<Callbacks> callbacks) : callbacks_(std::move(callbacks)) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override { return std::make_unique<Custom>(callbacks_); }
  Status restart(std::int64_t epoch, std::uint64_t seed, Error& error) override;
  Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) override;
  [[nodiscard]] std::int64_t length() const override {
    return callbacks_->table().length > 0 ? callbacks_->table().length : -1;
  }
  [[nodiscard]] std::int64_t batch_rows() const override { return callbacks_->table().batch_rows; }
  [[nodiscard]] int wake_fd() const override { return callbacks_->table().wake_fd; }
  [[nodiscard]] bool seekable() const override { return false; }
  Status save(std::int64_t position, std::vector<std::byte>& out, Error& error) const override;
  Status load(std::span<const std::byte> state, Error& error) override;

 private:
  Status pull(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error);
  Status save_own(std::vector<std::byte>& own, Error& error) const;
  [[nodiscard]] std::vector<Fact> facts() const {
    return {{"length", static_cast<std::uint64_t>(length())}, {"batch_rows", static_cast<std::uint64_t>(batch_rows())}};
  }

  std::shared_ptr<Callbacks> callbacks_;
  std::int64_t epoch_ = 0;
  std::uint64_t seed_ = 0;
  bool started_ = false;
  bool ended_ = false;
  // Indices received before `next` failed or had no more; the following call returns them first.
  std::vector<std::int64_t> kept_;
};

Status Custom::restart(std::int64_t epoch, std::uint64_t seed, Error& error) {
  started_ = false;
  kept_.clear();
  epoch_ = epoch;
  seed_ = seed;
  if (callbacks_->table().restart != nullptr) {
    const Status s = callbacks_->call("callbacks.restart", {}, error, [&](const auto& table, auto* report) {
      return table.restart(table.user_data, epoch, seed, report);
    });
    if (s != FEEDLANE_OK) return s;
  }
  started_ = true;
  ended_ = false;
  return FEEDLANE_OK;
}

// One call of the user's `next`: at least one index, END or AGAIN.
Status Custom::pull(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) {
  constexpr const char* name = "callbacks.next";
  got = 0;
  const Status s = callbacks_->call(name, {FEEDLANE_END, FEEDLANE_AGAIN}, error, [&](const auto& table, auto* report) {
    return table.next(table.user_data, indices, cap, &got, report);
  });
  if (s < 0) return s;
  const auto found = static_cast<std::int64_t>(std::min<std::uint64_t>(got, INT64_MAX));
  if (got > cap)
    return error.refuse(FEEDLANE_E_ARGUMENT, name, found, cap, "{} wrote {} indices, but there was room for only {}",
                        name, got, cap);
  if ((got == 0) != (s != FEEDLANE_OK))
    return error.refuse(FEEDLANE_E_ARGUMENT, name, found, s != FEEDLANE_OK ? 0 : 1,
                        "{} returned {} with {} indices: FEEDLANE_END and FEEDLANE_AGAIN must come with 0 indices, and "
                        "FEEDLANE_OK with at least 1",
                        name, feedlane_status_name(s), got);
  if (s == FEEDLANE_AGAIN && wake_fd() == 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "callbacks.wake_fd", 0, 1,
                        "{} returned FEEDLANE_AGAIN, but callbacks.wake_fd is 0: set it to a descriptor that becomes "
                        "readable when there are indices",
                        name);
  return s;
}

Status Custom::next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) {
  got = 0;
  const std::int64_t rows = batch_rows();
  Status s = rows > 0 ? check_room(cap, rows, error) : FEEDLANE_OK;
  if (s == FEEDLANE_OK && !started_) s = restart(epoch_, seed_, error);
  if (s != FEEDLANE_OK) return s;
  // The user may return fewer indices than requested at any time; this function returns fewer only at the end.
  const std::uint64_t wanted = rows > 0 ? static_cast<std::uint64_t>(rows) : cap;
  got = std::min<std::uint64_t>(kept_.size(), wanted);
  std::copy_n(kept_.begin(), got, indices);
  kept_.reserve(rows > 0 ? got : wanted);  // so that keeping the indices allocates nothing
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(got));
  while (!ended_ && got < wanted) {
    std::uint64_t part = 0;
    s = pull(indices + got, wanted - got, part, error);
    if (s < 0 || s == FEEDLANE_AGAIN) {
      kept_.assign(indices, indices + got);
      got = 0;
      return s;
    }
    ended_ = s == FEEDLANE_END;
    got += part;
    if (rows > 0) break;
  }
  return got == 0 ? FEEDLANE_END : FEEDLANE_OK;
}

Status Custom::save_own(std::vector<std::byte>& own, Error& error) const {
  constexpr const char* name = "callbacks.save";
  own.resize(512);
  for (int attempt = 0;; attempt++) {
    std::uint64_t bytes = 0;
    bool too_small = false;
    const Status s = callbacks_->call(name, {}, error, [&](const auto& table, auto* report) {
      const Status answer = table.save(table.user_data, own.data(), own.size(), &bytes, report);
      too_small = answer == FEEDLANE_E_LIMIT && bytes > own.size();
      return too_small ? FEEDLANE_OK : answer;
    });
    if (s != FEEDLANE_OK) return s;
    if (bytes <= own.size()) {
      own.resize(bytes);
      return FEEDLANE_OK;
    }
    if (!too_small || attempt > 0 || bytes > most_state_bytes)
      return error.refuse(FEEDLANE_E_ARGUMENT, name, std::min<std::uint64_t>(bytes, INT64_MAX), own.size(),
                          "{} returned a state of {} bytes, but there was room for only {}", name, bytes, own.size());
    own.resize(bytes);
  }
}

Status Custom::save(std::int64_t, std::vector<std::byte>& out, Error& error) const {
  if (callbacks_->table().save == nullptr)
    return error.refuse(FEEDLANE_E_UNSUPPORTED, "sampler.save", 0, 1,
                        "this custom sampler has no callback `save`: its state can't be saved");
  if (!kept_.empty())
    return error.fail(FEEDLANE_E_STATE,
                      "cannot save: {} indices are kept, because callbacks.next failed or returned FEEDLANE_AGAIN; "
                      "call feedlane_sampler_next until it returns them",
                      kept_.size());
  std::vector<std::byte> own;
  const Status s = save_own(own, error);
  if (s != FEEDLANE_OK) return s;
  const std::vector<Fact> definition = facts();
  StateWriter state(out, Kind::custom, definition, epoch_);
  state.more().u32(ended_ ? 1 : 0);
  state.more().blob(own);
  state.finish();
  return FEEDLANE_OK;
}

Status Custom::load(std::span<const std::byte> state, Error& error) {
  if (callbacks_->table().load == nullptr)
    return error.refuse(FEEDLANE_E_UNSUPPORTED, "sampler.load", 0, 1,
                        "this custom sampler has no callback `load`: no state can be loaded");
  Status s = started_ ? FEEDLANE_OK : restart(epoch_, seed_, error);
  if (s != FEEDLANE_OK) return s;
  const std::vector<Fact> definition = facts();
  ByteReader more({});
  s = open_state(state, Kind::custom, definition, epoch_, more, error);
  if (s != FEEDLANE_OK) return s;
  const bool ended = more.u32() != 0;
  const auto own = more.blob();
  if (!more.ok() || more.left() != 0) return refuse_damaged(error);
  s = callbacks_->call("callbacks.load", {}, error, [&](const auto& table, auto* report) {
    return table.load(table.user_data, own.data(), own.size(), report);
  });
  if (s == FEEDLANE_OK) ended_ = ended;
  return s;
}

}  // namespace

Status make_custom(const feedlane_sampler_config& config, const Sampler*, const Environment&, Made& out, Error& error) {
  feedlane_sampler_callbacks callbacks;
  if (const Status s = read_versioned(config.callbacks, callbacks, "config.callbacks", error); s != FEEDLANE_OK)
    return s;
  if (callbacks.next == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, "callbacks.next", 0, 1, "callbacks.next is NULL: it is required");
  if (callbacks.length < 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "callbacks.length", callbacks.length, 0,
                        "callbacks.length is {}: must not be negative; 0 means unknown", callbacks.length);
  constexpr std::int64_t most = std::int64_t{1} << 30;  // same limit as a loader's batch_size
  if (callbacks.batch_rows < 0 || callbacks.batch_rows > most)
    return error.refuse(FEEDLANE_E_ARGUMENT, "callbacks.batch_rows", callbacks.batch_rows,
                        callbacks.batch_rows < 0 ? 0 : most, "callbacks.batch_rows is {}: must be between 0 and {}",
                        callbacks.batch_rows, most);
  if (callbacks.wake_fd < 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "callbacks.wake_fd", callbacks.wake_fd, 0,
                        "callbacks.wake_fd is {}: must be a descriptor above 0; 0 means that the sampler is not live",
                        callbacks.wake_fd);
  auto shared = std::make_shared<Callbacks>(callbacks);
  out = std::make_unique<Custom>(shared);
  shared->adopt();
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
