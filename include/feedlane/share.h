/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file share.h
 * One loader, many trainers: a feeder owns the loader and its workers; consumers in other processes take its batches.
 *
 * A place is a seat for one consumer, numbered 0 to config.consumers - 1. The feeder creates a loader with
 * config.share, opens a place for each consumer, and calls feedlane_loader_begin and feedlane_loader_serve for each
 * epoch. Epoch numbers must ascend; no epoch can be begun twice. A consumer joins through the place's descriptor or
 * through config.share_path, and gets a feedlane_loader. This handle works like an ordinary loader's with begin, next,
 * poll, arm, stop, state, close and destroy, and with the functions for batches, DLPack and events. Functions for
 * workers return E_STATE for it. A monitor of it answers feedlane_monitor_get_stats and _get_info, and E_STATE
 * otherwise.
 *
 * Tensors of a consumer are read-only: the kernel refuses writes to them (SIGSEGV). If workers are spawned or external,
 * a consumer process of the feeder's user can deliberately bypass this: see "What is protected from whom" in
 * docs/sharing.md.
 */
#ifndef FEEDLANE_SHARE_H
#define FEEDLANE_SHARE_H

#include "loader.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How the feeder acts when it has no free slot because this consumer has not released its batches. */
#define FEEDLANE_LAG_BLOCK 0   /**< waits for the consumer */
#define FEEDLANE_LAG_EVICT 1   /**< waits, then evicts a consumer that took and returned no batch for evict_after_ns */
#define FEEDLANE_LAG_OBSERVE 2 /**< revokes batches not taken yet, so the consumer skips them (feedlane_batch.missed) */

/** A consumer's place. */
typedef struct feedlane_consumer_config {
  size_t size;
  int32_t id;             /**< the place (if `share` is deal: the rank); -1: any free place. feedlane_init sets 0 */
  int32_t lag;            /**< FEEDLANE_LAG_*; share deal: not OBSERVE */
  int64_t evict_after_ns; /**< with FEEDLANE_LAG_EVICT; 0: 60 s */
  /** Of the consumer's process, so only for feedlane_loader_join: registers the reserved part of every slot for reading,
   *  once; NULL: no registration. The pool must exist as long as the loader and its batches. */
  feedlane_pool *pinned;
} feedlane_consumer_config;

