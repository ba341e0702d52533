// SPDX-License-Identifier: Apache-2.0
// A member of an arena that uses nothing of Feedlane: C11, the C library and docs/layout.md, "What a member does".
//
// Usage: bare-member FD
// FD is the socket of feedlane_arena_offer. Reads commands from its input, and answers each with a line. KEY - : no key.
//   put KEY FIRST COUNT, drop KEY   puts COUNT consecutive numbers, or drops the entry: "ok"
//   get KEY               waits for the entry: "FIRST COUNT"
//   make KEY              waits for the entry or for the right to make it: "ready" or "make"
//   look KEY              does not wait: "FIRST COUNT" or "none"
//   receive               waits for an entry without a key: "FIRST COUNT"
//   hold KEY, check, let  leases an entry, reads it again, ends the lease: "FIRST COUNT"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena_format.h"

struct key {
  uint64_t words[ARENA_KEY_WORDS];
  uint64_t bytes;
};

// Another member's memory.
struct view {
  const unsigned char *at;  // NULL: not mapped
  uint32_t generation;
};

enum { sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static struct ArenaWelcome welcome;
static struct ArenaGeometry geometry;
static int fds[ARENA_WELCOME_FDS], the_socket, epoll_set;
static uint64_t payload_bytes;
static unsigned char *payload;
static struct view *views;

static const struct ArenaBlock *block;
static const _Atomic uint64_t *buckets;
static const struct ArenaEntry *entries;
static const struct ArenaAnswers *answers;
static const unsigned char *answer_cells, *delivery_cells;
static struct ArenaMemberRow *row;
static _Atomic uint64_t *leases, *uses;
static unsigned char *request_cells;
static uint64_t requested, answered, delivered;  // positions

_Noreturn static void fail(const char *what, uint64_t found, uint64_t needed) {
  (void)fprintf(stderr, "bare member: %s is %#llx, needs %#llx: %s\n", what, (unsigned long long)found,
                (unsigned long long)needed, strerror(errno));
  exit(1);
}
static void need(const char *what, uint64_t found, uint64_t needed) {
  if (found != needed) fail(what, found, needed);
}
static void limit(const char *what, uint64_t found, uint64_t least, uint64_t most) {
  if (found < least || found > most) fail(what, found, found < least ? least : most);
}
static uint64_t up(uint64_t n, uint64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static uint64_t load(const _Atomic uint64_t *word, memory_order order) { return atomic_load_explicit(word, order); }

// ---- messages ----

static void say(const void *bytes, size_t size, int fd) {
  struct iovec part = {(void *)(uintptr_t)bytes, size};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  need("bytes sent", (uint64_t)sendmsg(the_socket, &message, MSG_NOSIGNAL), size);
}

// A message of this size. Returns how many descriptors came with it.
static size_t hear(void *bytes, size_t size, int *descriptors, size_t most) {
  struct iovec part = {bytes, size};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(ARENA_WELCOME_FDS * sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(most * sizeof(int))};
  need("bytes received", (uint64_t)recvmsg(the_socket, &message, MSG_CMSG_CLOEXEC), size);
  need("flags of the message", (uint64_t)(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)), 0);
  const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == NULL || header->cmsg_type != SCM_RIGHTS) return 0;
  memcpy(descriptors, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
  return (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
}

// ---- segments ----

static void *map(int fd, uint64_t bytes, int access) {
  void *memory = mmap(NULL, bytes, access, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("mmap", bytes, 0);
  return memory;
}

static uint64_t size_of(int fd, int seals) {
  struct stat status;
  need("seals", (uint64_t)(fcntl(fd, F_GET_SEALS) & seals), (uint64_t)seals);
  need("fstat", (uint64_t)fstat(fd, &status), 0);
  return (uint64_t)status.st_size;
}

static void *map_segment(int fd, uint32_t kind, int access, uint64_t *bytes) {
  *bytes = size_of(fd, access == PROT_READ ? sealed | F_SEAL_FUTURE_WRITE : sealed);
  limit("size of a segment", *bytes, sizeof(struct SegmentHeader) + sizeof geometry, MAX_SEGMENT_BYTES);
  void *memory = map(fd, *bytes, access);
  const struct SegmentHeader *header = memory;
  need("header.magic", header->magic, SEGMENT_MAGIC);
  need("header.kind", header->kind, kind);
  need("header.major", header->major, FORMAT_MAJOR);
  need("header.byte_order", header->byte_order, BYTE_ORDER_MARK);
  need("header.layout_hash", header->layout_hash, LAYOUT_HASH);
  need("header.features", header->features, 0);
  need("header.page_bytes", header->page_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
  need("header.segment_bytes", header->segment_bytes, *bytes);
  return memory;
}

static uint64_t region(uint64_t *end, uint64_t alignment, uint64_t bytes) {
  const uint64_t at = up(*end, alignment);
  *end = at + bytes;
  return at;
}

static void map_control(void) {
  uint64_t bytes = 0, end = sizeof(struct SegmentHeader) + sizeof geometry;
  const unsigned char *at = map_segment(fds[arena_welcome_control], SEGMENT_KIND_ARENA_CONTROL, PROT_READ, &bytes);
  memcpy(&geometry, at + sizeof(struct SegmentHeader), sizeof geometry);
  limit("geometry.bytes", geometry.bytes, 65536, MAX_ARENA_BYTES);
  limit("geometry.entries", geometry.entries, 1, MAX_ARENA_ENTRIES);
  limit("geometry.buckets", geometry.buckets, 1, UINT64_C(2) * MAX_ARENA_ENTRIES);
  need("geometry.buckets, its bits", geometry.buckets & (geometry.buckets - 1), 0);
  limit("geometry.members", geometry.members, 1, MAX_ARENA_MEMBERS);
  limit("geometry.segments", geometry.segments, geometry.members, UINT64_C(8) * MAX_ARENA_MEMBERS);
  limit("geometry.leases", geometry.leases, 1, MAX_ARENA_LEASES);
  block = (const void *)(at + region(&end, 128, sizeof *block));
  (void)region(&end, 64, geometry.members * sizeof(struct ArenaMemberFacts));  // for observers
  buckets = (const void *)(at + region(&end, 8, geometry.buckets * sizeof *buckets));
  entries = (const void *)(at + region(&end, 64, geometry.entries * sizeof *entries));
  need("size of control", bytes, up(end, PAYLOAD_ALIGNMENT));
}

static void map_own(void) {
  uint64_t bytes = 0, end = sizeof(struct SegmentHeader) + sizeof geometry;
  const unsigned char *from = map_segment(fds[arena_welcome_answers], SEGMENT_KIND_ARENA_ANSWERS, PROT_READ, &bytes);
  answers = (const void *)(from + region(&end, 128, sizeof *answers));
  answer_cells = from + region(&end, 128, ARENA_RING_CAPACITY * ARENA_ANSWER_CELL);
  delivery_cells = from + region(&end, 64, ARENA_RING_CAPACITY * ARENA_DELIVERY_CELL);
  need("size of answers", bytes, up(end, PAYLOAD_ALIGNMENT));
  unsigned char *at = map_segment(fds[arena_welcome_member], SEGMENT_KIND_ARENA_MEMBER, PROT_READ | PROT_WRITE, &bytes);
  end = sizeof(struct SegmentHeader);
  row = (void *)(at + region(&end, 128, sizeof *row));
  leases = (void *)(at + region(&end, 128, geometry.leases * sizeof *leases));
  uses = (void *)(at + region(&end, 128, geometry.entries * sizeof *uses));
  request_cells = at + region(&end, 128, ARENA_RING_CAPACITY * ARENA_REQUEST_CELL);
  need("size of member", bytes, up(end, PAYLOAD_ALIGNMENT));
  need("pair_id", ((const struct SegmentHeader *)(const void *)at)->pair_id,
       ((const struct SegmentHeader *)(const void *)from)->pair_id);
  payload_bytes = up(2 * geometry.bytes, 2097152);
  need("size of payload", size_of(fds[arena_welcome_payload], sealed), payload_bytes);
  payload = map(fds[arena_welcome_payload], payload_bytes, PROT_READ | PROT_WRITE);
  views = calloc(geometry.segments, sizeof *views);
  if (views == NULL) fail("memory for views", 0, geometry.segments);
}

static void watch(int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  need("epoll_ctl", (uint64_t)epoll_ctl(epoll_set, EPOLL_CTL_ADD, fd, &event), 0);
}

static void join(void) {
  need("descriptors", hear(&welcome, sizeof welcome, fds, ARENA_WELCOME_FDS), ARENA_WELCOME_FDS);
  need("welcome.magic", welcome.magic, ARENA_WELCOME_MAGIC);
  need("welcome.layout_hash", welcome.layout_hash, ARENA_LAYOUT_HASH);
  map_control();
  map_own();
  epoll_set = epoll_create1(EPOLL_CLOEXEC);
  watch(fds[arena_welcome_member_event], EPOLLIN | EPOLLOUT | EPOLLET);
  watch(fds[arena_welcome_owner], EPOLLIN);
  const uint64_t attached = ARENA_ATTACHED_MAGIC;
  const int self = welcome.wants_pidfd != 0 ? (int)syscall(SYS_pidfd_open, getpid(), 0) : -1;
  say(&attached, sizeof attached, self);
  if (self >= 0) (void)close(self);
  uint64_t accepted = 0;
  (void)hear(&accepted, sizeof accepted, NULL, 0);
  need("the owner's answer", accepted, GREETING_ACCEPTED_MAGIC);
}

static const unsigned char *view(uint32_t segment, uint32_t generation) {
  limit("entry.segment", segment, 0, geometry.segments - 1);
  struct view *v = &views[segment];
  if (v->at != NULL && v->generation == generation) return v->at;
  if (v->at != NULL) (void)munmap((void *)(uintptr_t)v->at, payload_bytes);
  const struct SegmentRequest request = {ARENA_SEGMENT_REQUEST_MAGIC, segment, generation};
  say(&request, sizeof request, -1);
  struct SegmentReply reply;
  int fd = -1;
  need("descriptors of a reply", hear(&reply, sizeof reply, &fd, 1), 1);
  need("reply.magic", reply.magic, ARENA_SEGMENT_REPLY_MAGIC);
  need("reply.segment", reply.segment, segment);
  need("reply.generation", reply.generation, generation);
  need("size of payload", size_of(fd, sealed), payload_bytes);
  v->at = map(fd, payload_bytes, PROT_READ);
  v->generation = generation;
  (void)close(fd);
  return v->at;
}

// ---- rings and bells ----

static void ring_owner(void) {
  atomic_thread_fence(memory_order_seq_cst);
  const uint64_t nothing = 0;
  if (atomic_load_explicit(&block->sleeping, memory_order_relaxed) != 0)
    need("the bell", (uint64_t)write(fds[arena_welcome_owner_event], &nothing, sizeof nothing), sizeof nothing);
}

// Until `is_there`. The owner rings for every message, and when it has taken requests.
static void await(bool (*is_there)(void)) {
  while (!is_there()) {
    need("is_cut_off", atomic_load_explicit(&answers->is_cut_off, memory_order_relaxed), 0);
    atomic_store_explicit(&row->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    struct epoll_event event;
    if (!is_there() && epoll_wait(epoll_set, &event, 1, -1) == 1 && event.data.fd == fds[arena_welcome_owner])
      fail("the owner has ended", 0, 0);
    atomic_store_explicit(&row->sleeping, 0, memory_order_relaxed);
  }
}

static const unsigned char *cell(const unsigned char *cells, uint64_t position, uint64_t bytes) {
  return cells + position % ARENA_RING_CAPACITY * bytes;
}
static bool has_sequence(const unsigned char *at, uint64_t sequence) {
  return load((const void *)at, memory_order_acquire) == sequence;
}
static bool has_answer(void) { return has_sequence(cell(answer_cells, answered, ARENA_ANSWER_CELL), answered + 1); }
static bool has_delivery(void) {
  return has_sequence(cell(delivery_cells, delivered, ARENA_DELIVERY_CELL), delivered + 1);
}
static bool has_room(void) {
  return requested - load(&answers->request_position, memory_order_acquire) < ARENA_RING_CAPACITY;
}
static bool is_all_taken(void) { return load(&answers->request_position, memory_order_acquire) == requested; }

static void request(struct ArenaRequest r, struct key key) {
  r.key_bytes = key.bytes;
  memcpy(r.key, key.words, sizeof r.key);
  await(has_room);
  unsigned char *at = request_cells + requested % ARENA_RING_CAPACITY * ARENA_REQUEST_CELL;
  memcpy(at + sizeof(uint64_t), &r, sizeof r);
  requested++;
  atomic_store_explicit((_Atomic uint64_t *)(void *)at, requested, memory_order_release);
  ring_owner();
}

static struct ArenaAnswer ask(struct ArenaRequest r, struct key key) {
  static uint64_t tickets;
  r.ticket = ++tickets;
  request(r, key);
  await(has_answer);
  struct ArenaAnswer a;
  memcpy(&a, cell(answer_cells, answered, ARENA_ANSWER_CELL) + sizeof(uint64_t), sizeof a);
  answered++;
  atomic_store_explicit(&row->answer_position, answered, memory_order_release);
  need("answer.ticket", a.ticket, r.ticket);
  return a;
}

// ---- keys ----

static struct key make_key(const char *text) {
  struct key key = {.bytes = strlen(text)};
  if (strcmp(text, "-") == 0) return (struct key){.bytes = 0};
  memcpy(key.words, text, key.bytes < ARENA_KEY_BYTES ? key.bytes : ARENA_KEY_BYTES);
  return key;
}

static uint64_t scatter(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

static uint64_t hash_of(const struct key *key) {
  uint64_t hash = key->bytes;
  for (int i = 0; i < ARENA_KEY_WORDS; i++) hash = scatter(hash ^ key->words[i]);
  return hash;
}

static bool has_key(const struct ArenaEntry *e, const struct key *key, uint64_t hash) {
  if (load(&e->hash, memory_order_relaxed) != hash || load(&e->key_bytes, memory_order_relaxed) != key->bytes)
    return false;
  for (int i = 0; i < ARENA_KEY_WORDS; i++)
    if (load(&e->key[i], memory_order_relaxed) != key->words[i]) return false;
  return true;
}

// The word that names the live entry; 0: there is none.
static uint64_t find(const struct key *key) {
  const uint64_t hash = hash_of(key);
  for (;;) {
    const uint64_t changes = load(&block->changes, memory_order_acquire);
    uint64_t next = load(&buckets[hash & (geometry.buckets - 1)], memory_order_acquire);
    for (uint32_t steps = 0; next != 0 && next <= geometry.entries && steps <= geometry.entries; steps++) {
      const struct ArenaEntry *e = &entries[next - 1];
      const uint64_t state = load(&e->state, memory_order_acquire);
      if ((state & 0xff) == ARENA_ENTRY_STATE_LIVE && has_key(e, key, hash))
        return state >> 8 << ARENA_ENTRY_BITS | (next - 1);
      next = load(&e->next, memory_order_acquire);
    }
    atomic_thread_fence(memory_order_acquire);
    if (changes % 2 == 0 && load(&block->changes, memory_order_relaxed) == changes) return 0;
  }
}

// ---- leases ----

enum { lease_now, lease_held };  // of this process: for what it reads at once, and for what it holds

// False: the entry is not live any more.
static bool lease(int number, uint64_t word) {
  const uint64_t entry = word & ((1u << ARENA_ENTRY_BITS) - 1);
  if (load(&row->leases_in_use, memory_order_relaxed) <= (uint64_t)number)
    atomic_store_explicit(&row->leases_in_use, (uint64_t)number + 1, memory_order_release);
  atomic_store_explicit(&leases[number], word, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return entry < geometry.entries &&
         load(&entries[entry].state, memory_order_acquire) == (word >> ARENA_ENTRY_BITS << 8 | ARENA_ENTRY_STATE_LIVE);
}

static void end_lease(int number) {
  atomic_store_explicit(&leases[number], 0, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
  if (atomic_load_explicit(&block->wants_memory, memory_order_relaxed) != 0) ring_owner();
}

// Answers with what a leased entry is: consecutive numbers.
static void read_entry(uint64_t word) {
  const struct ArenaEntry *e = &entries[word & ((1u << ARENA_ENTRY_BITS) - 1)];
  const uint64_t segment = load(&e->segment, memory_order_relaxed), offset = load(&e->offset, memory_order_relaxed);
  const uint64_t bytes = load(&e->bytes, memory_order_relaxed);
  if (bytes < sizeof(struct ArenaContents) + sizeof(struct TensorRecord) || bytes > payload_bytes ||
      offset > payload_bytes - bytes)
    fail("entry.offset", offset, payload_bytes - bytes);
  const unsigned char *at = view((uint32_t)segment, (uint32_t)(segment >> 32)) + offset;
  struct ArenaContents contents;
  struct TensorRecord tensor;
  memcpy(&contents, at, sizeof contents);
  memcpy(&tensor, at + sizeof contents, sizeof tensor);
  need("contents.magic", contents.magic, ARENA_CONTENTS_MAGIC);
  need("contents.tensor_count", contents.tensor_count, 1);
  need("tensor.bits", tensor.bits, 64);
  need("tensor.bytes", tensor.bytes, 8 * (uint64_t)tensor.shape[0]);
  need("tensor.offset", tensor.offset % TENSOR_ALIGNMENT, 0);
  if (tensor.bytes < 8 || tensor.bytes > bytes || tensor.offset > bytes - tensor.bytes)
    fail("tensor.offset", tensor.offset, bytes);
  const int64_t *numbers = (const void *)(at + tensor.offset);
  for (int64_t i = 1; i < tensor.shape[0]; i++)
    if (numbers[i] != numbers[0] + i) fail("a number", (uint64_t)numbers[i], (uint64_t)(numbers[0] + i));
  atomic_store_explicit(&uses[word & ((1u << ARENA_ENTRY_BITS) - 1)], load(&e->published_ns, memory_order_relaxed),
                        memory_order_relaxed);
  (void)printf("%lld %lld\n", (long long)numbers[0], (long long)tensor.shape[0]);
}

// ---- commands ----

static void put(struct key key, int64_t first, int64_t count) {
  const uint64_t data = up(sizeof(struct ArenaContents) + sizeof(struct TensorRecord), TENSOR_ALIGNMENT);
  const uint64_t bytes = data + up(8 * (uint64_t)count, TENSOR_ALIGNMENT);
  const struct ArenaAnswer grant =
      ask((struct ArenaRequest){.kind = ARENA_REQUEST_KIND_WANT_MEMORY, .bytes = bytes}, make_key("-"));
  need("answer.kind", grant.kind, ARENA_ANSWER_KIND_MEMORY);
  if (grant.bytes < bytes || grant.bytes > payload_bytes || grant.offset > payload_bytes - grant.bytes)
    fail("answer.offset", grant.offset, payload_bytes - bytes);
  unsigned char *at = payload + grant.offset;
  const struct ArenaContents contents = {ARENA_CONTENTS_MAGIC, 1, data, 0, {0}};
  const struct TensorRecord tensor = {.name = "numbers",
                                      .code = 0,
                                      .bits = 64,
                                      .lanes = 1,
                                      .ndim = 1,
                                      .shape = {count},
                                      .strides = {1},
                                      .offset = data,
                                      .bytes = 8 * (uint64_t)count};
  memcpy(at, &contents, sizeof contents);
  memcpy(at + sizeof contents, &tensor, sizeof tensor);
  for (int64_t i = 0; i < count; i++) memcpy(at + data + 8 * i, &(int64_t){first + i}, 8);
  request((struct ArenaRequest){.kind = ARENA_REQUEST_KIND_PUBLISH, .offset = grant.offset, .bytes = bytes}, key);
  if (grant.bytes != bytes)
    request(
        (struct ArenaRequest){
            .kind = ARENA_REQUEST_KIND_GIVE_BACK, .offset = grant.offset + bytes, .bytes = grant.bytes - bytes},
        make_key("-"));
  await(is_all_taken);
  (void)puts("ok");
}

// Returns the entry, which is leased; 0: there is none, and `would_wait` is false.
static uint64_t get(int number, struct key key, bool would_wait) {
  for (;;) {
    const uint64_t word = find(&key);
    if (word != 0 && lease(number, word)) return word;
    if (word != 0) end_lease(number);
    if (word == 0 && !would_wait) return 0;
    need("answer.kind", ask((struct ArenaRequest){.kind = ARENA_REQUEST_KIND_WANT_KEY}, key).kind,
         ARENA_ANSWER_KIND_READY);
  }
}

static void receive(void) {
  await(has_delivery);
  struct ArenaDelivery d;
  memcpy(&d, cell(delivery_cells, delivered, ARENA_DELIVERY_CELL) + sizeof(uint64_t), sizeof d);
  if (!lease(lease_now, d.entry)) fail("a delivered entry", d.entry, 0);
  delivered++;
  atomic_store_explicit(&row->delivery_position, delivered, memory_order_release);
  ring_owner();
  read_entry(d.entry);
  end_lease(lease_now);
}

static void look(struct key key, bool would_wait) {
  const uint64_t word = get(lease_now, key, would_wait);
  if (word == 0) {
    (void)puts("none");
  } else {
    read_entry(word);
    end_lease(lease_now);
  }
}

static void make(struct key key) {
  const struct ArenaAnswer a = ask((struct ArenaRequest){ARENA_REQUEST_KIND_WANT_KEY, .flags = ARENA_MAKE}, key);
  (void)puts(a.kind == ARENA_ANSWER_KIND_MAKE ? "make" : "ready");
}

static void drop(struct key key) {
  request((struct ArenaRequest){.kind = ARENA_REQUEST_KIND_DROP_KEY}, key);
  await(is_all_taken);
  (void)puts("ok");
}

static void obey(const char *command, const char *text, int64_t first, int64_t count) {
  static uint64_t held;
  const struct key key = make_key(text);
  if (strcmp(command, "put") == 0) put(key, first, count);
  else if (strcmp(command, "get") == 0) look(key, true);
  else if (strcmp(command, "look") == 0) look(key, false);
  else if (strcmp(command, "make") == 0) make(key);
  else if (strcmp(command, "drop") == 0) drop(key);
  else if (strcmp(command, "receive") == 0) receive();
  else {
    if (strcmp(command, "hold") == 0) held = get(lease_held, key, true);
    read_entry(held);
    if (strcmp(command, "let") == 0) end_lease(lease_held);
  }
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  the_socket = atoi(argv[1]);
  (void)setvbuf(stdout, NULL, _IOLBF, 0);
  join();
  char line[256], command[16], text[ARENA_KEY_BYTES + 1];
  while (fgets(line, sizeof line, stdin) != NULL) {
    long long first = 0, count = 0;
    (void)snprintf(text, sizeof text, "-");
    if (sscanf(line, "%15s %64s %lld %lld", command, text, &first, &count) > 0) obey(command, text, first, count);
  }
  for (uint32_t i = 0; i < geometry.segments; i++)
    if (views[i].at != NULL) (void)munmap((void *)(uintptr_t)views[i].at, payload_bytes);
  (void)munmap(payload, payload_bytes);
  const uint64_t left = ARENA_LEFT_MAGIC;
  say(&left, sizeof left, -1);
  return 0;
}
