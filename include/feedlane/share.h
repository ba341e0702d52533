/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file share.h
 * One loader, many trainers: a feeder owns the loader and its workers, consumers in other processes take its batches.
 *
 * A place is a numbered seat for one consumer, 0 to config.consumers - 1. The feeder creates a loader with config.share,
 * opens a place for each consumer, and calls feedlane_loader_begin and feedlane_loader_serve for each epoch. Epochs
 * ascend; none can be begun twice. A consumer joins by the place's descriptor, or by config.share_path, and gets a
 * feedlane_loader. The functions for begin, next, poll, arm, stop, state, close and destroy, for batches, DLPack and
 * events take this handle as they take an ordinary loader's. Functions on workers and those of observe.h return E_STATE.
 *
 * Tensors of a consumer are read-only: the kernel refuses writes to them (SIGSEGV). With spawned or external workers a
 * consumer of the feeder's user can get around that on purpose: see "What is protected from whom" in docs/sharing.md.
 */
#ifndef FEEDLANE_SHARE_H
#define FEEDLANE_SHARE_H

#include "loader.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What the feeder does when it has no free slot because this consumer has not released its batches. */
#define FEEDLANE_LAG_BLOCK 0 /**< waits for it */
#define FEEDLANE_LAG_EVICT 1 /**< waits; evicts it once it has neither taken nor returned a batch for evict_after_ns */
#define FEEDLANE_LAG_OBSERVE 2 /**< revokes batches that it has not taken; it skips them (feedlane_batch.missed) */

/** A consumer's place. */
typedef struct feedlane_consumer_config {
  size_t size;
  int32_t id;             /**< the place, with share deal the rank; -1: any without a consumer. feedlane_init sets 0 */
  int32_t lag;            /**< FEEDLANE_LAG_*; share deal: not OBSERVE */
  int64_t evict_after_ns; /**< with FEEDLANE_LAG_EVICT; 0: 60 s */
} feedlane_consumer_config;

