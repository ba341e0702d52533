// SPDX-License-Identifier: Apache-2.0
// The format of an arena's shared memory and of its greeting, typed in from docs/layout.md as format.h is.
#pragma once

#include "format.h"

// ---- Constants: names as on the page, in capitals, with _ for :: and between words ----

#define SEGMENT_KIND_ARENA_CONTROL 9u
#define SEGMENT_KIND_ARENA_ANSWERS 11u
#define SEGMENT_KIND_ARENA_MEMBER 12u
#define ARENA_LAYOUT_HASH 0xd54c995258fe4f97u
#define ARENA_KEY_BYTES 64
#define ARENA_KEY_WORDS 8
#define ARENA_RING_CAPACITY 256u
#define ARENA_ENTRY_BITS 20u
#define ARENA_REQUEST_CELL 128u
#define ARENA_ANSWER_CELL 64u
#define ARENA_DELIVERY_CELL 64u
#define MAX_ARENA_MEMBERS 256u
#define MAX_ARENA_ENTRIES 1048576u
#define MAX_ARENA_LEASES 65536u
#define MAX_ARENA_BYTES 1099511627776u
#define ARENA_CONTENTS_MAGIC 0x315952544e454146u
#define ARENA_PINNED 1u
#define ARENA_MAKE 2u
#define ARENA_AHEAD 4u
#define ARENA_ENTRY_STATE_FREE 0u
#define ARENA_ENTRY_STATE_LIVE 1u
#define ARENA_ENTRY_STATE_RETIRED 2u
#define ARENA_REQUEST_KIND_PUBLISH 1u
#define ARENA_REQUEST_KIND_GIVE_BACK 2u
#define ARENA_REQUEST_KIND_WANT_MEMORY 3u
#define ARENA_REQUEST_KIND_CANCEL_MEMORY 4u
#define ARENA_REQUEST_KIND_WANT_KEY 5u
#define ARENA_REQUEST_KIND_CANCEL_KEY 6u
#define ARENA_REQUEST_KIND_DROP_KEY 7u
#define ARENA_ANSWER_KIND_MEMORY 1u
#define ARENA_ANSWER_KIND_NO_MEMORY 2u
#define ARENA_ANSWER_KIND_READY 3u
#define ARENA_ANSWER_KIND_MAKE 4u
#define ARENA_ASKING_MAGIC 0x31474e494b534141u
#define ARENA_WELCOME_MAGIC 0x314d4f434c455741u
#define ARENA_ATTACHED_MAGIC 0x3148434154544141u
#define ARENA_SEGMENT_REQUEST_MAGIC 0x3147455345525141u
#define ARENA_SEGMENT_REPLY_MAGIC 0x3147455345505241u
#define ARENA_LEAVING_MAGIC 0x31474e4956414541u
#define ARENA_LEFT_MAGIC 0x315f5f5446454c41u
#define GREETING_ACCEPTED_MAGIC 0x4445545045434341u
#define GREETING_REFUSED_MAGIC 0x3144455355464552u

// ---- Control ----

struct ArenaGeometry {
  uint64_t bytes;
  uint32_t entries;
  uint32_t buckets;
  uint32_t members;
  uint32_t segments;
  uint32_t leases;
  uint32_t layout;
};

struct ArenaBlock {
  alignas(WRITER_DISTANCE) _Atomic uint32_t sleeping;
  alignas(WRITER_DISTANCE) _Atomic uint64_t changes;
  alignas(WRITER_DISTANCE) _Atomic uint32_t wants_memory;
  alignas(WRITER_DISTANCE) _Atomic uint64_t member_count;
  _Atomic uint64_t entries;
  _Atomic uint64_t used_bytes;
  _Atomic uint64_t published;
  _Atomic uint64_t evicted;
  _Atomic uint64_t ended_hits;
  _Atomic uint64_t ended_misses;
};

struct ArenaMemberFacts {
  _Atomic uint64_t number;
  _Atomic uint64_t pid;
  _Atomic uint64_t file;
  _Atomic uint64_t state;
  _Atomic uint64_t waiting;
  _Atomic uint64_t granted_bytes;
  uint64_t reserved[2];
};

