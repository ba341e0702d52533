/* SPDX-License-Identifier: Apache-2.0
 *
 * A handle is closed and given back by its owners while another thread is in a call on it, without a reference of its own. Whoever is
 * last ends what was begun and frees the handle: once, when nobody uses it any more. Every access is an atomic one to one word, so
 * sequential consistency is enough here; its orders are in tests/litmus.
 *
 * holds:
 * fails: EXCHANGE=0  the thread that leaves a call clears in_call without looking what came meanwhile
 * fails: TOGETHER=0  the last owner looks whether somebody is in a call before it marks the handle as unowned, not at once
 * fails: ENDING=0    who leaves does not do what a close has left to be done
 *
 * code: capi/handle.hpp leave ed2934eb
 * code: capi/handle.hpp close 0cb6244e
 * code: capi/handle.hpp unref 007a75f5
 * code: capi/handle.hpp mark_closed cf654d26
 */
#ifndef EXCHANGE
#define EXCHANGE 1
#endif
#ifndef TOGETHER
#define TOGETHER 1
#endif
#ifndef ENDING
#define ENDING 1
#endif

bit in_call = 1, closed = 0, ending = 0, unowned = 0; /* Handle::state; a thread is in a call */
byte owners = 2;
byte freed = 0;
bit is_kept = 0;                                      /* an owner keeps its reference */
bit must_end = 0;                                     /* a close has asked for it */

inline finish() { assert(freed == 0); freed++; must_end = 0 }

inline leave() {
  atomic { assert(!freed); was_ending = ending; was_unowned = unowned }
  do
  :: was_unowned -> finish(); break
  :: !was_unowned && was_ending && ENDING ->
    must_end = 0;                                     /* end_what_was_begun */
    atomic { assert(!freed); ending = 0; was_ending = 0; was_unowned = unowned }
  :: !was_unowned && !(was_ending && ENDING) ->
    atomic {
      assert(!freed);
      if
      :: !EXCHANGE || (was_unowned == unowned && was_ending == ending) -> in_call = 0; break
      :: else -> was_ending = ending; was_unowned = unowned
      fi
    }
  od
}

inline unref() {
  atomic { assert(!freed); owners--; is_last = (owners == 0) }
  if
  :: is_last ->
    atomic { assert(!freed); closed = 1 }             /* mark_closed */
    if
    :: TOGETHER -> atomic { assert(!freed); was_in = in_call; in_call = 1; unowned = 1 }
    :: else ->
      was_in = in_call;
      atomic { in_call = 1; unowned = 1 }
    fi;
    if :: was_in :: else -> finish() fi
  :: else
  fi
}

active proctype caller() {
  bit was_ending, was_unowned;
  if :: closed :: skip fi;                            /* the call waits until the handle is closed, or ends by itself */
  leave()
}

active proctype closer() {
  bit was_ending, was_unowned, was_in, is_last;
  atomic { assert(!freed); closed = 1; ending = 1; must_end = 1 }
  atomic { assert(!freed); was_in = in_call; in_call = 1 } /* ExactGuard::enter */
  if :: was_in :: else -> leave() fi;
  unref()
}

active proctype owner() {
  bit was_in, is_last;
  if :: unref() :: is_kept = 1 fi
}

ltl freed_once { <> (freed == 1 || is_kept) && [] (must_end -> <> (!must_end)) }
