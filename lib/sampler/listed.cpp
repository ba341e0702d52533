// SPDX-License-Identifier: Apache-2.0
// The position in a list, and its state.
#include "sampler/listed.hpp"

#include <algorithm>

namespace feedlane::sampler {

Status Listed::restart(std::int64_t epoch, std::uint64_t, Error& error) {
  prepared_ = false;  // stays false if memory runs out
  epoch_ = epoch;
  const Status s = prepare(epoch, error);
  if (s != FEEDLANE_OK) return s;
  position_ = 0;
  prepared_ = true;
  ended_ = false;
  return FEEDLANE_OK;
}

Status Listed::next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) {
  if (!prepared_)
    if (const Status s = restart(epoch_, 0, error); s != FEEDLANE_OK) return s;
  got = std::min(cap, static_cast<std::uint64_t>(length() - position_));
  read(position_, indices, got);
  position_ += static_cast<std::int64_t>(got);
  ended_ = ended_ || got < cap;
  return got == 0 ? FEEDLANE_END : FEEDLANE_OK;
}

Status Listed::save(std::int64_t position, std::vector<std::byte>& out, Error& error) const {
  if (position < 0) position = ended_ ? INT64_MAX : position_;
  if (position < earliest())
    return error.refuse(FEEDLANE_E_ARGUMENT, "position", position, earliest(),
                        "position is {}: must be at least {}, the position of the loaded state", position, earliest());
  const std::vector<Fact> all = facts();
  StateWriter state(out, kind(), all, epoch_);
  state.more().i64(std::min(position, length()));
  save_more(position, state.more());
  state.finish();
  return FEEDLANE_OK;
}

Status Listed::load(std::span<const std::byte> state, Error& error) {
  if (!prepared_)
    if (const Status s = restart(epoch_, 0, error); s != FEEDLANE_OK) return s;
  const std::vector<Fact> all = facts();
  ByteReader more({});
  Status s = open_state(state, kind(), all, epoch_, more, error);
  if (s != FEEDLANE_OK) return s;
  const std::int64_t position = more.i64();
  if (!more.ok() || position < 0) return refuse_damaged(error);
  s = load_more(position, more, error);
  if (s != FEEDLANE_OK) return s;
  if (!more.ok() || more.left() != 0 || position > length()) return refuse_damaged(error);
  position_ = position;
  ended_ = false;
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
