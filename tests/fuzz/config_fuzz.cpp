// SPDX-License-Identifier: Apache-2.0
// Configuration structs of any size and content through the C boundary: refused by name, or what they say is made. Each
// lies in memory of exactly its size. What would take much memory, or start processes, is kept away from.
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "feedlane.h"
#include "input.hpp"
#include "support/make_sampler.hpp"
#include "support/monitors.hpp"

using feedlane::fuzz::edit;
using feedlane::fuzz::Input;

namespace {

// Segments beyond it are refused, so that no configuration can take much of the machine.
constexpr rlim_t most_bytes = rlim_t{4} << 20;

template <class T>
T fresh() {
  T object;
  feedlane_init(&object, sizeof object);
  return object;
}

// The struct as a caller with another header has it: of another size, its tail zero or not.
template <class T>
class Sized {
 public:
  Sized(Input& in, const T& value) {
    std::size_t size = sizeof(T);
    switch (in.pick(8)) {
      case 0: size = in.u8(); break;
      case 1: size = in.u16() % (sizeof(T) + 100); break;
      case 2: size = sizeof(T) + 8 * std::size_t{in.pick(8)}; break;
      default: break;
    }
    size = std::max(size, sizeof value.size);
    memory_ = std::make_unique<std::byte[]>(size);
    std::memset(memory_.get(), 0, size);
    std::memcpy(memory_.get(), &value, std::min(size, sizeof value));
    tail_is_zero_ = size <= sizeof(T) || in.pick(4) != 3;
    if (!tail_is_zero_) memory_[size - 1] = std::byte{1};
    const std::size_t said = in.pick(16) == 15 ? in.u8() % 8 : size;
    std::memcpy(memory_.get(), &said, sizeof said);
    can_be_ = said == size && size % 8 == 0 && tail_is_zero_;
  }
  [[nodiscard]] const T* get() const { return reinterpret_cast<const T*>(memory_.get()); }
  // A struct of some header's.
  [[nodiscard]] bool can_be() const { return can_be_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  bool tail_is_zero_ = true;
  bool can_be_ = true;
};

// A caller's error struct, of any header's size.
class Report {
 public:
  explicit Report(Input& in) {
    feedlane_init(&error_, sizeof error_);
    is_there_ = in.pick(8) != 7;
    if (in.pick(8) == 7) error_.size = in.u8();
    if (in.flag()) {
      error_.detail = detail_;
      error_.detail_cap = sizeof detail_;
    }
  }
  feedlane_error* get() { return is_there_ ? &error_ : nullptr; }
  // After a call that answered `s`.
  void check(std::int32_t s) const {
    PROMISE(s <= FEEDLANE_END && s >= FEEDLANE_E_UNSUPPORTED);
    if (s < 0 && is_there_ && error_.size == sizeof error_) {
      PROMISE(error_.code == s && error_.text[0] != '\0');
      PROMISE(std::memchr(error_.text, 0, sizeof error_.text) != nullptr);
    }
  }

