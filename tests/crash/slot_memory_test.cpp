// SPDX-License-Identifier: Apache-2.0
// What is behind the slots after a worker that ran wild, and after large batches: memory goes back to the system, and what
// others rely on is there.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "crash/hostile.hpp"
#include "support/no_room.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;
namespace shm = feedlane::shm;

namespace {

// Memory of a segment; of anything else 0.
std::uint64_t bytes_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_nlink == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

// Of all that this process has open.
std::uint64_t segment_bytes_there() {
  std::uint64_t bytes = 0;
  for (const int fd : open_descriptors()) bytes += bytes_of(fd);
  return bytes;
}

struct Who {
  std::int32_t id = 0, generation = 0;
};
Who me;  // in a worker

std::int32_t remember(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
  me = {info->id, info->generation};
  *self = user_data;
  return FEEDLANE_OK;
}

feedlane_dataset table_of(std::int32_t (*fetch)(void*, const feedlane_task*, feedlane_error*)) {
  auto table = fresh<feedlane_dataset>();
  table.open = remember;
  table.fetch = fetch;
  return table;
}

bool is_doomed(const feedlane_task* task) { return me.id == 1 && me.generation == 0 && task->batch >= 6; }

// A byte in every page of every slot.
__attribute__((no_sanitize("address", "thread"))) void touch_all_slots() {
  const Inside in(static_cast<std::uint32_t>(me.id));
  for (std::uint32_t slot = 0; slot < in.plan.geometry.slots; slot++)
    for (std::uint64_t at = 0; at < in.plan.slot_stride; at += 4096)
      static_cast<volatile std::byte*>(in.payload(slot))[at] = std::byte{0x5a};
}

std::int32_t touch_once(void*, const feedlane_task* task, feedlane_error*) {
  if (is_doomed(task)) {
    touch_all_slots();
    (void)::raise(SIGKILL);
  }
  std::memset(task->tensors[0].data, 1, task->tensors[0].bytes);
  return FEEDLANE_OK;
}

// Worker 0: a tensor far beyond the reserved part, which must be memory when the library has handed it out.
std::int32_t grow(void*, const feedlane_task* task, feedlane_error* err) {
  if (is_doomed(task)) (void)::raise(SIGKILL);
  std::memset(task->tensors[0].data, 1, task->tensors[0].bytes);
  if (me.id != 0) return FEEDLANE_OK;
  const feedlane_field large = field("large", uint8_type, {1 << 20});
  feedlane_tensor t;
  if (const std::int32_t s = feedlane_task_tensor(task, 1, &large, &t, err); s != FEEDLANE_OK) return s;
  // Where it is, reserving it again takes nothing. The other worker's batches are small, so that nobody else takes any.
  static const Inside in(0);
  const std::uint64_t before = bytes_of(in.data_fd);
  if (::fallocate(in.data_fd, 0, static_cast<off_t>(t.offset), static_cast<off_t>(t.bytes)) != 0) return FEEDLANE_E_OS;
  if (bytes_of(in.data_fd) > before) return FEEDLANE_E_SAMPLE;
  std::memset(t.data, 2, t.bytes);
  return FEEDLANE_OK;
}

constexpr std::int64_t large_bytes = 1 << 18;

// A tensor beyond the reserved part; its first and last byte tell the batch.
std::int32_t make_large(void*, const feedlane_task* task, feedlane_error* err) {
  const feedlane_field f = field("large", uint8_type, {large_bytes});
  feedlane_tensor t;
  if (const std::int32_t s = feedlane_task_tensor(task, 1, &f, &t, err); s != FEEDLANE_OK) return s;
  std::memset(t.data, static_cast<int>(task->batch % 251), t.bytes);
  return FEEDLANE_OK;
}

}  // namespace

