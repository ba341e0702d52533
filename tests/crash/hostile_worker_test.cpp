// SPDX-License-Identifier: Apache-2.0
// Worker processes that work as they should and now and then go wild: write noise over their row, lane, slot and payload,
// send noise and descriptors, break their eventfds, punch holes, stop. However it comes, the trainer goes on: every batch
// comes once, as a batch within bounds or as an error that names the worker; nothing grows; nothing hangs.
//
// FEEDLANE_SEED=n repeats a run's choices (their timing can't be repeated); FEEDLANE_STRESS=full runs for ten minutes,
// FEEDLANE_SECONDS=n for n seconds.
// promise: worker-arbitrary
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "crash/hostile.hpp"
#include "feedlane.h"
#include "os/clock.hpp"
#include "support/api.hpp"
#include "support/process.hpp"

namespace {

namespace shm = feedlane::shm;
using feedlane::test::Inside;
using feedlane::test::send_over;
using feedlane::test::spoil;

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t samples = 160;
constexpr std::int64_t batch_size = 4;
constexpr std::int64_t batches = samples / batch_size;
constexpr std::int32_t workers = 2;
constexpr unsigned longest_epoch_s = 90;

std::uint64_t run_seed = 0;
std::vector<int> inherited;
const char* stage = "";

[[noreturn]] void fail(const char* what, std::int64_t found, std::int64_t needed) {
  std::fprintf(stderr, "%s: found %lld, needed %lld (FEEDLANE_SEED=%llu)\n", what, static_cast<long long>(found),
               static_cast<long long>(needed), static_cast<unsigned long long>(run_seed));
  std::_Exit(1);
}

void hang(int) {
  char text[160];
  const int n = std::snprintf(text, sizeof text, "the trainer hangs in %s (FEEDLANE_SEED=%llu)\n", stage,
                              static_cast<unsigned long long>(run_seed));
  (void)!::write(STDERR_FILENO, text, static_cast<std::size_t>(n));
  std::_Exit(1);
}

// ---- the worker ----

struct Wild {
  std::uint64_t state = 0;
  std::uint32_t id = 0;

  std::uint64_t operator()(std::uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
  }
  void spoil_some(std::byte* at, std::uint64_t bytes) {
    const std::uint64_t from = (*this)(bytes);
    const std::uint64_t count = 1 + (*this)((*this)(2) == 0 ? bytes - from : std::min<std::uint64_t>(bytes - from, 16));
    spoil(at + from, count, state, (*this)(4) == 0 ? static_cast<int>((*this)(256)) : -1);
  }
  void send_noise(const Inside& in) {
    std::byte bytes[512];
    spoil(bytes, sizeof bytes, state);
    // Some of it looks like the real thing.
    const std::uint64_t magics[] = {0x3144454843415441, 0x3130305944414552, 0x31474e495641454c};
    if ((*this)(2) == 0) std::memcpy(bytes, &magics[(*this)(3)], 8);
    const std::size_t sizes[] = {0, 8, 16, 400, (*this)(sizeof bytes)};
    std::vector<int> fds;
    if ((*this)(2) == 0)
      fds.assign(1 + (*this)(40), (*this)(2) == 0 ? in.data_fd : in.events.empty() ? 0 : in.events[0]);
    for (std::uint64_t i = 1 + (*this)(300); i-- > 0;) (void)send_over(in.socket, bytes, sizes[(*this)(5)], fds);
  }
  void break_events(const Inside& in) {
    for (const int event : in.events) {
      const std::uint64_t most = UINT64_MAX - 1;
      std::uint64_t drained = 0;
      (void)::fcntl(event, F_SETFL, O_NONBLOCK);
      if ((*this)(2) == 0) (void)!::write(event, &most, sizeof most);
      if ((*this)(2) == 0) (void)!::read(event, &drained, sizeof drained);
      if ((*this)(2) == 0) (void)::fcntl(event, F_SETFL, 0);
    }
  }
  void ring_for(const Inside& in, std::int64_t ns) {
    const auto lane = in.lane();
    for (const std::int64_t end = feedlane::os::now_ns() + ns; feedlane::os::now_ns() < end;) {
      for (const int event : in.events) (void)::fcntl(event, F_SETFL, O_NONBLOCK);
      in.ring_all();
      if (state % 2 == 0) continue;
      const std::uint64_t at = in.lane_position();
      lane.sequence(at).store(at + 1, std::memory_order_release);
    }
  }

