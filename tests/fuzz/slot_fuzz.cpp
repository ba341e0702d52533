// SPDX-License-Identifier: Apache-2.0
// A slot as its worker left it: a batch or a failure that lies within the slot, or E_CORRUPT. And fields, as the trainer
// declares them and as a worker finds them.
#include <array>
#include <vector>

#include "input.hpp"
#include "tensors/slot.hpp"

using namespace feedlane;

namespace {

constexpr std::int64_t max_rows = 6;
constexpr std::size_t record_room = 6;
constexpr std::uint64_t task_id = 77;

// A name ends within its bytes or it doesn't.
void fill_name(fuzz::Input& in, char (&name)[shm::name_bytes]) {
  const auto text = in.bytes(in.u8() % (sizeof name + 1));
  if (!text.empty()) std::memcpy(name, text.data(), text.size());
}

void check_fields(const tensors::Fields& fields) {
  std::uint64_t end = 0;
  for (const tensors::Fields::Field& f : fields.all()) {
    PROMISE(f.offset % shm::tensor_alignment == 0 && f.offset >= end);
    end = f.offset + f.row_bytes * max_rows;
    PROMISE(end <= fields.slot_bytes() && fields.slot_bytes() <= shm::max_slot_bytes + shm::tensor_alignment);
    PROMISE(!f.name.empty() && f.name.size() < shm::name_bytes);
  }
  PROMISE(fields.as_declared().size() == fields.all().size());
}

// What a worker finds in control; what it takes it writes again as it was.
void read_fields(fuzz::Input& in) {
  std::vector<shm::FieldRecord> records(1 + in.pick(4));
  for (shm::FieldRecord& r : records) {
    r = {};
    fill_name(in, r.name);
    r.code = in.u8();
    r.bits = in.u8();
    r.lanes = in.u16();
    r.ndim = static_cast<std::int32_t>(in.number());
    for (std::int64_t& extent : r.shape)
      if (&extent - r.shape < r.ndim) extent = in.number();
  }
  const auto count = static_cast<std::uint32_t>(records.size());
  tensors::Fields fields;
  Error error;
  const Status s = fields.read(records.data(), count, max_rows, error);
  PROMISE(s == FEEDLANE_OK || s == FEEDLANE_E_CORRUPT);
  if (s != FEEDLANE_OK) return;
  check_fields(fields);
  std::vector<shm::FieldRecord> again(records.size());
  fields.write(again.data());
  for (std::size_t i = 0; i < records.size(); i++) PROMISE(std::strcmp(again[i].name, records[i].name) == 0);
}

// What a caller declares: elements of its header's size, of this one or another.
void declare_fields(fuzz::Input& in) {
  const std::size_t size = in.u8();
  const std::size_t count = in.pick(4);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; i++) names.push_back(in.text(40));
  std::vector<std::uint64_t> memory(std::max(size * count, sizeof(std::size_t)) / 8 + 1);
  auto* bytes = reinterpret_cast<std::byte*>(memory.data());
  std::memcpy(bytes, &size, sizeof size);
  for (std::size_t i = 0; i < count && size >= sizeof size; i++) {
    feedlane_field f{};
    f.size = i != 0 && in.pick(8) == 7 ? in.u8() : size;  // the first one's says how far apart they are
    f.name = in.pick(16) == 15 ? nullptr : names[i].c_str();
    f.dtype = {in.u8(), in.u8(), in.u16()};
    f.ndim = static_cast<std::int32_t>(in.number());
    for (std::int32_t d = 0; d < std::min(f.ndim, 8); d++) f.shape[d] = in.number();
    std::memcpy(bytes + i * size, &f, std::min(size, sizeof f));
    if (size > sizeof f && in.pick(8) == 7) bytes[i * size + size - 1] = std::byte{1};
  }
  tensors::Fields fields;
  Error error;
  const auto* list = in.pick(32) == 31 ? nullptr : reinterpret_cast<const feedlane_field*>(bytes);
  const Status s = fields.declare(list, count, max_rows, error);
  PROMISE(s == FEEDLANE_OK || s == FEEDLANE_E_ARGUMENT || s == FEEDLANE_E_ABI);
  if (s == FEEDLANE_OK) check_fields(fields);
}

