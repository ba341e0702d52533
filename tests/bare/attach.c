// SPDX-License-Identifier: Apache-2.0
// docs/layout.md: "Attaching", "Attaching step by step", "Hello".
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bare.h"

static char line[TEXT_BYTES];  // the last complaint

const char *complaint(void) { return line; }

int complain(const char *what, uint64_t found, uint64_t needed) {
  (void)snprintf(line, sizeof line, "bare worker: %s is %#llx, needs %#llx", what, (unsigned long long)found,
                 (unsigned long long)needed);
  (void)fprintf(stderr, "%s\n", line);
  return -1;
}

static int fail_os(const char *what) {
  (void)snprintf(line, sizeof line, "bare worker: %s: %s", what, strerror(errno));
  (void)fprintf(stderr, "%s\n", line);
  return -1;
}

// ---- 1. the welcome ----

static int receive_welcome(struct worker *w, int *fds) {
  struct iovec part = {&w->welcome, sizeof w->welcome};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(WELCOME_FDS * sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t bytes;
  do bytes = recvmsg(w->socket, &message, MSG_CMSG_CLOEXEC);
  while (bytes < 0 && errno == EINTR);
  if (bytes < 0) return fail_os("recvmsg of the welcome");
  if (bytes != sizeof w->welcome) return complain("size of the welcome", (uint64_t)bytes, sizeof w->welcome);
  if (w->welcome.magic != WELCOME_MAGIC) return complain("welcome.magic", w->welcome.magic, WELCOME_MAGIC);
  if (w->welcome.layout_hash != LAYOUT_HASH) return complain("layout_hash", w->welcome.layout_hash, LAYOUT_HASH);
  const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  const size_t size = WELCOME_FDS * sizeof(int);
  if (header == NULL || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(size))
    return complain("size of the descriptors", header == NULL ? 0 : header->cmsg_len, CMSG_LEN(size));
  memcpy(fds, CMSG_DATA(header), size);
  return 0;
}

// ---- 2. the lifeline ----

static int tie(int lifeline) {
  const int flags = fcntl(lifeline, F_GETFL);
  if (flags < 0 || fcntl(lifeline, F_SETOWN, getpid()) != 0 || fcntl(lifeline, F_SETSIG, SIGKILL) != 0 ||
      fcntl(lifeline, F_SETFL, flags | O_ASYNC) != 0)
    return fail_os("tying the lifeline");
  struct pollfd entry = {lifeline, POLLIN, 0};
  if (poll(&entry, 1, 0) != 0) return complain("the lifeline was cut before", 1, 0);
  return 0;
}

static void untie(int lifeline) {
  const int flags = fcntl(lifeline, F_GETFL);
  if (flags >= 0) (void)fcntl(lifeline, F_SETFL, flags & ~O_ASYNC);
}

// ---- 3. the segments ----

static int check_seals(const char *what, int fd, int needed, int refused) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return fail_os(what);
  if ((seals & needed) != needed) return complain(what, (uint64_t)seals, (uint64_t)needed);
  return (seals & refused) == 0 ? 0 : complain(what, (uint64_t)seals, (uint64_t)needed);
}