  void go_wild(const feedlane_task& task) {
    const Inside in(id, inherited);
    const auto slot = static_cast<std::uint32_t>((task.tensors[0].offset - in.plan.payload) / in.plan.slot_stride);
    switch ((*this)(15)) {
      case 0: return spoil_some(reinterpret_cast<std::byte*>(&in.row()), sizeof(shm::WorkerRow));
      case 1: return spoil_some(in.lane().memory, std::uint64_t{64} * in.lane().capacity);
      case 2:
        return spoil_some(in.slot_header(slot), (*this)(2) == 0 ? sizeof(shm::SlotHeader) : sizeof(shm::SlotHead));
      case 3: return spoil_some(in.payload(slot), in.plan.geometry.reserved_bytes);
      case 4: return send_noise(in);
      case 5: return break_events(in);
      case 6: return ring_for(in, std::int64_t(1 + (*this)(30)) * 1'000'000);
      case 7:
        (void)::fallocate(in.data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>((*this)(in.plan.data_bytes)),
                          static_cast<off_t>(1 + (*this)(in.plan.data_bytes)));
        return;
      case 8:
        for (const int fd : {in.data_fd, in.control_fd}) {
          (void)!::ftruncate(fd, static_cast<off_t>((*this)(in.plan.data_bytes)));
          (void)::fcntl(fd, F_ADD_SEALS, static_cast<int>((*this)(64)));
        }
        (void)::mprotect(const_cast<std::byte*>(in.control), 4096, PROT_READ | PROT_WRITE);
        (void)::mprotect(in.data, 4096, static_cast<int>((*this)(4)));
        return;
      case 9: (void)::raise(SIGSTOP); return;
      case 10: (void)::close(in.socket); return;
      case 11: {  // while it works on
        std::thread([wild = *this, in, slot]() mutable {
          for (int i = 0; i < 200; i++) {
            wild.spoil_some(in.slot_header(slot), sizeof(shm::SlotHead));
            wild.spoil_some(reinterpret_cast<std::byte*>(&in.row()), sizeof(shm::WorkerRow));
            in.ring_all();
          }
        }).detach();
        return;
      }
      case 12:
        in.row().begun_through.store((*this)(2) == 0 ? (*this)(UINT64_MAX) : task.id + (*this)(8),
                                     std::memory_order_relaxed);
        return;
      case 13: ::_exit(static_cast<int>((*this)(3)));
      default:
        for (std::uint64_t s = 0; s < in.plan.geometry.slots; s++)
          spoil_some(in.slot_header(static_cast<std::uint32_t>(s)), sizeof(shm::SlotHead));
    }
  }

  static std::int32_t open(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
    static Wild wild;
    wild.id = static_cast<std::uint32_t>(info->id);
    wild.state = run_seed * 0x9e3779b97f4a7c15 + info->seed + static_cast<std::uint64_t>(info->generation) * 2 + 1;
    for (int i = 0; i < 8; i++) (void)wild(2);
    *self = &wild;
    return FEEDLANE_OK;
  }
  static std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
    auto& wild = *static_cast<Wild*>(self);
    if (wild(24) == 0) wild.go_wild(*row->task);
    for (std::int32_t f = 0; f < row->task->tensor_count; f++) {
      const feedlane_tensor& t = row->task->tensors[f];
      std::memset(row->fields[f], static_cast<int>(row->index), t.bytes / static_cast<std::size_t>(t.shape[0]));
    }
    if (wild(8) == 0) (void)feedlane_task_store(row->task, FEEDLANE_STORE_METADATA, "what goes with it", 17, nullptr);
    if (wild(40) != 0) return FEEDLANE_OK;
    (void)std::snprintf(err->text, sizeof err->text, "sample %lld is damaged", static_cast<long long>(row->index));
    return FEEDLANE_E_SAMPLE;
  }
};

