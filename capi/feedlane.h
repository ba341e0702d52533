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
 *  - A signal that lands in a waiting thread ends the wait with FEEDLANE_INTERRUPTED; nothing is lost, call again. Not in
 *    calls that can't be called again: begin, stop and destroy, bounded by the stop timeouts, and the attach functions.
 *  - T:any = any thread at any time; T:one = one thread at a time (overlap is found and answered with E_BUSY).
 *  - In a forked child every call on a handle answers E_FORKED, but *_destroy and *_detach: those only clear the pointer.
 *  - Structs begin with `size`. EVERY other field means "default" when zero. A shorter struct than this header's is
 *    accepted; a longer one only if what this library does not know of it is zero (E_ABI otherwise). Of output structs
 *    as much is written as there is room for.
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

/* ---- standalone rings: messages of one size from up to `lanes` senders to one receiver ---------------------------- */

/** With one lane an SPSC ring, with several MPSC: each sender's messages in order, none across. */
typedef struct feedlane_ring_config {
  size_t size;
  uint32_t message_bytes; /**< 1 .. 1 MiB; with 8 more, rounded up to 64, a cell */
  uint32_t capacity;      /**< messages a lane holds: a power of two up to 2^24 */
  uint32_t lanes;         /**< senders at a time, up to 4096; 0: 1 */
  uint32_t reserved;
  const char *path; /**< NULL: senders come by feedlane_rx_offer; else also by connecting to this Unix socket,
                               mode 0600, peers of the same user only; removed with the receiver */
} feedlane_ring_config;

/** Messages in place, `stride` bytes apart. */
typedef struct feedlane_span {
  void *data;      /**< the first message */
  uint64_t stride; /**< bytes from one message to the next */
  uint32_t count;  /**< may be less than asked: messages of one span never cross the ring's end */
  uint32_t lane;   /**< whose messages they are */
} feedlane_span;

/** Makes a ring and its receiving end; all its memory is reserved. E_ARGUMENT, E_MEMORY, E_LIMIT, E_OS, E_STATE (another
 *  process listens at the path). T:any. */
FEEDLANE_API int32_t feedlane_rx_create(const feedlane_ring_config *config, feedlane_rx **out, feedlane_error *err);
/** A connected socket for one sender, the caller's to pass to that process and to close. E_LIMIT: every lane is taken.
 *  T:one. */
FEEDLANE_API int32_t feedlane_rx_offer(feedlane_rx *rx, int32_t *fd, feedlane_error *err);
/** Waits for messages of one lane, lanes by turns; at most `want` (>= 1). They stay where they are until
 *  feedlane_rx_release; a second peek without it shows messages of the next lane. END when every sender that came has left
 *  or died and everything they committed has been taken; later ones may still come. TIMEOUT, INTERRUPTED. T:one. */
FEEDLANE_API int32_t feedlane_rx_peek(feedlane_rx *rx, uint32_t want, int64_t timeout_ns, feedlane_span *got,
                                      feedlane_error *err);
/** Gives back the first `count` messages of the last peek, which must have been of `lane`. T:one. */
FEEDLANE_API int32_t feedlane_rx_release(feedlane_rx *rx, uint32_t lane, uint32_t count, feedlane_error *err);
/** A descriptor to poll for reading in a foreign event loop, after feedlane_rx_arm said 0. Borrowed. T:any. */
FEEDLANE_API int32_t feedlane_rx_wait_fd(const feedlane_rx *rx, int32_t *fd);
/** 0: nothing is there, sleep on the descriptor; AGAIN: call feedlane_rx_peek now. T:one. */
FEEDLANE_API int32_t feedlane_rx_arm(feedlane_rx *rx);
/** `*rx` is NULL after; NULL is fine. Senders find E_PEER_DEAD when they next wait. T:one. */
FEEDLANE_API int32_t feedlane_rx_destroy(feedlane_rx **rx);

