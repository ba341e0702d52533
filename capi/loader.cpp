// SPDX-License-Identifier: Apache-2.0
// feedlane/loader.h: loaders, their epochs and workers, saved states.
#include "loader.hpp"

#include <cstring>

#include "feedlane/loader.h"
#include "handle.hpp"
#include "pool.hpp"
#include "process.hpp"
#include "sampler.hpp"
#include "worker.hpp"

using namespace feedlane;
using namespace feedlane::capi;

namespace {

// Makes a loader, and a feeder around it if it is shared.
Status make_source(const feedlane_loader_config* config, const sampler::Sampler* sampler, pinned::Pool* pool,
                   feedlane_loader& handle, Error& error) {
  std::unique_ptr<loader::Loader> own;
  const os::SystemFiles files;
  Status s = loader::Loader::create(config, sampler, pool, forked_worker_main, files, own, error);
  if (s != FEEDLANE_OK) return s;
  handle.loader = own.get();
  if (own->config().share == FEEDLANE_SHARE_NONE) {
    handle.source = std::move(own);
    return s;
  }
  std::unique_ptr<sharing::Feeder> feeder;
  s = sharing::Feeder::create(std::move(own), files, feeder, error);
  handle.feeder = feeder.get();
  handle.source = std::move(feeder);
  return s;
}

}  // namespace

extern "C" {

int32_t feedlane_loader_create(const feedlane_loader_config* config, feedlane_loader** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    feedlane_loader_config c;
    Status s = read_versioned(config, c, "config", error);
    if (s != FEEDLANE_OK) return s;
    if (c.sampler != nullptr) s = check_handle(c.sampler, "config.sampler", error);
    if (s == FEEDLANE_OK && c.pinned != nullptr) s = check_handle(c.pinned, "config.pinned", error);
    if (s != FEEDLANE_OK) return s;
    if (c.workers > 0 && is_worker_process())
      return error.refuse(FEEDLANE_E_STATE, "config.workers", c.workers, 0,
                          "this process was started as a worker: it must call feedlane_worker_fd and run as a worker, "
                          "not start workers");
    auto handle = std::make_unique<feedlane_loader>();
    s = handle->stamp.take(error);
    const sampler::Sampler* sampler = c.sampler == nullptr ? nullptr : c.sampler->sampler.get();
    if (s == FEEDLANE_OK)
      s = make_source(config, sampler, c.pinned == nullptr ? nullptr : c.pinned->pool.get(), *handle, error);
    if (s != FEEDLANE_OK) return s;
    handle->source->leases().use(*handle);
    *out = handle.release();
    return s;
  });
}

int32_t feedlane_loader_destroy(feedlane_loader** l) {
  return destroy(l, [](feedlane_loader* handle) {
    Error error;
    return shield(error, [&](Error& e) { return handle->source->stop(true, e); });
  });
}

int32_t feedlane_loader_close(feedlane_loader* l) { return capi::close(l); }
int32_t feedlane_loader_ref(feedlane_loader* l) { return ref(l); }
int32_t feedlane_loader_unref(feedlane_loader* l) { return unref(l); }

int32_t feedlane_loader_begin(feedlane_loader* l, int64_t epoch, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) { return l->source->begin(epoch, error); });
}

int32_t feedlane_loader_next(feedlane_loader* l, int64_t timeout_ns, feedlane_batch* out, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) {
    Status s = check_batch(out, error);
    if (s == FEEDLANE_OK) s = check_timeout(timeout_ns, error);
    if (s != FEEDLANE_OK) return s;
    // Taken before the token exists, because a thread that knows or guesses the token may release the batch at once.
    lending::Hold hold(*l);
    feedlane_batch batch;
    s = l->source->next(timeout_ns, batch, error);
    if (s != FEEDLANE_OK) return s;
    (void)hold.pass_on();  // owned by the batch now
    write_versioned(out, batch);
    return s;
  });
}

int32_t feedlane_loader_state(feedlane_loader* l, uint64_t token, void* buffer, uint64_t cap, uint64_t* bytes,
                              feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) {
    if (bytes == nullptr) return refuse_null(error, "bytes");
    if (buffer == nullptr && cap != 0) return refuse_null(error, "buffer");
    std::vector<std::byte> state;
    if (const Status s = l->source->state(token, state, error); s != FEEDLANE_OK) return s;
    *bytes = state.size();
    if (state.size() > cap)
      return error.refuse(FEEDLANE_E_LIMIT, "cap", cap, state.size(), "the state has {} bytes, but cap is only {}",
                          state.size(), cap);
    std::memcpy(buffer, state.data(), state.size());
    return Status{FEEDLANE_OK};
  });
}

int32_t feedlane_state_read(const void* state, uint64_t bytes, feedlane_state_info* out, feedlane_error* err) {
  return call(err, [&](Error& error) -> Status {
    if (state == nullptr) return refuse_null(error, "state");
    Status s = check_output(out, "out", error);
    checkpoint::SavedState saved;
    if (s == FEEDLANE_OK) s = checkpoint::read_state({static_cast<const std::byte*>(state), bytes}, saved, error);
    if (s != FEEDLANE_OK) return s;
    feedlane_state_info info{};
    info.size = sizeof info;
    info.epoch = saved.progress.epoch;
    info.batch = saved.progress.batches;
    info.samples = saved.progress.positions;
    info.base_seed = saved.base_seed;
    info.ended = saved.progress.ended ? 1 : 0;
    info.iterable = saved.iterable ? 1 : 0;
    write_versioned(out, info);
    return s;
  });
}

int32_t feedlane_loader_poll(feedlane_loader* l, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) { return l->source->poll(error); });
}

int32_t feedlane_loader_arm(feedlane_loader* l, int32_t* fd) {
  return call_one(l, "l", nullptr, [&](Error& error) {
    if (fd != nullptr) *fd = l->source->wait_fd();
    return l->source->arm(error);
  });
}

int32_t feedlane_loader_interrupt(feedlane_loader* l) {
  // Async-signal-safe: nothing here allocates or locks.
  if (l == nullptr) return FEEDLANE_E_ARGUMENT;
  if (l->stamp.is_foreign()) return FEEDLANE_E_FORKED;
  if (l->is_closed()) return FEEDLANE_E_STATE;
  l->source->interrupt();
  return FEEDLANE_OK;
}

int32_t feedlane_loader_stop(feedlane_loader* l, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) { return l->source->stop(false, error); });
}

int32_t feedlane_loader_open_worker(feedlane_loader* l, int32_t* id, int32_t* fd, feedlane_error* err) {
  return call_one(l, "l", err, [&](Error& error) {
    if (id == nullptr) return refuse_null(error, "id");
    if (fd == nullptr) return refuse_null(error, "fd");
    if (const Status s = check_loader(l, error); s != FEEDLANE_OK) return s;
    os::Fd theirs;
    const Status s = l->loader->crew().open_worker(*id, theirs, error);
    if (s == FEEDLANE_OK) *fd = theirs.release();
    return s;
  });
}

int32_t feedlane_loader_run_stager(feedlane_loader* l, feedlane_error* err) {
  return call_any(l, "l", err, [&](Error& error) {
    if (const Status s = check_loader(l, error); s != FEEDLANE_OK) return s;
    const lending::Hold hold(*l);
    return l->loader->run_stager(error);
  });
}

}  // extern "C"
