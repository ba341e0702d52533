/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file feedlane.h
 * The C boundary of Feedlane: feeding training loops through shared memory. C99, self-contained, Linux.
 *
 * What holds for every function, so that it need not be said again:
 *  - It returns int32_t: 0 done; > 0 another normal outcome; < 0 an error. `void` only where nothing can fail.
 *  - `err` is last and may be NULL. It is written on every negative return, and on the positive ones marked (E).
 *    Its `size` must have been set (feedlane_init).
 *  - Output parameters are written on 0 only, except where stated; a failed create leaves `*out` NULL.
 *  - `timeout_ns` is relative: 0 = try once, FEEDLANE_FOREVER = no limit; negative is E_ARGUMENT.
 *  - A signal that lands in a waiting thread ends the wait with FEEDLANE_INTERRUPTED (E); nothing is lost, call again.
 *    err->os_errno is EINTR then, and 0 where feedlane_loader_interrupt has ended it. Not in
 *    calls that can't be called again: begin, stop and destroy, bounded by the stop timeouts, and the attach functions. Nor
 *    in the up to 100 us for which a wait looks before it sleeps: a signal that lands there isn't seen.
 *  - T:any = any thread at any time; T:one = one thread at a time (overlap is found and answered with E_BUSY; peek,
 *    release, reserve and commit of a ring find who is in a call before, but not who enters at the same moment;
 *    feedlane_worker_get_info and _check, what is done with an inline task, and feedlane_pool_destroy look for nobody).
 *    "waits": may sleep, so a runtime with a collector or a lock lets go of it meanwhile. "calls back (...)": runs callbacks of
 *    the user in the calling thread; backends may be called wherever memory is registered or a stream used. The others do
 *    neither.
 *  - Loaders, workers, ring ends and monitors are freed with their last reference. Making one gives the caller a reference,
 *    *_ref adds one, *_unref and *_destroy (feedlane_worker_detach, feedlane_monitor_close) give one back. A thread that calls
 *    needs one for as long: its own, or somebody's that is not given back meanwhile.
 *  - feedlane_*_close ends, from any thread, every present wait on the handle with E_STATE; all later calls answer E_STATE, but
 *    destroy, ref, unref, close and those with a batch's token. It waits for nothing itself. destroy closes first, then
 *    waits until a call of another thread has returned. E_BUSY: it was called in a callback of a call on that handle.
 *  - In a forked child every call on a handle answers E_FORKED, but *_destroy, feedlane_worker_detach and
 *    feedlane_monitor_close: those only clear the pointer.
 *  - Structs begin with `size`. EVERY other field means "default" when zero. A shorter struct than this header's is
 *    accepted; a longer one only if what this library does not know of it is zero (E_ABI otherwise). The size of a
 *    configuration struct or a table of callbacks is a multiple of 8 (E_ABI otherwise). Of output structs as much is
 *    written as there is room for.
 *  - Inputs are copied, never kept, except callback tables' `user_data`.
 *  - Nothing throws across this boundary; callbacks must not throw or longjmp across it either.
 */
#ifndef FEEDLANE_H
#define FEEDLANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FEEDLANE_API __attribute__((visibility("default")))
#else
#define FEEDLANE_API
#endif

/** @{ The version of this header, for `#if`; feedlane_version() says the library's. */
#define FEEDLANE_VERSION_MAJOR 0
#define FEEDLANE_VERSION_MINOR 1
#define FEEDLANE_VERSION_PATCH 0
/** @} */
/** Grows with every release: 10000 for each major, 100 for each minor, 1 for each patch number. */
#define FEEDLANE_VERSION (FEEDLANE_VERSION_MAJOR * 10000 + FEEDLANE_VERSION_MINOR * 100 + FEEDLANE_VERSION_PATCH)
/** The ABI's major number, also the number in the library's soname. */
#define FEEDLANE_ABI 1
/** A timeout that never ends. */
#define FEEDLANE_FOREVER INT64_MAX
/** The largest number of dimensions of a tensor, the batch dimension included. */
#define FEEDLANE_MAX_NDIM 8
/** The largest number of tensors in a batch. */
#define FEEDLANE_MAX_TENSORS 64

/* ---- outcomes ---------------------------------------------------------------------------------------------------- */

/** Every outcome: name, number, text. The names written out below are the same; a test compares them. */
#define FEEDLANE_STATUS_TABLE(X)                                           \
  X(OK, 0, "done")                                                         \
  X(END, 1, "the epoch or the tasks have ended")                           \
  X(TIMEOUT, 2, "nothing came in time")                                    \
  X(AGAIN, 3, "something is ready already: don't sleep")                   \
  X(INTERRUPTED, 4, "a signal or feedlane_loader_interrupt")               \
  X(SLOTS_HELD, 5, "the trainer holds every slot: release a batch")        \
  X(ABANDONED, 6, "the trainer has given up this task: drop it")           \
  X(E_ARGUMENT, -1, "an argument is out of its domain")                    \
  X(E_STATE, -2, "not possible in this state")                             \
  X(E_BUSY, -3, "another thread is in a call that allows one at once")     \
  X(E_FORKED, -4, "the handle belongs to the parent process")              \
  X(E_STALE, -5, "the token's generation has passed")                      \
  X(E_MEMORY, -6, "too little memory")                                     \
  X(E_LIMIT, -7, "a limit of the system or of the configuration")          \
  X(E_OS, -8, "a system call failed")                                      \
  X(E_ABI, -9, "versions or layouts differ")                               \
  X(E_CORRUPT, -10, "the peer's memory or message does not hold together") \
  X(E_PEER_DEAD, -11, "the peer has died or was never there")              \
  X(E_SAMPLE, -12, "the data set failed for a sample")                     \
  X(E_INIT, -13, "a worker could not set up its data set")                 \
  X(E_HUNG, -14, "a worker passed its deadline")                           \
  X(E_QUARANTINED, -15, "this batch has killed its worker too often")      \
  X(E_RESTARTS, -16, "workers die more often than max_restarts allows")    \
  X(E_DEVICE, -17, "the accelerator's driver failed")                      \
  X(E_UNSUPPORTED, -18, "not in this build, or not on this system")

/** @{ A status; FEEDLANE_STATUS_TABLE says what each means. */
#define FEEDLANE_OK 0
#define FEEDLANE_END 1
#define FEEDLANE_TIMEOUT 2
#define FEEDLANE_AGAIN 3
#define FEEDLANE_INTERRUPTED 4
#define FEEDLANE_SLOTS_HELD 5
#define FEEDLANE_ABANDONED 6
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
 * What went wrong, in the caller's own memory. -1 in worker, attempt, epoch, batch or sample means "none".
 * `text` is one line, always terminated. A traceback goes to `detail` when the caller gives room for it (detail,
 * detail_cap before the call); `detail_len` is its whole length in bytes, even when less fitted.
 */
typedef struct feedlane_error {
  size_t size;
  int32_t code;      /**< the status returned */
  int32_t os_errno;  /**< errno of the failed system call, 0 if none */
  int32_t worker;    /**< worker id */
  int32_t attempt;   /**< which attempt at the batch, from 0 */
  int32_t transient; /**< set by a callback: worth a retry */
  int32_t reserved;
  int64_t epoch;       /**< of the batch */
  int64_t batch;       /**< its number in the epoch, from 0 */
  int64_t sample;      /**< data set index */
  int64_t found;       /**< the number found ... */
  int64_t needed;      /**< ... and the number needed, in every refusal that has numbers */
  char argument[64];   /**< the offending argument, e.g. "config.batch_size"; empty if none */
  char text[384];      /**< what went wrong */
  char *detail;        /**< the caller's room for a traceback, or NULL */
  uint64_t detail_cap; /**< bytes there */
  uint64_t detail_len; /**< bytes that the traceback has, however many fitted; not terminated */
} feedlane_error;

/** The ABI major this library was built with. T:any. */
FEEDLANE_API uint32_t feedlane_abi_version(void);
/** "major.minor.patch", static. T:any. */
FEEDLANE_API const char *feedlane_version(void);
/** "E_ARGUMENT" for -1 and so on; "UNKNOWN" for a number that is none. Static, never NULL. T:any. */
FEEDLANE_API const char *feedlane_status_name(int32_t status);
/** What a status means, one line. Static, never NULL. T:any. */
FEEDLANE_API const char *feedlane_status_text(int32_t status);
/** Zeroes `size` bytes of any struct of this header and sets its `size` field. NULL or a size under 8 does nothing. T:any. */
FEEDLANE_API void feedlane_init(void *object, size_t size);

/* ---- handles ----------------------------------------------------------------------------------------------------- */

typedef struct feedlane_sampler feedlane_sampler; /**< yields indices, epoch by epoch */
typedef struct feedlane_loader feedlane_loader;   /**< the trainer's side */
typedef struct feedlane_worker feedlane_worker;   /**< the worker's side */
typedef struct feedlane_rx feedlane_rx;           /**< the receiving end of a standalone ring */
typedef struct feedlane_tx feedlane_tx;           /**< a sending end */
typedef struct feedlane_monitor feedlane_monitor; /**< a look at another process's loader */
typedef struct feedlane_pool feedlane_pool;       /**< memory registered with a device, and buffers of it */

/* ---- standalone rings: messages of one size from up to `lanes` senders to one receiver ---------------------------- */

