/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file arena.h
 * Arenas: tensors in shared memory that all processes of a machine can put and get, without a copy.
 *
 * One process, the owner, creates an arena. Others join it as members. Each of them, the owner included, can put
 * entries: any number of named tensors, and metadata.
 *  - An entry with a key is stored: every process can get it, until it is dropped, replaced or evicted.
 *  - An entry without a key is sent once: by a member to the owner, by the owner to every member. Each process receives
 *    the entries of one sender in the order in which they were published.
 *
 * What a process gets or receives is a feedlane_batch, for feedlane_batch_retain, _release and _dlpack. Its memory is
 * mapped for reading only, and it stays as it is until the last release, whatever happens to the entry, its maker or the
 * owner. If a process ends, what it held is free again, and what it had published stays. No count lies in shared memory.
 *
 * The owner must serve its members: it does in every call on the arena that waits, and in feedlane_arena_receive. A
 * get that finds its entry needs no service, makes no system call and takes no lock; the first get from a member's
 * memory maps that memory, with the owner's help.
 *
 * An arena is a source of batches like a loader. So the functions of batch.h and dlpack.h, feedlane_loader_next (which
 * is feedlane_arena_receive), feedlane_loader_interrupt, feedlane_loader_close (current waits end with
 * E_STATE), feedlane_loader_event, feedlane_loader_ref and feedlane_loader_unref take it too. Other functions of loaders
 * return E_STATE for it. feedlane_monitor_arena reads an arena from another process.
 */
#ifndef FEEDLANE_ARENA_H
#define FEEDLANE_ARENA_H

#include "batch.h"
#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The owner's or a member's end of an arena. */
typedef struct feedlane_loader feedlane_arena;

/** The longest key, in bytes. */
#define FEEDLANE_MAX_KEY_BYTES 64

/** @{ What a put does if there is no free memory; see feedlane_arena_config. */
#define FEEDLANE_FULL_EVICT 0 /**< evict entries with a key, least recently used first; if there are none, wait */
#define FEEDLANE_FULL_WAIT 1  /**< wait until memory is released */
#define FEEDLANE_FULL_FAIL 2  /**< return E_LIMIT */
/** @} */

/** An arena. Zeros are defaults, except in `bytes`. */
typedef struct feedlane_arena_config {
  size_t size;
  uint64_t bytes;    /**< memory for entries, 64 KiB to 1 TiB; an entry may take a third of it */
  uint32_t members;  /**< processes besides the owner at the same time, up to 255; 0: 16 */
  uint32_t entries;  /**< entries at the same time, up to 2^20; 0: one per 64 KiB, at least 1024 */
  uint32_t leases;   /**< batches that one process may hold, up to 65,536; 0: 1024 */
  int32_t when_full; /**< one of FEEDLANE_FULL_... */
  const char *path;  /**< NULL: members join by feedlane_arena_offer only. Otherwise processes of the same user may
                           also join at this Unix socket, which has mode 0600. It is removed with the arena */
} feedlane_arena_config;

/** An entry to put. */
typedef struct feedlane_put {
  size_t size;
  const void *key;              /**< NULL: the entry is sent, not stored; copied */
  uint64_t key_bytes;           /**< 1 .. FEEDLANE_MAX_KEY_BYTES; 0 without a key */
  const feedlane_field *fields; /**< name, type and complete shape of each tensor, up to 7 dimensions; copied */
  uint64_t field_count;         /**< up to FEEDLANE_MAX_TENSORS */
  const void *metadata;         /**< copied; NULL: none */
  uint64_t metadata_bytes;      /**< length of `metadata` */
  int32_t pinned;               /**< 1: never evicted, only dropped */
  int32_t reserved;
} feedlane_put;

/** Flag of feedlane_arena_get: if there is no entry, this process would make it. */
#define FEEDLANE_GET_MAKE 1

/** The state of an arena, and of this process in it. */
typedef struct feedlane_arena_stats {
  size_t size;
  int64_t owner;       /**< pid of the owner, as this process sees it; 0: unknown */
  uint64_t bytes;      /**< config.bytes */
  uint64_t used_bytes; /**< memory that entries take, the owner only */
  uint64_t free_bytes; /**< the rest: memory without an entry; the owner only */
  uint64_t entries;    /**< entries now, sent ones included; the owner only */
  uint64_t members;    /**< processes now, the owner included; the owner only */
  uint64_t leased;     /**< entries that any process holds; the owner only */
  uint64_t waiting;    /**< requests that wait for memory or for a key; the owner only */
  uint64_t published;  /**< entries ever published; the owner only */
  uint64_t evicted;    /**< of these, evicted; the owner only */
  uint64_t hits;       /**< gets that found their entry; the owner: of all processes there are now */
  uint64_t misses;     /**< gets that did not, counted in the same way */
  uint64_t held;       /**< batches and puts that this process holds */
} feedlane_arena_stats;

