/* SPDX-License-Identifier: Apache-2.0
 *
 * An arena with one key and memory for one entry, see docs/memory-ordering.md. Two members, which may be killed anywhere and delayed
 * for any time, get the entry, or the right to make it: then they write and publish it, or give up. They may stop waiting. The
 * owner evicts and drops the entry, grants its memory again, and notices deaths. What a member reads is whole and stays so; the
 * key has one maker at a time; what was published before a death is there; and every wait ends. A lease, and the retirement of an
 * entry, may stay in their writer's store buffer.
 *
 * holds:
 * fails: LEASE=0        the member does not fence between its lease and its look at the entry's state
 * fails: LIVE=0         the member does not look at the state after its lease
 * fails: GENERATION=0   the member takes another entry with the same number for the one that it has leased
 * fails: RETIRE=0       the owner does not fence between retiring the entry and looking at the leases
 * fails: LOOK=0         the owner looks at the leases only before it retires the entry
 * fails: PIDFD=0        the owner takes a member that does nothing for one that has ended
 * fails: WHOLE=0        the member publishes the entry before it has written all of it
 * fails: SERVE=0        the owner ignores requests that a dead member has sent
 * fails: GRANT=0        the owner keeps the memory that a dead member was granted
 * fails: PASS=0         the owner does not pass on a dead member's right to make the entry
 * fails: CANCEL=0       a member that stops waiting does not say so
 * fails: TICKET=0       a member takes a late answer for that to its next request
 * fails: FULFIL=0       the owner does not answer the members that wait when the entry is published
 *
 * code: lib/arena/member.cpp Member::lease 1c0288af
 * code: lib/arena/member.cpp Member::await_key 7e973450
 * code: lib/arena/line.cpp Line::ask 84390a0a
 * code: lib/arena/line.cpp Line::take_answer 80ade660
 * code: lib/arena/index.cpp Index::retire b4a1d321
 * code: lib/arena/store.cpp Store::evict d6793953
 * code: lib/arena/store.cpp Store::evict_one fb2a9693
 * code: lib/arena/store.cpp Store::remove ef872503
 * code: lib/arena/store.cpp Store::settle 10adb33e
 * code: lib/arena/store.cpp Store::reclaim 95bdf991
 * code: lib/arena/owner.cpp Owner::publish 6001fc5a
 * code: lib/arena/owner.cpp Owner::want_key 1699c167
 * code: lib/arena/owner.cpp Owner::drop_key 03a1c6f7
 * code: lib/arena/admission.cpp Owner::bury_ended f8284f01
 * code: lib/arena/wants.hpp add 0c3dca41
 * code: lib/arena/wants.hpp fulfil b65cbd5d
 * code: lib/arena/wants.hpp give_up 02857ba2
 * code: lib/arena/wants.hpp end 28a90f85
 */
#ifndef LEASE
#define LEASE 1
#endif
#ifndef LIVE
#define LIVE 1
#endif
#ifndef GENERATION
#define GENERATION 1
#endif
#ifndef RETIRE
#define RETIRE 1
#endif
#ifndef LOOK
#define LOOK 1
#endif
#ifndef PIDFD
#define PIDFD 1
#endif
#ifndef WHOLE
#define WHOLE 1
#endif
#ifndef SERVE
#define SERVE 1
#endif
#ifndef GRANT
#define GRANT 1
#endif
#ifndef PASS
#define PASS 1
#endif
#ifndef CANCEL
#define CANCEL 1
#endif
#ifndef TICKET
#define TICKET 1
#endif
#ifndef FULFIL
#define FULFIL 1
#endif
#define MEMBERS 2
#define ROUNDS 2
#define MOST 3                                        /* entries that are made; each has another generation */
#define NOBODY MEMBERS

mtype = { want, cancel, memory, publish, give_up };   /* requests, with a ticket; publish: with the entry */
mtype = { ready, make, granted };                     /* answers, with a ticket */
chan requests[MEMBERS] = [4] of { mtype, byte };
chan answers[MEMBERS] = [4] of { mtype, byte };