/** With one lane an SPSC ring, with several MPSC: each sender's messages in order, none across. */
typedef struct feedlane_ring_config {
  size_t size;
  uint32_t message_bytes; /**< 1 .. 1 MiB; with 8 more, rounded up to 64, a cell */
  uint32_t capacity;      /**< messages a lane holds: a power of two up to 2^24 */
  uint32_t lanes;         /**< senders at a time, up to 4096; 0: 1 */
  uint32_t reserved;
  const char *path; /**< NULL: senders come by feedlane_rx_offer; else also by connecting to this Unix socket,
                               mode 0600, peers of the same user only; removed with the receiver, no other file is */
} feedlane_ring_config;

/** Messages in place, `stride` bytes apart. */
typedef struct feedlane_span {
  void *data;      /**< the first message */
  uint64_t stride; /**< bytes from one message to the next */
  uint32_t count;  /**< may be less than asked: messages of one span never cross the ring's end */
  uint32_t lane;   /**< whose messages they are */
} feedlane_span;

/** Makes a ring and its receiving end. A lane's memory is reserved when a sender comes, for each anew; whether there is enough
 *  for all of them is looked at here. E_ARGUMENT, E_MEMORY, E_LIMIT, E_OS, E_STATE (another process listens at the path).
 *  T:any. */
FEEDLANE_API int32_t feedlane_rx_create(const feedlane_ring_config *config, feedlane_rx **out, feedlane_error *err);
/** A connected socket for one sender, the caller's to pass to that process and to close. E_LIMIT: every lane is taken.
 *  E_MEMORY, E_OS. T:one. */
FEEDLANE_API int32_t feedlane_rx_offer(feedlane_rx *rx, int32_t *fd, feedlane_error *err);
/** Waits for messages of one lane, lanes by turns; at most `want` (>= 1). They stay where they are until
 *  feedlane_rx_release; a second peek without it shows messages of the next lane. END when every sender that came has left
 *  or died and everything they committed has been taken: each time, until another comes; one that has connected to the path
 *  is let in first, if it asks for a lane within 100 ms and `timeout_ns`. TIMEOUT, INTERRUPTED. E_OS: nothing is there, and
 *  a sender that comes by path can't be let in yet for want of descriptors; feedlane_rx_arm and _offer say so too. T:one,
 *  waits. */
FEEDLANE_API int32_t feedlane_rx_peek(feedlane_rx *rx, uint32_t want, int64_t timeout_ns, feedlane_span *got,
                                      feedlane_error *err);
/** Gives back the first `count` messages of the last peek, which must have been of `lane`. T:one. */
FEEDLANE_API int32_t feedlane_rx_release(feedlane_rx *rx, uint32_t lane, uint32_t count, feedlane_error *err);
/** A descriptor to poll for reading in a foreign event loop, after feedlane_rx_arm said 0. Borrowed. T:any. */
FEEDLANE_API int32_t feedlane_rx_wait_fd(const feedlane_rx *rx, int32_t *fd);
/** 0: nothing is there, sleep on the descriptor; AGAIN: call feedlane_rx_peek now. After peek has said END it is 0 too, so that
 *  a program may wait for the next sender. E_OS also where membarrier(2), which worked when the ring was made, is refused by
 *  now. T:one. */
FEEDLANE_API int32_t feedlane_rx_arm(feedlane_rx *rx);
/** Closes the end and gives a reference back; `*rx` is NULL after; NULL is fine. T:one. */
FEEDLANE_API int32_t feedlane_rx_destroy(feedlane_rx **rx);
/** Ends the present wait, refuses later calls: E_STATE. T:any. */
FEEDLANE_API int32_t feedlane_rx_close(feedlane_rx *rx);
/** One more reference. E_STATE: the last one was given back. T:any. */
FEEDLANE_API int32_t feedlane_rx_ref(feedlane_rx *rx);
/** Gives one reference back. The ring ends with the last one: senders find E_PEER_DEAD when they next wait. NULL is fine.
 *  T:any. */
FEEDLANE_API int32_t feedlane_rx_unref(feedlane_rx *rx);

/** Becomes a sender: by the descriptor of an offer, which is taken in every case and made close-on-exec, or, with fd -1, by
 *  the socket at `path`. The receiver lets senders in while it is in feedlane_rx_peek, _arm or _offer, and OK says that it has
 *  done so: what is committed from then on is taken. Only with an offer made in this very process it is OK at once.
 *  E_PEER_DEAD, E_LIMIT (every lane is taken), E_ARGUMENT, E_ABI, E_CORRUPT, E_STATE (another user's; or, before Linux 6.5, the
 *  receiver can't see this process, which is in another PID namespace), E_OS (also where the receiver is the one who lacks
 *  descriptors or memory: another attempt may do), TIMEOUT. T:any, waits. */
FEEDLANE_API int32_t feedlane_tx_attach(int32_t fd, const char *path, int64_t timeout_ns, feedlane_tx **out,
                                        feedlane_error *err);
/** Waits for room; at most `want` (>= 1) messages to fill. A reservation not committed is given back by the next one.
 *  E_PEER_DEAD: the ring is full and its receiver gone. TIMEOUT, INTERRUPTED. T:one, waits. */
FEEDLANE_API int32_t feedlane_tx_reserve(feedlane_tx *tx, uint32_t want, int64_t timeout_ns, feedlane_span *got,
                                         feedlane_error *err);
/** Publishes the first `count` reserved messages, in order: all of them are seen, each whole, or none, even if this process
 *  is killed in here. 0 gives the reservation back. T:one. */
FEEDLANE_API int32_t feedlane_tx_commit(feedlane_tx *tx, uint32_t count, feedlane_error *err);
/** Closes the end and gives a reference back; `*tx` is NULL after; NULL is fine. T:one. */
FEEDLANE_API int32_t feedlane_tx_destroy(feedlane_tx **tx);
/** Ends the present wait, refuses later calls: E_STATE. T:any. */
FEEDLANE_API int32_t feedlane_tx_close(feedlane_tx *tx);
/** One more reference. E_STATE: the last one was given back. T:any. */
FEEDLANE_API int32_t feedlane_tx_ref(feedlane_tx *tx);
/** Gives one reference back. With the last one the sender leaves; what was committed is still taken. NULL is fine. T:any. */
FEEDLANE_API int32_t feedlane_tx_unref(feedlane_tx *tx);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/** DLPack's numbers: code 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool; bits a lane; lanes (0 means 1). */
typedef struct feedlane_dtype {
  uint8_t code;   /**< DLPack's type code */
  uint8_t bits;   /**< bits a lane */
  uint16_t lanes; /**< lanes of a vector type; 0 means 1 */
} feedlane_dtype;

/** One field of a sample as the trainer declares it: `shape` is WITHOUT the batch dimension, so ndim is at most 7. */
typedef struct feedlane_field {
  size_t size;
  const char *name;                 /**< up to 31 bytes, unique within the sample; copied */
  feedlane_dtype dtype;             /**< of an element */
  int32_t ndim;                     /**< dimensions of one sample, 0 .. 7 */
  int64_t shape[FEEDLANE_MAX_NDIM]; /**< the first `ndim` count */
} feedlane_field;

/** A tensor in place, row-major. Filled by the library; its pointers live as long as the batch or the task. */
typedef struct feedlane_tensor {
  const char *name;                   /**< the field's */
  void *data;                         /**< 256-byte aligned */
  uint64_t bytes;                     /**< of all rows */
  uint64_t offset;                    /**< of `data` in the data segment: the same in the worker and in the trainer */
  feedlane_dtype dtype;               /**< of an element */
  int32_t ndim;                       /**< the field's and one more */
  int64_t shape[FEEDLANE_MAX_NDIM];   /**< shape[0] is the number of rows */
  int64_t strides[FEEDLANE_MAX_NDIM]; /**< in elements */
} feedlane_tensor;

/* ---- registered pinned memory ------------------------------------------------------------------------------------ */

/** @{ The functions of a feedlane_backend. */
typedef void (*feedlane_notify_fn)(void *cookie, int32_t status);
typedef int32_t (*feedlane_register_memory_fn)(void *user_data, void *address, uint64_t bytes, feedlane_error *err);
typedef int32_t (*feedlane_unregister_memory_fn)(void *user_data, void *address, uint64_t bytes, feedlane_error *err);
typedef int32_t (*feedlane_copy_fn)(void *user_data, void *device_memory, const void *host, uint64_t bytes,
                                    void *stream, feedlane_error *err);
typedef int32_t (*feedlane_when_passed_fn)(void *user_data, void *stream, feedlane_notify_fn notify, void *cookie,
                                           feedlane_error *err);
/** @} */

/** How memory is registered with a device, and what streams do: for accelerators that the library doesn't know. The
 *  callbacks return 0 or an error of the table with `err` filled, run on any thread, several at once, and must not call
 *  back into the library but through `notify`. */
typedef struct feedlane_backend {
  size_t size;
  void *user_data; /**< first argument of all */
  /** Pins `bytes` from `address`, whole pages, so that devices can read them. Required. */
  feedlane_register_memory_fn register_memory;
  /** Of what register_memory was given. Required. After a worker's unexpected end a loader calls it and register_memory again
   *  for each slot, in feedlane_loader_begin, _next and _poll. */
  feedlane_unregister_memory_fn unregister_memory;
  /** Enqueues a copy on `stream`. NULL: E_UNSUPPORTED. */
  feedlane_copy_fn copy;
  /** Has notify(cookie, status) called once, from any thread, also before it returns, when `stream` has done all that was
   *  enqueued before: status 0, or E_DEVICE if the stream failed. An error returned: it won't be called. NULL:
   *  E_UNSUPPORTED. */
  feedlane_when_passed_fn when_passed;
} feedlane_backend;