// promise: loader-unused-slots
TEST_CASE("a slot that has had no task for long gives its memory beyond the reserved part back, and is used again") {
  constexpr std::int64_t batches = 6'000;  // one slot after the other is looked after
  constexpr std::int64_t held = 12;
  const feedlane_dataset table = table_of(make_large);
  Setup s(batches, 1);
  s.forked(2, table).fields({field("bytes", uint8_type, {13})});
  s.config.slot_bytes = 2 * large_bytes;
  s.config.held = held;
  const Loader l = s.create();
  begin(l.get(), 0);
  const auto take_next = [&](std::int64_t batch) {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    const auto* bytes = static_cast<const unsigned char*>(b.tensors[1].data);
    CHECK((bytes[0] == batch % 251 && bytes[large_bytes - 1] == batch % 251));
    return b.token;
  };
  std::int64_t batch = 0;
  while (batch < batches) {  // twice: what was given back is there again
    std::vector<std::uint64_t> tokens;
    for (std::int64_t i = 0; i < held; i++) tokens.push_back(take_next(batch++));
    const std::uint64_t most = segment_bytes_there();
    CHECK(most > held * large_bytes);
    for (const std::uint64_t token : tokens) REQUIRE(feedlane_batch_release(l.get(), token) == FEEDLANE_OK);
    for (std::int64_t i = 0; i < batches / 2 - held; i++)
      REQUIRE(feedlane_batch_release(l.get(), take_next(batch++)) == FEEDLANE_OK);
    CHECK(segment_bytes_there() < most - held / 2 * large_bytes);  // five slots are in use
  }
}

// promise: worker-grown-slots
TEST_CASE("memory that a faulty worker touched beyond the reserved part of slots is freed after the worker's end") {
  const feedlane_dataset table = table_of(touch_once);
  Setup s(60, 2);
  s.forked(2, table).fields({field("bytes", uint8_type, {13})});
  s.config.slot_bytes = 4 << 20;
  s.config.held = 2;
  // A worker that alone has a processor must not get all tasks: in the next case too.
  s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  const Loader l = s.create();
  const std::uint64_t before = segment_bytes_there();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);         // one that attaches late may have no part
  auto kept = fresh<feedlane_batch>();  // in the trainer's hands, while all slots are touched
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &kept, nullptr) == FEEDLANE_OK);
  std::vector<Taken> taken;
  do taken.push_back(take(l.get()));
  while (taken.back().status == FEEDLANE_OK);
  CHECK(taken.back().status == FEEDLANE_END);
  CHECK(taken.size() == 30);
  CHECK(stats_of(l.get()).restarts == 1);
  const std::uint64_t a_slot = 4 << 20;
  CHECK(segment_bytes_there() < before + a_slot + (1 << 16));
  CHECK_MESSAGE(segment_bytes_there() >= before + a_slot - (1 << 16), "nobody takes it out from under a batch");
  REQUIRE(feedlane_batch_release(l.get(), kept.token) == FEEDLANE_OK);
  (void)take_epoch(l.get(), 1);
  CHECK(segment_bytes_there() < before + (1 << 16));
}

TEST_CASE("memory for large tensors is reserved before it is touched, also after it was freed in the meantime") {
  const feedlane_dataset table = table_of(grow);
  Setup s(120, 2);
  s.forked(2, table).fields({field("bytes", uint8_type, {13})});
  s.config.slot_bytes = 2 << 20;
  s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  const Loader l = s.create();
  int large = 0;
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);  // as above
  for (const Taken& t : take_rest(l.get())) {
    CHECK((t.worker == 0) == (t.bytes.size() == 2));
    if (t.bytes.size() == 2) CHECK(t.bytes[1] == std::string(1 << 20, '\2'));
    large += t.bytes.size() == 2 ? 1 : 0;
  }
  CHECK(large > 10);
  CHECK(stats_of(l.get()).restarts == 1);
}

TEST_CASE("next fails while the memory of slots can't be restored after a death, and continues once there is memory") {
  Setup s(24);
  s.workers(1);
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 1);
  std::vector<Taken> taken;
  {
    const NoRoom full;
    const auto pid = static_cast<pid_t>(worker_of(l.get(), 0).pid);
    REQUIRE(::kill(pid, SIGKILL) == 0);
    REQUIRE(eventually([&] { return !is_running(pid); }));
    for (int told = 0; told < 3;) {
      Error e;
      const Taken t = take(l.get(), &e);
      if (t.status == FEEDLANE_OK) {  // made before
        taken.push_back(t);
        continue;
      }
      REQUIRE(t.status == FEEDLANE_E_MEMORY);
      told++;
    }
  }
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_sequence(taken, 24, 1);
}