/** Becomes a sender: by the descriptor of an offer, which is taken in every case, or, with fd -1, by the socket at `path`.
 *  The receiver lets senders in while it is in feedlane_rx_peek, _arm or _offer. E_PEER_DEAD, E_LIMIT (every lane is taken),
 *  E_ARGUMENT, E_ABI, E_CORRUPT, E_STATE (another user's), E_OS, TIMEOUT. T:any. */
FEEDLANE_API int32_t feedlane_tx_attach(int32_t fd, const char *path, int64_t timeout_ns, feedlane_tx **out,
                                        feedlane_error *err);
/** Waits for room; at most `want` (>= 1) messages to fill. A reservation not committed is given back by the next one.
 *  E_PEER_DEAD: the ring is full and its receiver gone. TIMEOUT, INTERRUPTED. T:one. */
FEEDLANE_API int32_t feedlane_tx_reserve(feedlane_tx *tx, uint32_t want, int64_t timeout_ns, feedlane_span *got,
                                         feedlane_error *err);
/** Publishes the first `count` reserved messages, in order: each is seen whole or not at all, even if this process is
 *  killed in here. 0 gives the reservation back. T:one. */
FEEDLANE_API int32_t feedlane_tx_commit(feedlane_tx *tx, uint32_t count, feedlane_error *err);
/** Leaves; what was committed is still taken. `*tx` is NULL after; NULL is fine. T:one. */
FEEDLANE_API int32_t feedlane_tx_destroy(feedlane_tx **tx);

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

/* ---- samplers: single-threaded objects; a loader takes a copy of its own ------------------------------------------ */

/** What feedlane_sampler_random shuffles. */
typedef struct feedlane_random_config {
  size_t size;
  int64_t length; /**< size of the data set, > 0 */
  uint64_t seed;  /**< epoch e is shuffled with seed + e */
} feedlane_random_config;

/** 0, 1, ... length - 1; `length` >= 0. T:any. */
FEEDLANE_API int32_t feedlane_sampler_sequential(int64_t length, feedlane_sampler **out, feedlane_error *err);
/** A permutation of [0, length), for each epoch another: the one torch.randperm yields on CPU for the generator seed
 *  `seed + epoch`. 8 bytes an index. T:any. */
FEEDLANE_API int32_t feedlane_sampler_random(const feedlane_random_config *config, feedlane_sampler **out,
                                             feedlane_error *err);
/** Starts `epoch` (>= 0) over. T:one. */
FEEDLANE_API int32_t feedlane_sampler_restart(feedlane_sampler *s, int64_t epoch, feedlane_error *err);
/** Writes up to `cap` indices and their number to `got`; fewer than cap only at the end; END (got 0) when none is left.
 *  A fresh sampler stands at the start of epoch 0. T:one. */
FEEDLANE_API int32_t feedlane_sampler_next(feedlane_sampler *s, int64_t *indices, uint64_t cap, uint64_t *got,
                                           feedlane_error *err);
/** Indices in an epoch. T:any. */
FEEDLANE_API int32_t feedlane_sampler_length(const feedlane_sampler *s, int64_t *length);
/** Frees the sampler; NULL or a NULL handle is fine; `*s` is NULL after. T:one. */
FEEDLANE_API int32_t feedlane_sampler_destroy(feedlane_sampler **s);

/* ---- data set: what a worker runs -------------------------------------------------------------------------------- */

/** One batch to make. The library's; valid until commit, fail or the next feedlane_worker_next. */
typedef struct feedlane_task {
  size_t size;
  uint64_t id;                    /**< never reused within a loader: epochs, attempts and crashes included */
  int64_t epoch;                  /**< as the trainer numbered it */
  int64_t batch;                  /**< its number in the epoch, from 0 */
  int32_t attempt;                /**< 0, +1 each time the batch is sent out again */
  int32_t tensor_count;           /**< as many as there are fields */
  const int64_t *indices;         /**< `count` data set indices, read-only shared memory */
  uint64_t count;                 /**< rows wanted */
  const uint64_t *seeds;          /**< one a row, from (base seed, epoch, position): the same whoever makes the batch */
  const feedlane_tensor *tensors; /**< the declared fields, shape [count, ...], ready to be written */
  feedlane_worker *worker;        /**< NULL inline (no workers) */
} feedlane_task;