/** What a pool registers, with whom. */
typedef struct feedlane_pool_config {
  size_t size;
  /** "none" or NULL: nothing is pinned, the device is this memory; "mlock": the same, but pages stay resident
   *  (RLIMIT_MEMLOCK bounds them); "cuda": by the driver's libcuda.so.1, not yet run on a GPU */
  const char *backend;
  const feedlane_backend *custom; /**< instead of `backend`; copied */
  int32_t device;                 /**< "cuda": ordinal, whose primary context is used */
  uint32_t buffers;               /**< made and registered at once, up to 65,536; 0: none */
  uint64_t buffer_bytes;          /**< of each; rounded up to whole pages */
  uint64_t budget_bytes;          /**< registered at a time at most, whatever for; 0: any number */
} feedlane_pool_config;

/** A buffer in the caller's hands. */
typedef struct feedlane_buffer {
  size_t size;
  uint64_t token; /**< what feedlane_pool_release wants; never 0 */
  void *data;     /**< page-aligned, registered */
  uint64_t bytes; /**< config.buffer_bytes, rounded up */
} feedlane_buffer;

/** A pool's counters. */
typedef struct feedlane_pool_stats {
  size_t size;
  uint64_t buffers;          /**< all there are */
  uint64_t in_use;           /**< now: in callers' hands */
  uint64_t pending;          /**< now: released on a stream that hasn't come so far */
  uint64_t registered_bytes; /**< now: buffers, loaders' slots and the user's memory */
  uint64_t acquired;         /**< buffers handed out so far */
  uint64_t waited_ns;        /**< time spent asleep in feedlane_pool_acquire */
  uint64_t failures;         /**< streams that failed before a release on them was due */
} feedlane_pool_stats;

/** Makes a pool and its buffers. E_ARGUMENT, E_UNSUPPORTED (no driver, or no such backend), E_DEVICE, E_LIMIT
 *  (RLIMIT_MEMLOCK, the budget), E_MEMORY. T:any. */
FEEDLANE_API int32_t feedlane_pool_create(const feedlane_pool_config *config, feedlane_pool **out, feedlane_error *err);
/** Waits for a buffer. TIMEOUT, INTERRUPTED, E_STATE (the pool has none), E_DEVICE: told once after a stream has failed
 *  with a release on it. T:any, waits. */
FEEDLANE_API int32_t feedlane_pool_acquire(feedlane_pool *p, int64_t timeout_ns, feedlane_buffer *out,
                                           feedlane_error *err);
/** E_STALE when it was released already, on a stream too. T:any. */
FEEDLANE_API int32_t feedlane_pool_release(feedlane_pool *p, uint64_t token);
/** Gives the buffer back when `stream` has done all that is enqueued now, or has failed. E_DEVICE, E_UNSUPPORTED: it is still
 *  the caller's. E_STALE. T:any. */
FEEDLANE_API int32_t feedlane_pool_release_on(feedlane_pool *p, uint64_t token, void *stream, feedlane_error *err);
/** Enqueues a copy of a buffer's first `bytes` to device memory. "cuda": `stream` is a CUstream or cudaStream_t. E_STALE,
 *  E_ARGUMENT, E_DEVICE, E_UNSUPPORTED. T:any. */
FEEDLANE_API int32_t feedlane_pool_to_device(feedlane_pool *p, uint64_t token, void *device_memory, uint64_t bytes,
                                             void *stream, feedlane_error *err);
/** Registers memory of the user's own, the whole pages that it lies on. E_STATE: a part of them is registered. E_LIMIT,
 *  E_DEVICE. T:any. */
FEEDLANE_API int32_t feedlane_pool_register(feedlane_pool *p, void *address, uint64_t bytes, feedlane_error *err);
/** What feedlane_pool_register has registered at this address. E_ARGUMENT: nothing, or another thread is just
 *  registering or unregistering it; buffers and loaders' slots aren't the user's to unregister. An error of the
 *  backend: it is registered as before. T:any. */
FEEDLANE_API int32_t feedlane_pool_unregister(feedlane_pool *p, void *address, feedlane_error *err);
/** The pool's counters. T:any. */
FEEDLANE_API int32_t feedlane_pool_get_stats(const feedlane_pool *p, feedlane_pool_stats *out);
/** Unregisters everything. `*p` is NULL after 0; NULL is fine. E_STATE, and nothing happens, while a buffer is in use or a
 *  loader has the pool (until the last release of its batches). T:one. */
FEEDLANE_API int32_t feedlane_pool_destroy(feedlane_pool **p);

/* ---- samplers: single-threaded objects; a loader takes a copy of its own ------------------------------------------ */

/** @{ How a sampler shuffles. */
#define FEEDLANE_SHUFFLE_TORCH \
  0 /**< exactly as torch on CPU, its generator seeded with seed + epoch; 8 bytes an index */
#define FEEDLANE_SHUFFLE_FEISTEL \
  1 /**< a permutation computed index by index with seed + epoch, up to 2^62; no memory */
#define FEEDLANE_SHUFFLE_TORCH_LOADER \
  2 /**< exactly as torch's DataLoader(shuffle=True) after torch.manual_seed(seed), epoch
                                             after epoch, when nothing else draws from its default generator */
/** @} */

/** What feedlane_sampler_random shuffles. */
typedef struct feedlane_random_config {
  size_t size;
  int64_t length; /**< size of the data set, > 0; with FEEDLANE_SHUFFLE_FEISTEL up to 2^62 */
  uint64_t seed;  /**< epoch e is shuffled with seed + e; torch looks at the low 32 bits of that */
  int64_t
      num_samples; /**< indices in an epoch; 0: length. More than that: whole permutations, then a part of another */
  int32_t replacement; /**< 1: every index is drawn from all of them, as often as it comes (torch.randint) */
  int32_t shuffle;     /**< FEEDLANE_SHUFFLE_... */
} feedlane_random_config;

/** What feedlane_sampler_weighted draws. */
typedef struct feedlane_weighted_config {
  size_t size;
  int64_t num_samples;         /**< indices in an epoch; 0: as many as there are weights */
  uint64_t seed;               /**< epoch e is drawn with seed + e */
  int32_t without_replacement; /**< 1: each index at most once; by the weights of those that are left */
  int32_t reserved;
} feedlane_weighted_config;

/** Which part of a data set's order feedlane_sampler_distributed yields. */
typedef struct feedlane_distributed_config {
  size_t size;
  int64_t length;     /**< size of the data set, 0 .. 2^62 */
  int32_t world;      /**< number of ranks; 0: both numbers as of feedlane_rank_detect, which may fail */
  int32_t rank;       /**< 0 .. world - 1 */
  uint64_t seed;      /**< epoch e is shuffled with seed + e; the same in every rank */
  int32_t no_shuffle; /**< 1: in the data set's order */
  int32_t drop_last;  /**< 1: the list is cut, 0: repeated from its start, until every rank gets as many indices */
  int32_t shuffle;    /**< FEEDLANE_SHUFFLE_TORCH or _FEISTEL */
  int32_t detect_off; /**< 1: with world 0, rank 0 of 1 without a look at the environment */
} feedlane_distributed_config;

/** Which process of how many this is. */
typedef struct feedlane_rank {
  size_t size;
  int32_t rank;      /**< 0 .. world - 1 */
  int32_t world;     /**< at least 1 */
  char source[16];   /**< "feedlane", "torchrun", "openmpi", "mvapich", "pmi", "flux", "slurm"; "none": 0 of 1 */
  char warning[384]; /**< another source that says something else, in one line; empty if none does */
} feedlane_rank;

/** @{ The functions of feedlane_sampler_callbacks. */
typedef int32_t (*feedlane_sampler_restart_fn)(void *user_data, int64_t epoch, uint64_t seed, feedlane_error *err);
typedef int32_t (*feedlane_sampler_next_fn)(void *user_data, int64_t *indices, uint64_t cap, uint64_t *got,
                                            feedlane_error *err);
typedef int32_t (*feedlane_sampler_save_fn)(void *user_data, void *buffer, uint64_t cap, uint64_t *bytes,
                                            feedlane_error *err);
typedef int32_t (*feedlane_sampler_load_fn)(void *user_data, const void *buffer, uint64_t bytes, feedlane_error *err);
typedef void (*feedlane_sampler_drop_fn)(void *user_data);
/** @} */

/**
 * A sampler of the user's own. Its copies (a loader's, a batch sampler's) share the one `user_data`: use one of them at a
 * time. The callbacks run in the thread that is in feedlane_sampler_restart, _next, _save or _load, or in
 * feedlane_loader_begin, _next or _poll. They return 0 or a negative status with err->text (and err->detail, as those of a
 * data set) filled in, which then is what the call answers; feedlane_loader_next answers it when every batch before it was
 * yielded, and the call after that goes on: the failed callback is called again, what others have given isn't lost.
 */
typedef struct feedlane_sampler_callbacks {
  size_t size;
  void *user_data; /**< kept, until drop */
  /** Starts an epoch; `seed` is the loader's base seed, 0 without a loader. NULL: nothing to do. */
  feedlane_sampler_restart_fn restart;
  /** Writes 1 .. cap indices and their number; fewer don't mean the end. END, with none written, does. Required. */
  feedlane_sampler_next_fn next;
  /** Writes where it stands, `*bytes` long; E_LIMIT, with the number of bytes needed, if that is more than cap: then it is
   *  called again. NULL: no state. */
  feedlane_sampler_save_fn save;
  /** After restart: goes on from there. NULL: no state. */
  feedlane_sampler_load_fn load;
  feedlane_sampler_drop_fn drop; /**< once, when the last copy is destroyed; not if the sampler couldn't be made */
  int64_t length;                /**< indices in an epoch, or batches; 0: unknown */
  int64_t batch_rows;            /**< > 0: a batch sampler: each `next` is one batch, of at most so many; up to 2^30 */
} feedlane_sampler_callbacks;

