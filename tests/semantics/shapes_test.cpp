// SPDX-License-Identifier: Apache-2.0
// What a data set may put into a batch beside the declared tensors: other shapes, more tensors, metadata.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

using Shape = std::vector<std::int64_t>;
using Make = std::function<std::int32_t(const feedlane_task*, feedlane_error*)>;

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* err) {
  return (*static_cast<Make*>(self))(task, err);
}

// A field of one row's index and one of four bytes; `make` makes the batch.
struct Shaped : Setup {
  Shaped(std::int32_t workers, std::int64_t samples, std::int64_t batch_size, Make what)
      : Setup(samples, batch_size), make(std::move(what)) {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &make;
    table.fetch = fetch;
    forked(workers, table);
    fields({field("index", int64_type), field("bytes", uint8_type, {4})});
  }
  Make make;
};

// The index into the rows of tensor 0, so that every batch can be told from others.
void fill_indices(const feedlane_task* task) {
  std::memcpy(task->tensors[0].data, task->indices, task->count * sizeof(std::int64_t));
}

// A tensor of the data set's shape, every byte of it written.
std::int32_t shape(const feedlane_task* task, std::int32_t index, const char* name, feedlane_dtype dtype,
                   const Shape& full, feedlane_error* err, char content = 'x') {
  const feedlane_field f = field(name, dtype, full);
  auto t = fresh<feedlane_tensor>();
  const std::int32_t s = feedlane_task_tensor(task, index, &f, &t, err);
  if (s != FEEDLANE_OK) return s;
  if (t.bytes != 0) std::memset(t.data, content, t.bytes);
  if (reinterpret_cast<std::uintptr_t>(t.data) % 256 != 0 || t.data != task->tensors[index].data)
    return FEEDLANE_E_CORRUPT;
  return FEEDLANE_OK;
}

// Memory of all anonymous files that this process has open.
std::uint64_t segment_bytes_there() {
  std::uint64_t bytes = 0;
  for (const int fd : open_descriptors()) {
    struct stat status {};
    if (::fstat(fd, &status) == 0 && status.st_nlink == 0) bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

constexpr feedlane_dtype as_declared{0, 0, 0};
constexpr feedlane_dtype bool_type{6, 8, 1};
constexpr feedlane_dtype complex_type{5, 128, 1};

}  // namespace

// promise: loader-shapes
TEST_CASE("a data set may give each batch another shape") {
  for (const std::int32_t workers : {0, 1, 3}) {
    CAPTURE(workers);
    Shaped s(workers, 40, 4, [](const feedlane_task* task, feedlane_error* err) {
      fill_indices(task);
      const auto rows = static_cast<std::int64_t>(task->count);
      return shape(task, 1, nullptr, as_declared, {rows, 1 + task->batch % 5, 1 + task->batch % 3}, err,
                   static_cast<char>('a' + task->batch));
    });
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      check_sequence(taken, 40, 4);
      for (const Taken& t : taken) {
        CHECK(t.shapes[1] == Shape{4, 1 + t.batch % 5, 1 + t.batch % 3});
        CHECK(t.names[1] == "bytes");
        CHECK(t.dtypes[1].code == uint8_type.code);
        CHECK(t.bytes[1] == std::string(static_cast<std::size_t>(4 * (1 + t.batch % 5) * (1 + t.batch % 3)),
                                        static_cast<char>('a' + t.batch)));
      }
    }
  }
}

// promise: loader-shapes
TEST_CASE("if a batch has fewer rows than requested, its declared tensors have that number of rows") {
  for (const std::int32_t workers : {0, 2})
    for (const std::uint64_t rows : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{4}}) {
      CAPTURE(workers);
      CAPTURE(rows);
      Shaped s(workers, 10, 4, [rows](const feedlane_task* task, feedlane_error*) {
        fill_indices(task);
        std::memset(task->tensors[1].data, 'r', task->tensors[1].bytes);
        return set_rows(task, std::min(rows, task->count));
      });
      const Loader l = s.create();
      for (const Taken& t : take_epoch(l.get(), 0)) {
        const std::uint64_t expected = std::min<std::uint64_t>(rows, t.batch == 2 ? 2 : 4);
        CHECK(t.count == expected);
        CHECK(t.shapes[0] == Shape{static_cast<std::int64_t>(expected)});
        CHECK(t.shapes[1] == Shape{static_cast<std::int64_t>(expected), 4});
        CHECK(t.bytes[1] == std::string(expected * 4, 'r'));
        for (std::size_t row = 0; row < expected; row++)
          CHECK(t.value("index", row) == t.batch * 4 + static_cast<std::int64_t>(row));
      }
    }
}