 private:
  feedlane_error error_;
  char detail_[64];
  bool is_there_;
};

template <class T>
struct Destroy {
  void operator()(T* handle) const {
    if constexpr (std::is_same_v<T, feedlane_sampler>) (void)feedlane_sampler_destroy(&handle);
    else if constexpr (std::is_same_v<T, feedlane_loader>) (void)feedlane_loader_destroy(&handle);
    else if constexpr (std::is_same_v<T, feedlane_pool>) PROMISE(feedlane_pool_destroy(&handle) == FEEDLANE_OK);
    else (void)feedlane_rx_destroy(&handle);
  }
};
template <class T>
using Handle = std::unique_ptr<T, Destroy<T>>;

// Calls one create function; whatever it answers, handle and error fit that.
template <class T, class Config, class Create>
Handle<T> create(Input& in, const Config& config, Create&& f) {
  const Sized<Config> sized(in, config);
  Report report(in);
  T* handle = nullptr;
  const std::int32_t s =
      f(in.pick(32) == 31 ? nullptr : sized.get(), in.pick(32) == 31 ? nullptr : &handle, report.get());
  report.check(s);
  PROMISE((s == FEEDLANE_OK) == (handle != nullptr));
  PROMISE(s != FEEDLANE_OK || sized.can_be());
  return Handle<T>(handle);
}

// ---- samplers ----

// What callbacks answer comes from the input too.
struct Answers {
  Input* in;
  int calls = 0;
};

std::int32_t answer(void* self, feedlane_error* err) {
  auto& a = *static_cast<Answers*>(self);
  if (++a.calls > 60) return FEEDLANE_END;
  const std::uint32_t how = a.in->pick(16);
  if (how < 12) return FEEDLANE_OK;
  err->transient = static_cast<std::int32_t>(how & 1);
  if (how == 14) std::memset(err->text, 'x', sizeof err->text);
  if (how == 15) err->detail_len = a.in->u32();
  return how == 12 ? FEEDLANE_END : how == 13 ? a.in->i32() : FEEDLANE_E_SAMPLE;
}
std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error* err) { return answer(self, err); }
std::int32_t give(void* self, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got, feedlane_error* err) {
  Input& in = *static_cast<Answers*>(self)->in;
  *got = in.pick(8) == 7 ? in.u64() : std::min<std::uint64_t>(cap, 1 + in.pick(3));
  for (std::uint64_t i = 0; i < std::min(*got, cap); i++) indices[i] = in.u8();
  const std::int32_t s = answer(self, err);
  if (s == FEEDLANE_END && in.flag()) *got = 0;
  return s;
}
std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* err) {
  Input& in = *static_cast<Answers*>(self)->in;
  *bytes = in.pick(8) == 7 ? in.u16() : in.u8();
  if (*bytes <= cap) std::memset(buffer, 1, *bytes);
  return *bytes > cap && in.flag() ? FEEDLANE_E_LIMIT : answer(self, err);
}
std::int32_t load(void* self, const void*, std::uint64_t, feedlane_error* err) { return answer(self, err); }

