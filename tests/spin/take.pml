/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch of a shared loader is taken by its consumer while the feeder takes it back, see docs/memory-ordering.md. The consumer may be
 * killed or stopped anywhere. It never reads a slot that is in use again; and the slot comes back unless the consumer is stopped, once,
 * read or unread.
 *
 * holds:
 * fails: TAKER=0    the consumer does not fence between taking and looking whether it was revoked
 * fails: REVOKER=0  the feeder does not fence between revoking and looking whether it was taken
 * fails: WAITS=0    the feeder does not wait for the return of a batch that was taken and revoked
 *
 * code: lib/sharing/consumer.cpp Consumer::take 201f9abc
 * code: lib/sharing/link.cpp Link::revoke_through 7b13fddb
 */
#ifndef TAKER
#define TAKER 1
#endif
#ifndef REVOKER
#define REVOKER 1
#endif
#ifndef WAITS
#define WAITS 1
#endif

bit taken = 0, is_take_buffered = 0;
bit revoked = 0, is_revocation_buffered = 0;
bit is_returned = 0, has_ended = 0, is_reading = 0, is_used_again = 0, is_stopped = 0;
byte freed = 0;

active proctype consumers_buffer() {
end: do :: atomic { is_take_buffered -> taken = 1; is_take_buffered = 0 } od
}
active proctype feeders_buffer() {
end: do :: atomic { is_revocation_buffered -> revoked = 1; is_revocation_buffered = 0 } od
}

#define MAY_DIE_OR_STOP if :: skip :: goto dead :: is_stopped = 1; false fi

active proctype consumer() {
  bit is_gone;
  MAY_DIE_OR_STOP;
  is_take_buffered = 1;                               /* Consumer::take */
  MAY_DIE_OR_STOP;
  if :: TAKER -> atomic { if :: is_take_buffered -> taken = 1; is_take_buffered = 0 :: else fi } :: else fi;
  MAY_DIE_OR_STOP;
  is_gone = revoked;
  MAY_DIE_OR_STOP;
  if
  :: !is_gone ->
    is_reading = 1;
    assert(!is_used_again);
    MAY_DIE_OR_STOP;
    assert(!is_used_again);
    is_reading = 0
  :: else
  fi;
  MAY_DIE_OR_STOP;
  is_returned = 1;                                    /* Consumer::give_back, read or unread */
end: false;
dead:
  atomic { is_reading = 0; has_ended = 1 }
}

active proctype feeder() {
  bit was_taken;
  is_revocation_buffered = 1;                         /* Link::revoke_through */
  if :: REVOKER -> atomic { if :: is_revocation_buffered -> revoked = 1; is_revocation_buffered = 0 :: else fi } :: else fi;
  was_taken = taken;
  if
  :: was_taken && WAITS ->
    if :: is_returned :: has_ended fi                 /* Link::collect, Link::drop */
  :: else
  fi;
  assert(!is_reading);
  freed++;
  is_used_again = 1;
end: false
}

ltl slot_comes_back { [] (freed <= 1) && <> (freed == 1 || is_stopped) }
