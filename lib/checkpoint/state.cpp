// SPDX-License-Identifier: Apache-2.0
// Writes and reads saved states.
#include "checkpoint/state.hpp"

#include <algorithm>

#include "base/bytes.hpp"
#include "shm/plan.hpp"

namespace feedlane::checkpoint {
namespace {

constexpr std::uint64_t magic = 0x31455441'54534c46;  // "FLSTATE1"
constexpr std::uint32_t version = 1;
constexpr std::size_t checksum_bytes = 8;
constexpr std::int64_t most = std::int64_t{1}
                              << 62;  // largest number of batches or samples, so that sums can't overflow
constexpr std::size_t head_bytes = 8 + 4 + 4 + 8;

enum Flag : std::uint32_t { flag_iterable = 1, flag_ended = 2 };

Status damaged(Error& error, std::size_t found, std::size_t needed, const char* how) {
  return error.refuse(FEEDLANE_E_CORRUPT, "state", found, needed, "the state of {} bytes {}", found, how);
}

void write_shard(const ShardProgress& shard, ByteWriter& out) {
  out.u64(shard.taken);
  out.u32(shard.ended ? 1 : 0);
  out.u32(shard.state != nullptr ? 1 : 0);
  if (shard.state != nullptr) out.blob(*shard.state);
}

ShardProgress read_shard(ByteReader& in) {
  ShardProgress shard;
  shard.taken = in.u64();
  shard.ended = in.u32() != 0;
  if (in.u32() == 0) return shard;
  const auto state = in.blob();
  shard.state = std::make_shared<const std::vector<std::byte>>(state.begin(), state.end());
  return shard;
}

}  // namespace

void write_state(const SavedState& state, std::vector<std::byte>& out) {
  const Progress& p = state.progress;
  std::vector<std::byte> body;
  ByteWriter w(body);
  w.u64(state.base_seed);
  w.i64(state.batch_size);
  w.i64(state.ranks);
  w.i64(p.epoch);
  w.i64(p.batches);
  w.i64(p.positions);
  w.i64(p.wanted);
  w.u64(p.skipped);
  w.blob(state.sampler);
  w.u32(static_cast<std::uint32_t>(p.ahead.size()));
  for (const YieldedBatch& y : p.ahead) {
    w.i64(y.batch);
    w.u32(y.rows);
  }
  w.u32(static_cast<std::uint32_t>(p.shards.size()));
  w.u32(p.next_shard);
  for (const ShardProgress& shard : p.shards) write_shard(shard, w);
  if (state.iterable && state.ranks > 1) w.i64(state.rank);

  out.clear();
  ByteWriter whole(out);
  whole.u64(magic);
  whole.u32(version);
  whole.u32((state.iterable ? flag_iterable : 0U) | (p.ended ? flag_ended : 0U));
  whole.u64(head_bytes + body.size() + checksum_bytes);
  out.insert(out.end(), body.begin(), body.end());
  whole.u64(checksum(out));
}

Status read_state(std::span<const std::byte> bytes, SavedState& out, Error& error) {
  ByteReader head(bytes);
  const std::uint64_t found_magic = head.u64();
  const std::uint32_t found_version = head.u32();
  const std::uint32_t flags = head.u32();
  const std::uint64_t length = head.u64();
  if (!head.ok() || found_magic != magic)
    return damaged(error, bytes.size(), head_bytes, "is not a state of a Feedlane loader");
  if (found_version != version)
    return error.refuse(FEEDLANE_E_ABI, "state", found_version, version,
                        "the state has format version {}, but this library reads only version {}", found_version,
                        version);
  if (length != bytes.size() || length < head_bytes + checksum_bytes)
    return damaged(error, bytes.size(), length, "does not have the length that its header gives");
  const auto covered = bytes.first(bytes.size() - checksum_bytes);
  if (ByteReader(bytes.last(checksum_bytes)).u64() != checksum(covered))
    return damaged(error, bytes.size(), length, "is damaged: its checksum does not match");

  ByteReader in(covered.subspan(head_bytes));
  SavedState s;
  Progress& p = s.progress;
  s.iterable = (flags & flag_iterable) != 0;
  p.ended = (flags & flag_ended) != 0;
  s.base_seed = in.u64();
  s.batch_size = in.i64();
  s.ranks = in.i64();
  p.epoch = in.i64();
  p.batches = in.i64();
  p.positions = in.i64();
  p.wanted = in.i64();
  p.skipped = in.u64();
  const auto sampler = in.blob();
  s.sampler.assign(sampler.begin(), sampler.end());
  // If a count is too large, its loop ends with the bytes.
  const std::uint32_t ahead = in.u32();
  for (std::uint32_t i = 0; i < ahead && in.ok(); i++) {
    YieldedBatch y;
    y.batch = in.i64();
    y.rows = in.u32();
    p.ahead.push_back(std::move(y));
  }
  const std::uint32_t shards = in.u32();
  p.next_shard = in.u32();
  for (std::uint32_t i = 0; i < shards && in.ok(); i++) p.shards.push_back(read_shard(in));
  if (s.iterable && s.ranks > 1) s.rank = in.i64();
  std::sort(p.ahead.begin(), p.ahead.end(), [](const auto& a, const auto& b) { return a.batch > b.batch; });
  const auto is_twice = [](const auto& a, const auto& b) { return a.batch == b.batch; };
  const auto is_small = [](std::int64_t number) { return number >= 0 && number <= most; };
  const bool is_sound =
      std::adjacent_find(p.ahead.begin(), p.ahead.end(), is_twice) == p.ahead.end() && is_small(p.batches) &&
      is_small(p.positions) && is_small(p.wanted) && s.ranks >= 1 && s.ranks <= INT32_MAX && s.rank >= 0 &&
      s.rank < s.ranks && in.ok() && in.left() == 0 && p.epoch >= 0 && p.batches >= 0 && p.positions >= 0 &&
      p.wanted >= p.positions * (s.iterable ? 0 : 1) && s.batch_size >= 0 && s.batch_size <= shm::max_rows &&
      (p.shards.empty() ? p.next_shard == 0 : p.next_shard < p.shards.size()) &&
      std::all_of(p.ahead.begin(), p.ahead.end(),
                  [&](const auto& y) {
                    return y.batch >= p.batches && y.batch <= most && y.rows != 0 && y.rows <= shm::max_rows;
                  }) &&
      (s.iterable ? p.ahead.empty() : p.shards.empty()) && p.skipped <= std::uint64_t{most} &&
      std::all_of(p.shards.begin(), p.shards.end(),
                  [](const auto& shard) { return shard.taken <= std::uint64_t{most}; });
  if (!is_sound) return damaged(error, bytes.size(), length, "is damaged: its contents are inconsistent");
  out = std::move(s);
  return FEEDLANE_OK;
}

}  // namespace feedlane::checkpoint