// A slot in memory of its own, at its end: a step beyond it is seen.
struct Memory {
  explicit Memory(std::uint64_t payload_bytes) : records(record_room), payload(payload_bytes / 8) {
    slot.header = &header;
    slot.payload = reinterpret_cast<std::byte*>(payload.data());
    slot.payload_offset = 1 << 20;
    slot.payload_bytes = payload_bytes;
    slot.records = records.data();
    slot.record_room = record_room;
    slot.state_room = 64;
  }
  shm::SlotHeader header{};
  std::vector<shm::SampleRecord> records;
  std::vector<std::uint64_t> payload;
  tensors::Slot slot;
};

struct Declared {
  Declared(std::uint32_t count, bool unbatched) {
    const shm::FieldRecord all[] = {{"image", 1, 8, 1, 3, {3, 4, 5}}, {"label", 0, 64, 1, 0, {}}};
    Error error;
    PROMISE(fields.read(all, count, max_rows, error) == FEEDLANE_OK);
    if (unbatched) fields.leave_out_batch_dimension();
  }
  tensors::Fields fields;
};

void write_records(fuzz::Input& in, Memory& m, std::uint32_t count) {
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(count, record_room); i++) {
    m.records[i] = {};
    m.records[i].position = i;
    m.records[i].outcome = static_cast<std::int32_t>(1 + in.pick(3));
  }
  if (count != 0) fuzz::edit(in, m.records.data(), record_room * sizeof(shm::SampleRecord));
}

void check_records(const std::vector<shm::SampleRecord>& records, std::uint64_t limit) {
  PROMISE(records.size() <= record_room);
  for (const shm::SampleRecord& r : records) {
    PROMISE(r.position < limit && r.outcome >= 1 && r.outcome <= 3 && r.whole <= 1);
    PROMISE(std::memchr(r.text, 0, sizeof r.text) != nullptr);
  }
}

void check_within(const Memory& m, const void* data, std::uint64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  PROMISE(at >= m.slot.payload && bytes <= m.slot.payload_bytes &&
          static_cast<std::uint64_t>(at - m.slot.payload) <= m.slot.payload_bytes - bytes);
}

void check_tensor(const Memory& m, const feedlane_tensor& t) {
  check_within(m, t.data, t.bytes);
  PROMISE(t.ndim >= 0 && t.ndim <= FEEDLANE_MAX_NDIM && t.offset - m.slot.payload_offset < m.slot.payload_bytes + 1);
  std::uint64_t bytes = std::uint64_t{t.dtype.bits} / 8 * t.dtype.lanes;
  for (std::int32_t d = 0; d < t.ndim; d++) bytes *= static_cast<std::uint64_t>(t.shape[d]);
  PROMISE(bytes == t.bytes && std::strlen(t.name) < shm::name_bytes);
  for (std::int32_t d = 0; d < t.ndim; d++) PROMISE(t.shape[d] >= 0 && t.strides[d] >= 1);
}

void check_same(const std::vector<feedlane_tensor>& a, const std::vector<feedlane_tensor>& b) {
  PROMISE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); i++) {
    PROMISE(a[i].data == b[i].data && a[i].offset == b[i].offset && a[i].bytes == b[i].bytes && a[i].ndim == b[i].ndim);
    PROMISE(std::memcmp(a[i].shape, b[i].shape, sizeof a[i].shape) == 0);
    PROMISE(std::memcmp(a[i].strides, b[i].strides, sizeof a[i].strides) == 0);
    PROMISE(std::memcmp(&a[i].dtype, &b[i].dtype, sizeof a[i].dtype) == 0);
    PROMISE(std::strcmp(a[i].name, b[i].name) == 0);
  }
}