/** One sample: where to put it. */
typedef struct feedlane_row {
  size_t size;
  int64_t index;             /**< data set index */
  uint64_t seed;             /**< of this sample: task->seeds */
  void *const *fields;       /**< fields[f]: this row of tensor f, bytes[f] long */
  const uint64_t *bytes;     /**< one number a field */
  const feedlane_task *task; /**< the batch that it is a row of */
} feedlane_row;

/** Who this worker is. Pointers live until detach. */
typedef struct feedlane_worker_info {
  size_t size;
  int32_t id;         /**< 0 .. count - 1; -1 inline */
  int32_t count;      /**< number of workers */
  int32_t generation; /**< 0, +1 for each replacement */
  int32_t reserved;
  uint64_t seed;                /**< base seed + id */
  const void *config;           /**< the loader's worker_config, read-only; NULL if it has none */
  uint64_t config_bytes;        /**< its length */
  const feedlane_field *fields; /**< as the trainer declared them */
  uint64_t field_count;         /**< how many */
} feedlane_worker_info;

/**
 * The callbacks of a map-style data set, the same for every start mode. Either `get` or `fetch` must be there; `fetch`
 * is preferred when both are. Callbacks return 0 or a negative status with err->text (and err->detail for a traceback,
 * err->detail_len its length) filled in. All callbacks of one worker run in one thread, one at a time.
 */