/* Shared words: the entry's generation while it is live, else 0; the two parts of its memory; a lease of each member. */
byte live = 0, part[2];
byte lease[MEMBERS], leasing[MEMBERS];
bit is_lease_buffered[MEMBERS], is_retirement_buffered = 0;

/* What the members do. */
byte made = 0, sent[MEMBERS];                         /* entries that were made; of each, those that are not taken up yet */
bit is_making[MEMBERS], waits[MEMBERS], has_ended[MEMBERS];

/* The owner's. */
bit is_over[MEMBERS], is_buried[MEMBERS], is_waiting[MEMBERS], wants_memory[MEMBERS];
byte waiting_ticket[MEMBERS];
byte maker = NOBODY, maker_ticket = 0;
byte generation = 0;
#define FREE 0                                        /* the memory: free, the entry's, a dropped entry's that is leased, */
#define ENTRY 1                                       /* or granted to a member */
#define DROPPED 2
#define GRANTED 3
byte use = FREE;

active proctype buffers() {
end: do
  :: atomic { is_lease_buffered[0] -> lease[0] = leasing[0]; is_lease_buffered[0] = 0 }
  :: atomic { is_lease_buffered[1] -> lease[1] = leasing[1]; is_lease_buffered[1] = 0 }
  :: atomic { is_retirement_buffered -> live = 0; is_retirement_buffered = 0 }
  od
}

#define MAY_DIE if :: skip :: goto dead fi
#define DRAIN_LEASE atomic { if :: is_lease_buffered[m] -> lease[m] = leasing[m]; is_lease_buffered[m] = 0 :: else fi }
#define DRAIN_RETIREMENT atomic { if :: is_retirement_buffered -> live = 0; is_retirement_buffered = 0 :: else fi }
#define PUBLISH atomic { is_making[m] = 0; sent[m]++; requests[m]!publish, now }

proctype member(byte m) {
  byte rounds = 0, found = 0, now = 0, ticket = 0, answered = 0;
  mtype answer = ready;
  do
  :: rounds == ROUNDS -> break
  :: else ->
    atomic { rounds++; found = live };                /* IndexView::find */
    if
    :: found != 0 ->
      atomic { leasing[m] = found; is_lease_buffered[m] = 1 };   /* Member::lease */
      if :: LEASE -> DRAIN_LEASE :: else fi;
      MAY_DIE;
      now = live;
      if
      :: !LIVE || now == found || (!GENERATION && now != 0) ->
        now = part[0];
        MAY_DIE;
        assert(part[1] == now && (now == found || !GENERATION || !LIVE))
      :: else
      fi;
      atomic { is_lease_buffered[m] = 0; lease[m] = 0; found = 0; now = 0 }
    :: else ->
      atomic { ticket++; requests[m]!want, ticket };  /* Line::ask */
      if
      :: waits[m] = 1;
        do
        :: atomic { answers[m]?answer, answered -> if :: answered == ticket || !TICKET -> break :: else fi }
        od;
        waits[m] = 0
      :: MAY_DIE;                                     /* the timeout has passed before the answer */
        answer = ready;
        if :: CANCEL -> requests[m]!cancel, ticket :: else fi
      fi;
      if
      :: answer != make
      :: else ->
        atomic { is_making[m] = 1; assert(!is_making[1 - m]) };
        MAY_DIE;
        if
        :: made < MOST ->
          atomic { ticket++; requests[m]!memory, ticket; waits[m] = 1 };
          do
          :: atomic { answers[m]?answer, answered -> if :: answer == granted -> break :: else fi }
          od;
          waits[m] = 0;
          MAY_DIE;
          atomic { made++; now = made; part[0] = now };
          if :: !WHOLE -> PUBLISH :: else fi;
          MAY_DIE;
          part[1] = now;
          if :: WHOLE -> PUBLISH :: else fi
        :: atomic { is_making[m] = 0; requests[m]!give_up, ticket }
        fi;
        MAY_DIE
      fi;
      atomic { answer = ready; answered = 0; now = 0 }
    fi
  od;
dead:
  atomic { is_making[m] = 0; waits[m] = 0; answer = ready; answered = 0; found = 0; now = 0; ticket = 0; has_ended[m] = 1 }
}