// promise: loader-shapes
TEST_CASE("slot memory beyond the part that is reserved at creation is reserved on demand") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    constexpr std::int64_t large = 5'000'000;
    Shaped s(workers, 12, 2, [](const feedlane_task* task, feedlane_error* err) {
      fill_indices(task);
      // It grows and shrinks: both fields, the second one far.
      return shape(task, 1, nullptr, as_declared, {2, task->batch % 3 * large / 2}, err,
                   static_cast<char>('a' + task->batch));
    });
    s.config.slot_bytes = 11'000'000;
    const Loader l = s.create();
    CHECK_MESSAGE(stats_of(l.get()).reserved_bytes < 1'000'000, "address space isn't memory");
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      check_sequence(taken, 12, 2);
      for (const Taken& t : taken)
        CHECK(t.bytes[1] ==
              std::string(static_cast<std::size_t>(t.batch % 3 * large), static_cast<char>('a' + t.batch)));
    }
  }
}

// promise: fault-little-memory, machine-large-tensor
TEST_CASE("memory of a large tensor is reserved before use, or the call fails with E_MEMORY and the available amount") {
  constexpr std::int64_t large = 8 << 20;
  Shaped s(0, 2, 2, [](const feedlane_task* task, feedlane_error* err) {
    fill_indices(task);
    Error e;
    feedlane_field f = field("huge", uint8_type, {INT64_C(1) << 39});
    CHECK(feedlane_task_tensor(task, 2, &f, nullptr, &e) == FEEDLANE_E_MEMORY);
    CHECK(e.found > 0);
    CHECK(e.found < e.needed);
    CHECK(e.needed >= INT64_C(1) << 39);
    const std::uint64_t before = segment_bytes_there();
    f = field("large", uint8_type, {large});
    const std::int32_t status = feedlane_task_tensor(task, 2, &f, nullptr, err);
    CHECK(segment_bytes_there() >= before + large);
    return status;
  });
  s.config.slot_bytes = UINT64_C(1) << 40;
  const Loader l = s.create();
  CHECK(take_epoch(l.get(), 0)[0].shapes[2] == Shape{large});
}

// promise: loader-too-large-tensor
TEST_CASE("a tensor larger than the slot fails with E_LIMIT and the required slot_bytes, which are sufficient") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    const Make make = [](const feedlane_task* task, feedlane_error* err) {
      fill_indices(task);
      const std::int64_t wanted = task->batch == 1 ? 100'000 : 10;
      return shape(task, 1, nullptr, as_declared, {wanted}, err);
    };
    std::int64_t needed = 0;
    {
      // The text is the library's own, given on by the data set.
      Shaped s(workers, 6, 2, make);
      const Loader l = s.create();
      begin(l.get(), 0);
      const std::vector<Taken> taken = take_outcomes(l.get());
      REQUIRE(taken.size() == 3);
      CHECK(taken[0].status == FEEDLANE_OK);
      CHECK(taken[1].status == FEEDLANE_E_SAMPLE);
      CHECK(taken[1].text.find("this batch takes ") == 0);
      CHECK(taken[2].status == FEEDLANE_OK);
      needed = std::stoll(taken[1].text.substr(std::strlen("this batch takes ")));
      CHECK(needed >= 100'000);
      CHECK(needed < 110'000);
    }
    for (const std::int64_t slot_bytes : {needed - 1, needed}) {
      Shaped s(workers, 6, 2, make);
      s.config.slot_bytes = static_cast<std::uint64_t>(slot_bytes);
      const Loader l = s.create();
      begin(l.get(), 0);
      const std::vector<Taken> taken = take_outcomes(l.get());
      REQUIRE(taken.size() == 3);
      CHECK(taken[1].status == (slot_bytes == needed ? FEEDLANE_OK : FEEDLANE_E_SAMPLE));
    }
  }
}

// promise: loader-too-large-tensor
TEST_CASE("E_LIMIT for a tensor has the found and the needed number, and the task is unchanged") {
  Shaped s(0, 2, 2, [](const feedlane_task* task, feedlane_error* err) {
    fill_indices(task);
    Error e;
    CHECK(shape(task, 1, nullptr, as_declared, {1 << 20}, &e) == FEEDLANE_E_LIMIT);
    CHECK(e.code == FEEDLANE_E_LIMIT);
    CHECK(std::string(e.argument) == "config.slot_bytes");
    CHECK(e.found == 512 + 65536);
    CHECK(e.needed == 512 + (1 << 20));
    CHECK(task->tensor_count == 2);
    CHECK(task->tensors[1].shape[1] == 4);
    std::memset(task->tensors[1].data, 'x', task->tensors[1].bytes);  // AddressSanitizer permits it still
    const std::string bytes(70000, 'm');
    CHECK(feedlane_task_store(task, FEEDLANE_STORE_METADATA, bytes.data(), bytes.size(), &e) == FEEDLANE_E_LIMIT);
    CHECK(e.needed == 512 + 70000);
    // What is left is still there.
    return shape(task, 2, "more", uint8_type, {65536}, err);
  });
  const Loader l = s.create();
  CHECK(take_epoch(l.get(), 0)[0].bytes[2].size() == 65536);
}

