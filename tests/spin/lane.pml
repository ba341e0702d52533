/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane and its generations: producers, one after another, that may be killed or stopped anywhere, a consumer that hands the lane to
 * the next one. Every message comes once, in order, as it was written; of a commit all messages come or none; what was committed
 * before the death comes; and each generation ends. Release and acquire keep the order of one producer's stores, so none is buffered.
 *
 * holds:
 * holds: SKIP=0     formatting alone keeps generations apart
 * holds: FORMAT=0   skipping a lap alone does
 * fails: SKIP=0 FORMAT=0   neither
 * fails: BACKWARDS=0       the cells of a commit are published from the first to the last
 * fails: DRAIN=0           the consumer does not look again after it saw the death
 * fails: ROOM=0            the producer does not wait until its cell is released
 *
 * code: lib/ring/spsc.hpp commit feff5ac0
 * code: lib/ring/spsc.hpp reserve a055bc20
 * code: lib/ring/spsc.hpp peek d9ddc3d6
 * code: lib/ring/spsc.hpp release b32e8427
 * code: lib/loader/crew.cpp Crew::drain_lane 0632bbdd
 * code: lib/ring/spsc.hpp format a952d31f
 * code: lib/ring/lanes.hpp close db571d90
 * code: lib/ring/lanes.hpp prepare 562c878f
 */
#ifndef SKIP
#define SKIP 1
#endif
#ifndef FORMAT
#define FORMAT 1
#endif
#ifndef BACKWARDS
#define BACKWARDS 1
#endif
#ifndef DRAIN
#define DRAIN 1
#endif
#ifndef ROOM
#define ROOM 1
#endif
#define GENERATIONS 3
#define CELLS 2
#define MESSAGES 3

/* Cells: sequence numbers, and messages: generation, number, how many of its commit follow. */
byte sequence[CELLS], from[CELLS], number[CELLS], left[CELLS];
byte released = 0;                        /* the consumer's position, as producers read it */
byte start = 0;                           /* where the producer of this generation begins */
byte generation = 1;                      /* that the lane is open for */
byte due = 0;                             /* messages of it whose commit is whole */
bit has_ended = 0, is_stopped = 0, is_over = 0;

#define MAY_DIE_OR_STOP if :: skip :: goto dead :: is_stopped = 1; false fi

/* One producer of this generation, and its end, which its pidfd tells. */
proctype producer(byte mine) {
  byte position = start, sent = 0, count = 0, i = 0;
  do
  :: sent < MESSAGES ->
    MAY_DIE_OR_STOP;
    if                                                   /* Producer::reserve: not beyond the end of the memory */
    :: count = 1
    :: sent + 2 <= MESSAGES && position % CELLS == 0 -> count = 2
    fi;
    if :: !ROOM || position + count - released <= CELLS fi;
    i = 0;
    do
    :: i < count ->
      MAY_DIE_OR_STOP;
      atomic {
        from[(position + i) % CELLS] = mine;
        number[(position + i) % CELLS] = sent + i;
        left[(position + i) % CELLS] = count - 1 - i
      };
      i++
    :: else -> break
    od;
    i = 0;                                               /* Producer::commit */
    do
    :: i < count ->
      MAY_DIE_OR_STOP;
      if
      :: BACKWARDS -> sequence[(position + count - 1 - i) % CELLS] = position + count - i
      :: else -> sequence[(position + i) % CELLS] = position + i + 1
      fi;
      i++
    :: else -> break
    od;
    position = position + count;
    sent = sent + count;
    due = sent
  :: else -> break
  od;
dead:
  has_ended = 1
}

active proctype consumer() {
  byte position = 0, next = 0, count = 0, rest = 0;
  bit saw_end;
  run producer(1);
  do
  :: generation <= GENERATIONS ->
    saw_end = has_ended;                                 /* before the look, or what came in between is lost */
    count = 0;                                           /* Consumer::peek */
    do
    :: count < CELLS - position % CELLS && sequence[(position + count) % CELLS] == position + count + 1 -> count++
    :: else -> break
    od;
    if
    :: count > 0 && (DRAIN || !saw_end) ->
      do
      :: count > 0 ->
        assert(from[position % CELLS] == generation && number[position % CELLS] == next);
        rest = left[position % CELLS];
        next++;
        position++;
        count--
      :: else -> break
      od;
      released = position                                /* Consumer::release */
    :: saw_end && (count == 0 || !DRAIN) ->
      assert(rest == 0 && next >= due);
      if :: SKIP -> position = position + CELLS; released = position :: else fi;          /* Lanes::close */
      if :: FORMAT -> atomic {                           /* Lanes::prepare */
        count = 0;
        do
        :: count < CELLS -> sequence[(position + count) % CELLS] = position + count + 1 - CELLS; count++
        :: else -> break
        od }
      :: else
      fi;
      atomic { start = position; next = 0; rest = 0; due = 0; has_ended = 0; generation++ };
      if :: generation <= GENERATIONS -> run producer(generation) :: else fi
    :: else -> has_ended || sequence[position % CELLS] == position + 1   /* asleep */
    fi
  :: else -> break
  od;
  is_over = 1
}

ltl each_ends { <> (is_over || is_stopped) }
