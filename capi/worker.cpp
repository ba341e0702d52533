// SPDX-License-Identifier: Apache-2.0
// feedlane/worker.h: workers, in the pull form and the callback form, and the ends of their tasks.
#include "worker/worker.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>

#include "feedlane/worker.h"
#include "handle.hpp"
#include "loader.hpp"
#include "process.hpp"
#include "worker.hpp"

using namespace feedlane;
using namespace feedlane::capi;

template <>
void feedlane::capi::finish(feedlane_worker& w) {
  WorkerDeleter()(&w);
}

namespace {

std::atomic<bool> started_as_worker{false};

// For functions that end a task. Refuses tasks of the callback form: if a callback ended its task, its caller would
// continue with memory of the next task, or of the trainer.
template <class F>
int32_t with_own_task(const feedlane_task* task, feedlane_error* err, F&& f) {
  return with_task(task, err, [&](worker::Worker& w, Error& error) {
    if (w.has_callbacks())
      return error.fail(FEEDLANE_E_STATE, "a task passed to a callback ends when the callback returns, not by a call");
    return f(w, error);
  });
}

Status check_local(const feedlane_loader* l, Error& error) {
  const Status s = check_handle(l, "l", error);
  return s == FEEDLANE_OK ? check_loader(l, error) : s;
}

// Attaches the calling thread as a worker. Keeps the loader alive until the worker leaves, even if the loader is being
// destroyed.
Status attach_thread(feedlane_loader* l, std::unique_ptr<feedlane_worker, WorkerDeleter>& out, Error& error) {
  os::Fd socket;
  if (const Status s = l->loader->crew().starter().take_offer(socket, error); s != FEEDLANE_OK) return s;
  lending::Hold hold(*l);
  const Status s = attach_worker(std::move(socket), FEEDLANE_FOREVER, l, &l->loader->memory().segments, out, error);
  if (s == FEEDLANE_OK) (void)hold.pass_on();  // owned by the worker now
  return s;
}

Status run_thread(feedlane_loader* l, const feedlane_dataset* dataset, Error& error) {
  Status s = check_local(l, error);
  if (s != FEEDLANE_OK) return s;
  const loader::Config& config = l->loader->config();
  if (dataset == nullptr && !config.has_dataset)
    return error.refuse(FEEDLANE_E_STATE, "config.dataset", 0, 1,
                        "dataset is NULL, and the loader has no config.dataset");
  dataset::DatasetRunner runner;  // made before the trainer sees this worker, because it may refuse the table
  s = runner.take(dataset == nullptr ? &config.table : dataset, "dataset", error);
  std::unique_ptr<feedlane_worker, WorkerDeleter> handle;
  if (s == FEEDLANE_OK) s = attach_thread(l, handle, error);
  return s == FEEDLANE_OK ? worker::run(*handle->worker, runner, error) : s;
}

Status run_at(os::Fd socket, const feedlane_dataset* dataset, shm::Segments* inherited, Error& error) {
  dataset::DatasetRunner runner;  // made before the trainer sees this worker, because it may refuse the table
  Status s = runner.take(dataset, "dataset", error);
  std::unique_ptr<feedlane_worker, WorkerDeleter> handle;
  if (s == FEEDLANE_OK)
    s = attach_worker(std::move(socket), FEEDLANE_FOREVER, nullptr, nullptr, handle, error, inherited);
  return s == FEEDLANE_OK ? worker::run(*handle->worker, runner, error) : s;
}

}  // namespace

void feedlane::capi::WorkerDeleter::operator()(feedlane_worker* handle) const {
  lending::Life* const owner = handle->owner;
  delete handle;
  if (owner != nullptr) owner->let_go();
}

Status feedlane::capi::attach_worker(os::Fd socket, int64_t timeout_ns, lending::Life* owner,
                                     const shm::Segments* local, std::unique_ptr<feedlane_worker, WorkerDeleter>& out,
                                     Error& error, shm::Segments* inherited) {
  std::unique_ptr<feedlane_worker, WorkerDeleter> handle(new feedlane_worker);
  Status s = handle->stamp.take(error);
  if (s == FEEDLANE_OK)
    s = worker::Worker::attach(std::move(socket), timeout_ns, handle.get(), local, handle->worker, error, inherited);
  if (s != FEEDLANE_OK) return s;
  handle->owner = owner;
  out = std::move(handle);
  return s;
}

int feedlane::capi::forked_worker_main(int fd, const feedlane_dataset& dataset, shm::Segments& inherited) {
  started_as_worker.store(true, std::memory_order_relaxed);  // no other data depends on it
  const int32_t status = call(nullptr, [&](Error& error) {
    os::Fd socket;
    const Status s = take_descriptor(fd, socket, error);
    return s == FEEDLANE_OK ? run_at(std::move(socket), &dataset, &inherited, error) : s;
  });
  // As for one that has attached, its trainer's death is no failure of the worker.
  return status == FEEDLANE_OK || status == FEEDLANE_E_PEER_DEAD ? 0 : 1;
}

bool feedlane::capi::is_worker_process() {
  return started_as_worker.load(std::memory_order_relaxed) || ::secure_getenv(worker::fd_variable) != nullptr;
}