// promise: loader-shapes
TEST_CASE("a data set may choose any dtype, also for a declared tensor, and any number of dimensions") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Shaped s(workers, 2, 2, [](const feedlane_task* task, feedlane_error* err) {
      std::int32_t status = shape(task, 0, nullptr, float32_type, {3}, err);
      std::int32_t next = 2;
      for (const feedlane_dtype dtype : {uint8_type, float32_type, int64_type, bool_type, complex_type}) {
        if (status == FEEDLANE_OK)
          status = shape(task, next, ("extra" + std::to_string(next)).c_str(), dtype, {2, 1, 1, 1, 1, 1, 1, 3}, err);
        next++;
      }
      return status;
    });
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 1);
    const Taken& t = taken[0];
    REQUIRE(t.names.size() == 7);
    CHECK(t.names[0] == "index");
    CHECK(t.dtypes[0].code == 2);
    CHECK(t.bytes[0].size() == 12);
    const std::vector<std::size_t> sizes{6, 24, 48, 6, 96};
    for (std::size_t i = 0; i < sizes.size(); i++) {
      CHECK(t.names[2 + i] == "extra" + std::to_string(2 + i));
      CHECK(t.shapes[2 + i] == Shape{2, 1, 1, 1, 1, 1, 1, 3});
      CHECK(t.bytes[2 + i] == std::string(sizes[i], 'x'));
    }
    CHECK(t.dtypes[6].code == 5);
    CHECK(t.dtypes[6].bits == 128);
  }
}

// promise: loader-shapes
TEST_CASE("a data set may add tensors up to the limit, and different ones in each batch") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Shaped s(workers, 12, 2, [](const feedlane_task* task, feedlane_error* err) {
      fill_indices(task);
      const std::int32_t most =
          task->batch % 2 == 0 ? FEEDLANE_MAX_TENSORS : 2 + static_cast<std::int32_t>(task->batch);
      for (std::int32_t i = 2; i < most; i++)
        if (const std::int32_t status = shape(task, i, ("t" + std::to_string(i)).c_str(), uint8_type, {i}, err);
            status != FEEDLANE_OK)
          return status;
      if (task->tensor_count != most) return FEEDLANE_E_CORRUPT;
      if (most == FEEDLANE_MAX_TENSORS &&
          shape(task, most, "one more", uint8_type, {1}, nullptr) != FEEDLANE_E_ARGUMENT)
        return FEEDLANE_E_CORRUPT;
      return FEEDLANE_OK;
    });
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_sequence(taken, 12, 2);
    for (const Taken& t : taken) {
      REQUIRE(t.names.size() == (t.batch % 2 == 0 ? 64 : 2 + static_cast<std::size_t>(t.batch)));
      for (std::size_t i = 2; i < t.names.size(); i++) {
        CHECK(t.names[i] == "t" + std::to_string(i));
        CHECK(t.bytes[i] == std::string(i, 'x'));
      }
    }
  }
}

// promise: loader-shapes
TEST_CASE("tensors may have no elements") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Shaped s(workers, 4, 2, [](const feedlane_task* task, feedlane_error* err) {
      fill_indices(task);
      std::int32_t status = shape(task, 1, nullptr, as_declared, {2, 0, 7}, err);
      if (status == FEEDLANE_OK) status = shape(task, 2, "none", float32_type, {0}, err);
      return status == FEEDLANE_OK ? shape(task, 3, "scalar", float32_type, {}, err) : status;
    });
    const Loader l = s.create();
    for (const Taken& t : take_epoch(l.get(), 0)) {
      CHECK(t.shapes[1] == Shape{2, 0, 7});
      CHECK(t.shapes[2] == Shape{0});
      CHECK(t.shapes[3].empty());
      CHECK(t.bytes[1].empty());
      CHECK(t.bytes[2].empty());
      CHECK(t.bytes[3].size() == 4);
    }
  }
}

