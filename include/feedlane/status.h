/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * Outcomes and errors: status numbers, the error struct, and how to initialise any struct of the interface.
 */
#ifndef FEEDLANE_STATUS_H
#define FEEDLANE_STATUS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FEEDLANE_API __attribute__((visibility("default")))
#else
#define FEEDLANE_API
#endif

/** A timeout that never passes. */
#define FEEDLANE_FOREVER INT64_MAX

/** Every status: name, number, text. The constants below have the same names and numbers; a test compares them. */
#define FEEDLANE_STATUS_TABLE(X)                                                \
  X(OK, 0, "done")                                                              \
  X(END, 1, "the epoch or the tasks have ended")                                \
  X(TIMEOUT, 2, "the timeout has expired")                                      \
  X(AGAIN, 3, "something is ready already: don't sleep")                        \
  X(INTERRUPTED, 4, "interrupted by a signal or feedlane_loader_interrupt")     \
  X(SLOTS_HELD, 5, "the trainer holds every slot: release a batch")             \
  X(ABANDONED, 6, "the trainer no longer needs this task: drop it")             \
  X(ABSENT, 7, "there is no such entry, and the caller may make it")            \
  X(E_ARGUMENT, -1, "an argument is invalid")                                   \
  X(E_STATE, -2, "not possible in this state")                                  \
  X(E_BUSY, -3, "another thread is in a call that allows one thread at a time") \
  X(E_FORKED, -4, "the handle belongs to the parent process")                   \
  X(E_STALE, -5, "the token is invalid, or was already released")               \
  X(E_MEMORY, -6, "not enough memory")                                          \
  X(E_LIMIT, -7, "a limit of the system or of the configuration was reached")   \
  X(E_OS, -8, "a system call failed")                                           \
  X(E_ABI, -9, "the versions or memory layouts do not match")                   \
  X(E_CORRUPT, -10, "the peer's memory or message is invalid")                  \
  X(E_PEER_DEAD, -11, "the peer has ended or never connected")                  \
  X(E_SAMPLE, -12, "the data set failed for a sample")                          \
  X(E_INIT, -13, "a worker could not set up its data set")                      \
  X(E_HUNG, -14, "a worker or consumer missed its deadline")                    \
  X(E_QUARANTINED, -15, "too many workers died while making this batch")        \
  X(E_RESTARTS, -16, "workers have died more often than max_restarts allows")   \
  X(E_DEVICE, -17, "the accelerator's driver failed")                           \
  X(E_UNSUPPORTED, -18, "not supported by this build or this system")

/** @{ The statuses; FEEDLANE_STATUS_TABLE has the meaning of each. */
#define FEEDLANE_OK 0
#define FEEDLANE_END 1
#define FEEDLANE_TIMEOUT 2
#define FEEDLANE_AGAIN 3
#define FEEDLANE_INTERRUPTED 4
#define FEEDLANE_SLOTS_HELD 5
#define FEEDLANE_ABANDONED 6
#define FEEDLANE_ABSENT 7
#define FEEDLANE_E_ARGUMENT (-1)
#define FEEDLANE_E_STATE (-2)
#define FEEDLANE_E_BUSY (-3)
#define FEEDLANE_E_FORKED (-4)
#define FEEDLANE_E_STALE (-5)
#define FEEDLANE_E_MEMORY (-6)
#define FEEDLANE_E_LIMIT (-7)
#define FEEDLANE_E_OS (-8)
#define FEEDLANE_E_ABI (-9)
#define FEEDLANE_E_CORRUPT (-10)
#define FEEDLANE_E_PEER_DEAD (-11)
#define FEEDLANE_E_SAMPLE (-12)
#define FEEDLANE_E_INIT (-13)
#define FEEDLANE_E_HUNG (-14)
#define FEEDLANE_E_QUARANTINED (-15)
#define FEEDLANE_E_RESTARTS (-16)
#define FEEDLANE_E_DEVICE (-17)
#define FEEDLANE_E_UNSUPPORTED (-18)
/** @} */

/**
 * Describes an error, in the caller's memory. -1 in worker, attempt, epoch, batch or sample means "none". `text` is one
 * line and always terminated. To get a traceback, set `detail` and `detail_cap` before the call; `detail_len` is then
 * its full length in bytes, even if the buffer was too small for it.
 */
typedef struct feedlane_error {
  size_t size;
  int32_t code;      /**< the status returned */
  int32_t os_errno;  /**< errno of the failed system call, 0 if none */
  int32_t worker;    /**< worker id */
  int32_t attempt;   /**< attempt at the batch, from 0 */
  int32_t transient; /**< 1: a retry may succeed; set by a callback */
  int32_t reserved;
  int64_t epoch;       /**< epoch of the batch */
  int64_t batch;       /**< number of the batch in the epoch, from 0 */
  int64_t sample;      /**< data set index */
  int64_t found;       /**< the number found, for errors about a number */
  int64_t needed;      /**< the number needed, for errors about a number */
  char argument[64];   /**< the offending argument, e.g. "config.batch_size"; empty if none */
  char text[384];      /**< the error message */
  char *detail;        /**< the caller's buffer for a traceback, or NULL */
  uint64_t detail_cap; /**< size of that buffer in bytes */
  uint64_t detail_len; /**< bytes of the full traceback, which is not terminated */
} feedlane_error;

/** The library's FEEDLANE_ABI. Thread safety: any thread. */
FEEDLANE_API uint32_t feedlane_abi_version(void);
/** The library's version as "major.minor.patch". Static. Thread safety: any thread. */
FEEDLANE_API const char *feedlane_version(void);
/** The name of a status, such as "E_ARGUMENT" for -1, or "UNKNOWN". Static, never NULL. Thread safety: any thread. */
FEEDLANE_API const char *feedlane_status_name(int32_t status);
/** The meaning of a status in one line. Static, never NULL. Thread safety: any thread. */
FEEDLANE_API const char *feedlane_status_text(int32_t status);
/**
 * Zeroes `size` bytes of any struct of this interface and sets its `size` field. Does nothing if `object` is NULL or
 * `size` is below 8.
 * Thread safety: any thread.
 */
static inline void feedlane_init(void *object, size_t size) {
  if (object == NULL || size < sizeof size) return;
  memset(object, 0, size);
  memcpy(object, &size, sizeof size);
}

#ifdef __cplusplus
}
#endif
#endif