/**
 * Opens a place for one consumer and returns a connected socket, which the caller passes to that process and closes.
 * From now on batches are kept for the place, so a consumer that joins late misses none. If nobody joins within
 * config.start_timeout_ns and the feeder needs the slots, it closes the place. `config` NULL: any free place,
 * FEEDLANE_LAG_BLOCK. `*id` is the place's number. Share deal: call this again to replace a consumer that has ended or
 * was evicted. The new consumer continues with the batches that the old one had not taken.
 *  - E_STATE: the loader has no config.share.
 *  - E_LIMIT: all config.consumers places have a consumer.
 *  - E_ARGUMENT: config.id is out of range, or this place has a consumer.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_open_consumer(feedlane_loader *l, const feedlane_consumer_config *config,
                                                   int32_t *id, int32_t *fd, feedlane_error *err);
/**
 * The feeder's loop: delivers batches to the consumers, receives released slots, admits consumers and detects their
 * ends, until the epoch is over or `timeout_ns` has passed. Consumers get an error of one batch (E_SAMPLE,
 * E_QUARANTINED) in place of that batch. feedlane_loader_poll does the same work without waiting.
 *  - END: every batch of the epoch was delivered.
 *  - END before the first epoch: config.consumers consumers have joined. Call serve before begin if none of them may
 *    miss a batch.
 *  - END after an epoch: all consumers have left or were evicted, and hold no batch.
 *  - TIMEOUT, INTERRUPTED: call again.
 *  - E_PEER_DEAD: there is no consumer. With share deal also if one place has no consumer, and the batches kept for it
 *    occupy the slots that other places need, or more than 2^14 messages are kept for it. In the latter case
 *    feedlane_loader_begin returns the error too. Each call returns the error until a place is opened.
 *  - E_HUNG: consumers that were evicted or have left hold every slot; `text` names them. Each call returns the error
 *    until one of them ends or releases a batch.
 *  - Other errors of feedlane_loader_next.
 *
 * Thread safety: one thread at a time. Waits. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_loader_serve(feedlane_loader *l, int64_t timeout_ns, feedlane_error *err);

/**
 * Joins a feeder through `fd`, a descriptor of feedlane_loader_open_consumer or, with fd -1, at `path`, its
 * config.share_path. Closes `fd`, also on failure. A place takes one consumer. With `path`, the feeder opens a place at
 * its next feedlane_loader_serve or _poll, as `config` says; NULL has the same meaning as in
 * feedlane_loader_open_consumer. With `fd`, `path` is NULL, and of `config` only `pinned` may be set. The handle is
 * freed like that of a loader. feedlane_loader_destroy leaves the place, but held batches keep their slots until they
 * are released. On a consumer, begin does not wait for the feeder, next discards messages of earlier epochs, and an
 * epoch can be begun once. next returns:
 *  - END: the feeder has delivered the complete epoch. With share every, all consumers get END after the same batch;
 *    with share deal and without config.share_tail, after the same number of batches. With FEEDLANE_LAG_OBSERVE, next
 *    also returns END at once for an epoch that began and ended while this consumer read nothing.
 *  - SLOTS_HELD: the feeder has no free slot, and this consumer holds the most batches; release one.
 *  - E_PEER_DEAD: the feeder has ended. Returned after all batches of this epoch that it had delivered.
 *  - E_HUNG: this consumer was evicted. Batches that it holds stay valid.
 *  - E_STATE: the feeder is in a later epoch (argument "epoch", `needed` is that epoch), or has stopped the epoch.
 *  - With config.pinned, E_DEVICE or another error of the backend: a slot could not be registered again after a worker's
 *    end. The next call tries again.
 *  - E_CORRUPT: a faulty feeder sent an invalid message or batch. All tensors of a batch that next returns lie within
 *    the feeder's memory, whatever the feeder does; their contents are not checked.
 *
 * Other functions:
 *  - state: sends a request to the feeder and waits until the feeder calls serve or poll; E_HUNG after 10 s. Share
 *    deal: with N = config.consumers, batches n * N to n * N + N - 1 are a round. The state is the one after the
 *    batch's complete round, so all consumers get the same state after the same number of batches.
 *
 * Errors of this call:
 *  - TIMEOUT: the feeder did not answer in time.
 *  - E_PEER_DEAD: the feeder has ended.
 *  - E_HUNG: the feeder has closed the place, because nobody joined within its config.start_timeout_ns.
 *  - E_CORRUPT, E_ABI: the other end is not a feeder, or the feeder's library is of another version.
 *  - With config.pinned: an error of its backend; E_UNSUPPORTED if it cannot register memory for reading only. The time
 *    that the registration takes does not count towards `timeout_ns`.
 *  - With `path`, E_LIMIT, E_ARGUMENT: see feedlane_loader_open_consumer. E_LIMIT also if too many connections have not
 *    requested a place. E_STATE: the feeder belongs to another user.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_loader_join(int32_t fd, const char *path, const feedlane_consumer_config *config,
                                          int64_t timeout_ns, feedlane_loader **out, feedlane_error *err);
#define FEEDLANE_CONSUMER_NONE 0     /**< share deal: no consumer; batches are kept for the next one */
#define FEEDLANE_CONSUMER_OFFERED 1  /**< the place was opened, but nobody has joined yet */
#define FEEDLANE_CONSUMER_ATTACHED 2 /**< has joined */
#define FEEDLANE_CONSUMER_EVICTED 3  /**< was evicted, but still holds batches */
#define FEEDLANE_CONSUMER_LEFT 4     /**< has left, but still holds batches */

/** A consumer, as its feeder sees it. */
typedef struct feedlane_consumer_stats {
  size_t size;
  int32_t id;    /**< the place */
  int32_t state; /**< FEEDLANE_CONSUMER_* */
  int64_t pid;   /**< 0: unknown, or the consumer has not joined */
  int32_t lag;   /**< FEEDLANE_LAG_* */
  int32_t reserved;
  uint64_t delivered;  /**< batches delivered */
  uint64_t taken_back; /**< batches revoked before the consumer took them, or not delivered because its ring was full */
  uint64_t waiting;    /**< batches delivered but not yet taken */
  uint64_t held;       /**< batches taken but not yet returned */
} feedlane_consumer_stats;

/**
 * Describes consumer `nth` of this feeder. Consumers come in the order in which their places were opened. With share
 * deal, places without a consumer follow. Consumers that were evicted or have left are listed while they hold batches.
 * The feeder first handles messages and returned batches of consumers. If `nth` counts up from 0 without another call
 * on this feeder in between, all results show the consumers as they were at `nth` 0. END: there are fewer consumers.
 * E_ARGUMENT: `nth` is negative.
 *
 * This call, feedlane_loader_open_consumer and feedlane_loader_begin may handle events. Then feedlane_loader_arm
 * returns AGAIN until the next serve or poll; if the host has already armed, the descriptor becomes readable.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_get_consumer(feedlane_loader *l, int32_t nth, feedlane_consumer_stats *out);

#ifdef __cplusplus
}
#endif
#endif