// promise: loader-too-large-tensor
TEST_CASE("an invalid tensor is refused with the argument's name, and the batch continues") {
  struct Row {
    std::int32_t index;
    const char* name;
    feedlane_dtype dtype;
    Shape shape;
    const char* argument;
  };
  static const Row rows[] = {
      {-1, "x", uint8_type, {1}, "index"},
      {3, "x", uint8_type, {1}, "index"},
      {64, "x", uint8_type, {1}, "index"},
      {2, nullptr, uint8_type, {1}, "full->name"},
      {2, "", uint8_type, {1}, "full->name"},
      {2, "a name of more than thirty-one bytes", uint8_type, {1}, "full->name"},
      {2, "x", as_declared, {1}, "full->dtype.bits"},
      {2, "x", {3, 8, 1}, {1}, "full->dtype.code"},
      {1, nullptr, {7, 8, 1}, {1}, "full->dtype.code"},
      {2, "x", {0, 12, 1}, {1}, "full->dtype.bits"},
      {1, nullptr, as_declared, {1, -1}, "full->shape"},
      {1, nullptr, as_declared, {INT64_MAX, INT64_MAX}, "full->shape"},
      {1, nullptr, as_declared, {INT64_C(1) << 32, INT64_C(1) << 32}, "full->shape"},
  };
  Shaped s(0, 2, 2, [](const feedlane_task* task, feedlane_error*) {
    fill_indices(task);
    for (const Row& r : rows) {
      Error e;
      INFO(std::string(r.argument), " of tensor ", r.index);
      CHECK(shape(task, r.index, r.name, r.dtype, r.shape, &e) == FEEDLANE_E_ARGUMENT);
      CHECK(std::string(e.argument) == r.argument);
    }
    feedlane_field f = field("x", uint8_type, {1});
    for (const std::int32_t ndim : {-1, 9, INT32_MAX}) {
      Error e;
      f.ndim = ndim;
      CHECK(feedlane_task_tensor(task, 2, &f, nullptr, &e) == FEEDLANE_E_ARGUMENT);
      CHECK(std::string(e.argument) == "full->ndim");
      CHECK(e.found == ndim);
    }
    CHECK(feedlane_task_store(task, FEEDLANE_STORE_METADATA, nullptr, 1, nullptr) == FEEDLANE_E_ARGUMENT);
    CHECK(feedlane_task_store(task, FEEDLANE_STORE_STATE, "x", 1, nullptr) == FEEDLANE_E_STATE);
    CHECK(task->tensor_count == 2);
    return std::int32_t{FEEDLANE_OK};
  });
  const Loader l = s.create();
  const std::vector<Taken> taken = take_epoch(l.get(), 0);
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].shapes[1] == Shape{2, 4});
}

// promise: loader-metadata
TEST_CASE("a batch has the metadata of the last call for it, or NULL without a call") {
  for (const std::int32_t workers : {0, 1, 3}) {
    CAPTURE(workers);
    Shaped s(workers, 30, 2, [](const feedlane_task* task, feedlane_error* err) {
      fill_indices(task);
      const std::string text = "batch " + std::to_string(task->batch) + std::string(1000, '.');
      if (task->batch % 3 == 0) return std::int32_t{FEEDLANE_OK};
      if (task->batch % 3 == 1) (void)feedlane_task_store(task, FEEDLANE_STORE_METADATA, "something else", 14, err);
      return feedlane_task_store(task, FEEDLANE_STORE_METADATA, text.data(), text.size(), err);
    });
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_sequence(taken, 30, 2);
    for (const Taken& t : taken)
      CHECK(t.metadata ==
            (t.batch % 3 == 0 ? std::string() : "batch " + std::to_string(t.batch) + std::string(1000, '.')));
  }
}

// promise: loader-shapes
TEST_CASE("a data set that makes single samples may shape the batch's tensors in its first row") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Shaped s(workers, 12, 4, {});
    s.dataset.fetch = nullptr;
    s.dataset.get = [](void*, const feedlane_row* row, feedlane_error* err) {
      if (row->row == 0)
        if (const std::int32_t status =
                shape(row->task, 1, nullptr, as_declared, {static_cast<std::int64_t>(row->task->count), 10}, err, '-');
            status != FEEDLANE_OK)
          return status;
      std::memcpy(row->fields[0], &row->index, sizeof row->index);
      if (row->row != 0) std::memset(row->fields[1], static_cast<int>('a' + row->index), row->bytes[1]);
      return std::int32_t{FEEDLANE_OK};
    };
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_sequence(taken, 12, 4);
    for (const Taken& t : taken) {
      std::string expected(10, '-');
      for (std::size_t row = 1; row < 4; row++) expected += std::string(10, static_cast<char>('a' + t.indices[row]));
      CHECK(t.bytes[1] == expected);
    }
  }
}

