// SPDX-License-Identifier: Apache-2.0
// Reads and writes sampler states.
#include "sampler/state.hpp"

namespace feedlane::sampler {
namespace {

constexpr std::uint32_t mark = 0x314d5346;  // "FSM1"
constexpr std::size_t checksum_bytes = 8;

const char* name_of(std::uint32_t kind) {
  switch (kind) {
#define FEEDLANE_SAMPLER_NAME(name, constant, number) \
  case number: return #name;
    FEEDLANE_SAMPLER_KINDS(FEEDLANE_SAMPLER_NAME)
#undef FEEDLANE_SAMPLER_NAME
    default: return "newer kind of";
  }
}

Status refuse(Error& error, std::uint64_t found, std::uint64_t needed, const char* what) {
  return error.refuse(FEEDLANE_E_ARGUMENT, "state", found, needed,
                      "the state was saved by a sampler with {} {}, but this one has {}", what, found, needed);
}

}  // namespace

StateWriter::StateWriter(std::vector<std::byte>& out, Kind kind, std::span<const Fact> facts, std::int64_t epoch)
    : out_(out), start_(out.size()), writer_(out) {
  writer_.u32(mark);
  writer_.u32(static_cast<std::uint32_t>(kind));
  writer_.u32(static_cast<std::uint32_t>(facts.size()));
  for (const Fact& fact : facts) writer_.u64(fact.value);
  writer_.i64(epoch);
}

void StateWriter::finish() { writer_.u64(checksum(std::span(out_).subspan(start_))); }

Status refuse_damaged(Error& error) {
  return error.refuse(FEEDLANE_E_CORRUPT, "state", 0, 0, "the state is damaged, or it is not a sampler's state");
}

Status open_state(std::span<const std::byte> state, Kind kind, std::span<const Fact> facts, std::int64_t epoch,
                  ByteReader& more, Error& error) {
  if (state.size() < checksum_bytes) return refuse_damaged(error);
  const auto body = state.first(state.size() - checksum_bytes);
  if (ByteReader(state.last(checksum_bytes)).u64() != checksum(body)) return refuse_damaged(error);
  more = ByteReader(body);
  if (more.u32() != mark) return refuse_damaged(error);
  const std::uint32_t saved_kind = more.u32();
  if (saved_kind != static_cast<std::uint32_t>(kind))
    return error.refuse(FEEDLANE_E_ARGUMENT, "state", saved_kind, static_cast<std::uint32_t>(kind),
                        "the state was saved by a {} sampler, but this is a {} sampler", name_of(saved_kind),
                        name_of(static_cast<std::uint32_t>(kind)));
  if (const std::uint32_t count = more.u32(); count != facts.size())
    return refuse(error, count, facts.size(), "parameter count");
  for (const Fact& fact : facts)
    if (const std::uint64_t saved = more.u64(); more.ok() && saved != fact.value)
      return refuse(error, saved, fact.value, fact.name);
  const std::int64_t saved_epoch = more.i64();
  if (!more.ok()) return refuse_damaged(error);
  if (saved_epoch != epoch)
    return error.refuse(FEEDLANE_E_ARGUMENT, "state", saved_epoch, epoch,
                        "the state was saved in epoch {}, but the sampler is in epoch {}: restart the sampler in the "
                        "state's epoch first",
                        saved_epoch, epoch);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