typedef struct feedlane_dataset {
  size_t size;
  void *user_data; /**< kept */
  /** Once a worker, before its first task (torch's worker_init_fn). `*self` goes to the others. NULL: self = user_data. */
  int32_t (*open)(void *user_data, const feedlane_worker_info *info, void **self, feedlane_error *err);
  /** One sample into its row. */
  int32_t (*get)(void *self, const feedlane_row *row, feedlane_error *err);
  /** The whole batch: writes every row of every tensor of the task. */
  int32_t (*fetch)(void *self, const feedlane_task *task, feedlane_error *err);
  void (*close)(void *self); /**< once, if open succeeded */
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
/** Joins the trainer at the other end of `fd`, which is taken in every case. E_ARGUMENT, E_ABI, E_PEER_DEAD,
 *  E_CORRUPT, E_OS, TIMEOUT.
 *  Call from the thread that will work. From here on the process is killed when the trainer dies. T:any. */
FEEDLANE_API int32_t feedlane_worker_attach(int32_t fd, int64_t timeout_ns, feedlane_worker **out, feedlane_error *err);
/** Who this worker is. T:one. */
FEEDLANE_API int32_t feedlane_worker_get_info(const feedlane_worker *w, feedlane_worker_info *info);
/** Once, before the first feedlane_worker_next. `status` 0: the data set is open; negative: it can't be opened, `text`
 *  (may be NULL) says why; the trainer's first `next` reports it as E_INIT. T:one. */
FEEDLANE_API int32_t feedlane_worker_ready(feedlane_worker *w, int32_t status, const char *text, feedlane_error *err);
/** Waits for a task. END: the trainer wants no more or is gone. A task neither committed nor failed is E_STATE. T:one.
 *  TIMEOUT, INTERRUPTED. */
FEEDLANE_API int32_t feedlane_worker_next(feedlane_worker *w, int64_t timeout_ns, const feedlane_task **task,
                                          feedlane_error *err);
/** Between samples, two loads: 0 go on; ABANDONED: fail or commit now, it will be dropped; END: the trainer wants no
 *  more. T:one. */
FEEDLANE_API int32_t feedlane_worker_check(const feedlane_worker *w);
/** A descriptor to poll for reading in a foreign event loop, after feedlane_worker_arm said 0. Borrowed. T:any. */
FEEDLANE_API int32_t feedlane_worker_wait_fd(const feedlane_worker *w, int32_t *fd);
/** 0: nothing is there, sleep on the descriptor; AGAIN: call feedlane_worker_next now. T:one. */
FEEDLANE_API int32_t feedlane_worker_arm(feedlane_worker *w);
/** Memory of the present task, gone after commit or fail. `align` a power of two, 0 means 16. NULL: no memory, or no
 *  task. T:one. */
FEEDLANE_API void *feedlane_worker_scratch(feedlane_worker *w, uint64_t bytes, uint64_t align);
/** The batch is made: `rows` (1 .. task->count) rows of every tensor are written. The task is gone after, on success and
 *  on E_STALE; on E_ARGUMENT it is still there. T:one. */
FEEDLANE_API int32_t feedlane_task_commit(const feedlane_task *task, uint64_t rows, feedlane_error *err);
/** The batch can't be made: `position` is the row that failed (-1: none), `text` (may be NULL) and `traceback` (may be
 *  NULL) travel to the trainer, whose `next` returns them as E_SAMPLE. Too long a text or traceback is cut. T:one. */
FEEDLANE_API int32_t feedlane_task_fail(const feedlane_task *task, int64_t position, int32_t transient,
                                        const char *text, const char *traceback, feedlane_error *err);
/** The callback form: attach, open, ready, tasks, close, detach: exactly a loop of the above. Takes `fd`. Returns 0 when
 *  the trainer wants no more. */
FEEDLANE_API int32_t feedlane_worker_run(int32_t fd, const feedlane_dataset *dataset, feedlane_error *err);
/** Leaves. `*w` is NULL after; NULL is fine. T:one. */
FEEDLANE_API int32_t feedlane_worker_detach(feedlane_worker **w);

/* ---- loader ------------------------------------------------------------------------------------------------------ */

#define FEEDLANE_START_SPAWN 0 /**< the library starts `argv`, or this program again */
#define FEEDLANE_START_FORK 1  /**< the library forks this process; `dataset` runs in the children */
#define FEEDLANE_START_THREAD \
  2 /**< threads of the host call feedlane_loader_run_local or feedlane_loader_local_worker */
#define FEEDLANE_START_EXTERNAL 3 /**< the host starts processes with feedlane_loader_open_worker's descriptor */

/** What to load, by whom, and how patient to be. */
typedef struct feedlane_loader_config {
  size_t size;
  /* what */
  const feedlane_sampler *sampler; /**< required; copied in its present definition, not its position */
  const feedlane_dataset *dataset; /**< inline (workers 0) and fork: required; thread: for run_local; else NULL */
  const feedlane_field *fields;    /**< required; elements are fields[0].size bytes apart */
  uint64_t field_count;            /**< 1 .. FEEDLANE_MAX_TENSORS */
  int64_t batch_size;              /**< 0: 1 */
  int32_t drop_last;               /**< 1: no incomplete last batch */
  int32_t has_seed;                /**< 1: `seed` counts even when it is 0 */
  uint64_t seed;                   /**< the base seed; without one it is drawn from the system */
  /* who */
  int32_t workers;         /**< 0: the data set runs inline, in the caller of next */
  int32_t start;           /**< FEEDLANE_START_* */
  int32_t prefetch_factor; /**< batches in flight per worker; 0: 2 */
  int32_t keep_workers;    /**< 1: workers outlive the epoch (external ones and threads always do) */
  int32_t held;            /**< batches that the trainer means to hold at once; 0: 1 */
  int32_t reserved;
  const char *const *argv;      /**< spawn: NULL-terminated; argv[0] is looked up in PATH. NULL: this program again */
  const char *const *envp;      /**< spawn: NULL-terminated "NAME=value"; NULL: this process's environment */
  const void *worker_config;    /**< handed to every worker as it is */
  uint64_t worker_config_bytes; /**< its length */
  /* when things go wrong */
  int64_t start_timeout_ns;    /**< from start to attach; 0: 60 s */
  int64_t stop_timeout_ns;     /**< from the done-event to SIGTERM; 0: 5 s */
  int64_t term_timeout_ns;     /**< from SIGTERM to SIGKILL; 0: 1 s */
  int32_t max_restarts;        /**< spawn: replacements of dead workers over the loader's life; 0: 1000; -1: none */
  int32_t max_kills_per_batch; /**< deaths after which a batch is E_QUARANTINED; 0: 3 */
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
  const feedlane_tensor *tensors; /**< one a field, in the order of declaration */
  uint64_t tensor_count;          /**< how many */
  const int64_t *indices;         /**< what the sampler yielded for this batch, `count` of them */
  uint64_t count;                 /**< rows */
} feedlane_batch;

/** Makes a loader: checks the configuration, reserves all memory. Workers start with the first `begin`.
 *  E_ARGUMENT, E_MEMORY, E_LIMIT, E_OS, E_STATE (inside a worker). T:any. */
FEEDLANE_API int32_t feedlane_loader_create(const feedlane_loader_config *config, feedlane_loader **out,
                                            feedlane_error *err);
/** Stops the workers (see feedlane_loader_stop) and frees the loader; `*l` is NULL after, NULL is fine. While batches are
 *  held the memory lives on, and feedlane_batch_retain / _release may still be called with a copy of the handle until the
 *  last one is released; every other call answers E_STATE. T:one. */
FEEDLANE_API int32_t feedlane_loader_destroy(feedlane_loader **l);
/** Starts `epoch` (>= 0), workers too if none run. In mid-epoch the old one is abandoned first. T:one. */
FEEDLANE_API int32_t feedlane_loader_begin(feedlane_loader *l, int64_t epoch, feedlane_error *err);
/** The next batch, in the sampler's order. END, TIMEOUT, INTERRUPTED, SLOTS_HELD (E). E_SAMPLE and E_QUARANTINED concern
 *  one batch: the following call goes on with the following batch. E_INIT, E_RESTARTS, E_HUNG (a worker didn't attach in
 *  time), E_CORRUPT concern the loader: repeated until `begin`. E_PEER_DEAD: no external worker is there; until
 *  feedlane_loader_open_worker. E_OS, E_MEMORY: call again when the cause is gone. Deaths are found and workers replaced in
 *  here. With END, workers that aren't kept are asked to end, and waited for within the timeout. T:one. */
FEEDLANE_API int32_t feedlane_loader_next(feedlane_loader *l, int64_t timeout_ns, feedlane_batch *out,
                                          feedlane_error *err);
/** What `next` does, but for taking a batch: reap, restart, dispatch; never waits. 0: none is ready; AGAIN: one is, or
 *  `next` has something else to say. Call it while a device works. T:one. */
FEEDLANE_API int32_t feedlane_loader_poll(feedlane_loader *l, feedlane_error *err);
/** A descriptor to poll for reading in a foreign event loop, after feedlane_loader_arm said 0. Borrowed. T:any. */
FEEDLANE_API int32_t feedlane_loader_wait_fd(const feedlane_loader *l, int32_t *fd);
/** 0: nothing is there, sleep on the descriptor; AGAIN: call next or poll now. T:one. */
FEEDLANE_API int32_t feedlane_loader_arm(feedlane_loader *l);
/** Ends the present or the following wait in `next` with INTERRUPTED. T:any, async-signal-safe. */
FEEDLANE_API int32_t feedlane_loader_interrupt(feedlane_loader *l);
/** Ends the epoch and all workers at once: done-event, then SIGTERM, then SIGKILL, each after its timeout; waits for
 *  their ends. `begin` starts them again. T:one. */
FEEDLANE_API int32_t feedlane_loader_stop(feedlane_loader *l, feedlane_error *err);
/** Batches in an epoch. T:any. */
FEEDLANE_API int32_t feedlane_loader_length(const feedlane_loader *l, int64_t *batches);
/** External mode: a connected socket for one worker process, the caller's to pass on and to close. `*id` is the worker
 *  wanted or -1 for any that is missing; it is written. END: none is missing. Looks for deaths first, so that calling it
 *  now and then (one system call) is how a host keeps its workers complete; max_restarts doesn't bound it. T:one. */
FEEDLANE_API int32_t feedlane_loader_open_worker(feedlane_loader *l, int32_t *id, int32_t *fd, feedlane_error *err);

/** Thread mode: makes the calling thread a worker, for the pull form; detach when next says END. The loader's memory lives
 *  until then. END: no worker is missing. T:any. */
FEEDLANE_API int32_t feedlane_loader_local_worker(feedlane_loader *l, feedlane_worker **out, feedlane_error *err);
/** Thread mode, callback form: the calling thread works with config.dataset until the trainer wants no more. END: no worker
 *  is missing. T:any. */
FEEDLANE_API int32_t feedlane_loader_run_local(feedlane_loader *l, feedlane_error *err);

/** One more reference to a batch. E_STALE when it was released already. T:any. */
FEEDLANE_API int32_t feedlane_batch_retain(feedlane_loader *l, uint64_t token);
/** Gives one reference back; with the last one the slot is free again. E_STALE. T:any. */
FEEDLANE_API int32_t feedlane_batch_release(feedlane_loader *l, uint64_t token);

/* ---- watching ---------------------------------------------------------------------------------------------------- */

/** Totals over the loader's life, then the state now. */
typedef struct feedlane_stats {
  size_t size;
  uint64_t batches;         /**< yielded */
  uint64_t samples;         /**< rows yielded */
  uint64_t bytes;           /**< tensor bytes yielded */
  uint64_t epochs;          /**< begun */
  uint64_t wait_ns;         /**< time spent asleep in next */
  uint64_t restarts;        /**< workers that took the place of one that died */
  uint64_t redispatched;    /**< tasks sent out again */
  uint64_t quarantined;     /**< batches given up */
  uint64_t invalid_results; /**< results refused by validation */
  uint64_t late_results;    /**< results of abandoned tasks */
  uint64_t slots;           /**< now: all there are */
  uint64_t slots_free;      /**< now: free */
  uint64_t slots_held;      /**< now: in the trainer's hands */
  uint64_t control_bytes;   /**< now: size of the control segment, all of it reserved */
  uint64_t data_bytes;      /**< now: size of the data segment, all of it reserved */
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

#define FEEDLANE_EVENT_WARNING 1        /**< `what` says it */
#define FEEDLANE_EVENT_WORKER_DIED 2    /**< what.worker; what.batch it had in hand, or -1 */
#define FEEDLANE_EVENT_WORKER_STARTED 3 /**< a replacement of a dead one */
#define FEEDLANE_EVENT_WORKER_WANTED 4  /**< external: feedlane_loader_open_worker has one to give */
#define FEEDLANE_EVENT_QUARANTINED 5    /**< what.batch was given up */
#define FEEDLANE_EVENT_INVALID 6        /**< what.worker said something that doesn't hold together */

/** What must be told without being asked. */
typedef struct feedlane_event {
  size_t size;
  int32_t kind; /**< FEEDLANE_EVENT_* */
  int32_t reserved;
  uint64_t time_ns;    /**< CLOCK_MONOTONIC */
  uint64_t lost;       /**< events before this one that were overwritten: the queue holds the newest 256 */
  feedlane_error what; /**< who, where and in words; `code` 0 where nothing failed */
} feedlane_event;

/** The oldest event not yet read. END: none. T:any. */
FEEDLANE_API int32_t feedlane_loader_event(feedlane_loader *l, feedlane_event *out);

#ifdef __cplusplus
}
#endif
#endif
