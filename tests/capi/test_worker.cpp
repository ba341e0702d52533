// SPDX-License-Identifier: Apache-2.0
// The worker program of the suites capi and semantics. Its first argument is its form; what its data set does is in the
// plan that the trainer hands over (tests/support/scripted.hpp).
//   get, fetch  the callback form, sample by sample or by the whole batch
//   shard       the callback form, iterable
//   pull        the pull form, with the sample made in scratch memory
//   refuse      the pull form: says that its data set can't be opened, then asks for a task all the same
//   quit        the pull form: detaches and ends with status 9, its first task in hand
//   linger      the same, but it doesn't end by itself; linger-on: not even of SIGTERM
//   leave       ends before it attaches
//   never       never attaches
//   ticket FD [FORM]  get, if there is a byte for it in this pipe; else this form, or never
//   goodbye     says that it leaves before it has attached, and ends with status 7
//   other       attaches by the word of another build, of another layout
//   train       no worker: a trainer that starts itself again for workers
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/scripted.hpp"

using namespace feedlane::test;

namespace {

int report(const char* where, std::int32_t status, const Error& e) {
  if (status >= 0) return 0;
  if (e.says(fail_open_text)) return 4;  // as planned
  (void)std::fprintf(stderr, "test worker: %s: %s: %s\n", where, feedlane_status_name(status), e.text);
  return 4;
}

// The data set's rows, each made in scratch memory first.
std::int32_t make_rows(const feedlane_dataset& table, void* self, const feedlane_task& task, feedlane_worker* w,
                       Error& why, std::int64_t& row_index) {
  std::vector<void*> pieces(static_cast<std::size_t>(task.tensor_count));
  std::vector<std::uint64_t> bytes(pieces.size());
  for (std::size_t f = 0; f < pieces.size(); f++) {
    bytes[f] = task.tensors[f].bytes / task.count;
    pieces[f] = feedlane_worker_scratch(w, bytes[f], 64);
    if (pieces[f] == nullptr || reinterpret_cast<std::uintptr_t>(pieces[f]) % 64 != 0) return FEEDLANE_E_MEMORY;
  }
  for (std::uint64_t i = 0; i < task.count; i++) {
    row_index = static_cast<std::int64_t>(i);
    auto row = fresh<feedlane_row>();
    row.index = task.indices[i];
    row.seed = task.seeds[i];
    row.fields = pieces.data();
    row.bytes = bytes.data();
    row.task = &task;
    if (const std::int32_t s = table.get(self, &row, &why); s != FEEDLANE_OK) return s;
    for (std::size_t f = 0; f < pieces.size(); f++)
      std::memcpy(static_cast<char*>(task.tensors[f].data) + i * bytes[f], pieces[f], bytes[f]);
    if (const std::int32_t s = feedlane_worker_check(w); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

std::int32_t pull(feedlane_worker* w, Error& e) {
  const feedlane_dataset table = scripted_dataset();
  auto info = fresh<feedlane_worker_info>();
  std::int32_t s = feedlane_worker_get_info(w, &info);
  void* self = nullptr;
  const std::int32_t opened = table.open(nullptr, &info, &self, &e);
  if (s == FEEDLANE_OK) s = feedlane_worker_ready(w, opened, e.text, &e);
  if (opened != FEEDLANE_OK) return opened;
  while (s == FEEDLANE_OK || s == FEEDLANE_INTERRUPTED) {
    const feedlane_task* task = nullptr;
    s = feedlane_worker_next(w, FEEDLANE_FOREVER, &task, &e);
    if (s != FEEDLANE_OK) continue;
    Error why;
    std::int64_t row = -1;
    s = make_rows(table, self, *task, w, why, row);
    if (s == FEEDLANE_OK) s = feedlane_task_commit(task, task->count, &e);
    else if (s != FEEDLANE_END)
      s = feedlane_task_fail(task, row, why.transient, why.text, why.traceback().substr(0, why.detail_len).c_str(), &e);
  }
  table.close(self);
  return s;
}

int refuse(feedlane_worker* w) {
  auto info = fresh<feedlane_worker_info>();
  (void)feedlane_worker_get_info(w, &info);
  Plan plan;
  std::memcpy(&plan, info.config, sizeof plan);
  Error e;
  const feedlane_task* task = nullptr;
  std::int32_t s = feedlane_worker_ready(w, FEEDLANE_E_OS, nullptr, &e);
  if (s == FEEDLANE_OK) s = feedlane_worker_next(w, FEEDLANE_FOREVER, &task, &e);
  send_report(plan.report_fd, {s == FEEDLANE_END ? Report::closed : Report::began, ::getpid(), 0, 0, 0, info.id});
  return 0;
}

int quit(feedlane_worker* w) {
  Error e;
  const feedlane_task* task = nullptr;
  std::int32_t s = feedlane_worker_ready(w, FEEDLANE_OK, nullptr, &e);
  if (s == FEEDLANE_OK) s = feedlane_worker_next(w, FEEDLANE_FOREVER, &task, &e);
  return s == FEEDLANE_OK ? 9 : 0;
}

int work(int fd, const std::string& form) {
  Error e;
  if (form == "get" || form == "fetch" || form == "shard") {
    const feedlane_dataset table = form == "get"     ? scripted_dataset()
                                   : form == "fetch" ? scripted_fetch_dataset()
                                                     : scripted_shard_dataset();
    return report("run", feedlane_worker_run(fd, nullptr, &table, &e), e);
  }
  feedlane_worker* handle = nullptr;
  std::int32_t s = feedlane_worker_attach(fd, nullptr, FEEDLANE_FOREVER, &handle, &e);
  Worker w(handle);
  if (s != FEEDLANE_OK) return report("attach", s, e);
  if (form == "quit") return quit(w.get());
  if (form == "linger" || form == "linger-on") {
    if (form == "linger-on") (void)std::signal(SIGTERM, SIG_IGN);
    const int status = quit(w.get());
    w.reset();
    (void)::alarm(60);
    while (status != 0) (void)::pause();
    return status;
  }
  if (form == "pull") return report("pull", pull(w.get(), e), e);
  return refuse(w.get());
}

// What no worker of this library says. The numbers are those of docs/layout.md.
int say(const std::string& form) {
  const int fd = feedlane_worker_fd();
  const std::uint64_t leaving = 0x31474e495641454c;
  const std::uint64_t attached[] = {0x3144454843415441, 1};
  if (form == "goodbye") (void)!::send(fd, &leaving, sizeof leaving, MSG_NOSIGNAL);
  else (void)!::send(fd, attached, sizeof attached, MSG_NOSIGNAL);
  if (form == "goodbye") return 7;
  (void)::alarm(60);
  for (;;) (void)::pause();
}

// As an upgrade does to the program of a process that runs.
bool lose_program(bool is_replaced) {
  char path[4096] = {};
  if (::readlink("/proc/self/exe", path, sizeof path - 1) <= 0) return false;
  const std::string other = std::string(path) + ".new";
  return is_replaced ? ::symlink("/bin/false", other.c_str()) == 0 && ::rename(other.c_str(), path) == 0
                     : ::unlink(path) == 0;
}

// An epoch: eight samples by two workers of this program, started without an argv of the trainer's.
int train_epoch(feedlane_loader* handle, std::int64_t epoch) {
  Error e;
  std::int32_t s = feedlane_loader_begin(handle, epoch, &e);
  std::int64_t expected = 0;
  while (s == FEEDLANE_OK) {
    auto batch = fresh<feedlane_batch>();
    s = feedlane_loader_next(handle, patience_ns, &batch, &e);
    if (s != FEEDLANE_OK) break;
    if (*static_cast<const std::int64_t*>(batch.tensors[0].data) != expected++ || batch.worker < 0) return 5;
    s = feedlane_batch_release(handle, batch.token);
  }
  if (s < 0) return report("train", s, e);
  return s == FEEDLANE_END && expected == 8 ? 0 : 6;
}

// One loader's life; `form` says what becomes of this program's file after the first epoch.
int train(const std::string& form) {
  Error e;
  const Sampler sampler = sequential(8);
  const feedlane_field one = field("index", int64_type);
  auto config = fresh<feedlane_loader_config>();
  config.sampler = sampler.get();
  config.fields = &one;
  config.field_count = 1;
  config.workers = 2;
  feedlane_loader* handle = nullptr;
  const std::int32_t s = feedlane_loader_create(&config, &handle, &e);
  const Loader loader(handle);
  if (s != FEEDLANE_OK) return report("train", s, e);
  if (const int status = train_epoch(handle, 0); status != 0 || form == "train") return status;
  if (form != "train-again" && !lose_program(form == "train-replaced")) return 7;
  if (const int status = train_epoch(handle, 1); status != 0) return status;
  return form == "train-again" ? 0 : train("train-again");  // another loader, made after the loss
}

}  // namespace

int main(int argc, char** argv) {
  std::string form = argc > 1 ? argv[1] : "get";
  if (form == "ticket" && argc > 2) {
    char ticket = 0;
    form = ::read(std::atoi(argv[2]), &ticket, 1) == 1 ? "get" : argc > 3 ? argv[3] : "never";
  }
  if (form == "leave") return 7;
  if (form == "goodbye" || form == "other") return say(form);
  if (form == "never") {
    (void)::alarm(60);
    for (;;) (void)::pause();
  }
  const int fd = feedlane_worker_fd();
  const bool is_trainer = form.starts_with("train");
  if (fd >= 0) return work(fd, is_trainer ? "get" : form);
  if (is_trainer) return train(form);
  (void)std::fprintf(stderr, "test worker: to be started by a test\n");
  return 2;
}