/** 0, 1, ... length - 1; `length` >= 0. T:any. */
FEEDLANE_API int32_t feedlane_sampler_sequential(int64_t length, feedlane_sampler **out, feedlane_error *err);
/** Permutations of [0, length), or draws with replacement, for each epoch others: by default those of torch's RandomSampler
 *  on CPU with a generator seeded with `seed + epoch`. T:any. */
FEEDLANE_API int32_t feedlane_sampler_random(const feedlane_random_config *config, feedlane_sampler **out,
                                             feedlane_error *err);
/** The `count` (>= 0) numbers at `indices`, for each epoch in another order: that of torch's SubsetRandomSampler with a
 *  generator seeded with `seed + epoch`; with `in_order` 1 as they are given. 16 bytes an index. T:any. */
FEEDLANE_API int32_t feedlane_sampler_subset(const int64_t *indices, uint64_t count, int32_t in_order, uint64_t seed,
                                             feedlane_sampler **out, feedlane_error *err);
/** Indices from 0 to count - 1, each as likely as its weight says: finite, not negative, one at least above zero; one of
 *  weight zero never comes. With replacement by alias tables (16 bytes a weight, constant time an index), without it by
 *  exponential keys (8 bytes a weight and 8 an index). T:any. */
FEEDLANE_API int32_t feedlane_sampler_weighted(const double *weights, uint64_t count,
                                               const feedlane_weighted_config *config, feedlane_sampler **out,
                                               feedlane_error *err);
/** Batches of `batch_size` (1 .. 2^30) indices of a copy of `inner`, which must not yield batches itself; the last one may be
 *  smaller, and is left out with `drop_last` 1. Each feedlane_sampler_next is one batch. T:any. */
FEEDLANE_API int32_t feedlane_sampler_batch(const feedlane_sampler *inner, int64_t batch_size, int32_t drop_last,
                                            feedlane_sampler **out, feedlane_error *err);
/** Every world-th index of an order that all ranks share, from the rank-th on: exactly torch's DistributedSampler after
 *  set_epoch, or by a feistel shuffle without memory. A state (feedlane_sampler_save) may be loaded in another world: see
 *  feedlane_sampler_load. T:any. */
FEEDLANE_API int32_t feedlane_sampler_distributed(const feedlane_distributed_config *config, feedlane_sampler **out,
                                                  feedlane_error *err);
/** A sampler of the user's own. Its indices are passed on as they are. On failure `drop` isn't called. T:any. */
FEEDLANE_API int32_t feedlane_sampler_custom(const feedlane_sampler_callbacks *callbacks, feedlane_sampler **out,
                                             feedlane_error *err);
/** Which process of how many this is, by the first of these pairs of variables that is there: FEEDLANE_RANK and
 *  FEEDLANE_WORLD_SIZE; RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK and _SIZE; MV2_COMM_WORLD_RANK and _SIZE, or with
 *  MVP_; PMI_RANK and PMI_SIZE; FLUX_TASK_RANK and FLUX_JOB_SIZE; SLURM_PROCID and SLURM_NTASKS, in a task of a step
 *  (SLURM_STEP_ID) alone, not in an interactive shell; else 0 of 1. E_ARGUMENT, with the variable's name, if half of the pair
 *  is missing or says no number in its range, or if there is no pair but the rank alone that PALS (PALS_RANKID) and PMIx
 *  (PMIX_RANK) leave. `warning` is for another pair that says something else; a launcher that has started torchrun once a
 *  node doesn't. Reads the environment: no other thread may change it. T:any. */
FEEDLANE_API int32_t feedlane_rank_detect(feedlane_rank *out, feedlane_error *err);
/** The base seed that torch's DataLoader(shuffle=True) draws for `epoch` after torch.manual_seed(manual_seed), for trainers
 *  that move over with it: its worker w is seeded with base_seed + w. 0 <= epoch <= 2^30; takes four draws an epoch. Pure.
 *  T:any. */
FEEDLANE_API int32_t feedlane_torch_base_seed(uint64_t manual_seed, int64_t epoch, uint64_t *base_seed,
                                              feedlane_error *err);
/** Starts `epoch` (>= 0) over. E_MEMORY: its order doesn't fit. E_LIMIT: FEEDLANE_SHUFFLE_TORCH_LOADER beyond epoch 2^30.
 *  T:one, calls back (sampler). */
FEEDLANE_API int32_t feedlane_sampler_restart(feedlane_sampler *s, int64_t epoch, feedlane_error *err);
/** Writes up to `cap` indices and their number to `got`; fewer than cap only at the end; END (got 0) when none is left.
 *  A batch sampler writes one batch; E_ARGUMENT if `cap` is less than it may have. A fresh sampler stands at the start of
 *  epoch 0. T:one, calls back (sampler). */
FEEDLANE_API int32_t feedlane_sampler_next(feedlane_sampler *s, int64_t *indices, uint64_t cap, uint64_t *got,
                                           feedlane_error *err);
/** Indices in an epoch, batches of a batch sampler; -1: unknown. T:any. */
FEEDLANE_API int32_t feedlane_sampler_length(const feedlane_sampler *s, int64_t *length);
/** Writes where the sampler stands, in its epoch and its definition: a few hundred bytes. `*bytes` is their number, also on
 *  E_LIMIT: `cap` is less (`state` may be NULL then). E_UNSUPPORTED: a custom sampler without `save`. T:one, calls back
 *  (sampler). */
FEEDLANE_API int32_t feedlane_sampler_save(feedlane_sampler *s, void *state, uint64_t cap, uint64_t *bytes,
                                           feedlane_error *err);
/** After feedlane_sampler_restart of the state's epoch: goes on behind what was saved. E_ARGUMENT: of another definition or
 *  epoch, the two numbers say which; E_CORRUPT: damaged or cut; E_UNSUPPORTED: a custom sampler without `load`. After a
 *  failure restart it.
 *  A distributed sampler also takes the state of another world, which all of its ranks saved after the same number of
 *  indices: the list padded for the world that began the epoch stays the list, what is left of it is dealt to the new ranks.
 *  Then one rank may get one index more than another, and feedlane_sampler_length is what was yielded before plus what this
 *  rank gets. The next restart is back to this world's own list. T:one, calls back (sampler). */
FEEDLANE_API int32_t feedlane_sampler_load(feedlane_sampler *s, const void *state, uint64_t bytes, feedlane_error *err);
/** Frees the sampler; NULL or a NULL handle is fine; `*s` is NULL after. T:one, calls back (sampler). */
FEEDLANE_API int32_t feedlane_sampler_destroy(feedlane_sampler **s);

/* ---- data set: what a worker runs -------------------------------------------------------------------------------- */

/** One batch to make. The library's; valid until commit, fail or the next feedlane_worker_next. */
typedef struct feedlane_task {
  size_t size;
  uint64_t id;                    /**< never reused within a loader: epochs, attempts and crashes included */
  int64_t epoch;                  /**< as the trainer numbered it */
  int64_t batch;                  /**< its number in the epoch, from 0 */
  int32_t attempt;                /**< 0, +1 each time the batch is sent out again */
  int32_t tensor_count;           /**< as many as there are fields, and those added by feedlane_task_tensor */
  const int64_t *indices;         /**< `count` data set indices, read-only shared memory; NULL: iterable */
  uint64_t count;                 /**< rows wanted */
  const uint64_t *seeds;          /**< one a row, from (base seed, epoch, position): the same whoever makes the batch */
  const feedlane_tensor *tensors; /**< the declared fields, shape [count, ...], ready to be written; then those added */
  feedlane_worker *worker;        /**< NULL inline (no workers) */
  int32_t first;                  /**< iterable: 1: the shard starts over, or goes on from `delivered`, `state` */
  int32_t reserved;
  uint64_t delivered;   /**< iterable, first: samples of the shard to leave out, they were delivered before */
  const void *state;    /**< iterable, first: what was saved with the last batch that counts; NULL: none */
  uint64_t state_bytes; /**< its length */
  void *library;        /**< the library's own */
} feedlane_task;

/** One sample: where to put it. */
typedef struct feedlane_row {
  size_t size;
  int64_t index;             /**< data set index; iterable: its number in the shard, from 0 */
  uint64_t seed;             /**< of this sample: task->seeds */
  void *const *fields;       /**< fields[f]: this row of tensor f, bytes[f] long */
  const uint64_t *bytes;     /**< one number a field */
  const feedlane_task *task; /**< the batch that it is a row of */
  uint64_t row;              /**< its row in the batch: less than its place once samples were left out */
} feedlane_row;

/** Who this worker is. Pointers live until detach. */
typedef struct feedlane_worker_info {
  size_t size;
  int32_t id;         /**< 0 .. count - 1; -1 inline */
  int32_t count;      /**< number of workers */
  int32_t generation; /**< 0, +1 for each replacement */
  int32_t iterable;   /**< 1: tasks carry no indices, this worker iterates shard `id` of `count` (inline: the whole) */
  uint64_t seed;      /**< base seed + id */
  const void *config; /**< the loader's worker_config, read-only; NULL if it has none */
  uint64_t config_bytes;        /**< its length */
  const feedlane_field *fields; /**< as the trainer declared them */
  uint64_t field_count;         /**< how many */
  int32_t retries;              /**< config.retries: for the pull form, which retries by itself */
  int32_t reserved;
  int64_t retry_backoff_ns; /**< before the first retry, twice as long before each further one */
  int64_t epoch; /**< the one begun last, 0 before the first: with `seed`, for random numbers that differ from epoch to
                    epoch, though `seed` doesn't. Kept workers outlive it */
} feedlane_worker_info;

