/* SPDX-License-Identifier: Apache-2.0
 *
 * A task is taken back from a worker that may begin it at this moment, see docs/memory-ordering.md. The worker may be killed or stopped
 * anywhere. Never do two workers write the task's slot; and the task is done once, unless the worker is stopped.
 *
 * holds:
 * fails: WORKER=0   the worker does not fence between saying that it begins and looking whether the task was revoked
 * fails: TRAINER=0  the trainer does not fence between revoking and looking what was begun
 * fails: DECLINE=0  the trainer forgets a task that it found begun and that its worker declines
 * fails: DRAIN=0    the trainer does not look for the dead worker's answer before it gives the task away
 *
 * code: lib/worker/worker.cpp Worker::is_revoked 9c4c46b6
 * code: lib/worker/worker.cpp Worker::take_task b7274d74
 * code: lib/supervisor/task_ring.cpp TaskRing::revoke 678f2e0a
 * code: lib/loader/collector.cpp Collector::collect 8cb55ad9
 * code: lib/loader/crew.cpp Crew::drain_lane 0632bbdd
 */
#ifndef WORKER
#define WORKER 1
#endif
#ifndef TRAINER
#define TRAINER 1
#endif
#ifndef DECLINE
#define DECLINE 1
#endif
#ifndef DRAIN
#define DRAIN 1
#endif

mtype = { nothing, finished, declined };

bit begun = 0, is_begin_buffered = 0;
bit revoked = 0, is_revocation_buffered = 0;
mtype answer = nothing;                                /* a commit in the worker's lane */
bit has_ended = 0, is_writing = 0, is_stopped = 0;
byte taken = 0, given = 0;                             /* this worker's result; to another worker, which does it */

active proctype workers_buffer() {
end: do :: atomic { is_begin_buffered -> begun = 1; is_begin_buffered = 0 } od
}
active proctype trainers_buffer() {
end: do :: atomic { is_revocation_buffered -> revoked = 1; is_revocation_buffered = 0 } od
}

#define MAY_DIE_OR_STOP if :: skip :: goto dead :: is_stopped = 1; false fi

active proctype worker() {
  bit is_another_s;
  MAY_DIE_OR_STOP;
  is_begin_buffered = 1;                               /* Worker::take_task */
  MAY_DIE_OR_STOP;
  if :: WORKER -> atomic { if :: is_begin_buffered -> begun = 1; is_begin_buffered = 0 :: else fi } :: else fi;
  MAY_DIE_OR_STOP;
  is_another_s = revoked;                              /* Worker::is_revoked */
  MAY_DIE_OR_STOP;
  if
  :: is_another_s -> answer = declined
  :: else ->
    is_writing = 1;
    assert(given == 0);
    MAY_DIE_OR_STOP;
    assert(given == 0);
    atomic { is_writing = 0; answer = finished }
  fi;
  MAY_DIE_OR_STOP;
end: false;
dead:
  atomic { is_writing = 0; has_ended = 1 }
}

active proctype trainer() {
  bit was_begun, saw_end;
  is_revocation_buffered = 1;                          /* TaskRing::revoke */
  if :: TRAINER -> atomic { if :: is_revocation_buffered -> revoked = 1; is_revocation_buffered = 0 :: else fi } :: else fi;
  was_begun = begun;
  if
  :: !was_begun -> given++                             /* what it answers is forgotten */
  :: else ->
    if :: answer != nothing :: has_ended fi;
    saw_end = has_ended;
    if
    :: answer == finished && (DRAIN || !saw_end) -> taken++
    :: answer == declined && DECLINE -> given++
    :: answer == declined && !DECLINE -> skip
    :: answer == nothing || (answer == finished && !DRAIN && saw_end) -> given++   /* it has ended */
    fi
  fi;
  assert(!is_writing);
  assert(!(given > 0 && answer == finished));
end: false
}

ltl is_done_once { [] (taken + given <= 1) && <> (taken + given == 1 || is_stopped) }
