// SPDX-License-Identifier: Apache-2.0
/**
 * @file worker.hpp
 * The worker's side: a program runs a data set (see dataset.hpp), often the trainer's own.
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

/** The descriptor that the trainer passed to this process, for run_worker; negative: none. Call early in main. */
inline std::int32_t& worker_descriptor() {
  static std::int32_t fd = feedlane_worker_fd();
  return fd;
}
/** Whether a trainer started this process as a worker. */
inline bool is_worker() { return worker_descriptor() >= 0; }

/** Runs a worker until the trainer ends it, with an object of T created here. Returns an exit status for main; the error is
 *  in `error`. */
template <class T>
int run_worker(std::int32_t fd, Error& error) {
  const feedlane_dataset dataset = dataset_of<T>();
  detail::Room room;
  detail::checked(error, room, [&](feedlane_error* e) { return feedlane_worker_run(fd, &dataset, e); });
  return error ? 1 : 0;
}
/** The same with an existing object, see dataset_of. */
template <class T>
int run_worker(std::int32_t fd, T& object, Error& error) {
  const feedlane_dataset dataset = dataset_of(object);
  detail::Room room;
  detail::checked(error, room, [&](feedlane_error* e) { return feedlane_worker_run(fd, &dataset, e); });
  return error ? 1 : 0;
}
/** The same for a process for which is_worker() is true; the error is not returned. */
template <class T>
int run_worker() {
  Error error;
  return run_worker<T>(worker_descriptor(), error);
}
/** The same with an existing object. */
template <class T>
int run_worker(T& object) {
  Error error;
  return run_worker(worker_descriptor(), object, error);
}

}  // namespace v1
}  // namespace feedlane

#endif
