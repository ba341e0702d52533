/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ring.h
 * Standalone rings: fixed-size messages from several senders to one receiver, possibly in different processes.
 */
#ifndef FEEDLANE_RING_H
#define FEEDLANE_RING_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_rx feedlane_rx; /**< the receiving end of a ring */
typedef struct feedlane_tx feedlane_tx; /**< a sending end of a ring */

/** A ring. It is SPSC with one lane and MPSC with several. Each sender's messages stay in order; messages of different
 *  senders have no order. */
typedef struct feedlane_ring_config {
  size_t size;
  uint32_t message_bytes; /**< 1 .. 1 MiB; a cell takes 8 more, rounded up to a multiple of 64 */
  uint32_t capacity;      /**< messages in a lane: a power of two up to 2^24 */
  uint32_t lanes;         /**< senders at the same time, up to 4096; 0: 1 */
  uint32_t reserved;
  const char *path; /**< NULL: senders attach by feedlane_rx_offer only. Otherwise they may also connect to this Unix
                         socket, which has mode 0600 and accepts only processes of the same user. When the
                         receiver is destroyed, the socket is removed, but no other file at this path */
} feedlane_ring_config;

/** Messages that are read or written in place, `stride` bytes apart. */
typedef struct feedlane_span {
  void *data;      /**< the first message */
  uint64_t stride; /**< bytes from one message to the next */
  uint32_t count;  /**< may be less than requested, because a span never wraps around the end of a lane */
  uint32_t lane;   /**< the lane of all these messages */
} feedlane_span;

/**
 * Creates a ring and its receiving end. Each sender gets a new lane, whose memory is reserved when the sender attaches.
 * This call checks that there is enough memory for all lanes.
 *  - E_STATE: another process listens at the path.
 *  - E_MEMORY, E_LIMIT, E_OS: a resource of the system is missing.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_rx_create(const feedlane_ring_config *config, feedlane_rx **out, feedlane_error *err);
/**
 * Reserves a lane and returns a connected socket for its sender. The caller passes `*fd` to the sender and closes it.
 *  - E_LIMIT: every lane is taken.
 *  - E_MEMORY, E_OS: a resource of the system is missing.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_rx_offer(feedlane_rx *rx, int32_t *fd, feedlane_error *err);
/**
 * Waits for messages and returns up to `want` (>= 1) messages of one lane. Lanes are served in round-robin order.
 * Messages stay in place until feedlane_rx_release; a second peek before the release returns messages of the next lane.
 *  - END: all senders that attached have left or died, and all their messages were received. Each call returns END
 *    until another sender attaches. Before END is returned, a process that has connected to the path is admitted if it
 *    asks for a lane within 100 ms and within `timeout_ns`.
 *  - TIMEOUT: no message came in time.
 *  - INTERRUPTED: a signal ended the wait.
 *  - E_OS: there is no message, and the process has too few descriptors to admit a sender at the path. feedlane_rx_arm
 *    and feedlane_rx_offer return this error too.
 *
 * Thread safety: one thread at a time. Waits.
 */
FEEDLANE_API int32_t feedlane_rx_peek(feedlane_rx *rx, uint32_t want, int64_t timeout_ns, feedlane_span *got,
                                      feedlane_error *err);
/**
 * Releases the first `count` messages of the last peek, which must have been of `lane`.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_rx_release(feedlane_rx *rx, uint32_t lane, uint32_t count, feedlane_error *err);
/**
 * Waits for messages, copies up to `want` (>= 1) messages of one lane to `messages`, `message_bytes` apart, and
 * releases them. `*got` is their number, 0 unless the call returns 0. `*lane` is their lane; `lane` may be NULL. Lanes
 * are served in round-robin order. The call cancels an earlier peek: messages of it that were not released are received
 * like any other message and can no longer be released.
 *  - END, TIMEOUT, INTERRUPTED, E_OS: see feedlane_rx_peek.
 *
 * Thread safety: one thread at a time. Waits.
 */
FEEDLANE_API int32_t feedlane_rx_receive(feedlane_rx *rx, void *messages, uint32_t want, int64_t timeout_ns,
                                         uint32_t *got, uint32_t *lane, feedlane_error *err);