// promise: loader-shapes
TEST_CASE("without declared fields the data set shapes all tensors") {
  for (const std::int32_t workers : {0, 2})
    for (const std::uint64_t arena_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
      CAPTURE(workers);
      CAPTURE(arena_bytes);
      Shaped s(workers, 6, 2, [](const feedlane_task* task, feedlane_error* err) {
        const std::int32_t status = shape(task, 0, "index", int64_type, {static_cast<std::int64_t>(task->count)}, err);
        if (status == FEEDLANE_OK) fill_indices(task);
        return status;
      });
      s.fields({});
      s.config.slot_bytes = 10000;
      s.config.arena_bytes = arena_bytes;
      const Loader l = s.create();
      check_sequence(take_epoch(l.get(), 0), 6, 2);
    }
}

// promise: loader-unbatched
TEST_CASE("without batching each task has one index, and tensors have no batch dimension") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Setup s(7, FEEDLANE_UNBATCHED);
    if (workers != 0) s.workers(workers);
    s.fields({field("index", int64_type), field("seed", uint64_type), field("noise", uint8_type, {3, 5})});
    const Loader l = s.create();
    std::int64_t length = 0;
    REQUIRE(length_of(l.get(), &length) == FEEDLANE_OK);
    CHECK(length == 7);
    const std::vector<Taken> taken = take_epoch(l.get(), 2);
    check_sequence(taken, 7, 1);
    for (const Taken& t : taken) {
      CHECK(t.shapes[0].empty());
      CHECK(t.shapes[2] == Shape{3, 5});
      CHECK(t.bytes[2].size() == 15);
      CHECK(t.seed() == feedlane_row_seed(99, 2, t.batch));
    }
  }
}

// promise: loader-unbatched
TEST_CASE("without batching a data set may give each task's tensor another shape") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Shaped s(workers, 5, FEEDLANE_UNBATCHED, [](const feedlane_task* task, feedlane_error* err) {
      if (task->tensors[0].ndim != 0 || task->tensors[1].ndim != 1) return std::int32_t{FEEDLANE_E_CORRUPT};
      fill_indices(task);
      return shape(task, 1, nullptr, as_declared, {task->indices[0], 2}, err);
    });
    const Loader l = s.create();
    for (const Taken& t : take_epoch(l.get(), 0)) CHECK(t.shapes[1] == Shape{t.indices[0], 2});
  }
}

// promise: arena-budget
TEST_CASE("a small arena_bytes reduces prefetching with a warning, and the results are the same") {
  for (const std::uint64_t pages : {2U, 3U, 5U, 7U, 8U, 100U}) {
    CAPTURE(pages);
    Setup s(40, 2);
    s.workers(3);
    s.config.arena_bytes = pages * 4096;
    const Loader l = s.create();
    const std::uint64_t slots = std::min<std::uint64_t>(pages, 8);  // the window of 6, one held, one spare
    CHECK(stats_of(l.get()).slots == slots);
    const std::vector<feedlane_event> warnings = events_of(l.get(), FEEDLANE_EVENT_WARNING);
    std::size_t told = 0;
    for (const feedlane_event& w : warnings)
      if (std::string(w.what.argument) == "config.arena_bytes") {
        told++;
        CHECK(w.what.found == static_cast<std::int64_t>(pages) * 4096);
        CHECK(w.what.needed == 8 * 4096);
      }
    CHECK(told == (pages < 8 ? 1 : 0));
    for (std::int64_t epoch = 0; epoch < 2; epoch++) check_sequence(take_epoch(l.get(), epoch), 40, 2);
  }
}

// promise: arena-budget
TEST_CASE("batches of shards are yielded in round-robin order also with the smallest arena_bytes") {
  static std::int64_t left;
  auto table = fresh<feedlane_dataset>();
  table.restart = [](void*, std::int64_t, feedlane_error*) {
    left = 7;
    return std::int32_t{FEEDLANE_OK};
  };
  table.next = [](void*, const feedlane_row* row, feedlane_error*) {
    if (left-- == 0) return std::int32_t{FEEDLANE_END};
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return std::int32_t{FEEDLANE_OK};
  };
  Setup s(0, 2);
  s.forked(3, table).fields({field("index", int64_type)});
  s.config.iterable = 1;
  s.config.arena_bytes = 2 * 4096;
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    const std::vector<Taken> taken = take_epoch(l.get(), epoch);
    REQUIRE(taken.size() == 12);
    for (std::size_t i = 0; i < taken.size(); i++) CHECK(taken[i].worker == static_cast<std::int32_t>(i % 3));
  }
}