// ---- the trainer ----

struct Totals {
  std::uint64_t epochs = 0, made = 0, errors = 0;
  std::uint64_t sum = 0;  // of all bytes read, so that they are
};

void read_whole(const feedlane_batch& batch, Totals& totals) {
  if (batch.count < 1 || batch.count > static_cast<std::uint64_t>(batch_size))
    fail("rows", static_cast<std::int64_t>(batch.count), batch_size);
  for (std::size_t i = 0; i < batch.tensor_count; i++) {
    const feedlane_tensor& t = batch.tensors[i];
    totals.sum += std::strlen(t.name);
    for (std::uint64_t b = 0; b < t.bytes; b++) totals.sum += static_cast<const unsigned char*>(t.data)[b];
  }
  for (std::uint64_t b = 0; b < batch.metadata_bytes; b++)
    totals.sum += static_cast<const unsigned char*>(batch.metadata)[b];
  for (std::uint64_t i = 0; i < batch.count; i++) totals.sum += static_cast<std::uint64_t>(batch.indices[i]);
}

// One epoch. A hostile worker costs its replacement, and a batch at most: no error of the whole loader may come.
void take_epoch(feedlane_loader* loader, std::int64_t epoch, Totals& totals) {
  char detail[1024];
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  err.detail = detail;
  err.detail_cap = sizeof detail;
  stage = "begin";
  (void)::alarm(longest_epoch_s);
  if (const std::int32_t s = feedlane_loader_begin(loader, epoch, &err); s != FEEDLANE_OK)
    fail(err.text, s, FEEDLANE_OK);
  stage = "next";
  std::vector<bool> seen(batches);
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (std::int64_t came = 0;;) {
    const std::int64_t before = feedlane::os::now_ns();
    const std::int32_t s = feedlane_loader_next(loader, second / 5, &batch, &err);
    if (feedlane::os::now_ns() - before > 20 * second)
      fail("next took too long, s", (feedlane::os::now_ns() - before) / second, 0);
    if (s == FEEDLANE_TIMEOUT || s == FEEDLANE_INTERRUPTED) continue;
    if (s == FEEDLANE_END) {
      if (came != batches) fail("batches of an epoch", came, batches);
      return;
    }
    if (s < 0) {
      totals.errors++;
      totals.sum += std::strlen(err.text) + err.detail_len;
      if (s != FEEDLANE_E_SAMPLE && s != FEEDLANE_E_QUARANTINED) fail(err.text, s, FEEDLANE_E_SAMPLE);
      if (err.worker < 0 || err.worker >= workers) fail(err.text, err.worker, workers);
    } else if (s != FEEDLANE_OK) {
      fail("next", s, FEEDLANE_OK);
    } else {
      totals.made++;
      read_whole(batch, totals);
    }
    const std::int64_t number = s == FEEDLANE_OK ? batch.batch : err.batch;
    if (number < 0 || number >= batches || seen[static_cast<std::size_t>(number)])
      fail("a batch comes twice, or is none", number, batches);
    seen[static_cast<std::size_t>(number)] = true;
    came++;
    if (s == FEEDLANE_OK && feedlane_batch_release(loader, batch.token) != FEEDLANE_OK) fail("release", 0, 1);
  }
}

}  // namespace