/** @{ The functions of a feedlane_dataset. */
typedef int32_t (*feedlane_dataset_open_fn)(void *user_data, const feedlane_worker_info *info, void **self,
                                            feedlane_error *err);
typedef int32_t (*feedlane_dataset_get_fn)(void *self, const feedlane_row *row, feedlane_error *err);
typedef int32_t (*feedlane_dataset_fetch_fn)(void *self, const feedlane_task *task, feedlane_error *err);
typedef void (*feedlane_dataset_close_fn)(void *self);
typedef int32_t (*feedlane_dataset_next_fn)(void *self, const feedlane_row *row, feedlane_error *err);
typedef int32_t (*feedlane_dataset_restart_fn)(void *self, int64_t epoch, feedlane_error *err);
typedef int32_t (*feedlane_dataset_save_fn)(void *self, void *buffer, uint64_t cap, uint64_t *bytes,
                                            feedlane_error *err);
typedef int32_t (*feedlane_dataset_load_fn)(void *self, const void *buffer, uint64_t bytes, feedlane_error *err);
typedef int32_t (*feedlane_dataset_substitute_fn)(void *self, int64_t failed, uint64_t seed, uint32_t tries,
                                                  int64_t *other, feedlane_error *err);
/** @} */

/**
 * The callbacks of a data set, the same for every start mode. A map-style loader calls `fetch`, or else `get`; an iterable
 * one `next`, or else `fetch`. Callbacks return 0 or a negative status with err->text (and err->detail for a traceback,
 * err->detail_len its length; err->transient 1 if another try may help) filled in. All callbacks of one worker run in one
 * thread, one at a time.
 */
typedef struct feedlane_dataset {
  size_t size;
  void *user_data; /**< kept */
  /** Once a worker, before its first task (torch's worker_init_fn). `*self` goes to the others. NULL: self = user_data. */
  feedlane_dataset_open_fn open;
  /** One sample into its row. */
  feedlane_dataset_get_fn get;
  /** The whole batch: writes every row of every tensor of the task, or says by feedlane_task_rows how many it made.
   *  Iterable: END when the shard is exhausted. */
  feedlane_dataset_fetch_fn fetch;
  feedlane_dataset_close_fn close; /**< once, if open succeeded */
  /** Iterable: the shard's next sample into its row. END: it is exhausted. After an error it is called again: with the same
   *  row->index if that is a retry, which must yield the same sample; with the following one if it was left out. */
  feedlane_dataset_next_fn next;
  /** Iterable: starts over; before the first task of each epoch. NULL: close and open do. */
  feedlane_dataset_restart_fn restart;
  /** Iterable, after each batch: where the shard stands, up to `cap` bytes (at least 64 KiB). With it, a replacement of a
   *  dead worker and a resumed run go on from there by `load`, after `restart`. NULL: see config.deterministic. */
  feedlane_dataset_save_fn save;
  feedlane_dataset_load_fn load; /**< see `save` */
  /** Map style, with config.substitute: another index to try in place of `failed`; `tries` before this one, from 0. `seed`
   *  is the row's. Not 0: none. */
  feedlane_dataset_substitute_fn substitute;
} feedlane_dataset;

/**
 * The seed of the sample at `position` (counted from 0 over the whole epoch's order): what tasks and rows carry. Pure.
 * With s(x) the output function of SplitMix64 (Steele, Lea, Flood 2014: x ^= x >> 30, x *= 0xbf58476d1ce4e5b9,
 * x ^= x >> 27, x *= 0x94d049bb133111eb, x ^= x >> 31) and g = 0x9e3779b97f4a7c15, all modulo 2^64:
 * s(s(s(base_seed + g) + epoch * g) + (position + 1) * g). T:any.
 */
FEEDLANE_API uint64_t feedlane_row_seed(uint64_t base_seed, int64_t epoch, int64_t position);

/* ---- worker: the pull form, for any language --------------------------------------------------------------------- */

/** The descriptor named by $FEEDLANE_WORKER_FD if a trainer started this process, else -1. Clears the variable, sets
 *  close-on-exec and marks the process as a worker: it can't create a loader with workers. Call it early in main,
 *  before other threads use the environment. T:one. */
FEEDLANE_API int32_t feedlane_worker_fd(void);
/** Joins the trainer at the other end of `fd`, which is taken in every case and made close-on-exec. E_ARGUMENT, E_ABI,
 *  E_PEER_DEAD, E_CORRUPT, E_OS, TIMEOUT.
 *  Any thread may make the calls that follow, one at a time. From here on the process is killed when the trainer dies (but see
 *  feedlane_loader_config.no_lifeline). T:any, waits. */
FEEDLANE_API int32_t feedlane_worker_attach(int32_t fd, int64_t timeout_ns, feedlane_worker **out, feedlane_error *err);
/** Who this worker is. T:one. */
FEEDLANE_API int32_t feedlane_worker_get_info(const feedlane_worker *w, feedlane_worker_info *info);
/** Once, before the first feedlane_worker_next. `status` 0: the data set is open; negative: it can't be opened, `text`
 *  (may be NULL) says why; the trainer's first `next` reports it as E_INIT. T:one. */
FEEDLANE_API int32_t feedlane_worker_ready(feedlane_worker *w, int32_t status, const char *text, feedlane_error *err);
/** Waits for a task. END: the trainer wants no more or is gone. A task neither committed nor failed is E_STATE. T:one, waits.
 *  TIMEOUT, INTERRUPTED. */
FEEDLANE_API int32_t feedlane_worker_next(feedlane_worker *w, int64_t timeout_ns, const feedlane_task **task,
                                          feedlane_error *err);
/** Between samples, two loads: 0 go on; ABANDONED: fail or commit now, it will be dropped; END: the trainer wants no
 *  more. It doesn't see the trainer's death. Called for each sample that is left out at the start of a shard because it was
 *  delivered, it also shows that this worker gets on. T:one. */
FEEDLANE_API int32_t feedlane_worker_check(const feedlane_worker *w);
/** A descriptor to poll for reading in a foreign event loop, after feedlane_worker_arm said 0. Borrowed. T:any. */
FEEDLANE_API int32_t feedlane_worker_wait_fd(const feedlane_worker *w, int32_t *fd);
/** 0: nothing is there, sleep on the descriptor; AGAIN: call feedlane_worker_next now. T:one. */
FEEDLANE_API int32_t feedlane_worker_arm(feedlane_worker *w);
/** Memory of the present task, gone after commit or fail. `align` a power of two, 0 means 16. NULL: no memory, or no
 *  task. T:one. */
FEEDLANE_API void *feedlane_worker_scratch(feedlane_worker *w, uint64_t bytes, uint64_t align);
/** The batch is made: `rows` (1 .. task->count) rows of every tensor are written; declared tensors are cut to them. With
 *  samples left out, at most task->count less those, and 0 if that is all. The task is gone after, on success and on
 *  E_STALE; on E_ARGUMENT it is still there. E_STATE, in the following two as well: it is a callback's, whose return ends
 *  it. T:one. */
FEEDLANE_API int32_t feedlane_task_commit(const feedlane_task *task, uint64_t rows, feedlane_error *err);
/** The batch can't be made: `position` is the row that failed (-1: none), `text` (may be NULL) and `traceback` (may be
 *  NULL) travel to the trainer, whose `next` returns them as E_SAMPLE. Too long a text or traceback is cut.
 *  Iterable: the shard's samples up to and with `position` are gone, whoever goes on with the shard leaves them out; -1: none
 *  of this task's is, they come again. T:one. */
FEEDLANE_API int32_t feedlane_task_fail(const feedlane_task *task, int64_t position, int32_t transient,
                                        const char *text, const char *traceback, feedlane_error *err);
/** Iterable: the shard has no more samples in this epoch. The task is gone after. E_STATE for a map-style one. T:one. */
FEEDLANE_API int32_t feedlane_task_exhausted(const feedlane_task *task, feedlane_error *err);

/* What a data set may add to the task in hand, in callbacks (inline too) and in the pull form alike. */

/** A tensor of another shape than declared: replaces field `index`, or adds one at index == task->tensor_count (up to
 *  FEEDLANE_MAX_TENSORS). `full` is the WHOLE shape, batch dimension included, ndim up to 8, dimensions of 0 too; its dtype
 *  may be left zero for a declared one. It lies in the field's own place if it fits there, else behind the others, in
 *  memory that is reserved now. `out` (may be NULL) gets it; task->tensors has it too. E_LIMIT: err->needed is the
 *  config.slot_bytes it takes. E_ARGUMENT, E_MEMORY, E_STALE. T:one. */
FEEDLANE_API int32_t feedlane_task_tensor(const feedlane_task *task, int32_t index, const feedlane_field *full,
                                          feedlane_tensor *out, feedlane_error *err);
/** Opaque bytes that travel with the batch, copied into the slot: batch->metadata. The last call counts. E_LIMIT as above.
 *  T:one. */
FEEDLANE_API int32_t feedlane_task_metadata(const feedlane_task *task, const void *bytes, uint64_t count,
                                            feedlane_error *err);