/**
 * Opens a place for one consumer and returns a connected socket, which the caller passes to that process and closes.
 * Batches are kept for the place from now on, so a late joiner misses none. If nobody joins within
 * config.start_timeout_ns and the feeder needs the slots, it closes the place. `config` NULL: any place,
 * FEEDLANE_LAG_BLOCK. `*id` is the place's number. Share deal: call this again to replace a consumer that has ended or
 * was evicted. The new one continues with the batches that the old one had not taken.
 *  - E_STATE: the loader has no config.share.
 *  - E_LIMIT: all config.consumers places have a consumer.
 *  - E_ARGUMENT: config.id is out of range, or has a consumer.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_open_consumer(feedlane_loader *l, const feedlane_consumer_config *config,
                                                   int32_t *id, int32_t *fd, feedlane_error *err);
/**
 * The feeder's loop: delivers batches to the consumers, receives released slots, admits consumers and observes their
 * ends, until the epoch is over or `timeout_ns` has passed. Errors of one batch (E_SAMPLE, E_QUARANTINED) go to the
 * consumers in the batch's place. feedlane_loader_poll does the same without waiting.
 *  - END: every batch of the epoch was delivered.
 *  - END before the first epoch: config.consumers consumers have joined. Call serve before begin if none of them may miss
 *    a batch.
 *  - END after an epoch: all consumers have left or were evicted, and hold no batch.
 *  - TIMEOUT, INTERRUPTED: call again.
 *  - E_PEER_DEAD: there is no consumer; or, with share deal, a place has none, and the batches kept for it occupy the
 *    slots that the other places need, or more than 2^14 messages are kept for it (also returned by
 *    feedlane_loader_begin). Each call returns it until a place is opened.
 *  - E_HUNG: every slot is held by consumers that were evicted or have left; `text` names them. Each call returns it until
 *    one of them ends or releases a batch.
 *  - Other errors of feedlane_loader_next.
 *
 * Thread safety: one thread at a time. Waits. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_loader_serve(feedlane_loader *l, int64_t timeout_ns, feedlane_error *err);

/**
 * Joins a feeder by the descriptor of feedlane_loader_open_consumer. Closes `fd`, also on failure. A place takes one
 * consumer. The handle is freed as a loader's: feedlane_loader_destroy leaves the place; batches that are held keep
 * their slots until they are released. begin doesn't wait for the feeder. next discards messages of earlier epochs. An
 * epoch can be begun once. What next returns:
 *  - END: the feeder delivered all of the epoch. Share every: all consumers see it after the same batch; share deal:
 *    after the same number of batches, without config.share_tail. FEEDLANE_LAG_OBSERVE: also at once for an epoch that
 *    began and ended while this consumer read nothing.
 *  - SLOTS_HELD: the feeder has no free slot, and this consumer holds the most batches: release one.
 *  - E_PEER_DEAD: the feeder has ended; returned after the batches of this epoch that it had delivered.
 *  - E_HUNG: this consumer was evicted. Batches that it holds stay valid.
 *  - E_STATE: the feeder is in a later epoch (argument "epoch", `needed` is that epoch), or stopped the epoch.
 *  - E_CORRUPT: a message or a batch of a faulty feeder makes no sense. A batch that is returned lies in the feeder's memory with
 *    all of its tensors, whatever the feeder does; what is in them is the feeder's affair.
 *
 * Of other functions:
 *  - state: asks the feeder, and waits until it calls serve or poll; E_HUNG after 10 s. Share deal: batches n * N to
 *    n * N + N - 1 are a round, N being config.consumers. The state is that after the batch's whole round, so after
 *    equally many batches all consumers get the same state.
 *
 * Errors of the call:
 *  - E_PEER_DEAD: the feeder has ended. TIMEOUT.
 *  - E_HUNG: the feeder has closed the place, because nobody joined within its config.start_timeout_ns.
 *  - E_CORRUPT, E_ABI: `fd` leads to no feeder, or to another version's.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_loader_join(int32_t fd, int64_t timeout_ns, feedlane_loader **out, feedlane_error *err);
/**
 * Joins a feeder at its config.share_path: the feeder opens a place as `config` says (NULL: as open_consumer's NULL)
 * at its next feedlane_loader_serve or _poll.
 *  - E_LIMIT, E_ARGUMENT: see feedlane_loader_open_consumer. E_LIMIT also if too many others connect and ask for nothing.
 *  - E_PEER_DEAD: no feeder listens there. E_STATE: the feeder is of another user.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_loader_join_path(const char *path, const feedlane_consumer_config *config,
                                               int64_t timeout_ns, feedlane_loader **out, feedlane_error *err);

/**
 * The smallest epoch that feedlane_loader_begin accepts on this consumer. Before the first begin: the feeder's epoch at
 * the time of the join. Afterwards: one more than the last epoch begun here. E_STATE: not a consumer.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_next_epoch(feedlane_loader *l, int64_t *epoch);

#define FEEDLANE_CONSUMER_NONE 0     /**< share deal: no consumer; batches for this place are kept for the next one */
#define FEEDLANE_CONSUMER_OFFERED 1  /**< opened, not joined */
#define FEEDLANE_CONSUMER_ATTACHED 2 /**< has joined */
#define FEEDLANE_CONSUMER_EVICTED 3  /**< was evicted, and still holds batches */
#define FEEDLANE_CONSUMER_LEFT 4     /**< has left, and still holds batches */

/** A consumer, as its feeder sees it. */
typedef struct feedlane_consumer_stats {
  size_t size;
  int32_t id;    /**< the place */
  int32_t state; /**< FEEDLANE_CONSUMER_* */
  int64_t pid;   /**< 0: unknown, or it hasn't joined */
  int32_t lag;   /**< FEEDLANE_LAG_* */
  int32_t reserved;
  uint64_t delivered;  /**< batches */
  uint64_t taken_back; /**< batches revoked before the consumer took them, or missed for want of room */
  uint64_t waiting;    /**< batches delivered and not taken */
  uint64_t held;       /**< batches taken and not returned */
} feedlane_consumer_stats;

/**
 * Consumer `nth` of this feeder, in the order in which their places were opened; then, with share deal, places without a
 * consumer. Evicted and leaving ones are listed while they hold batches. The feeder first handles what consumers have said and
 * returned. A caller that counts from 0 upwards, without another call on this feeder in between, sees all consumers as they were
 * at 0. END: there are fewer. E_ARGUMENT: nth is negative.
 *
 * An event loop is told what this call, feedlane_loader_open_consumer and begin have handled: until the next serve or poll, arm
 * returns AGAIN; if the host has armed before, the descriptor becomes readable.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_get_consumer(feedlane_loader *l, int32_t nth, feedlane_consumer_stats *out);

#ifdef __cplusplus
}
#endif
#endif
