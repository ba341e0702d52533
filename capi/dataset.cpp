// SPDX-License-Identifier: Apache-2.0
// feedlane/dataset.h: what a data set adds to the task that it fills.
#include "feedlane/dataset.h"

#include "base/versioned.hpp"
#include "worker.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// Runs `f` on the task whose slot a data set is filling, in a worker or inline.
template <class F>
int32_t with_content(const feedlane_task* task, feedlane_error* err, F&& f) {
  if (task == nullptr || task->worker != nullptr)
    return with_task(task, err, [&](worker::Worker& w, Error& error) { return f(w.task(), error); });
  return call(err, [&](Error& error) -> Status {
    auto* content = static_cast<dataset::Task*>(task->library);
    if (content == nullptr || !content->is_open()) return error.fail(FEEDLANE_E_STALE, "this task has already ended");
    return f(*content, error);
  });
}

}  // namespace

extern "C" {

int32_t feedlane_task_tensor(const feedlane_task* task, int32_t index, const feedlane_field* full, feedlane_tensor* out,
                             feedlane_error* err) {
  return with_content(task, err, [&](dataset::Task& t, Error& error) {
    feedlane_field field;
    const Status s = read_versioned(full, field, "full", error);
    return s == FEEDLANE_OK ? t.shape_tensor(index, field, out, error) : s;
  });
}

int32_t feedlane_task_store(const feedlane_task* task, int32_t kind, const void* bytes, uint64_t count,
                            feedlane_error* err) {
  return with_content(task, err, [&](dataset::Task& t, Error& error) {
    switch (kind) {
      case FEEDLANE_STORE_METADATA: return t.set_metadata(bytes, count, error);
      case FEEDLANE_STORE_STATE: return t.set_state(bytes, count, error);
      default: return refuse(error, "kind", kind, FEEDLANE_STORE_STATE, "must be one of FEEDLANE_STORE_...");
    }
  });
}

int32_t feedlane_task_sample_failed(const feedlane_task* task, uint64_t position, const feedlane_error* failure,
                                    feedlane_dataset_substitute_fn substitute, void* user_data, int64_t* index,
                                    int64_t* wait_ns, feedlane_error* err) {
  return with_content(task, err, [&](dataset::Task& t, Error& error) -> Status {
    feedlane_error why;
    if (const Status s = read_versioned(failure, why, "failure", error); s != FEEDLANE_OK) return s;
    if (wait_ns == nullptr) return refuse_null(error, "wait_ns");
    if (position == FEEDLANE_WHOLE_BATCH) {
      if (t.may_try_again(why.transient != 0, why.code, why.text, *wait_ns)) return FEEDLANE_AGAIN;
      return error.fail(FEEDLANE_E_SAMPLE, "{}", first(sizeof why.text, why.text));
    }
    if (index == nullptr) return refuse_null(error, "index");
    return t.fail_sample(position, why, substitute, user_data, *index, *wait_ns, error);
  });
}

int32_t feedlane_task_ahead(const feedlane_task* task, uint64_t after, feedlane_ahead* out, feedlane_error* err) {
  const auto fill = [&](const worker::Worker* w, Error& error) -> Status {
    Status s = check_output(out, "out", error);
    if (s != FEEDLANE_OK || w == nullptr) return s == FEEDLANE_OK ? FEEDLANE_END : s;
    feedlane_ahead found{};
    s = w->ahead(after, task->worker->ahead, found);
    if (s == FEEDLANE_OK) write_versioned(out, found);
    return s;
  };
  if (task == nullptr || task->worker != nullptr)
    return with_task(task, err, [&](const worker::Worker& w, Error& error) { return fill(&w, error); });
  return with_content(task, err, [&](const dataset::Task&, Error& error) { return fill(nullptr, error); });
}

}  // extern "C"