/* Peer::for_each_lease. Each lease is ordered with the retirement by itself, so this may be one step. */
#define IS_LEASED ((!is_over[0] && lease[0] == generation) || (!is_over[1] && lease[1] == generation))

inline pass_to(m) {
  if
  :: maker == NOBODY && is_waiting[m] ->
    maker = m; maker_ticket = waiting_ticket[m]; answers[m]!make, maker_ticket; is_waiting[m] = 0; waiting_ticket[m] = 0
  :: else
  fi
}
inline fulfil(m) {
  if :: is_waiting[m] && FULFIL -> answers[m]!ready, waiting_ticket[m] :: else fi;
  is_waiting[m] = 0; waiting_ticket[m] = 0
}
inline serve(m) {                                     /* Owner::process */
  atomic {
    !is_buried[m] && len(requests[m]) != 0 -> requests[m]?request, value;
    if
    :: request == want ->
      if
      :: use == ENTRY -> answers[m]!ready, value
      :: use != ENTRY && maker == NOBODY -> maker = m; maker_ticket = value; answers[m]!make, value
      :: else -> is_waiting[m] = 1; waiting_ticket[m] = value
      fi
    :: request == cancel ->
      is_waiting[m] = 0; waiting_ticket[m] = 0;
      if :: maker == m && maker_ticket == value -> maker = NOBODY; maker_ticket = 0; pass_to(1 - m) :: else fi
    :: request == memory -> wants_memory[m] = 1
    :: request == give_up -> if :: maker == m -> maker = NOBODY; maker_ticket = 0; pass_to(1 - m) :: else fi
    :: request == publish ->
      sent[m]--;
      use = ENTRY; generation = value; live = value;  /* Index::publish */
      if :: maker == m -> maker = NOBODY; maker_ticket = 0 :: else fi;
      fulfil(0); fulfil(1)
    fi;
    request = want; value = 0
  }
}
inline notice(m) {                                    /* Owner::end */
  atomic { (has_ended[m] || !PIDFD) && !is_over[m] -> is_over[m] = 1 }
}
inline bury(m) {                                      /* Owner::bury_ended */
  atomic {
    is_over[m] && has_ended[m] && !is_buried[m] && (len(requests[m]) == 0 || !SERVE) ->
    assert(sent[m] == 0);
    is_buried[m] = 1; is_waiting[m] = 0; waiting_ticket[m] = 0; wants_memory[m] = 0; lease[m] = 0; is_lease_buffered[m] = 0;
    if :: PASS && maker == m -> maker = NOBODY; maker_ticket = 0; pass_to(1 - m) :: else fi;
    if :: GRANT && use == GRANTED + m -> use = FREE :: else fi
  }
}
inline grant(m) {
  atomic { use == FREE && wants_memory[m] -> wants_memory[m] = 0; use = GRANTED + m; answers[m]!granted, 0 }
}
inline retire() {                                     /* Index::retire */
  is_retirement_buffered = 1;
  if :: RETIRE -> DRAIN_RETIREMENT :: else fi
}

active proctype owner() {
  mtype request = want;
  byte value = 0, evictions = 0, drops = 0;
  atomic { run member(0); run member(1) }
  do
  :: serve(0)
  :: serve(1)
  :: notice(0)
  :: notice(1)
  :: bury(0)
  :: bury(1)
  :: grant(0)
  :: grant(1)
  :: atomic { use == DROPPED && !IS_LEASED -> use = FREE }   /* Store::reclaim */
  :: atomic { use == ENTRY && evictions < 2 && !IS_LEASED -> evictions++ };   /* Store::evict */
    retire();
    if
    :: LOOK && IS_LEASED -> atomic { is_retirement_buffered = 0; live = generation }
    :: else -> DRAIN_RETIREMENT; use = FREE
    fi
  :: atomic { use == ENTRY && drops < 1 -> drops++ };        /* Store::remove */
    retire();
    if
    :: IS_LEASED -> DRAIN_RETIREMENT; use = DROPPED
    :: else -> DRAIN_RETIREMENT; use = FREE
    fi
  od
}

ltl waits_end { [] (waits[0] -> <> !waits[0]) }
