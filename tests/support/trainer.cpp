// SPDX-License-Identifier: Apache-2.0
// Loaders for tests: their configuration with short names, and what they yield.
#include "trainer.hpp"

#include <cstring>

#include "process.hpp"

namespace feedlane::test {

const char* const worker_program = FEEDLANE_TEST_WORKER;

Setup::Setup(std::int64_t samples, std::int64_t batch_size)
    : sampler(sequential(samples)),
      dataset(scripted_dataset()),
      field_list{field("index", int64_type), field("seed", uint64_type)},
      config(fresh<feedlane_loader_config>()) {
  config.dataset = &dataset;
  config.batch_size = batch_size;
  config.has_seed = 1;
  config.seed = 99;
}

Setup& Setup::workers(std::int32_t count, const char* form) {
  argv = {worker_program, form, nullptr};
  config.workers = count;
  return *this;
}

Setup& Setup::external(std::int32_t count) {
  config.workers = count;
  config.start = FEEDLANE_START_EXTERNAL;
  return *this;
}

Setup& Setup::forked(std::int32_t count, const feedlane_dataset& table) {
  dataset = table;
  config.workers = count;
  config.start = count == 0 ? FEEDLANE_START_SPAWN : FEEDLANE_START_FORK;
  return *this;
}

Setup& Setup::fields(std::vector<feedlane_field> list) {
  field_list = std::move(list);
  return *this;
}

void Setup::connect() {
  config.sampler = config.iterable != 0 ? nullptr : sampler.get();
  config.fields = field_list.data();
  config.field_count = field_list.size();
  config.argv = argv.empty() ? nullptr : argv.data();
  if (config.workers != 0) config.dataset = config.start == FEEDLANE_START_FORK ? &dataset : nullptr;
  config.worker_config = &plan;
  config.worker_config_bytes = sizeof plan;
}

std::int32_t Setup::try_create(Loader& out, feedlane_error* err) {
  connect();
  feedlane_loader* loader = nullptr;
  const std::int32_t status = feedlane_loader_create(&config, &loader, err);
  out.reset(loader);
  return status;
}

Loader Setup::create() {
  Loader loader;
  Error e;
  const std::int32_t status = try_create(loader, &e);
  REQUIRE_MESSAGE(status == FEEDLANE_OK, e.text);
  return loader;
}

std::int64_t Taken::value(const std::string& name, std::size_t row) const {
  std::int64_t v = INT64_MIN;
  for (std::size_t f = 0; f < names.size(); f++)
    if (names[f] == name && bytes[f].size() >= (row + 1) * sizeof v)
      std::memcpy(&v, bytes[f].data() + row * sizeof v, sizeof v);
  return v;
}

Taken copy_of(const feedlane_batch& batch) {
  Taken taken;
  taken.epoch = batch.epoch;
  taken.batch = batch.batch;
  taken.worker = batch.worker;
  taken.attempt = batch.attempt;
  taken.count = batch.count;
  if (batch.indices != nullptr) taken.indices.assign(batch.indices, batch.indices + batch.count);
  if (batch.skipped != nullptr) taken.skipped.assign(batch.skipped, batch.skipped + batch.skipped_count);
  if (batch.metadata != nullptr) taken.metadata.assign(static_cast<const char*>(batch.metadata), batch.metadata_bytes);
  for (std::uint64_t t = 0; t < batch.tensor_count; t++) {
    taken.names.emplace_back(batch.tensors[t].name);
    taken.bytes.emplace_back(static_cast<const char*>(batch.tensors[t].data), batch.tensors[t].bytes);
    taken.shapes.emplace_back(batch.tensors[t].shape, batch.tensors[t].shape + batch.tensors[t].ndim);
    taken.dtypes.push_back(batch.tensors[t].dtype);
  }
  return taken;
}

Taken take(feedlane_loader* l, feedlane_error* err, std::int64_t timeout_ns) {
  auto batch = fresh<feedlane_batch>();
  const std::int32_t status = feedlane_loader_next(l, timeout_ns, &batch, err);
  Taken taken;
  if (status == FEEDLANE_OK) {
    taken = copy_of(batch);
    REQUIRE(feedlane_batch_release(l, batch.token) == FEEDLANE_OK);
  }
  taken.status = status;
  return taken;
}

void begin(feedlane_loader* l, std::int64_t epoch) {
  Error e;
  const std::int32_t status = feedlane_loader_begin(l, epoch, &e);
  REQUIRE_MESSAGE(status == FEEDLANE_OK, e.text);
}

std::vector<Taken> take_rest(feedlane_loader* l) {
  std::vector<Taken> all;
  for (;;) {
    Error e;
    Taken taken = take(l, &e);
    if (taken.status == FEEDLANE_END) return all;
    REQUIRE_MESSAGE(taken.status == FEEDLANE_OK, std::string(feedlane_status_name(taken.status))
                                                     << ": " << std::string(e.text));
    all.push_back(std::move(taken));
  }
}

std::vector<Taken> take_epoch(feedlane_loader* l, std::int64_t epoch) {
  begin(l, epoch);
  return take_rest(l);
}

std::vector<Taken> take_outcomes(feedlane_loader* l) {
  std::vector<Taken> all;
  for (;;) {
    Error e;
    Taken taken = take(l, &e);
    if (taken.status == FEEDLANE_END) return all;
    if (taken.status != FEEDLANE_OK) {
      taken.epoch = e.epoch;
      taken.batch = e.batch;
      taken.worker = e.worker;
      taken.attempt = e.attempt;
      taken.sample = e.sample;
      taken.found = e.found;
      taken.needed = e.needed;
      taken.text = e.text;
      taken.argument = e.argument;
    }
    all.push_back(std::move(taken));
    const std::int32_t status = all.back().status;
    if (status != FEEDLANE_OK && status != FEEDLANE_E_SAMPLE && status != FEEDLANE_E_QUARANTINED &&
        status != FEEDLANE_E_PEER_DEAD)
      return all;
  }
}

std::vector<feedlane_event> events_of(feedlane_loader* l) {
  std::vector<feedlane_event> all;
  auto event = fresh<feedlane_event>();
  while (feedlane_loader_event(l, &event) == FEEDLANE_OK) all.push_back(event);
  return all;
}

std::vector<feedlane_event> events_of(feedlane_loader* l, std::int32_t kind) {
  std::vector<feedlane_event> all = events_of(l);
  all.erase(std::remove_if(all.begin(), all.end(), [&](const feedlane_event& e) { return e.kind != kind; }), all.end());
  return all;
}

feedlane_stats stats_of(const feedlane_loader* l) {
  auto stats = fresh<feedlane_stats>();
  REQUIRE(observe(l, feedlane_monitor_get_stats, &stats) == FEEDLANE_OK);
  return stats;
}

feedlane_worker_stats worker_of(const feedlane_loader* l, std::int32_t worker) {
  auto stats = fresh<feedlane_worker_stats>();
  REQUIRE(observe(l, feedlane_monitor_get_worker_stats, worker, &stats) == FEEDLANE_OK);
  return stats;
}

void wait_until_ready(feedlane_loader* l, std::int32_t workers) {
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l, nullptr);
    for (std::int32_t w = 0; w < workers; w++)
      if (worker_of(l, w).state != FEEDLANE_WORKER_READY) return false;
    return true;
  }));
}

void check_sequence(const std::vector<Taken>& taken, std::int64_t samples, std::int64_t batch_size) {
  std::int64_t next = 0;
  for (std::size_t i = 0; i < taken.size(); i++) {
    CHECK(taken[i].batch == static_cast<std::int64_t>(i));
    CHECK(static_cast<std::int64_t>(taken[i].indices.size()) == std::min(batch_size, samples - next));
    for (std::size_t row = 0; row < taken[i].indices.size(); row++, next++) {
      CHECK(taken[i].indices[row] == next);
      CHECK(taken[i].value("index", row) == next);
    }
  }
  CHECK(next == samples);
}

}  // namespace feedlane::test