/** Iterable, pull form: where the shard stands after this batch, see feedlane_dataset.save. Copied. E_LIMIT. T:one. */
FEEDLANE_API int32_t feedlane_task_state(const feedlane_task *task, const void *bytes, uint64_t count,
                                         feedlane_error *err);
/** For `fetch`: only `rows` (1 .. task->count) rows were made; 0 when all of its samples are recorded as left out. T:one. */
FEEDLANE_API int32_t feedlane_task_rows(const feedlane_task *task, uint64_t rows, feedlane_error *err);

#define FEEDLANE_SAMPLE_RETRIED 1     /**< it failed, and then it was made */
#define FEEDLANE_SAMPLE_SUBSTITUTED 2 /**< another one took its place */
#define FEEDLANE_SAMPLE_SKIPPED 3     /**< it was left out: its row is the next sample's */

/** For `fetch` and the pull form, which deal with failing samples by themselves: leaves a record of the sample at
 *  `position` among the task's indices (iterable: among those taken for this task), in ascending order, one a sample.
 *  `code` and `text` (may be NULL, up to 223 bytes are kept) are of its last failure; `other` is the index that took its
 *  place. E_LIMIT: the loader's policies don't allow it, or too many. T:one. */
FEEDLANE_API int32_t feedlane_task_record(const feedlane_task *task, uint64_t position, int32_t outcome, int32_t code,
                                          uint32_t retries, int64_t other, const char *text, feedlane_error *err);

/** The callback form: attach, open, ready, tasks, close, detach: exactly a loop of the above. Takes `fd`. Returns 0 when
 *  the trainer wants no more. T:any, waits, calls back (data set). */
FEEDLANE_API int32_t feedlane_worker_run(int32_t fd, const feedlane_dataset *dataset, feedlane_error *err);
/** Closes the worker and gives a reference back; `*w` is NULL after; NULL is fine. T:one, calls back (sampler). */
FEEDLANE_API int32_t feedlane_worker_detach(feedlane_worker **w);
/** Ends the present wait, refuses later calls: E_STATE. A task in hand goes to another worker when this one has left.
 *  T:any. */
FEEDLANE_API int32_t feedlane_worker_close(feedlane_worker *w);
/** One more reference. E_STATE: the last one was given back. T:any. */
FEEDLANE_API int32_t feedlane_worker_ref(feedlane_worker *w);
/** Gives one reference back. With the last one the worker leaves. NULL is fine. T:any, calls back (sampler). */
FEEDLANE_API int32_t feedlane_worker_unref(feedlane_worker *w);

/* ---- loader ------------------------------------------------------------------------------------------------------ */

/** A batch_size: no batching. One index a task, tensors without a batch dimension. */
#define FEEDLANE_UNBATCHED (-1)

#define FEEDLANE_DISPATCH_LEAST_LOADED 0 /**< to the worker with the fewest unfinished tasks */
#define FEEDLANE_DISPATCH_ROUND_ROBIN 1  /**< batch i to worker i mod workers */

#define FEEDLANE_START_SPAWN 0 /**< the library starts `argv`, or this program again */
#define FEEDLANE_START_FORK 1  /**< the library forks this process; `dataset` runs in the children */
#define FEEDLANE_START_THREAD \
  2 /**< threads of the host call feedlane_loader_run_local or feedlane_loader_local_worker */
#define FEEDLANE_START_EXTERNAL 3 /**< the host starts processes with feedlane_loader_open_worker's descriptor */

/** What to load, by whom, and how patient to be. */
typedef struct feedlane_loader_config {
  size_t size;
  /* what */
  const feedlane_sampler *sampler; /**< required, NULL if iterable; its definition is copied, not its position */
  const feedlane_dataset *dataset; /**< inline (workers 0) and fork: required; thread: for run_local; else NULL */
  const feedlane_field *fields;    /**< elements are fields[0].size bytes apart; NULL only with slot_bytes */
  uint64_t field_count;            /**< 1 .. FEEDLANE_MAX_TENSORS; 0 if all tensors are the data set's to shape */
  int64_t batch_size;              /**< 0: 1; FEEDLANE_UNBATCHED; must be 0 with a batch sampler */
  int32_t drop_last;               /**< 1: no incomplete last batch */
  int32_t has_seed;                /**< 1: `seed` counts even when it is 0 */
  uint64_t seed;                   /**< the base seed; without one it is drawn from the system */
  /* who */
  int32_t workers;         /**< 0: the data set runs inline, in the caller of next */
  int32_t start;           /**< FEEDLANE_START_* */
  int32_t prefetch_factor; /**< batches in flight per worker; 0: 2 */
  int32_t keep_workers;    /**< 1: workers outlive the epoch (external ones and threads always do) */
  int32_t held;            /**< batches that the trainer means to hold at once, while as many as ever are made; 0: 1 */
  int32_t reserved;
  const char *const *argv;      /**< spawn: NULL-terminated; argv[0] is looked up in PATH. NULL: this program again */
  const char *const *envp;      /**< spawn: NULL-terminated "NAME=value"; NULL: this process's environment */
  const void *worker_config;    /**< handed to every worker as it is */
  uint64_t worker_config_bytes; /**< its length */
  /* when things go wrong */
  int64_t start_timeout_ns;    /**< from start to attach, and, with a task_timeout_ns, from there to ready; 0: 60 s */
  int64_t stop_timeout_ns;     /**< from the done-event to SIGTERM; 0: 5 s */
  int64_t term_timeout_ns;     /**< from SIGTERM to SIGKILL; 0: 1 s */
  int32_t max_restarts;        /**< spawn, fork: dead workers replaced over the loader's life; 0: 1000; -1: none */
  int32_t max_kills_per_batch; /**< deaths after which a batch is E_QUARANTINED; 0: 3 */
  int32_t no_lifeline;         /**< 1: the trainer's death doesn't kill workers; each ends with its next
                                    feedlane_worker_next, however long its task takes till then; one with quick
                                    tasks with one of those within a millisecond */
  /* how */
  int32_t iterable;        /**< 1: no sampler, each worker iterates a shard of its own; dispatch is round-robin */
  int32_t deterministic;   /**< iterable, 1: a shard opened again yields the same samples, see feedlane_dataset.save */
  int32_t out_of_order;    /**< 1: batches are yielded as they arrive */
  int32_t dispatch;        /**< FEEDLANE_DISPATCH_* */
  int64_t iterable_length; /**< iterable: samples expected, more are a warning; 0: unknown */
  /* where */
  uint64_t
      slot_bytes; /**< address space of a slot: for tensors shaped by the data set, and metadata. Only what is touched
                             takes memory, but see stats.huge_bytes. 0: what the fields take and 64 KiB, iterable: and
                             what a shard may save */
  uint64_t arena_bytes; /**< a budget for the slots' reserved memory; fewer batches are in flight if it doesn't fit them
                             all, and E_LIMIT says what one takes if it fits none. 0: no budget */
  /* when samples fail; each leaves a record, see FEEDLANE_EVENT_SAMPLE_*. In this order: */
  int32_t retries;          /**< tries more of a sample (with `fetch`: a batch) whose error is transient; 0: none */
  int32_t substitute;       /**< 1: dataset.substitute names another sample in its place; map style */
  int64_t retry_backoff_ns; /**< before the first retry, doubled before each further one up to an hour; 0: 10 ms */
  int64_t skip_budget; /**< samples of an epoch that may be left out, one more is E_SAMPLE; 0: none; -1: any number */
  /* whence */
  const void *state;    /**< what feedlane_loader_state wrote: `begin` of its epoch goes on behind it; NULL: nothing */
  uint64_t state_bytes; /**< its length */
  /* how long */
  int64_t task_timeout_ns; /**< a worker that neither finishes a task nor begins another for so long is told of
                                (FEEDLANE_EVENT_WORKER_HUNG), killed and replaced, its tasks go to others; a thread keeps the
                                slot of the task in hand until it answers, its tasks go to others (slots for that are
                                there from the start), its shard is lost for the epoch, told as E_HUNG. A process that is
                                still there a second after SIGKILL is dealt with like a thread, without slots for that.
                                Looked at in next and poll; 0: no deadline */
  /* to devices */
  /** Registers the reserved part of every slot, once; NULL: nothing. Its "none" is what a test or a machine without a
   *  device takes. */
  feedlane_pool *pinned;
  /** With `pinned`: the slots aren't registered, batches are copied into so many of its buffers, more than `held`, ahead, by
   *  the thread in feedlane_loader_run_stager (inline: by next); one that is larger than a buffer is E_SAMPLE. 0: not. */
  int32_t staged;
  int32_t reserved_too; /**< zero */
} feedlane_loader_config;

/** One batch in the trainer's hands; the caller's own struct. Pointers live until the last release of `token`. Copying
 *  the struct is harmless; releasing once too often is E_STALE. */
typedef struct feedlane_batch {
  size_t size;
  uint64_t token;                 /**< what feedlane_batch_retain and _release want; never 0 */
  int64_t epoch;                  /**< as given to feedlane_loader_begin */
  int64_t batch;                  /**< its number in the epoch, from 0 */
  int32_t worker;                 /**< -1: made inline */
  int32_t attempt;                /**< which attempt made it, from 0 */
  const feedlane_tensor *tensors; /**< one a field, in the order of declaration; then those that the data set added */
  uint64_t tensor_count;          /**< how many */
  const int64_t *indices;         /**< what its rows are, `count` of them; NULL: iterable */
  uint64_t count;                 /**< rows */
  const int64_t *skipped;         /**< indices that were left out; NULL: iterable */
  uint64_t skipped_count;         /**< samples that were left out */
  const void *metadata;           /**< what the data set gave along, or NULL */
  uint64_t metadata_bytes;        /**< its length */
} feedlane_batch;