// Permutations take the memory and the time of a whole one, however few of its indices are wanted; and a struct that is cut
// short has none of the members that would say otherwise.
void bound_permutation(std::int64_t& length) {
  if (length > 10'000) length %= 10'000;
}

// A configuration of `kind`, mostly, and without arrays: of memory that isn't there nothing can be asked.
feedlane_sampler_config edited(Input& in, std::int32_t kind, feedlane_sampler_config c) {
  edit(in, &c, sizeof c);
  c.size = sizeof c;
  if (in.pick(8) != 7) c.kind = kind;
  if (c.kind == FEEDLANE_SAMPLER_RANDOM || c.kind == FEEDLANE_SAMPLER_DISTRIBUTED) bound_permutation(c.length);
  c.indices = c.lengths = c.from = nullptr;
  c.weights = nullptr;
  c.inner = nullptr;
  c.callbacks = nullptr;
  c.count = 0;
  if (c.max_rows > 100 && c.max_rows <= 1 << 30) c.max_rows = 100;
  if (c.world > 1000 && c.world <= 1 << 20) c.world = 1000;
  return c;
}

Handle<feedlane_sampler> make_sampler(Input& in, Answers& answers) {
  auto c = fresh<feedlane_sampler_config>();
  c.world = 2;
  switch (in.pick(8)) {
    case 0: {
      c.length = 1 + in.pick(20);
      return create<feedlane_sampler>(in, edited(in, FEEDLANE_SAMPLER_RANDOM, c), feedlane_sampler_create);
    }
    case 1: {
      c = edited(in, FEEDLANE_SAMPLER_WEIGHTED, c);
      std::vector<double> weights(in.pick(5), 1.0);
      if (!weights.empty() && in.flag()) weights[0] = in.take<double>();
      c.weights = weights.empty() && in.flag() ? nullptr : weights.data();
      c.count = weights.size();
      return create<feedlane_sampler>(in, c, feedlane_sampler_create);
    }
    case 2: {
      c.length = in.pick(20);
      return create<feedlane_sampler>(in, edited(in, FEEDLANE_SAMPLER_DISTRIBUTED, c), feedlane_sampler_create);
    }
    case 3: {
      auto table = fresh<feedlane_sampler_callbacks>();
      table.user_data = &answers;
      edit(in, &table.length, sizeof table.length + sizeof table.batch_rows);
      if (table.batch_rows > 100 && table.batch_rows <= 1 << 30) table.batch_rows = 100;
      if (in.pick(8) != 7) table.next = &give;
      if (in.flag()) table.restart = &restart;
      if (in.flag()) table.save = &save;
      if (in.flag()) table.load = &load;
      const Sized<feedlane_sampler_callbacks> callbacks(in, table);
      c.kind = FEEDLANE_SAMPLER_CUSTOM;
      c.callbacks = callbacks.get();
      return create<feedlane_sampler>(in, c, feedlane_sampler_create);
    }
    case 4: {
      c.max_tokens = 10;
      c.max_rows = 4;
      c = edited(in, FEEDLANE_SAMPLER_TOKENS, c);
      std::vector<std::int64_t> lengths(in.pick(9), 4);
      if (!lengths.empty() && in.flag()) lengths[0] = in.i64();
      c.lengths = lengths.empty() && in.flag() ? nullptr : lengths.data();
      c.count = lengths.size();
      return create<feedlane_sampler>(in, c, feedlane_sampler_create);
    }
    case 5: {
      c = edited(in, FEEDLANE_SAMPLER_MIXTURE, c);
      const std::vector<std::int64_t> lengths(1 + in.pick(4), 9), from{0, 5, 9};
      const std::vector<double> weights(lengths.size() * from.size(), in.flag() ? 1 : in.take<double>());
      c.lengths = lengths.data();
      c.count = lengths.size();
      c.from = in.flag() ? from.data() : nullptr;
      c.stages = c.stages % (from.size() + 1);
      c.weights = in.pick(8) == 7 ? nullptr : weights.data();
      return create<feedlane_sampler>(in, c, feedlane_sampler_create);
    }
    default: {
      feedlane_sampler* s = nullptr;
      c.length = in.pick(30);
      (void)feedlane_sampler_create(&c, &s, nullptr);
      return Handle<feedlane_sampler>(s);
    }
  }
}

void use(Input& in, feedlane_sampler* s) {
  Report report(in);
  std::int64_t length = 0;
  PROMISE(feedlane_sampler_length(s, &length) == FEEDLANE_OK && length >= -1);
  std::int64_t epoch = in.number();
  if (epoch > 1000 && epoch <= 1 << 24) epoch %= 1000;  // FEEDLANE_SHUFFLE_TORCH_LOADER draws its way there
  report.check(feedlane_sampler_restart(s, epoch, report.get()));
  std::int64_t indices[128];
  for (std::uint32_t i = in.pick(4); i > 0; i--) {
    std::uint64_t got = 0;
    const std::int32_t status = feedlane_sampler_next(s, indices, in.u8() % 128, &got, report.get());
    report.check(status);
    PROMISE(status != FEEDLANE_OK || (got >= 1 && got <= 128));
  }
  std::vector<std::byte> state(in.u16() % 512);
  std::uint64_t bytes = 0;
  const std::int32_t saved = feedlane_sampler_save(s, state.data(), state.size(), &bytes, report.get());
  report.check(saved);
  PROMISE(saved != FEEDLANE_OK || bytes <= state.size());
  report.check(feedlane_sampler_load(s, state.data(), saved == FEEDLANE_OK ? bytes : state.size(), report.get()));
}

// An order in memory is as long as it says.
bool takes_memory(feedlane_sampler* s) {
  std::int64_t length = 0;
  return feedlane_sampler_length(s, &length) != FEEDLANE_OK || length > 10000;
}

void make_samplers(Input& in) {
  Answers answers{&in};
  auto s = make_sampler(in, answers);
  if (s == nullptr || takes_memory(s.get())) return;
  feedlane_sampler* batches = nullptr;
  Report report(in);
  const std::int64_t rows = in.flag() ? 1 + in.pick(8) : in.number();
  const auto drop_last = static_cast<std::int32_t>(in.pick(3));
  report.check(feedlane::test::batch_sampler(s.get(), rows, drop_last, &batches, report.get()));
  const Handle<feedlane_sampler> owned(batches);
  use(in, s.get());
  if (batches != nullptr) use(in, batches);
}

// ---- rings ----

void make_ring(Input& in) {
  auto c = fresh<feedlane_ring_config>();
  c.message_bytes = 24;
  c.capacity = 4;
  edit(in, &c.message_bytes, 4 * sizeof c.message_bytes);
  if (c.lanes > 8 && c.lanes <= 4096) c.lanes = 8;  // lanes of descriptors too
  static const std::string longest(200, 'x');
  if (in.pick(8) == 7) c.path = in.flag() ? "" : longest.c_str();
  const auto rx = create<feedlane_rx>(in, c, feedlane_rx_create);
  if (rx == nullptr) return;
  Report report(in);
  feedlane_span span{};
  report.check(feedlane_rx_release(rx.get(), in.u32(), in.u32(), report.get()));
  const std::int32_t s = feedlane_rx_peek(rx.get(), in.u8(), 0, &span, report.get());
  PROMISE(s == FEEDLANE_TIMEOUT || s == FEEDLANE_E_ARGUMENT);
}

// ---- loaders ----

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  for (std::int32_t f = 0; f < row->task->tensor_count; f++) std::memset(row->fields[f], 1, row->bytes[f]);
  return answer(self, err);
}
std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* err) {
  Input& in = *static_cast<Answers*>(self)->in;
  if (in.pick(4) == 3) (void)feedlane_task_store(task, FEEDLANE_STORE_METADATA, "metadata", in.pick(9), err);
  if (in.pick(4) == 3) *task->rows = in.u8();
  return answer(self, err);
}
std::int32_t open(void* self, const feedlane_worker_info* info, void** out, feedlane_error* err) {
  PROMISE(info->id == -1);
  *out = self;
  return answer(self, err);
}

