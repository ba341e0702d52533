/* SPDX-License-Identifier: Apache-2.0
 * What a test tells the bare worker to do: the loader's worker configuration. Zero: nothing out of the ordinary. Not part of
 * the format. With the argument "impostor" it takes a segment of its own for data; with "impostor-stays" its process lives on
 * when it was refused. */
#pragma once

#include <stdint.h>

#define ORDERS_STATE_BYTES 8

struct orders {
  /* Every n-th sample, by index (iterable: by number in the shard): */
  int64_t fail_every;  /* can't be made */
  int64_t retry_every; /* can't be made at the first try */
  int64_t slow_every;  /* takes `slow_us` */
  int64_t slow_us;
  int64_t traceback_bytes; /* of what can't be made */

  /* The first sample of batch `gate_batch` waits until descriptor `gate` is readable. */
  int64_t gate;
  int64_t gate_batch;

  /* Generation 0 sends itself `signal` before step `at_step` of a task (docs/layout.md), in its `at_task`-th, from 0. */
  int64_t at_step;
  int64_t at_task;
  int64_t signal;
  int64_t scribbles; /* 1: before that it writes over the first 128 bytes of data */

  int64_t range_us;      /* worker 0 takes so long between its two looks at the range of ids that was revoked */
  int64_t shaped;        /* 1: a declared tensor of another shape, one that isn't declared, metadata; 2: large ones */
  int64_t wide_bytes;    /* of a row of the large one */
  int64_t shard_samples; /* iterable: of each shard */
  int64_t saves;         /* iterable: 1: says where it stands with each batch */
  int64_t pass_us;       /* iterable: a sample that was delivered before takes so long to leave out */
  int64_t leave_after;   /* so many tasks, then it detaches and lives on until `gate` is readable; 0: never */
  int64_t breach;        /* a breach_ number: what it does against docs/layout.md; 0: nothing */
  int64_t reports;       /* a descriptor that is told of each start and each task, 0: none */
};

enum {
  breach_ready_twice = 1,
  breach_ready_positive = 2,
  breach_never_ready = 3,
  breach_shaped_bit = 4 /* a bit of `shaped` behind the tensors that there are */
};

struct report {
  int64_t what; /* a report_ number */
  int64_t pid;
  int64_t batch;
  int64_t worker;
  int64_t slot;
};
enum {
  report_attached = 1,
  report_began = 2,
  report_declined = 3,
  report_passed_over = 4,
  report_reserved = 5 /* memory of the slot, beyond what is there from the start */
};
