/* SPDX-License-Identifier: Apache-2.0
 *
 * The doorbell, see docs/memory-ordering.md: a publisher that may be killed or stopped anywhere, and a sleeper, on a machine with
 * store buffers. A message whose publisher has gone on, or has ended, is seen, although the sleeper sleeps without a time limit.
 *
 * holds:
 * holds: FENCE=2    the sleeper passes a barrier on all processors in place of the publisher's fence
 * fails: FENCE=0    neither does
 * fails: SWEEP=0    the sleeper does not look again after its fence
 * fails: PIDFD=0    the publisher's death does not wake the sleeper
 *
 * code: lib/ring/doorbell.hpp ring 6783ad38
 * code: lib/ring/doorbell.hpp prepare 307440f4
 * code: lib/ring/waiter.hpp sleep c25f2c67
 */
#ifndef FENCE
#define FENCE 1
#endif
#ifndef SWEEP
#define SWEEP 1
#endif
#ifndef PIDFD
#define PIDFD 1
#endif
#define MESSAGES 3

/* Memory, and what lies in a store buffer on its way there: the newest value of each word, in order where it matters. */
byte published = 0, buffered = 0;         /* the publisher's: messages */
bit sleeping = 0, is_flag_buffered = 0, flag = 0; /* the sleeper's flag: memory; whether a newer one is buffered, and which */
bit event = 0;                            /* the eventfd: a system call, so seen at once */
bit has_ended = 0;                        /* the publisher: its pidfd */
byte seen = 0;
byte due = 0;                             /* messages that must be seen */

inline drain_publisher() { published = buffered }
inline drain_sleeper() { if :: is_flag_buffered -> sleeping = flag; is_flag_buffered = 0 :: else fi }

/* The machine empties store buffers whenever it likes, and in the end. */
active proctype publishers_buffer() {
end: do :: atomic { published != buffered -> published++ } od
}
active proctype sleepers_buffer() {
end: do :: atomic { is_flag_buffered -> sleeping = flag; is_flag_buffered = 0 } od
}

#define MAY_DIE_OR_STOP if :: skip :: goto dead :: false fi

active proctype publisher() {
  bit is_asleep;
  do
  :: buffered < MESSAGES ->
    buffered++;                                                  /* P1: Producer::commit */
    MAY_DIE_OR_STOP;
    if :: FENCE == 1 -> atomic { drain_publisher() } :: else fi; /* P2 */
    MAY_DIE_OR_STOP;
    is_asleep = sleeping;                                        /* P3 */
    MAY_DIE_OR_STOP;
    if :: is_asleep -> event = 1 :: else fi;                     /* P4 */
    due = buffered;
    MAY_DIE_OR_STOP
  :: buffered == MESSAGES -> MAY_DIE_OR_STOP
  od;
dead:
  atomic { has_ended = 1; due = buffered }
}

active proctype sleeper() {
  do
  :: atomic { seen < published -> seen++ }
  :: seen == published ->
    flag = 1; is_flag_buffered = 1;                    /* S1 */
    atomic { drain_sleeper(); if :: FENCE == 2 -> drain_publisher() :: else fi }; /* S2 */
    if
    :: SWEEP && seen < published -> skip               /* S3 */
    :: SWEEP && has_ended && seen == published && published == buffered -> break
    :: else ->
      if                                               /* S4: epoll */
      :: event -> event = 0
      :: PIDFD && has_ended -> if :: seen == published && published == buffered -> break :: else fi
      fi
    fi;
    flag = 0; is_flag_buffered = 1
  od
}

ltl everything_is_seen { [] ((due > seen) -> <> (seen >= due)) }
