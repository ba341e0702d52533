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

/** Whether a trainer started this process. Ask early in main, once: the descriptor is kept for run_worker. */
inline std::int32_t& worker_descriptor() {
  static std::int32_t fd = feedlane_worker_fd();
  return fd;
}
/** Whether a trainer started this process to work. */
inline bool is_worker() { return worker_descriptor() >= 0; }

/** Works until the trainer wants no more, with an object that each worker makes. Returns an exit status for main; what went
 *  wrong is in `error`. */
template <class T>
int run_worker(std::int32_t fd, Error& error) {
  const feedlane_dataset dataset = dataset_of<T>();
  detail::Room room;
  detail::checked(error, room, [&](feedlane_error* e) { return feedlane_worker_run(fd, &dataset, e); });
  return error ? 1 : 0;
}
/** The same with an object that is there, see dataset_of. */
template <class T>
int run_worker(std::int32_t fd, T& object, Error& error) {
  const feedlane_dataset dataset = dataset_of(object);
  detail::Room room;
  detail::checked(error, room, [&](feedlane_error* e) { return feedlane_worker_run(fd, &dataset, e); });
  return error ? 1 : 0;
}
/** The same for the process that is_worker() is true of; what went wrong is not told. */
template <class T>
int run_worker() {
  Error error;
  return run_worker<T>(worker_descriptor(), error);
}
/** The same with an object that is there. */
template <class T>
int run_worker(T& object) {
  Error error;
  return run_worker(worker_descriptor(), object, error);
}

}  // namespace v1
}  // namespace feedlane

#endif