// Numbers beyond their range stay, to be refused; those within it, but large, would take memory or descriptors.
template <class T>
void bound(T& value, T small, T most) {
  if (value > small && value <= most) value = value % small + 1;
}

Handle<feedlane_pool> make_pool(Input& in) {
  auto c = fresh<feedlane_pool_config>();
  c.buffers = 4;
  c.buffer_bytes = 4096;
  edit(in, &c.device, sizeof c - offsetof(feedlane_pool_config, device));
  static const char* const names[] = {nullptr, "none", "mlock", "cuda", "opencl"};
  c.backend = names[in.pick(5)];
  bound<std::uint32_t>(c.buffers, 4, 1 << 16);
  bound<std::uint64_t>(c.buffer_bytes, 8192, std::uint64_t{1} << 40);
  auto pool = create<feedlane_pool>(in, c, feedlane_pool_create);
  auto stats = fresh<feedlane_pool_stats>();
  if (pool != nullptr) PROMISE(feedlane_pool_get_stats(pool.get(), &stats) == FEEDLANE_OK && stats.in_use == 0);
  return pool;
}

struct Parts {
  explicit Parts(Input& in) : answers{&in}, sampler(make_sampler(in, answers)), dataset(fresh<feedlane_dataset>()) {
    dataset.user_data = &answers;
    if (in.pick(8) != 7) dataset.get = &get;
    if (in.pick(4) == 3) dataset.fetch = &fetch;
    if (in.flag()) dataset.next = &get;
    if (in.pick(4) == 3) dataset.open = &open;
    for (feedlane_field& f : fields) {
      f = fresh<feedlane_field>();
      f.dtype = {0, 64, 1};
    }
    fields[0].name = "index";
    fields[1].name = "image";
    edit(in, &fields[1].dtype, sizeof fields[1] - offsetof(feedlane_field, dtype));
  }
  Answers answers;
  Handle<feedlane_sampler> sampler;
  feedlane_dataset dataset;
  feedlane_field fields[2];
};

// Whatever the loader has done, it can be looked into.
void look_into(feedlane_loader* l) {
  const auto opened = feedlane::test::monitor_of(l);
  feedlane_monitor* const m = opened.get();
  PROMISE(m != nullptr);
  auto info = fresh<feedlane_loader_info>();
  PROMISE(feedlane_monitor_get_info(m, &info) == FEEDLANE_OK && std::strlen(info.name) < sizeof info.name);
  auto timings = fresh<feedlane_timings>();
  PROMISE(feedlane_monitor_get_timings(m, -1, &timings) == FEEDLANE_OK);
  auto stats = fresh<feedlane_stats>();
  PROMISE(feedlane_monitor_get_stats(m, &stats) == FEEDLANE_OK);
  std::vector<feedlane_batch_record> slots(stats.slots + 1, fresh<feedlane_batch_record>());
  std::uint64_t count = 0;
  PROMISE(feedlane_monitor_get_trace(m, FEEDLANE_SLOTS, slots.data(), slots.size(), &count) == FEEDLANE_OK);
  PROMISE(count == stats.slots);
  const std::int32_t s = feedlane_monitor_get_trace(m, 0, slots.data(), 1, &count);
  PROMISE(s == (info.trace == 0 ? FEEDLANE_E_STATE : count == 1 ? FEEDLANE_OK : FEEDLANE_END));
  auto diagnosis = fresh<feedlane_diagnosis>();
  PROMISE(feedlane_monitor_diagnose(m, &diagnosis) == FEEDLANE_OK && diagnosis.text[0] != '\0');
  std::uint64_t bytes = 0;
  PROMISE(feedlane_monitor_report(m, nullptr, 0, &bytes, nullptr) == FEEDLANE_E_LIMIT && bytes != 0);
}

