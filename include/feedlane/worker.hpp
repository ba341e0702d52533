// SPDX-License-Identifier: Apache-2.0
/**
 * @file worker.hpp
 * The worker's side: running a data set (see dataset.hpp) in a worker process, often the trainer's own program.
 *
 *     int main() {
 *       if (feedlane::is_worker()) return feedlane::run_worker<Digits>();
 *       ...
 *     }
 */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <cstdint>

#include "dataset.hpp"

namespace feedlane {
inline namespace v1 {

/** The descriptor that the trainer passed to this process, for run_worker; negative: none. Call this early in main. */
inline std::int32_t& worker_descriptor() {
  static std::int32_t fd = feedlane_worker_fd();
  return fd;
}
/** Whether a trainer started this process as a worker. */
inline bool is_worker() { return worker_descriptor() >= 0; }

/** Creates an object of T and runs a worker with it until the trainer ends the worker. Returns an exit status for main;
 *  the error is in `error`. */
template <class T>
int run_worker(std::int32_t fd, Error& error) {
  const feedlane_dataset dataset = dataset_of<T>();
  detail::Room room;
  detail::checked(error, room, [&](feedlane_error* e) { return feedlane_worker_run(fd, nullptr, &dataset, e); });
  return error ? 1 : 0;
}
/** As above, with an existing object; see dataset_of. */
template <class T>
int run_worker(std::int32_t fd, T& object, Error& error) {
  const feedlane_dataset dataset = dataset_of(object);
  detail::Room room;
  detail::checked(error, room, [&](feedlane_error* e) { return feedlane_worker_run(fd, nullptr, &dataset, e); });
  return error ? 1 : 0;
}
/** As above, in a process where is_worker() is true. The error is not returned. */
template <class T>
int run_worker() {
  Error error;
  return run_worker<T>(worker_descriptor(), error);
}
/** As above, with an existing object. */
template <class T>
int run_worker(T& object) {
  Error error;
  return run_worker(worker_descriptor(), object, error);
}

}  // namespace v1
}  // namespace feedlane

#endif