struct ArenaEntry {
  _Atomic uint64_t state;
  _Atomic uint64_t hash;
  _Atomic uint64_t next;
  _Atomic uint64_t segment;
  _Atomic uint64_t offset;
  _Atomic uint64_t bytes;
  _Atomic uint64_t maker;
  _Atomic uint64_t sequence;
  _Atomic uint64_t published_ns;
  _Atomic uint64_t key_bytes;
  _Atomic uint64_t key[ARENA_KEY_WORDS];
  uint64_t reserved[6];
};

// ---- Answers ----

struct ArenaAnswers {
  alignas(WRITER_DISTANCE) _Atomic uint64_t request_position;
  _Atomic uint32_t is_cut_off;
};

struct ArenaAnswer {
  uint32_t kind;
  int32_t status;
  uint64_t ticket;
  uint64_t offset;
  uint64_t bytes;
};

struct ArenaDelivery {
  uint64_t entry;
};

// ---- Member ----

struct ArenaMemberRow {
  alignas(WRITER_DISTANCE) _Atomic uint32_t sleeping;
  alignas(WRITER_DISTANCE) _Atomic uint64_t answer_position;
  _Atomic uint64_t delivery_position;
  alignas(WRITER_DISTANCE) _Atomic uint64_t leases_in_use;
  alignas(WRITER_DISTANCE) _Atomic uint64_t hits;
  _Atomic uint64_t misses;
};

struct ArenaRequest {
  uint32_t kind;
  uint32_t flags;
  uint64_t ticket;
  uint64_t offset;
  uint64_t bytes;
  uint64_t more;
  uint64_t key_bytes;
  uint8_t key[ARENA_KEY_BYTES];
};

// ---- Payload ----

struct ArenaContents {
  uint64_t magic;
  uint64_t tensor_count;
  uint64_t metadata_offset;
  uint64_t metadata_bytes;
  uint64_t reserved[4];
};

// ---- Greeting ----

struct ArenaWelcome {
  uint64_t magic;
  uint64_t layout_hash;
  uint32_t number;
  uint32_t wants_pidfd;
  uint32_t segment;
  uint32_t segment_generation;
};

enum {
  arena_welcome_control,
  arena_welcome_answers,
  arena_welcome_member,
  arena_welcome_payload,
  arena_welcome_member_event,
  arena_welcome_owner_event,
  arena_welcome_owner,
  ARENA_WELCOME_FDS
};

struct SegmentRequest {
  uint64_t magic;
  uint32_t segment;
  uint32_t generation;
};

struct SegmentReply {
  uint64_t magic;
  uint32_t segment;
  uint32_t generation;
  int32_t status;
  uint32_t reserved;
};

// ---- Sizes, as the headings of the page have them ----

_Static_assert(sizeof(struct ArenaGeometry) == 32, "ArenaGeometry");
_Static_assert(sizeof(struct ArenaBlock) == 512, "ArenaBlock");
_Static_assert(sizeof(struct ArenaMemberFacts) == 64, "ArenaMemberFacts");
_Static_assert(sizeof(struct ArenaEntry) == 192, "ArenaEntry");
_Static_assert(sizeof(struct ArenaAnswers) == 128, "ArenaAnswers");
_Static_assert(sizeof(struct ArenaAnswer) == 32, "ArenaAnswer");
_Static_assert(sizeof(struct ArenaDelivery) == 8, "ArenaDelivery");
_Static_assert(sizeof(struct ArenaMemberRow) == 512, "ArenaMemberRow");
_Static_assert(sizeof(struct ArenaRequest) == 112, "ArenaRequest");
_Static_assert(sizeof(struct ArenaContents) == 64, "ArenaContents");
_Static_assert(sizeof(struct ArenaWelcome) == 32, "ArenaWelcome");
_Static_assert(sizeof(struct SegmentRequest) == 16, "SegmentRequest");
_Static_assert(sizeof(struct SegmentReply) == 24, "SegmentReply");