extern "C" {

int32_t feedlane_worker_fd(void) {
  // A program with more privileges than the process that started it is not a worker of that process, and neither is a
  // program that it starts.
  const char* text = ::secure_getenv(worker::fd_variable);
  if (text == nullptr) {
    (void)::unsetenv(worker::fd_variable);
    return -1;
  }
  char* end = nullptr;
  errno = 0;
  const long fd = std::strtol(text, &end, 10);
  const bool is_number = end != text && *end == '\0' && errno == 0 && fd >= 0 && fd <= INT32_MAX;
  (void)::unsetenv(worker::fd_variable);
  if (!is_number || ::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC) != 0) return -1;
  started_as_worker.store(true, std::memory_order_relaxed);  // no other data depends on it
  return static_cast<int32_t>(fd);
}

int32_t feedlane_worker_attach(int32_t fd, feedlane_loader* l, int64_t timeout_ns, feedlane_worker** out,
                               feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    os::Fd socket;
    Status s = take_descriptor_or(l, "l", fd, socket, error);
    if (s == FEEDLANE_OK && out == nullptr) s = refuse_null(error, "out");
    if (s == FEEDLANE_OK) s = check_timeout(timeout_ns, error);
    if (s == FEEDLANE_OK && l != nullptr) s = check_local(l, error);
    if (s != FEEDLANE_OK) return s;
    std::unique_ptr<feedlane_worker, WorkerDeleter> handle;
    s = l != nullptr ? attach_thread(l, handle, error)
                     : attach_worker(std::move(socket), timeout_ns, nullptr, nullptr, handle, error);
    if (s == FEEDLANE_OK) *out = handle.release();
    return s;
  });
}

int32_t feedlane_worker_get_info(const feedlane_worker* w, feedlane_worker_info* info) {
  return call_any(w, "w", nullptr, [&](Error& error) {
    const Status s = check_output(info, "info", error);
    if (s == FEEDLANE_OK) write_versioned(info, w->worker->info());
    return s;
  });
}

int32_t feedlane_worker_ready(feedlane_worker* w, int32_t status, const char* text, feedlane_error* err) {
  return call_one(w, "w", err, [&](Error& error) {
    if (status > 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "status", status, 0, "status is {}: must be 0 or negative", status);
    return w->worker->ready(status, text, error);
  });
}

int32_t feedlane_worker_next(feedlane_worker* w, int64_t timeout_ns, const feedlane_task** task, feedlane_error* err) {
  return call_one(w, "w", err, [&](Error& error) {
    if (task == nullptr) return refuse_null(error, "task");
    const Status s = check_timeout(timeout_ns, error);
    return s == FEEDLANE_OK ? w->worker->next(timeout_ns, task, error) : s;
  });
}

int32_t feedlane_worker_check(const feedlane_worker* w) {
  if (w == nullptr) return FEEDLANE_E_ARGUMENT;
  if (w->stamp.is_foreign()) return FEEDLANE_E_FORKED;
  return w->is_closed() ? FEEDLANE_E_STATE : w->worker->check();
}

int32_t feedlane_worker_arm(feedlane_worker* w, int32_t* fd) {
  return call_one(w, "w", nullptr, [&](Error&) {
    if (fd != nullptr) *fd = w->worker->wait_fd();
    return w->worker->arm();
  });
}

void* feedlane_worker_scratch(feedlane_worker* w, uint64_t bytes, uint64_t align) {
  void* memory = nullptr;
  (void)call_one(w, "w", nullptr, [&](Error&) {
    memory = w->worker->scratch(bytes, align);
    return Status{FEEDLANE_OK};
  });
  return memory;
}

int32_t feedlane_task_commit(const feedlane_task* task, uint64_t rows, feedlane_error* err) {
  return with_own_task(task, err, [&](worker::Worker& w, Error& error) {
    return rows == FEEDLANE_EXHAUSTED ? w.exhausted(error) : w.commit(rows, error);
  });
}

int32_t feedlane_task_fail(const feedlane_task* task, int64_t position, int32_t transient, const char* text,
                           const char* traceback, feedlane_error* err) {
  return with_own_task(task, err, [&](worker::Worker& w, Error& error) {
    const std::uint64_t taken = position < 0 ? 0 : static_cast<std::uint64_t>(position) + 1;
    return w.fail(position, transient != 0, text == nullptr ? "the data set failed" : text,
                  traceback == nullptr ? "" : traceback, taken, error);
  });
}

int32_t feedlane_worker_run(int32_t fd, feedlane_loader* l, const feedlane_dataset* dataset, feedlane_error* err) {
  return call(err, [&](Error& error) {
    os::Fd socket;
    const Status s = take_descriptor_or(l, "l", fd, socket, error);
    if (s != FEEDLANE_OK) return s;
    return l == nullptr ? run_at(std::move(socket), dataset, nullptr, error) : run_thread(l, dataset, error);
  });
}

int32_t feedlane_worker_destroy(feedlane_worker** w) {
  return destroy(w, [](feedlane_worker*) { return Status{FEEDLANE_OK}; });
}

int32_t feedlane_worker_close(feedlane_worker* w) { return capi::close(w); }

}  // extern "C"