/** Makes a loader: checks the configuration, reserves all memory. Workers start with the first `begin`. E_ARGUMENT,
 *  E_MEMORY, E_LIMIT, E_OS, E_STATE (inside a worker); E_CORRUPT, E_ABI: config.state is damaged, or of a later library;
 *  with config.pinned also what its backend says. T:any. */
FEEDLANE_API int32_t feedlane_loader_create(const feedlane_loader_config *config, feedlane_loader **out,
                                            feedlane_error *err);
/** Closes the loader, waits until a call of another thread has returned (bounded but for what its callbacks take), stops the
 *  workers (see feedlane_loader_stop) and gives a reference back; `*l` is NULL after, on E_HUNG too, but not on E_BUSY; NULL
 *  is fine. While batches are held or threads work for it the memory lives on without references, and the functions of a
 *  batch's token may still be called with a copy of the handle until the last one is released. T:one, waits, calls back
 *  (data set, sampler). */
FEEDLANE_API int32_t feedlane_loader_destroy(feedlane_loader **l);
/** Ends the present wait, also one in begin or stop, and refuses later calls: E_STATE. Workers are asked to end, each does
 *  when it has finished its task, and nobody waits for them: feedlane_loader_destroy does, feedlane_loader_unref kills those
 *  that are there still. Batches stay. A thread in feedlane_loader_run_stager returns. T:any. */
FEEDLANE_API int32_t feedlane_loader_close(feedlane_loader *l);
/** One more reference. E_STATE: the last one was given back. T:any. */
FEEDLANE_API int32_t feedlane_loader_ref(feedlane_loader *l);
/** Gives one reference back, and never waits: for finalizers. With the last one the loader is closed; workers that it
 *  started or that are tied to its life are killed at once, busy ones too, others and threads are asked to end; the memory
 *  lives on as after destroy. Killed children are reaped when the next loader is made or left, or with this process. Not
 *  where a device's driver calls back. NULL is fine. T:any, calls back (data set, sampler). */
FEEDLANE_API int32_t feedlane_loader_unref(feedlane_loader *l);
/** Starts `epoch` (>= 0), workers too if none run. In mid-epoch the old one is abandoned first. T:one, waits, calls back
 *  (data set, sampler, backend). */
FEEDLANE_API int32_t feedlane_loader_begin(feedlane_loader *l, int64_t epoch, feedlane_error *err);
/** The next batch, in the sampler's order; out_of_order: as they arrive. A batch all of whose samples were left out isn't
 *  yielded. END, TIMEOUT, INTERRUPTED, SLOTS_HELD (E). E_SAMPLE and E_QUARANTINED concern one batch: the following call goes
 *  on with the following batch. E_INIT, E_RESTARTS, E_HUNG (a worker didn't attach, or open its data set, in time, and no
 *  other has attached; argument config.start_timeout_ns), E_CORRUPT and E_ABI (no program that was started could attach)
 *  concern the loader: repeated until `begin`. E_HUNG also, with other arguments: a shard is in the hands of a worker that
 *  hangs and can't be ended, told once an epoch; all workers are such, or no slot is left beside theirs, until one is back or
 *  gone. E_PEER_DEAD: no external
 *  worker is there, until feedlane_loader_open_worker; or a shard was lost with its worker, told once, see
 *  feedlane_loader_config.deterministic. E_OS, E_MEMORY, E_DEVICE (a slot couldn't be registered again after a worker's
 *  death): call again when the cause is gone. Deaths are found and workers replaced in here. With END, workers that aren't
 *  kept are asked to end, and waited for within the timeout. T:one, waits, calls back (data set, sampler, backend). */
FEEDLANE_API int32_t feedlane_loader_next(feedlane_loader *l, int64_t timeout_ns, feedlane_batch *out,
                                          feedlane_error *err);
/** What `next` does, but for taking a batch: reap, restart, dispatch; never waits. 0: none is ready; AGAIN: one is, or
 *  `next` has something else to say. Call it while a device works. T:one, calls back (sampler, backend). */
FEEDLANE_API int32_t feedlane_loader_poll(feedlane_loader *l, feedlane_error *err);
/** A descriptor to poll for reading in a foreign event loop, after feedlane_loader_arm said 0. Borrowed. T:any. */
FEEDLANE_API int32_t feedlane_loader_wait_fd(const feedlane_loader *l, int32_t *fd);
/** 0: nothing is there, sleep on the descriptor; AGAIN: call next or poll now. T:one. */
FEEDLANE_API int32_t feedlane_loader_arm(feedlane_loader *l);
/** Ends the present or the following wait in `next` with INTERRUPTED. T:any, async-signal-safe. */
FEEDLANE_API int32_t feedlane_loader_interrupt(feedlane_loader *l);
/** Ends the epoch and all workers at once: done-event, then SIGTERM, then SIGKILL, each after its timeout; waits for
 *  their ends. `begin` starts them again. E_HUNG: a worker is there still, a thread that hasn't left or a process stuck in the
 *  kernel 10 s after SIGKILL: what it has in hand stays its own, and nobody else's, until it is gone; call again then. `begin`
 *  goes on without such processes, not without threads. T:one, waits, calls back (data set). */
FEEDLANE_API int32_t feedlane_loader_stop(feedlane_loader *l, feedlane_error *err);
/** Batches in an epoch; -1: not known, the sampler or the iterable data set doesn't say. T:any. */
FEEDLANE_API int32_t feedlane_loader_length(const feedlane_loader *l, int64_t *batches);
/** External mode: a connected socket for one worker process, the caller's to pass on and to close. `*id` is the worker
 *  wanted or -1 for any that is missing; it is written. END: none is missing. Looks for deaths first, so that calling it
 *  now and then (one system call) is how a host keeps its workers complete; max_restarts doesn't bound it. T:one. */
FEEDLANE_API int32_t feedlane_loader_open_worker(feedlane_loader *l, int32_t *id, int32_t *fd, feedlane_error *err);

/** Thread mode: makes the calling thread a worker, for the pull form; detach when next says END. The loader's memory lives
 *  until then. END: no worker is missing. T:any. */
FEEDLANE_API int32_t feedlane_loader_local_worker(feedlane_loader *l, feedlane_worker **out, feedlane_error *err);
/** Thread mode, callback form: the calling thread works with config.dataset until the trainer wants no more. END: no worker
 *  is missing. T:any, waits, calls back (data set). */
FEEDLANE_API int32_t feedlane_loader_run_local(feedlane_loader *l, feedlane_error *err);

/** How far the epoch has come, just after the batch of `token` was yielded: what a checkpoint of the model after that batch
 *  must hold. `token` 0: after the newest one, released or not. A few hundred bytes; with save callbacks, what those saved
 *  besides. Written as far as `cap` goes: `*bytes` is the whole length, E_LIMIT if it is more than cap (buffer NULL, cap 0
 *  asks). A loader created with it as config.state goes on with exactly the remaining batches, whatever the number of
 *  workers (iterable: the same number) and, with a distributed sampler, of ranks. E_STALE: the batch was released. E_STATE:
 *  of an earlier epoch. E_UNSUPPORTED: a custom sampler without save and load. T:one. */
FEEDLANE_API int32_t feedlane_loader_state(feedlane_loader *l, uint64_t token, void *buffer, uint64_t cap,
                                           uint64_t *bytes, feedlane_error *err);

/** What a state says. */
typedef struct feedlane_state_info {
  size_t size;
  int64_t epoch;      /**< which `feedlane_loader_begin` goes on */
  int64_t batch;      /**< all batches before this one were yielded; iterable: how many */
  int64_t samples;    /**< indices of those; iterable: samples yielded */
  uint64_t base_seed; /**< the loader takes it, config.seed can be left out */
  int32_t ended;      /**< 1: the epoch's END was seen: begin the next one */
  int32_t iterable;   /**< 1: of an iterable data set */
} feedlane_state_info;

/** Looks into a state. E_CORRUPT: damaged or none; E_ABI: of a later library. T:any. */
FEEDLANE_API int32_t feedlane_state_read(const void *state, uint64_t bytes, feedlane_state_info *out,
                                         feedlane_error *err);

/** One more reference to a batch. E_STALE when it was released already. E_LIMIT: it has 65,535. T:any. */
FEEDLANE_API int32_t feedlane_batch_retain(feedlane_loader *l, uint64_t token);
/** Gives one reference back; with the last one the slot is free again. E_STALE. T:any, calls back (sampler). */
FEEDLANE_API int32_t feedlane_batch_release(feedlane_loader *l, uint64_t token);

/** Enqueues a copy of tensor number `tensor` to device memory, of which there are `bytes`. E_STATE: without config.pinned.
 *  E_STALE, E_ARGUMENT, E_DEVICE, E_UNSUPPORTED. T:any. */
FEEDLANE_API int32_t feedlane_batch_to_device(feedlane_loader *l, uint64_t token, int32_t tensor, void *device_memory,
                                              uint64_t bytes, void *stream, feedlane_error *err);
/** Gives one reference back, and the slot isn't free before `stream` has done all that is enqueued now, or has failed
 *  (FEEDLANE_EVENT_DEVICE_FAILED); `next` waits for it. An error: the reference is still the caller's. E_STATE, E_STALE,
 *  E_DEVICE, E_UNSUPPORTED. T:any, calls back (sampler). */