/**
 * Prepares to sleep in an event loop. `*fd` is the descriptor to poll for reading; `fd` may be NULL. The ring owns the
 * descriptor, and its number never changes. It is written on 0 and AGAIN.
 *  - 0: there is no message; sleep. Also returned after END, so that a program can wait for the next sender.
 *  - AGAIN: call feedlane_rx_peek now.
 *  - E_OS: see feedlane_rx_peek. Also if the system now refuses membarrier(2) but allowed it in feedlane_rx_create.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_rx_arm(feedlane_rx *rx, int32_t *fd);
/**
 * Ends the ring: senders get E_PEER_DEAD from their next wait. Closes the receiving end, waits until any call in
 * another thread has returned, and then frees the receiver. `*rx` becomes NULL. NULL is allowed.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_rx_destroy(feedlane_rx **rx);
/** Ends the current wait with E_STATE; later calls return E_STATE. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_rx_close(feedlane_rx *rx);

/**
 * Becomes a sender through the descriptor of an offer or, with fd -1, through the socket at `path`. The library takes
 * ownership of `fd` in every case and makes it close-on-exec. The receiver admits senders in feedlane_rx_peek,
 * feedlane_rx_arm and feedlane_rx_offer. Once this call has returned 0, the receiver gets every message that is
 * committed. With an offer from the same process this call does not wait. `*message_bytes` is the ring's message size;
 * `message_bytes` may be NULL.
 *  - TIMEOUT: the receiver did not answer in time.
 *  - E_PEER_DEAD: there is no receiver.
 *  - E_LIMIT: every lane is taken.
 *  - E_STATE: the receiver belongs to another user. Before Linux 6.5 also if the receiver cannot see this process
 *    because it is in another PID namespace.
 *  - E_ABI, E_CORRUPT: the receiver's library lays out memory differently, or its message is invalid.
 *  - E_OS: a system call failed, or the receiver has too few descriptors or too little memory; a retry may succeed.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_tx_attach(int32_t fd, const char *path, int64_t timeout_ns, feedlane_tx **out,
                                        uint32_t *message_bytes, feedlane_error *err);
/**
 * Waits for space and returns up to `want` (>= 1) messages to fill. An earlier reservation that was not committed is
 * dropped.
 *  - TIMEOUT: the lane stayed full.
 *  - INTERRUPTED: a signal ended the wait.
 *  - E_PEER_DEAD: the lane is full and the receiver is gone.
 *
 * Thread safety: one thread at a time. Waits.
 */
FEEDLANE_API int32_t feedlane_tx_reserve(feedlane_tx *tx, uint32_t want, int64_t timeout_ns, feedlane_span *got,
                                         feedlane_error *err);
/**
 * Publishes the first `count` reserved messages in order; 0 drops the reservation. If this process is killed during the
 * call, the receiver gets either all of these messages, each complete, or none.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_tx_commit(feedlane_tx *tx, uint32_t count, feedlane_error *err);
/**
 * Waits for space, copies `count` (>= 1) messages, which lie `message_bytes` apart, into the lane and publishes them in
 * order. An earlier reservation that was not committed is dropped.
 *
 * The messages are published in parts. A part is as many messages as currently fit before the end of the lane, so
 * `count` messages are one part if all of them fit there. If this process is killed during the call, the receiver gets
 * each part completely or not at all, and no part without the earlier ones.
 *
 * `*sent` is the number of published messages, whatever the result; `sent` may be NULL. The receiver gets these
 * messages. To send the others, call again.
 *  - TIMEOUT: the lane stayed full.
 *  - INTERRUPTED: a signal ended the wait.
 *  - E_PEER_DEAD: the lane is full and the receiver is gone.
 *
 * Thread safety: one thread at a time. Waits.
 */
FEEDLANE_API int32_t feedlane_tx_send(feedlane_tx *tx, const void *messages, uint32_t count, int64_t timeout_ns,
                                      uint32_t *sent, feedlane_error *err);
/**
 * Leaves the ring: the receiver still gets all committed messages. Closes the sending end, waits until any call in
 * another thread has returned, and then frees the sender. `*tx` becomes NULL. NULL is allowed.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_tx_destroy(feedlane_tx **tx);
/** Ends the current wait with E_STATE; later calls return E_STATE. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_tx_close(feedlane_tx *tx);

#ifdef __cplusplus
}
#endif
#endif