static int check_header(const struct SegmentHeader *header, uint64_t bytes) {
  const struct {
    const char *what;
    uint64_t found, needed;
  } words[] = {{"header.magic", header->magic, SEGMENT_MAGIC},
               {"header.kind", header->kind, kind_control},
               {"header.major", header->major, FORMAT_MAJOR},
               {"header.byte_order", header->byte_order, BYTE_ORDER_MARK},
               {"header.layout_hash", header->layout_hash, LAYOUT_HASH},
               {"header.features", header->features, 0},
               {"header.page_bytes", header->page_bytes, (uint64_t)sysconf(_SC_PAGESIZE)},
               {"header.segment_bytes", header->segment_bytes, bytes}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (words[i].found != words[i].needed) return complain(words[i].what, words[i].found, words[i].needed);
  return 0;
}

static int check_geometry(const struct Geometry *g) {
  const struct {
    const char *what;
    uint64_t found, least, most;
  } words[] = {{"workers", g->workers, 1, MAX_WORKERS},
               {"slots", g->slots, 1, MAX_SLOTS},
               {"max_rows", g->max_rows, 1, MAX_ROWS},
               {"field_count", g->field_count, 0, FEEDLANE_MAX_TENSORS},
               {"ring_capacity", g->ring_capacity, g->slots, MAX_SLOTS},
               {"ring_capacity, its bits", g->ring_capacity & (g->ring_capacity - 1), 0, 0},
               {"config_bytes", g->config_bytes, 0, MAX_CONFIG_BYTES},
               {"slot_bytes", g->slot_bytes, 1, MAX_SLOT_BYTES},
               {"reserved_bytes", g->reserved_bytes, 1, g->slot_bytes},
               {"list_bytes", g->list_bytes, 8 * (uint64_t)g->max_rows, 8 * (uint64_t)MAX_ROWS},
               {"record_rows", g->record_rows, g->record_rows == 0 ? 0 : g->max_rows, g->max_rows},
               {"trace_records", g->trace_records, 0, MAX_TRACE_RECORDS},
               {"world", g->world, 1, MAX_WORLD},
               {"rank", g->rank, 0, g->world - 1}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (words[i].found < words[i].least || words[i].found > words[i].most)
      return complain(words[i].what, words[i].found, words[i].found < words[i].least ? words[i].least : words[i].most);
  return 0;
}

static uint64_t up(uint64_t n, uint64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The next region: where it begins; `end` moves behind it.
static uint64_t region(uint64_t *end, uint64_t alignment, uint64_t bytes) {
  const uint64_t at = up(*end, alignment);
  *end = at + bytes;
  return at;
}

// The limits of the geometry keep every sum far from overflow.
static struct plan make_plan(const struct Geometry *g) {
  struct plan p;
  p.ring_bytes = (uint64_t)g->ring_capacity * LOADER_CELL_BYTES;
  p.list_stride = up(g->list_bytes, CELL_LINE);
  p.payload_stride = up(g->slot_bytes, PAYLOAD_ALIGNMENT);
  uint64_t end = sizeof(struct SegmentHeader) + sizeof(struct Geometry);
  p.trainer_block = region(&end, 128, sizeof(struct TrainerBlock));
  p.counters = region(&end, 128, 384);  // for monitors
  p.trainer_rows = region(&end, 128, g->workers * sizeof(struct TrainerRow));
  p.fields = region(&end, 64, g->field_count * sizeof(struct FieldRecord));
  p.config = region(&end, 64, g->config_bytes);
  p.task_rings = region(&end, 4096, g->workers * p.ring_bytes);
  p.index_lists = region(&end, 4096, g->slots * p.list_stride);
  p.facts = region(&end, 128, 112);  // this and the following: for monitors
  p.timings = region(&end, 128, g->workers * (uint64_t)16896);
  p.errors = region(&end, 128, ERROR_ROWS * 272);
  p.slot_records = region(&end, 128, g->slots * (uint64_t)128);
  p.trace_head = region(&end, 128, g->trace_records == 0 ? 0 : 128);
  p.trace = region(&end, 128, g->trace_records * (uint64_t)128);
  p.control_bytes = up(end, PAYLOAD_ALIGNMENT);
  end = 0;
  p.margin = region(&end, 4096, 128);
  p.worker_rows = region(&end, 128, g->workers * sizeof(struct WorkerRow));
  p.result_lanes = region(&end, 4096, g->workers * p.ring_bytes);
  p.slot_headers = region(&end, 4096, g->slots * sizeof(struct SlotHeader));
  p.records = region(&end, 4096, (uint64_t)g->slots * g->record_rows * sizeof(struct SampleRecord));
  p.payload = region(&end, 4096, g->slots * p.payload_stride);
  p.data_bytes = up(end, PAYLOAD_ALIGNMENT);
  return p;
}

static int check_field(const struct FieldRecord *f, uint64_t *row_bytes) {
  const size_t length = strnlen(f->name, NAME_BYTES);
  if (length == 0 || length == NAME_BYTES) return complain("length of a field's name", length, NAME_BYTES - 1);
  if (f->code > 6 || f->code == 3) return complain("field.code", f->code, 6);
  if (f->bits == 0 || f->bits % 8 != 0) return complain("field.bits", f->bits, 8);
  if (f->ndim < 0 || f->ndim > 7) return complain("field.ndim", (uint64_t)f->ndim, 7);
  uint64_t bytes = (uint64_t)f->bits / 8 * (f->lanes == 0 ? 1 : f->lanes);
  uint64_t full = bytes;  // with empty dimensions as 1
  for (int d = 0; d < f->ndim; d++) {
    const uint64_t extent = f->shape[d] > 0 ? (uint64_t)f->shape[d] : 1;
    if (f->shape[d] < 0 || full > MAX_SLOT_BYTES / extent) return complain("field.shape", (uint64_t)f->shape[d], 0);
    full *= extent;
    bytes *= (uint64_t)f->shape[d];
  }
  for (int d = f->ndim; d < FEEDLANE_MAX_NDIM; d++)
    if (f->shape[d] != 0) return complain("field.shape beyond ndim", (uint64_t)f->shape[d], 0);
  *row_bytes = bytes;
  return 0;
}

static int read_fields(struct worker *w) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < w->geometry.field_count; i++) {
    struct field *f = &w->fields[i];
    f->record = (const struct FieldRecord *)(w->control + w->plan.fields) + i;
    if (check_field(f->record, &f->row_bytes) != 0) return -1;
    for (uint32_t k = 0; k < i; k++)
      if (strcmp(f->record->name, w->fields[k].record->name) == 0) return complain("a field's name, again", i, k);
    f->at = end;
    if (f->row_bytes > w->geometry.slot_bytes / w->geometry.max_rows) return complain("slot_bytes", f->row_bytes, 0);
    end += up(f->row_bytes * w->geometry.max_rows, TENSOR_ALIGNMENT);
  }
  w->declared_bytes = end;
  if (end > w->geometry.slot_bytes) return complain("slot_bytes", w->geometry.slot_bytes, end);
  return end <= w->geometry.reserved_bytes ? 0 : complain("reserved_bytes", w->geometry.reserved_bytes, end);
}

// "Attaching", 1 to 3.
static int map_control(struct worker *w, int fd) {
  if (check_seals("control's seals", fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE, 0) != 0)
    return -1;
  struct stat status;
  if (fstat(fd, &status) != 0) return fail_os("fstat of control");
  const uint64_t bytes = (uint64_t)status.st_size;
  const uint64_t least = sizeof(struct SegmentHeader) + sizeof(struct Geometry);
  if (bytes < least) return complain("size of control", bytes, least);
  if (bytes > MAX_SEGMENT_BYTES) return complain("size of control", bytes, MAX_SEGMENT_BYTES);
  void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return fail_os("mmap of control");
  w->control = memory;
  w->control_bytes = bytes;
  if (check_header(memory, bytes) != 0) return -1;
  memcpy(&w->geometry, w->control + sizeof(struct SegmentHeader), sizeof w->geometry);
  if (check_geometry(&w->geometry) != 0) return -1;
  w->plan = make_plan(&w->geometry);
  return bytes == w->plan.control_bytes ? 0 : complain("size of control", bytes, w->plan.control_bytes);
}

// "Attaching", 4 and 5. What lies in data is not looked at.
static int map_data(struct worker *w, int fd) {
  if (check_seals("data's seals", fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) !=
      0)
    return -1;
  struct stat status;
  if (fstat(fd, &status) != 0) return fail_os("fstat of data");
  const struct {
    const char *what;
    uint64_t found, needed;
  } words[] = {{"data's device", (uint64_t)status.st_dev, w->geometry.data_device},
               {"data's inode", (uint64_t)status.st_ino, w->geometry.data_inode},
               {"size of data", (uint64_t)status.st_size, w->plan.data_bytes}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (words[i].found != words[i].needed) return complain(words[i].what, words[i].found, words[i].needed);
  void *memory = mmap(NULL, w->plan.data_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return fail_os("mmap of data");
  w->data = memory;
  (void)madvise(memory, w->plan.data_bytes, MADV_DONTFORK);
  (void)madvise(memory, w->plan.data_bytes, MADV_DONTDUMP);
  return mprotect(memory, w->plan.data_bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : fail_os("mprotect of data");
}

// ---- all of it ----

static int watch(int epoll, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int say(struct worker *w, const void *bytes, size_t size, int fd) {
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
  ssize_t sent;
  do sent = sendmsg(w->socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)size ? 0 : fail_os("sendmsg");
}

static int say_attached(struct worker *w) {
  const struct Attached attached = {ATTACHED_MAGIC, LAYOUT_HASH};
  if (w->welcome.wants_pidfd == 0) return say(w, &attached, sizeof attached, -1);
  const int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (self < 0) return fail_os("pidfd_open");
  const int result = say(w, &attached, sizeof attached, self);
  (void)close(self);
  return result;
}

// What a test has it take for data: as large, and sealed like it.
static int make_impostor(int data) {
  struct stat status;
  const int fd = (int)syscall(SYS_memfd_create, "impostor", 3);  // MFD_CLOEXEC | MFD_ALLOW_SEALING
  if (fd < 0 || fstat(data, &status) != 0 || ftruncate(fd, status.st_size) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return -1;
  return fd;
}

int attach(struct worker *w, int socket) {
  w->socket = socket;
  int fds[WELCOME_FDS];
  if (receive_welcome(w, fds) != 0) return -1;
  w->data_fd = fds[welcome_data];
  w->own_event = fds[welcome_worker_event];
  w->trainer_event = fds[welcome_trainer_event];
  w->lifeline = fds[welcome_lifeline];
  w->trainer = fds[welcome_trainer];
  if (w->is_impostor && (w->data_fd = make_impostor(w->data_fd)) < 0) return fail_os("a segment of its own");
  if (w->welcome.tied != 0 && tie(w->lifeline) != 0) return -1;
  if (map_control(w, fds[welcome_control]) != 0 || map_data(w, w->data_fd) != 0) return -1;
  const uint32_t id = w->welcome.worker;
  if (id >= w->geometry.workers) return complain("welcome.worker", id, w->geometry.workers);
  if (read_fields(w) != 0) return -1;
  if (w->geometry.config_bytes != sizeof w->orders)
    return complain("size of the orders", w->geometry.config_bytes, sizeof w->orders);
  memcpy(&w->orders, w->control + w->plan.config, sizeof w->orders);
  const struct plan *p = &w->plan;
  w->trainer_block = (const void *)(w->control + p->trainer_block);
  w->trainer_row = (const struct TrainerRow *)(const void *)(w->control + p->trainer_rows) + id;
  w->row = (struct WorkerRow *)(void *)(w->data + p->worker_rows) + id;
  w->task_ring = w->control + p->task_rings + id * p->ring_bytes;
  w->result_lane = w->data + p->result_lanes + id * p->ring_bytes;
  w->p = w->welcome.task_start;
  w->r = w->welcome.result_start;
  atomic_store_explicit(&w->row->task_position, w->p, memory_order_release);
  atomic_store_explicit(&w->row->thread, (uint64_t)gettid(), memory_order_relaxed);
  w->reservations = calloc(w->geometry.slots, sizeof *w->reservations);
  if (w->reservations == NULL) return fail_os("memory for the slots");
  w->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (w->epoll < 0 || watch(w->epoll, w->own_event, EPOLLIN | EPOLLOUT | EPOLLET) != 0 ||
      watch(w->epoll, w->trainer, EPOLLIN) != 0 || watch(w->epoll, w->socket, EPOLLIN) != 0)
    return fail_os("epoll");
  return say_attached(w);
}

int say_ready(struct worker *w, int32_t status, const char *text) {
  struct Ready ready = {.magic = READY_MAGIC, .status = status};
  (void)snprintf(ready.text, sizeof ready.text, "%s", text);
  return say(w, &ready, sizeof ready, -1);
}

static void let_go(struct worker *w) {
  if (w->welcome.tied != 0) untie(w->lifeline);
  if (w->data != NULL) (void)munmap(w->data, w->plan.data_bytes);
  if (w->control != NULL) (void)munmap((void *)(uintptr_t)w->control, w->control_bytes);
}

void give_up(struct worker *w) {
  (void)say_ready(w, status_init, complaint());
  let_go(w);
  (void)close(w->socket);
}

void leave(struct worker *w) {
  let_go(w);
  const struct Leaving leaving = {LEAVING_MAGIC};
  (void)say(w, &leaving, sizeof leaving, -1);
}