FEEDLANE_API int32_t feedlane_batch_release_on(feedlane_loader *l, uint64_t token, void *stream, feedlane_error *err);
#define FEEDLANE_MAX_RECORDED_STREAMS 4 /**< of a batch */
/** Says that `stream` uses the batch, as torch's record_stream does: whoever gives the last reference back, and however, the
 *  slot isn't free before `stream` has done all that is enqueued then, or has failed, or is refused by the backend
 *  (FEEDLANE_EVENT_DEVICE_FAILED). For exported tensors, whose deleters know nothing of the copies that were enqueued. The
 *  last reference isn't given back where the device's driver calls back, for the driver is asked then. The same stream twice
 *  is once. E_LIMIT: FEEDLANE_MAX_RECORDED_STREAMS others. E_STATE: without config.pinned. E_STALE, E_UNSUPPORTED. T:any. */
FEEDLANE_API int32_t feedlane_batch_record_stream(feedlane_loader *l, uint64_t token, void *stream,
                                                  feedlane_error *err);
/** config.staged: the calling thread copies batches until the loader is closed.
 *  E_STATE: not staged, inline, or another thread does. Where none is there `next` waits for start_timeout_ns, and answers
 *  E_PEER_DEAD. T:any, waits. */
FEEDLANE_API int32_t feedlane_loader_run_stager(feedlane_loader *l, feedlane_error *err);

/* ---- DLPack: its structs are its own, only their names are declared here; see https://dmlc.github.io/dlpack ---------- */

struct DLManagedTensor;
struct DLManagedTensorVersioned;
/** Say kDLCUDAHost, not kDLCPU, of memory that is registered with CUDA. */
#define FEEDLANE_DLPACK_CUDA_HOST 1

/** Tensor number `tensor` of a held batch for another library, in place, by DLPack 1.0. `flags`: 0 or
 *  FEEDLANE_DLPACK_CUDA_HOST. It holds a reference of the batch until its deleter is called: on any thread, in any order,
 *  after feedlane_loader_destroy and at exit too; in a forked child that gives nothing back. E_STALE, E_ARGUMENT, E_MEMORY,
 *  E_STATE (not registered with CUDA). T:any. */
FEEDLANE_API int32_t feedlane_batch_dlpack(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                           struct DLManagedTensorVersioned **out, feedlane_error *err);
/** The same in the form before DLPack 1.0. T:any. */
FEEDLANE_API int32_t feedlane_batch_dlpack_legacy(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                                  struct DLManagedTensor **out, feedlane_error *err);

/* ---- watching ---------------------------------------------------------------------------------------------------- */

/** Totals over the loader's life, then the state now. */
typedef struct feedlane_stats {
  size_t size;
  uint64_t batches;         /**< yielded */
  uint64_t samples;         /**< rows yielded */
  uint64_t bytes;           /**< tensor bytes yielded */
  uint64_t epochs;          /**< begun */
  uint64_t wait_ns;         /**< time in next without a batch to give, looking or asleep; 0 for those that were there */
  uint64_t restarts;        /**< workers that took the place of one that died */
  uint64_t redispatched;    /**< tasks sent out again */
  uint64_t quarantined;     /**< batches given up */
  uint64_t invalid_results; /**< results refused by validation */
  uint64_t late_results;    /**< results of abandoned tasks */
  uint64_t slots;           /**< now: all there are */
  uint64_t slots_free;      /**< now: free */
  uint64_t slots_held;      /**< now: in the trainer's hands */
  uint64_t control_bytes;   /**< now: size of the control segment, all of it reserved */
  uint64_t data_bytes;      /**< now: size of the data segment */
  uint64_t reserved_bytes;  /**< memory reserved for both from the start */
  uint64_t retried;         /**< samples (or batches, by `fetch`) that were retried */
  uint64_t substituted;     /**< samples whose place others took */
  uint64_t skipped;         /**< samples left out */
  uint64_t hung;            /**< workers that passed config.task_timeout_ns */
  char rank_source[16];     /**< of a distributed sampler, see feedlane_rank; empty: of another one */
  uint64_t huge_bytes;      /**< of data_bytes, in huge pages from the start: 0 where the system gives shared memory
                                 none (transparent_hugepage/shmem_enabled), and of segments below 8 MiB. Slots may
                                 be memory to their end then */
} feedlane_stats;

#define FEEDLANE_WORKER_NONE 0     /**< not there, or ended */
#define FEEDLANE_WORKER_STARTING 1 /**< started or offered, not attached */
#define FEEDLANE_WORKER_OPENING 2  /**< attached, setting up its data set */
#define FEEDLANE_WORKER_READY 3    /**< takes tasks */
#define FEEDLANE_WORKER_STOPPING 4 /**< was asked to end */
#define FEEDLANE_WORKER_FAILED 5   /**< its data set could not be opened */

/** One worker. The counters are what the worker itself says and add up over its replacements. */
typedef struct feedlane_worker_stats {
  size_t size;
  int64_t pid;        /**< 0: none known; an external one's is known once it has attached */
  int32_t state;      /**< FEEDLANE_WORKER_* */
  int32_t generation; /**< 0, +1 for each replacement */
  uint64_t tasks;     /**< committed, failed or dropped */
  uint64_t samples;   /**< rows committed */
  uint64_t bytes;     /**< tensor bytes committed */
  uint64_t errors;    /**< tasks failed */
  uint64_t work_ns;   /**< from receipt of a task to its commit or failure */
  uint64_t wait_ns;   /**< asleep */
} feedlane_worker_stats;

/** The loader's counters. T:any. */
FEEDLANE_API int32_t feedlane_loader_stats(const feedlane_loader *l, feedlane_stats *out);
/** A worker's counters, by its id. END past the last worker. T:any. */
FEEDLANE_API int32_t feedlane_loader_worker_stats(const feedlane_loader *l, int32_t worker, feedlane_worker_stats *out);

/** Opens a loader of process `pid`, which must run as the same user, for looking at it from here: for reading only and
 *  without a system call or a wake-up of its process. `nth` counts its loaders from 0, in the order of their descriptors; END:
 *  it has no such one. What the loader took is not freed before the monitor is closed too; after the loader's or its process's
 *  end the last numbers stay. E_ARGUMENT, E_PEER_DEAD (no such process), E_OS (another user's), E_ABI (its library lays out
 *  memory in another way), E_CORRUPT, E_MEMORY. T:any. */
FEEDLANE_API int32_t feedlane_monitor_open(int64_t pid, int32_t nth, feedlane_monitor **out, feedlane_error *err);
/** What feedlane_loader_stats says over there. T:any. */
FEEDLANE_API int32_t feedlane_monitor_stats(const feedlane_monitor *m, feedlane_stats *out);
/** What feedlane_loader_worker_stats says over there. END past the last worker. T:any. */
FEEDLANE_API int32_t feedlane_monitor_worker_stats(const feedlane_monitor *m, int32_t worker,
                                                   feedlane_worker_stats *out);
/** Gives a reference back; later calls answer E_STATE. `*m` is NULL after; NULL is fine. T:one. */
FEEDLANE_API int32_t feedlane_monitor_close(feedlane_monitor **m);
/** One more reference. E_STATE: the last one was given back. T:any. */
FEEDLANE_API int32_t feedlane_monitor_ref(feedlane_monitor *m);
/** Gives one reference back; the last one unmaps the loader. NULL is fine. T:any. */
FEEDLANE_API int32_t feedlane_monitor_unref(feedlane_monitor *m);

#define FEEDLANE_EVENT_WARNING 1        /**< `what` says it */
#define FEEDLANE_EVENT_WORKER_DIED 2    /**< what.worker; what.batch it had in hand (iterable: task->batch), or -1 */
#define FEEDLANE_EVENT_WORKER_STARTED 3 /**< a replacement of a dead one */
#define FEEDLANE_EVENT_WORKER_WANTED 4  /**< external: feedlane_loader_open_worker has one to give */
#define FEEDLANE_EVENT_QUARANTINED 5    /**< what.batch (iterable: task->batch) was given up */
#define FEEDLANE_EVENT_INVALID 6        /**< what.worker said something that doesn't hold together */
/** What became of a sample that failed: what.epoch, batch, sample, worker, `found` retries, and the failure in words with
 *  `code` what the callback returned. Told when its batch is yielded. */
#define FEEDLANE_EVENT_SAMPLE_RETRIED 7
#define FEEDLANE_EVENT_SAMPLE_SUBSTITUTED 8 /**< what.needed is the index that took its place */
#define FEEDLANE_EVENT_SAMPLE_SKIPPED 9     /**< see FEEDLANE_EVENT_SAMPLE_RETRIED */
#define FEEDLANE_EVENT_WORKER_HUNG 10       /**< what.worker, batch and sample, for how long, and its state in words; again
                                                 if it is still there 1 s after SIGKILL; or it didn't start in time */
#define FEEDLANE_EVENT_DEVICE_FAILED 11     /**< a stream failed with a release of a batch on it */

/** What must be told without being asked. */
typedef struct feedlane_event {
  size_t size;
  int32_t kind; /**< FEEDLANE_EVENT_* */
  int32_t reserved;
  uint64_t time_ns;    /**< CLOCK_MONOTONIC */
  uint64_t lost;       /**< events before this one that were overwritten: the queue holds the newest 4096 */
  feedlane_error what; /**< who, where and in words; `code` 0 where nothing failed */
} feedlane_event;

/** The oldest event not yet read. END: none. T:any. */
FEEDLANE_API int32_t feedlane_loader_event(feedlane_loader *l, feedlane_event *out);

#ifdef __cplusplus
}
#endif
#endif