void read_batch(fuzz::Input& in) {
  const Declared declared{in.pick(3), in.flag()};
  const auto all = declared.fields.all();
  Memory m(4096);
  const std::int64_t rows = all.empty() || !all[0].unbatched ? in.pick(max_rows + 1) : 1;
  std::vector<feedlane_tensor> tensors;
  for (const auto& field : all)
    tensors.push_back(tensors::tensor_of(field, rows, m.slot.payload, m.slot.payload_offset));
  tensors::Extras extras;
  for (std::uint32_t more = in.pick(3); more > 0; more--) {
    const std::int64_t shape[] = {in.pick(4), in.pick(4)};
    feedlane_tensor t = tensors::row_major({2, 32, 1}, 2, shape);
    t.name = "more";
    t.bytes = static_cast<std::uint64_t>(shape[0] * shape[1] * 4);
    t.offset = m.slot.payload_offset + 3072;
    extras.shaped |= std::uint64_t{1} << tensors.size();
    tensors.push_back(t);
  }
  extras.metadata = {in.u8(), in.u8()};
  extras.has_state = in.flag();
  extras.state = {in.u8(), in.pick(65)};
  extras.records = in.pick(record_room + 2);
  write_records(in, m, extras.records);
  tensors::write_batch(m.slot, task_id, tensors, extras);
  fuzz::edit(in, &m.header.head, sizeof m.header.head);
  fuzz::edit(in, m.header.tensors, 4 * sizeof m.header.tensors[0]);

  tensors::Made made;
  Error error;
  const std::uint64_t limit = in.pick(2 * max_rows);
  if (in.flag()) {  // what a slot had before doesn't matter
    Memory before(4096);
    before.header = m.header;
    fuzz::edit(in, &before.header.head, sizeof before.header.head);
    before.slot.payload = m.slot.payload;
    (void)tensors::read_batch(before.slot, task_id, declared.fields, in.pick(max_rows + 1), limit, made, error);
    error = {};
  }
  const Status s = tensors::read_batch(m.slot, task_id, declared.fields, rows, limit, made, error);
  PROMISE(s == FEEDLANE_OK || (s == FEEDLANE_E_CORRUPT && error.argument[0] != '\0'));
  tensors::Made first;
  PROMISE(tensors::read_batch(m.slot, task_id, declared.fields, rows, limit, first, error) == s);
  if (s != FEEDLANE_OK) return;
  check_same(made.tensors, first.tensors);
  PROMISE(made.tensors.size() >= all.size() && made.tensors.size() <= FEEDLANE_MAX_TENSORS);
  for (const feedlane_tensor& t : made.tensors) check_tensor(m, t);
  check_within(m, made.metadata.data(), made.metadata.size());
  check_within(m, made.state.data(), made.state.size());
  PROMISE(made.state.size() <= m.slot.state_room);
  check_records(made.records, limit);
  PROMISE(made.skipped() <= made.records.size());
}

void read_failure(fuzz::Input& in) {
  Memory m(512);
  const std::string text(in.u16() % 600, 't');
  const std::string detail(in.u16() % 1000, 'd');
  const std::uint32_t count = in.pick(record_room + 2);
  const std::uint64_t limit = in.pick(2 * max_rows);
  write_records(in, m, count);
  const bool transient = in.flag();
  tensors::write_failure(m.slot, task_id, std::int64_t{in.pick(8)} - 1, transient, text, detail, count);
  fuzz::edit(in, &m.header.head, sizeof m.header.head);
  if (in.flag()) std::memset(m.header.text.text, 'x', sizeof m.header.text.text);

  std::int64_t position = -2;
  std::vector<shm::SampleRecord> records;
  Error why, error;
  const Status s = tensors::read_failure(m.slot, task_id, limit, position, why, records, error);
  PROMISE(s == FEEDLANE_OK || (s == FEEDLANE_E_CORRUPT && error.argument[0] != '\0'));
  if (s != FEEDLANE_OK) return;
  PROMISE(position >= -1 && position < static_cast<std::int64_t>(limit));
  PROMISE(std::memchr(why.text, 0, sizeof why.text) != nullptr && why.detail.size() <= m.slot.payload_bytes);
  check_records(records, limit);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  switch (in.pick(4)) {
    case 0: read_batch(in); break;
    case 1: read_failure(in); break;
    case 2: read_fields(in); break;
    default: declare_fields(in); break;
  }
  return 0;
}