void make_loader(Input& in) {
  Parts parts(in);
  if (parts.sampler != nullptr && takes_memory(parts.sampler.get())) parts.sampler.reset();
  const Sized<feedlane_dataset> dataset(in, parts.dataset);
  auto c = fresh<feedlane_loader_config>();
  edit(in, &c, sizeof c);
  c.size = sizeof c;
  // Of pointers the input chooses among those that there are.
  static const char* const argv[] = {"program", nullptr};
  static const std::byte blob[64] = {};
  static const std::string longest(64, 'x');
  static const char* const names[] = {nullptr, nullptr, "", "digits", longest.c_str() + 1, longest.c_str()};
  c.sampler = in.pick(8) == 7 ? nullptr : parts.sampler.get();
  c.dataset = in.pick(8) == 7 ? nullptr : dataset.get();
  c.fields = in.pick(16) == 15 ? nullptr : parts.fields;
  c.field_count = in.pick(8) == 7 ? c.field_count : 1 + in.pick(2);
  if (c.field_count > 2 && c.field_count <= FEEDLANE_MAX_TENSORS) c.field_count = 2;
  c.argv = in.pick(8) == 7 ? argv + in.pick(2) : nullptr;
  c.envp = in.pick(8) == 7 ? argv : nullptr;
  c.worker_config = in.pick(4) == 3 ? blob : nullptr;
  c.state = in.pick(8) == 7 ? blob : nullptr;
  bound<std::uint64_t>(c.worker_config_bytes, sizeof blob, 1 << 30);
  bound<std::uint64_t>(c.state_bytes, sizeof blob, 1 << 30);
  bound<std::int64_t>(c.batch_size, 50, 1 << 30);
  bound(c.workers, 3, 4096);
  bound(c.prefetch_factor, 4, 1 << 16);
  bound(c.held, 4, 1 << 19);
  bound<std::int64_t>(c.retry_backoff_ns, 1, FEEDLANE_FOREVER);
  c.retries = c.retries > 3 ? 3 : c.retries;
  const auto pool = in.pick(8) == 7 ? make_pool(in) : nullptr;
  c.pinned = pool.get();
  bound(c.staged, 4, 1 << 16);
  c.name = names[in.pick(std::size(names))];
  bound<std::uint64_t>(c.trace, 5, 1 << 24);
  static const char* const lists[] = {nullptr,    nullptr, nullptr,        "0", "0;0-1", "0;",
                                      "7-0,8191", "8192",  longest.c_str()};
  c.worker_cpus = lists[in.pick(std::size(lists))];
  c.memory_nodes = lists[in.pick(std::size(lists))];
  c.share_path = in.pick(8) == 7 ? "/nowhere/feeder" : nullptr;
  const auto l = create<feedlane_loader>(in, c, feedlane_loader_create);
  if (l == nullptr) return;
  std::int64_t length = -2;
  PROMISE(feedlane::test::length_of(l.get(), &length) == FEEDLANE_OK && length >= -1);
  auto stats = fresh<feedlane_stats>();
  PROMISE(feedlane::test::observe(l.get(), feedlane_monitor_get_stats, &stats) == FEEDLANE_OK &&
          stats.slots_free == stats.slots);
  if (c.workers != 0) return;  // a worker's side is the other targets'
  Report report(in);
  report.check(feedlane_loader_begin(l.get(), in.pick(3), report.get()));
  auto batch = fresh<feedlane_batch>();
  for (std::uint32_t i = in.pick(6); i > 0; i--) {
    const std::int32_t s = feedlane_loader_next(l.get(), 1'000'000, &batch, report.get());
    PROMISE(s <= FEEDLANE_SLOTS_HELD);
    if (s == FEEDLANE_OK) PROMISE(feedlane_batch_release(l.get(), batch.token) == FEEDLANE_OK);
  }
  look_into(l.get());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const rlimit limit{most_bytes, most_bytes};
  return ::setrlimit(RLIMIT_FSIZE, &limit);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.pick(4)) {
    case 0: make_samplers(in); break;
    case 1: make_ring(in); break;
    default: make_loader(in); break;
  }
  return 0;
}