/**
 * Creates an arena and its owner. Memory is taken from the system when it is first needed, up to config.bytes.
 *  - E_STATE: another process listens at the path.
 *  - E_MEMORY, E_LIMIT, E_OS: a resource of the system is missing.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_arena_create(const feedlane_arena_config *config, feedlane_arena **out,
                                           feedlane_error *err);
/**
 * Returns a connected socket for one member, which may belong to any user. The caller passes `*fd` to the member and
 * closes it.
 *  - E_LIMIT: there are config.members members already, or too many that have ended have left entries that may not be
 *    evicted.
 *  - E_STATE: `a` is not the owner's.
 *  - E_MEMORY, E_OS: a resource of the system is missing.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_arena_offer(feedlane_arena *a, int32_t *fd, feedlane_error *err);
/**
 * Becomes a member through the descriptor of an offer or, with fd -1, through the socket at `path`. The library takes
 * ownership of `fd` in every case.
 *  - TIMEOUT: the owner did not answer in time.
 *  - E_PEER_DEAD: there is no owner.
 *  - E_LIMIT: there are config.members members already, or too many that have ended have left entries that may not be
 *    evicted.
 *  - E_STATE: the owner belongs to another user, and `path` was passed.
 *  - E_ABI, E_CORRUPT: the owner's library lays out memory differently, or its message is invalid.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_arena_join(int32_t fd, const char *path, int64_t timeout_ns, feedlane_arena **out,
                                         feedlane_error *err);
/**
 * Reserves memory for an entry. `*out` has its tensors, whose `data` the caller fills; other processes see nothing of
 * them before feedlane_arena_publish. feedlane_batch_release gives the memory back instead.
 *  - TIMEOUT: there was no memory in time, and config.when_full is not FEEDLANE_FULL_FAIL.
 *  - SLOTS_HELD: this process holds config.leases batches and puts.
 *  - E_LIMIT: the entry exceeds a third of the arena, or there is no memory (FEEDLANE_FULL_FAIL); `found` and `needed`
 *    are the bytes available and the bytes of the entry.
 *  - E_PEER_DEAD: the owner has ended. E_CORRUPT: the owner has cut this member off.
 *  - INTERRUPTED: a signal or feedlane_loader_interrupt ended the wait.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_arena_reserve(feedlane_arena *a, const feedlane_put *put, int64_t timeout_ns,
                                            feedlane_batch *out, feedlane_error *err);
/**
 * Publishes the entry of a reservation, complete or not at all, and ends the reservation. An entry with the same key is
 * replaced. The owner takes it up later: a get by this process waits for that, at most 5 s; others may get the earlier
 * entry until then.
 *  - TIMEOUT: the owner has not taken earlier requests in time. The reservation stays.
 *  - E_STALE: `token` is not of a reservation.
 *  - E_PEER_DEAD, E_CORRUPT, INTERRUPTED: see feedlane_arena_reserve.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_arena_publish(feedlane_arena *a, uint64_t token, int64_t timeout_ns, feedlane_error *err);
/**
 * Gets the entry with this key. If there is none, waits for it. With timeout 0 it asks nobody.
 *
 * With FEEDLANE_GET_MAKE, one process at a time gets ABSENT: the right to make the entry. It reserves and publishes it,
 * or gives the right back by feedlane_arena_drop. If it ends, the next one gets the right. It keeps the right if
 * another process puts the entry. Others wait for the entry.
 *  - TIMEOUT: there is no entry yet.
 *  - ABSENT: there is no entry, and this process has the right to make it.
 *  - SLOTS_HELD: see feedlane_arena_reserve.
 *  - E_CORRUPT: the entry's maker has overwritten the description of its tensors; the text names the maker.
 *  - E_PEER_DEAD: there is no entry, and the owner has ended. Entries that are there are still found.
 *  - INTERRUPTED: a signal or feedlane_loader_interrupt ended the wait.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_arena_get(feedlane_arena *a, const void *key, uint64_t key_bytes, int32_t flags,
                                        int64_t timeout_ns, feedlane_batch *out, feedlane_error *err);
/**
 * Waits for the next entry without a key that was sent to this process. The owner serves its members while it waits. With
 * `out` NULL it receives nothing, and serves until the timeout.
 *  - TIMEOUT, INTERRUPTED, SLOTS_HELD: see feedlane_arena_get.
 *  - E_PEER_DEAD: all was received, and the owner has ended.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_arena_receive(feedlane_arena *a, int64_t timeout_ns, feedlane_batch *out,
                                            feedlane_error *err);
/**
 * Drops the entry with this key: later gets do not find it, batches that were got stay. Also gives back the right to
 * make it. Returns 0 if there is neither.
 *  - TIMEOUT: the owner has not taken earlier requests in time.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_arena_drop(feedlane_arena *a, const void *key, uint64_t key_bytes, int64_t timeout_ns,
                                         feedlane_error *err);
/**
 * Prepares to sleep in an event loop. `*fd` is the descriptor to poll for reading; `fd` may be NULL. The arena owns the
 * descriptor, and its number never changes. It is written on 0 and AGAIN.
 *  - 0: there is nothing to receive and nobody to serve; sleep.
 *  - AGAIN: call feedlane_arena_receive now.
 *  - E_BUSY: another thread waits in a call on this arena.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_arena_arm(feedlane_arena *a, int32_t *fd);
/** Reads the state of the arena. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_arena_get_stats(feedlane_arena *a, feedlane_arena_stats *out);
/**
 * Leaves the arena; the owner ends it. Waits until calls of other threads have returned. Batches that are held stay
 * valid, and keep the memory, until they are released. `*a` becomes NULL. NULL is allowed.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_arena_destroy(feedlane_arena **a);

#ifdef __cplusplus
}
#endif
#endif