int main() {
  const char* full = std::getenv("FEEDLANE_STRESS");
  const bool is_full = full != nullptr && std::strcmp(full, "full") == 0;
  const char* given = std::getenv("FEEDLANE_SEED");
  run_seed = given != nullptr ? std::strtoull(given, nullptr, 0) : static_cast<std::uint64_t>(feedlane::os::now_ns());
  std::printf("FEEDLANE_SEED=%llu\n", static_cast<unsigned long long>(run_seed));
  (void)std::fflush(stdout);
  const char* length = std::getenv("FEEDLANE_SECONDS");
  const std::int64_t end = feedlane::os::now_ns() + (length != nullptr ? std::atoll(length)
                                                     : is_full         ? 600
                                                                       : 8) *
                                                        second;
  (void)std::signal(SIGALRM, hang);
  inherited = feedlane::test::open_descriptors();

  feedlane_sampler* sampler = nullptr;
  if (feedlane::test::sequential_sampler(samples, &sampler, nullptr) != FEEDLANE_OK) fail("sampler", 0, 1);
  feedlane_field fields[2];
  for (feedlane_field& f : fields) feedlane_init(&f, sizeof f);
  fields[0].name = "index";
  fields[0].dtype = {0, 64, 1};
  fields[1].name = "noise";
  fields[1].dtype = {1, 8, 1};
  fields[1].ndim = 1;
  fields[1].shape[0] = 1237;
  feedlane_dataset dataset;
  feedlane_init(&dataset, sizeof dataset);
  dataset.open = Wild::open;
  dataset.get = Wild::get;
  feedlane_loader_config config;
  feedlane_init(&config, sizeof config);
  config.sampler = sampler;
  config.dataset = &dataset;
  config.fields = fields;
  config.field_count = 2;
  config.batch_size = batch_size;
  config.workers = workers;
  config.start = FEEDLANE_START_FORK;
  config.keep_workers = 1;
  config.prefetch_factor = 4;
  config.max_restarts = INT32_MAX;
  config.task_timeout_ns = second / 10;
  config.stop_timeout_ns = second;
  config.term_timeout_ns = second / 10;
  feedlane_error err;
  feedlane_init(&err, sizeof err);

  Totals totals;
  std::uint64_t restarts = 0, invalid = 0, hung = 0, rounds = 0;
  std::size_t descriptors = 0, mappings = 0;
  for (int round = 0; feedlane::os::now_ns() < end; round++) {
    feedlane_loader* loader = nullptr;
    if (feedlane_loader_create(&config, &loader, &err) != FEEDLANE_OK) fail(err.text, 0, 1);
    for (std::int64_t epoch = 0; epoch < 20 && feedlane::os::now_ns() < end; epoch++, totals.epochs++)
      take_epoch(loader, epoch, totals);
    feedlane_stats stats;
    feedlane_init(&stats, sizeof stats);
    (void)feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats);
    restarts += stats.restarts;
    invalid += stats.invalid_results;
    hung += stats.hung;
    feedlane_event event;
    feedlane_init(&event, sizeof event);
    while (feedlane_loader_event(loader, &event) == FEEDLANE_OK) totals.sum += std::strlen(event.what.text);
    stage = "stop";
    if (const std::int32_t s = feedlane_loader_stop(loader, &err); s != FEEDLANE_OK) fail(err.text, s, FEEDLANE_OK);
    (void)feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats);
    if (stats.slots_free != stats.slots)
      fail("free slots", static_cast<std::int64_t>(stats.slots_free), static_cast<std::int64_t>(stats.slots));
    (void)feedlane_loader_destroy(&loader);
    if (feedlane::test::has_children()) fail("children left", 1, 0);
    rounds++;
    const std::size_t now_open = feedlane::test::open_descriptors().size();
    const std::size_t now_mapped = feedlane::test::mappings_of("feedlane");
    if (round == 0) descriptors = now_open, mappings = now_mapped;
    if (now_open > descriptors)
      fail("descriptors", static_cast<std::int64_t>(now_open), static_cast<std::int64_t>(descriptors));
    if (now_mapped > mappings)
      fail("mappings", static_cast<std::int64_t>(now_mapped), static_cast<std::int64_t>(mappings));
  }
  (void)::alarm(0);
  (void)feedlane_sampler_destroy(&sampler);
  std::printf(
      "%llu loaders, %llu epochs, %llu batches made, %llu errors; %llu lives, %llu found out, %llu out of time; sum "
      "%llx\n",
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(totals.epochs),
      static_cast<unsigned long long>(totals.made), static_cast<unsigned long long>(totals.errors),
      static_cast<unsigned long long>(restarts), static_cast<unsigned long long>(invalid),
      static_cast<unsigned long long>(hung), static_cast<unsigned long long>(totals.sum));
  if (restarts == 0) fail("nobody went wild", 0, 1);
  return 0;
}
