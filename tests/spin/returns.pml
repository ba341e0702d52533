/* SPDX-License-Identifier: Apache-2.0
 *
 * Returned batches, see docs/memory-ordering.md: a consumer, which may be killed or stopped anywhere, returns batches; the feeder
 * sleeps, now wanting returns, now only waiting for its workers. A return whose consumer has gone on, or has ended, is collected by
 * a feeder that wants returns. Words of the feeder may leave its store buffer in any order.
 *
 * holds:
 * fails: FENCE=0    the consumer does not fence between its return and its look at wants_returns
 * fails: BEFORE=0   the feeder stores wants_returns after the fence of its sleep
 * fails: SWEEP=0    the feeder does not look at the returns after that fence
 * fails: PIDFD=0    the consumer's death does not wake the feeder
 *
 * code: lib/sharing/retrieval.cpp Audience::prepare_wait 4c0875ab
 * code: lib/sharing/retrieval.cpp Audience::has_work 9446466c
 * code: lib/sharing/consumer.cpp Consumer::tell_return 231f711d
 * code: lib/ring/doorbell.hpp ring 6783ad38
 * code: lib/ring/doorbell.hpp prepare 307440f4
 */
#ifndef FENCE
#define FENCE 1
#endif
#ifndef BEFORE
#define BEFORE 1
#endif
#ifndef SWEEP
#define SWEEP 1
#endif
#ifndef PIDFD
#define PIDFD 1
#endif
#define RETURNS 2

byte returns = 0;                                     /* an atomic addition: seen at once, but not before earlier loads */
bit sleeping = 0, is_flag_buffered = 0, flag = 0;     /* the feeder's flag: memory; whether a newer one is buffered, and which */
bit wants = 0, is_wish_buffered = 0, wish = 0;        /* wants_returns, likewise */
bit event = 0, has_ended = 0;
byte collected = 0, due = 0;                          /* returns that were collected, and that must be */
bit must_collect = 0;                                 /* the feeder has gone to sleep wanting returns */

active proctype feeders_flag() {
end: do :: atomic { is_flag_buffered -> sleeping = flag; is_flag_buffered = 0 } od
}
active proctype feeders_wish() {
end: do :: atomic { is_wish_buffered -> wants = wish; is_wish_buffered = 0 } od
}

#define MAY_DIE_OR_STOP if :: skip :: goto dead :: false fi

active proctype consumer() {
  bit is_wanted, is_asleep, was_looked;
  byte made = 0;
  do
  :: made < RETURNS ->
    /* Without the fence the look at wants_returns may come before the addition. */
    was_looked = 0;
    if
    :: FENCE == 0 -> is_wanted = wants; is_asleep = sleeping; was_looked = 1
    :: skip
    fi;
    returns++; made++;                                /* Consumer::tell_return */
    MAY_DIE_OR_STOP;
    if :: !was_looked -> is_wanted = wants :: else fi;
    MAY_DIE_OR_STOP;
    if
    :: is_wanted ->
      if :: !was_looked -> is_asleep = sleeping :: else fi; /* Doorbell::ring */
      MAY_DIE_OR_STOP;
      if :: is_asleep -> event = 1 :: else fi
    :: else
    fi;
    due = returns;
    MAY_DIE_OR_STOP
  :: made == RETURNS -> MAY_DIE_OR_STOP
  od;
dead:
  atomic { has_ended = 1; due = returns }
}

#define DRAIN atomic { if :: is_flag_buffered -> sleeping = flag; is_flag_buffered = 0 :: else fi; \
                       if :: is_wish_buffered -> wants = wish; is_wish_buffered = 0 :: else fi }

active proctype feeder() {
  bit wanted = 0;
  do
  :: true ->
    atomic { collected = returns; must_collect = 0 }  /* Audience::work */
    if :: wanted = 1 :: wanted = 0 fi;                /* Audience::prepare_wait */
    if :: BEFORE -> wish = wanted; is_wish_buffered = 1 :: else fi;
    flag = 1; is_flag_buffered = 1;                   /* Sleeper::prepare */
    DRAIN;
    if
    :: SWEEP && wanted && collected < returns -> skip /* Audience::has_work */
    :: else ->
      if :: !BEFORE -> wish = wanted; is_wish_buffered = 1 :: else fi;
      must_collect = wanted;
      if                                              /* epoll */
      :: event -> event = 0
      :: PIDFD && has_ended && collected < returns
      :: !wanted                                      /* a worker wakes it, or never does */
      fi
    fi;
    flag = 0; is_flag_buffered = 1
  od
}

ltl returns_are_collected { [] ((must_collect && due > collected) -> <> (collected >= due || !must_collect)) }
