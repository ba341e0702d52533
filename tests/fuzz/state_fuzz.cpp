// SPDX-License-Identifier: Apache-2.0
// Saved states of loaders and samplers, damaged with their checksums mended: refused, or gone on from like any other.
#include <vector>

#include "base/bytes.hpp"
#include "checkpoint/state.hpp"
#include "input.hpp"
#include "loader/loader.hpp"
#include "samplers.hpp"

using namespace feedlane;

namespace {

using Bytes = std::vector<std::byte>;

// Over all but itself, at the end of both kinds of states.
void mend_checksum(Bytes& bytes) {
  if (bytes.size() < 8) return;
  const std::uint64_t sum = checksum(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);  // little-endian, as all machines that this runs on
}

// Returns whether it did.
bool damage(fuzz::Input& in, Bytes& bytes) {
  if (bytes.empty()) return false;
  const Bytes before = bytes;
  fuzz::edit(in, bytes.data(), bytes.size());
  if (in.pick(16) == 15) bytes.resize(bytes.size() - in.u8() % bytes.size());
  if (in.pick(8) != 7) mend_checksum(bytes);
  return bytes != before;
}

// ---- a sampler's ----

// Some indices, all of them ones that there are. Returns how many.
std::uint64_t take(sampler::Sampler& s, std::int64_t bound, std::int64_t (&indices)[64], Error& error) {
  const std::int64_t rows = s.batch_rows();
  std::uint64_t got = 0;
  const Status status = s.next(indices, static_cast<std::uint64_t>(rows > 0 ? rows : 3), got, error);
  PROMISE(status <= FEEDLANE_END);
  if (status != FEEDLANE_OK) return 0;
  PROMISE(got >= 1 && got <= static_cast<std::uint64_t>(rows > 0 ? rows : 3));
  for (std::uint64_t i = 0; i < got; i++) PROMISE(bound == INT64_MAX || (indices[i] >= 0 && indices[i] < bound));
  return got;
}

void load_sampler(fuzz::Input& in) {
  fuzz::Counter counter;
  std::int64_t bound = 0;
  const auto s = fuzz::make_sampler(in, counter, bound);
  if (s == nullptr || s->batch_rows() > 64) return;
  Error error;
  std::int64_t indices[64];
  const std::int64_t epoch = in.pick(4) == 3 ? std::int64_t{in.u8()} : 0;
  if (s->restart(epoch, 1, error) != FEEDLANE_OK) return;
  for (std::uint32_t i = in.pick(4); i > 0; i--) (void)take(*s, bound, indices, error);
  Bytes state;
  Status status = s->save(in.flag() ? -1 : in.number(), state, error);
  PROMISE(status == FEEDLANE_OK || status == FEEDLANE_E_UNSUPPORTED || status == FEEDLANE_E_ARGUMENT);
  // Whether whole or damaged, whatever it is loaded into: the same sampler, or one of another world.
  const bool is_damaged = damage(in, state);
  std::unique_ptr<sampler::Sampler> other = s->clone();
  PROMISE(other->length() == s->length() || s->rank_source()[0] != '\0');
  if (other->restart(epoch, 1, error) != FEEDLANE_OK) return;
  status = other->load(state, error);
  PROMISE(status == FEEDLANE_OK || error.code == status);
  if (status != FEEDLANE_OK) return;
  PROMISE(other->length() >= -1);
  (void)other->place();
  for (std::uint32_t i = in.pick(4); i > 0; i--) (void)take(*other, bound, indices, error);
  // Saved once more and loaded, it goes on the same.
  Bytes again;
  status = other->save(-1, again, error);
  if (status != FEEDLANE_OK) return;
  const auto third = s->clone();
  if (third->restart(epoch, 1, error) != FEEDLANE_OK) return;
  PROMISE(third->load(again, error) == FEEDLANE_OK);
  if (!s->seekable()) return;  // these share their callbacks
  std::int64_t same[64];
  const std::uint64_t got = take(*other, bound, indices, error);
  const std::uint64_t also = take(*third, bound, same, error);
  // Damage may have told a batch sampler another number than what it is made of.
  PROMISE(is_damaged || (also == got && std::equal(indices, indices + got, same)));
  Bytes any;
  (void)other->save(in.number(), any, error);
  (void)other->save(INT64_MAX, any, error);
}

// ---- a loader's ----

checkpoint::SavedState any_state(fuzz::Input& in) {
  checkpoint::SavedState s;
  checkpoint::Progress& p = s.progress;
  s.iterable = in.flag();
  s.base_seed = in.u8();
  s.batch_size = in.number();
  s.ranks = in.flag() ? 1 : in.number();
  p.epoch = in.number();
  p.ended = in.pick(8) == 7;
  p.batches = in.number();
  p.positions = in.number();
  p.wanted = in.flag() ? p.positions : in.number();
  p.skipped = static_cast<std::uint64_t>(in.number());
  if (!s.iterable || in.pick(8) == 7)
    for (std::uint32_t i = in.pick(4); i > 0; i--) {
      checkpoint::YieldedBatch y;
      y.batch = in.number();
      y.rows = in.u8();
      p.ahead.push_back(y);
    }
  if (s.iterable || in.pick(8) == 7)
    for (std::uint32_t i = in.pick(4); i > 0; i--) {
      checkpoint::ShardProgress shard;
      shard.taken = static_cast<std::uint64_t>(in.number());
      shard.ended = in.pick(4) == 3;
      if (in.flag()) shard.state = std::make_shared<const Bytes>(in.u8());
      p.shards.push_back(shard);
    }
  p.next_shard = in.pick(4);
  return s;
}

void read_state(fuzz::Input& in) {
  Bytes bytes;
  checkpoint::write_state(any_state(in), bytes);
  (void)damage(in, bytes);
  if (in.pick(16) == 15) {
    const auto raw = std::as_bytes(in.bytes(200));
    bytes.assign(raw.begin(), raw.end());
  }
  checkpoint::SavedState found;
  Error error;
  const Status s = checkpoint::read_state(bytes, found, error);
  PROMISE(s == FEEDLANE_OK || s == FEEDLANE_E_CORRUPT || s == FEEDLANE_E_ABI);
  feedlane_state_info info;
  feedlane_init(&info, sizeof info);
  const std::byte nothing{};
  PROMISE(feedlane_state_read(bytes.empty() ? &nothing : bytes.data(), bytes.size(), &info, nullptr) == s);
  if (s != FEEDLANE_OK) return;
  PROMISE(info.epoch >= 0 && info.batch >= 0 && info.samples >= 0 && info.iterable <= 1 && info.ended <= 1);
  Bytes once, twice;
  checkpoint::write_state(found, once);
  checkpoint::SavedState again;
  PROMISE(checkpoint::read_state(once, again, error) == FEEDLANE_OK);
  checkpoint::write_state(again, twice);
  PROMISE(once == twice);
}

// ---- going on from one ----

struct Shard {
  std::uint64_t position = 0;
};

std::int32_t get(void*, const feedlane_row* row, feedlane_error*) {
  std::memcpy(row->fields[0], &row->seed, 8);
  return FEEDLANE_OK;
}
std::int32_t next(void* self, const feedlane_row*, feedlane_error*) {
  return static_cast<Shard*>(self)->position++ < 6 ? FEEDLANE_OK : FEEDLANE_END;
}
std::int32_t restart(void* self, std::int64_t, feedlane_error*) {
  static_cast<Shard*>(self)->position = 0;
  return FEEDLANE_OK;
}
std::int32_t save(void*, void*, std::uint64_t, std::uint64_t* bytes, feedlane_error*) {
  *bytes = 3;
  return FEEDLANE_OK;
}
std::int32_t load(void*, const void*, std::uint64_t, feedlane_error*) { return FEEDLANE_OK; }

// What a state says of how much was skipped is gone through one by one.
void keep_short(checkpoint::SavedState& s) {
  for (checkpoint::ShardProgress& shard : s.progress.shards)
    if (shard.state == nullptr && shard.taken < UINT64_MAX / 4 && shard.taken > 100) shard.taken %= 100;
}

void resume(fuzz::Input& in) {
  fuzz::Counter counter;
  std::int64_t bound = 0;
  const bool iterable = in.pick(4) == 3;
  const auto sampler = iterable ? nullptr : fuzz::make_sampler(in, counter, bound);
  if (!iterable && (sampler == nullptr || sampler->batch_rows() > 64)) return;
  checkpoint::SavedState saved = any_state(in);
  if (in.pick(8) != 7) {
    saved.iterable = iterable;
    if (iterable) saved.progress.ahead.clear();
    else saved.progress.shards.clear(), saved.progress.next_shard = 0;
  }
  // FEEDLANE_SHUFFLE_TORCH_LOADER draws its way to an epoch, up to the 2^24th.
  std::int64_t& epoch = saved.progress.epoch;
  if (epoch > 100 && epoch <= 1 << 24) epoch %= 100;
  epoch = std::max<std::int64_t>(epoch, 0);
  keep_short(saved);
  Error error;
  if (sampler != nullptr && sampler->restart(saved.progress.epoch, 0, error) == FEEDLANE_OK) {
    (void)sampler->save(in.flag() ? saved.progress.positions : -1, saved.sampler, error);
    (void)damage(in, saved.sampler);
  }
  const bool makes_batches = sampler != nullptr && sampler->batch_rows() > 0;
  if (in.pick(8) != 7) saved.batch_size = makes_batches ? 0 : std::int64_t{in.pick(3)} + 1;
  if (iterable && in.pick(8) != 7) saved.progress.shards.resize(1);
  Bytes state;
  checkpoint::write_state(saved, state);

  feedlane_dataset dataset{};
  Shard shard;
  dataset.size = sizeof dataset;
  dataset.user_data = &shard;
  dataset.get = &get;
  dataset.next = &next;
  dataset.restart = &restart;
  if (in.flag()) dataset.save = &save;
  if (in.flag()) dataset.load = &load;
  feedlane_field field{};
  field.size = sizeof field;
  field.name = "seed";
  field.dtype = {1, 64, 1};
  feedlane_loader_config config{};
  config.size = sizeof config;
  config.dataset = &dataset;
  config.fields = &field;
  config.field_count = 1;
  config.batch_size = makes_batches ? 0 : in.pick(8) == 7 ? std::int64_t{in.pick(3)} : saved.batch_size;
  if (config.batch_size > 64) config.batch_size = 64;
  config.drop_last = makes_batches ? 0 : static_cast<std::int32_t>(in.pick(2));
  config.iterable = iterable ? 1 : 0;
  config.deterministic = iterable ? static_cast<std::int32_t>(in.pick(2)) : 0;
  config.out_of_order = static_cast<std::int32_t>(in.pick(2));
  if (in.pick(8) == 7) config.seed = 1 + in.pick(3);
  config.state = state.data();
  config.state_bytes = state.size();
  config.start = 0;
  std::unique_ptr<loader::Loader> l;
  const os::SystemFiles no_accounts{"/nowhere", "/nowhere"};
  Status s = loader::Loader::create(&config, sampler.get(), nullptr, nullptr, no_accounts, l, error);
  PROMISE(s == FEEDLANE_OK || error.code == s);
  if (s != FEEDLANE_OK) return;
  Bytes now;
  PROMISE(l->state(0, now, error) == FEEDLANE_OK && now == state);
  s = l->begin(in.pick(8) == 7 ? 0 : saved.progress.epoch, error);
  if (s != FEEDLANE_OK) return;
  PROMISE(l->config().epoch_batches >= -1);
  feedlane_batch batch;
  for (std::uint32_t i = 0; i < 6 && s != FEEDLANE_END && s != FEEDLANE_E_INIT; i++) {
    s = l->next(0, batch, error);
    tensors::SlotTable::Left left;
    if (s != FEEDLANE_OK) continue;
    PROMISE(batch.batch >= 0);
    const Status told = l->state(batch.token, now, error);
    PROMISE(told == FEEDLANE_OK || told == FEEDLANE_E_UNSUPPORTED || told == FEEDLANE_E_ARGUMENT);
    // What is counted goes on from there, if it doesn't begin at the very end.
    checkpoint::SavedState read;
    const auto& counted = saved.progress;
    const bool is_small = std::max({counted.batches, counted.positions, counted.wanted}) < std::int64_t{1} << 61;
    if (told == FEEDLANE_OK && is_small) PROMISE(checkpoint::read_state(now, read, error) == FEEDLANE_OK);
    PROMISE(l->leases().release(batch.token, left) == FEEDLANE_OK && left.freed);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  try {
    switch (in.pick(3)) {
      case 0: read_state(in); break;
      case 1: load_sampler(in); break;
      default: resume(in); break;
    }
  } catch (const std::bad_alloc&) {  // the C boundary makes E_MEMORY of both
  } catch (const std::length_error&) {
  }
  return 0;
}
