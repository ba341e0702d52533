// SPDX-License-Identifier: Apache-2.0
// What the C++ interface costs beside the same done by the raw C calls, where nothing fails.
#include <fmt/core.h>

#include <feedlane/feedlane.hpp>

#include "compare.hpp"

namespace compare {

using namespace bench;

namespace {

constexpr std::int64_t batch_rows = 256;
constexpr std::int64_t held_rows = 16;  // so few that what is summed up takes no longer than an access could cost
constexpr std::int64_t row_floats = 16;

// ---- rows: a data set that writes two fields of each sample ----

void write_row(float* values, std::int64_t& label, std::int64_t index) {
  for (std::int64_t i = 0; i < row_floats; i++) values[i] = static_cast<float>(index + i);
  label = index;
}

std::int32_t get_row(void*, const feedlane_row* row, feedlane_error*) {
  write_row(static_cast<float*>(row->fields[0]), *static_cast<std::int64_t*>(row->fields[1]), row->index);
  return FEEDLANE_OK;
}

struct Rows {
  explicit Rows(const feedlane::WorkerInfo&) {}
  void get(const feedlane::Row& row) const {
    write_row(row.field<float>(0).data(), row.field<std::int64_t>(1)[0], row.index());
  }
};

feedlane_dataset raw_rows() {
  feedlane_dataset d;
  feedlane_init(&d, sizeof d);
  d.get = get_row;
  return d;
}

feedlane::Loader inline_loader(const feedlane_dataset& dataset, std::int64_t samples, std::int64_t rows) {
  const feedlane::Sampler order = feedlane::Sampler::sequential(samples);
  return feedlane::Loader(
      {.sampler = &order,
       .fields = {feedlane::field<float>("values", {row_floats}), feedlane::field<std::int64_t>("label")},
       .batch_size = rows,
       .dataset = &dataset});
}

// Nanoseconds a sample, over an epoch of the raw calls: only the data set differs.
double epoch_ns(feedlane::Loader& loader, std::int64_t samples, std::int64_t epoch) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  const std::int64_t began = cpu_ns();
  check("feedlane_loader_begin", feedlane_loader_begin(loader.c(), epoch, &error), error);
  for (;;) {
    const std::int32_t s = feedlane_loader_next(loader.c(), FEEDLANE_FOREVER, &batch, &error);
    if (s == FEEDLANE_END) break;
    check("feedlane_loader_next", s, error);
    (void)feedlane_batch_release(loader.c(), batch.token);
  }
  return static_cast<double>(cpu_ns() - began) / static_cast<double>(samples);
}

// ---- what a trainer does with a batch ----

// So that a read isn't left out.
volatile float seen;

float sum(const float* values, std::size_t count) {
  float all = 0;
  for (std::size_t i = 0; i < count; i++) all += values[i];
  return all;
}

template <class F>
double each_ns(std::int64_t count, F&& f) {
  const std::int64_t began = cpu_ns();
  for (std::int64_t i = 0; i < count; i++) f();
  return static_cast<double>(cpu_ns() - began) / static_cast<double>(count);
}

// A tensor of the batch, all of it.
double raw_tensor_ns(const feedlane_batch& batch, std::int64_t count) {
  return each_ns(count, [&] {
    const feedlane_tensor& t = batch.tensors[0];
    const auto* values = static_cast<const float*>(t.data);
    seen = sum(values, static_cast<std::size_t>(t.bytes / sizeof(float)));
  });
}
double cpp_tensor_ns(const feedlane::Batch& batch, std::int64_t count) {
  return each_ns(count, [&] {
    const std::span<const float> values = batch[0].as<float>();
    seen = sum(values.data(), values.size());
  });
}

// DLManagedTensorVersioned of DLPack 1.0: the version, the context, the deleter.
struct Managed {
  std::uint32_t version[2];
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
};
void drop(DLManagedTensorVersioned* tensor) { reinterpret_cast<Managed*>(tensor)->deleter(tensor); }

double raw_dlpack_ns(const feedlane::Loader& loader, const feedlane::Batch& batch, std::int64_t count) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  return each_ns(count, [&] {
    void* out = nullptr;
    check("feedlane_batch_dlpack", feedlane_batch_dlpack(loader.c(), batch.token(), 0, 0, &out, &error), error);
    drop(static_cast<DLManagedTensorVersioned*>(out));
  });
}
double cpp_dlpack_ns(const feedlane::Batch& batch, std::int64_t count) {
  return each_ns(count, [&] { drop(batch.dlpack(0)); });
}

// Of each pair the raw calls come first.
struct Pair {
  const char* name;
  const char* what;
};
constexpr Pair pairs[] = {{"rows", "a sample through get, two fields"},
                          {"tensors", "a tensor of 256 floats, summed up"},
                          {"dlpack", "an export and its deleter"}};

}  // namespace

Report cpp(const Options& options) {
  const std::int64_t samples = options.count(1 << 18, 1 << 14, 2 * batch_rows);
  const std::int64_t count = options.count(100'000, 5'000, 100);
  pin(0);
  const feedlane_dataset raw = raw_rows();
  const feedlane_dataset wrapped = feedlane::dataset_of<Rows>();
  feedlane::Loader raw_loader = inline_loader(raw, samples, batch_rows);
  feedlane::Loader wrapped_loader = inline_loader(wrapped, samples, batch_rows);
  feedlane::Loader held_loader = inline_loader(raw, samples, held_rows);
  held_loader.start_epoch(0);
  const std::optional<feedlane::Batch> batch = held_loader.next();
  if (!batch) fail("the loader returned no batch");
  std::int64_t epoch = 0;

  std::vector<Entry> entries = {
      {"raw rows", [&] { return epoch_ns(raw_loader, samples, ++epoch); }},
      {"rows", [&] { return epoch_ns(wrapped_loader, samples, ++epoch); }},
      {"raw tensors", [&] { return raw_tensor_ns(batch->c(), count); }},
      {"tensors", [&] { return cpp_tensor_ns(*batch, count); }},
      {"raw dlpack", [&] { return raw_dlpack_ns(held_loader, *batch, count); }},
      {"dlpack", [&] { return cpp_dlpack_ns(*batch, count); }},
  };
  run_rounds(entries, options);

  Report report;
  if (!options.json) fmt::print("{:<38} {:>26} {:>26} {:>26}\n", "ns of processor time", "C", "C++", "C++/C");
  for (std::size_t i = 0; i < std::size(pairs); i++) {
    const Figure& c = entries[2 * i].figure;
    const Figure& wrapper = entries[2 * i + 1].figure;
    const Figure ratio = wrapper.over(c);
    if (!options.json) fmt::print("{:<38} {:>26} {:>26} {:>26}\n", pairs[i].what, cell(c), cell(wrapper), cell(ratio));
    report.ratio(fmt::format("cpp.{}.over_c", pairs[i].name), ratio);
    report.rows.push_back(
        {{"what", pairs[i].what}, {"c_ns", spread(c)}, {"cpp_ns", spread(wrapper)}, {"ratio", spread(ratio)}});
  }
  return report;
}

}  // namespace compare
