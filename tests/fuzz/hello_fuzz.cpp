// SPDX-License-Identifier: Apache-2.0
// What comes over a socket before the rings take over, to all four that listen there: a worker, a trainer, a ring's sender
// and its receiver. Whatever the message and its descriptors, they answer with a status, and hold no descriptor more.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "channel/receiver.hpp"
#include "channel/sender.hpp"
#include "greeting/ring.hpp"
#include "input.hpp"
#include "messages.hpp"
#include "os/event.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "supervisor/peer.hpp"
#include "support/old_kernel.hpp"
#include "worker/worker.hpp"

using namespace feedlane;

namespace {

const os::SystemFiles no_accounts{"/nowhere", "/nowhere"};

shm::Geometry small_geometry() {
  shm::Geometry g{};
  g.workers = 2;
  g.world = 1;
  g.slots = 3;
  g.max_rows = 4;
  g.field_count = 2;
  g.ring_capacity = 4;
  g.config_bytes = 10;
  g.slot_bytes = g.reserved_bytes = 5000;
  g.list_bytes = 64;
  return g;
}

// A trainer's segments, made once; each run of the worker finds other fields, configuration and geometry flags there.
struct Trainer {
  Trainer() {
    shm::Plan plan;
    Error error;
    PROMISE(shm::make_plan(small_geometry(), plan, error) == FEEDLANE_OK);
    PROMISE(segments.create(plan, no_accounts, error) == FEEDLANE_OK);
    geometry = reinterpret_cast<shm::Geometry*>(reinterpret_cast<std::byte*>(segments.trainer_block()) -
                                                plan.trainer_block + sizeof(shm::SegmentHeader));
    sound = *geometry;
  }
  void set_fields(fuzz::Input& in) const {
    shm::FieldRecord records[] = {{"image", 1, 8, 1, 3, {3, 4, 5}}, {"label", 0, 64, 1, 0, {}}};
    if (in.flag()) fuzz::edit(in, records, sizeof records);
    std::memcpy(segments.fields(), records, sizeof records);
    *geometry = sound;
    if (in.pick(8) == 7) geometry->flags = in.u32();
    if (in.pick(8) == 7) geometry->slot_bytes = geometry->reserved_bytes = 4097 + in.u16() % 4096;  // the same pages
    if (in.pick(16) == 15) fuzz::edit(in, geometry, sizeof *geometry);
    // Both take memory as they say; that of segments so large would have to be there first.
    if (geometry->max_rows > 1000 || geometry->slots > 1000) *geometry = sound;
  }
  shm::Segments segments;
  shm::Geometry* geometry;
  shm::Geometry sound;  // as it was made, with the file that data is
};

// ---- a worker, welcomed by a trainer ----

void look_at(const worker::Worker& w) {
  const feedlane_worker_info info = w.info();
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < info.config_bytes; i++) sum += static_cast<const std::uint8_t*>(info.config)[i];
  for (std::uint64_t f = 0; f < info.field_count; f++) sum += std::strlen(info.fields[f].name);
  PROMISE(sum < UINT64_MAX);
  PROMISE(info.id >= 0 && info.id < info.count && (info.fields != nullptr || info.field_count == 0));
}

void attach_worker(fuzz::Input& in) {
  static const Trainer trainer;
  trainer.set_fields(in);
  os::Fd mine, theirs;
  fuzz::make_pair(mine, theirs);
  const os::Fd worker_event = fuzz::make_event(), trainer_event = fuzz::make_event();
  os::Fd self, read_end;
  os::Lifeline lifeline;
  Error error;
  PROMISE(os::open_pidfd(::getppid(), self, error) == FEEDLANE_OK);
  PROMISE(lifeline.open(read_end, error) == FEEDLANE_OK);
  worker::Welcome welcome{worker::welcome_magic, shm::layout_hash, 0, 0, 0, 0, 0, 0, 0};
  fuzz::Descriptors fds;
  for (const int fd : {trainer.segments.control_fd(), trainer.segments.data_fd(), worker_event.get(),
                       trainer_event.get(), read_end.get(), self.get()})
    fds.want(fd);
  const bool is_local = in.pick(8) == 7;
  fuzz::send(in, mine.get(), welcome, fds);
  if (in.pick(8) == 7) mine.reset();
  std::unique_ptr<worker::Worker> w;
  Status s = worker::Worker::attach(std::move(theirs), 0, nullptr, is_local ? &trainer.segments : nullptr, w, error);
  PROMISE(s <= FEEDLANE_OK || s == FEEDLANE_TIMEOUT);
  PROMISE((s == FEEDLANE_OK) == (w != nullptr));
  if (s != FEEDLANE_OK) return;
  look_at(*w);
  const char* text = in.flag() ? "text" : nullptr;
  s = w->ready(in.flag() ? FEEDLANE_OK : FEEDLANE_E_INIT, text, error);
  PROMISE(s <= FEEDLANE_OK);
  PROMISE(w->ready(FEEDLANE_OK, nullptr, error) < 0 || s < 0);
  if (in.flag()) mine.reset();  // the trainer is gone
  const feedlane_task* task = nullptr;
  s = w->next(0, &task, error);
  PROMISE(s != FEEDLANE_OK || task != nullptr);
}

// ---- a trainer that hears a worker ----

void hear_worker(fuzz::Input& in) {
  static const Trainer trainer;
  supervisor::Peer peer;
  os::Poller poller;
  os::Fd theirs, self;
  Error error;
  peer.init(in.pick(2), trainer.segments);
  PROMISE(os::open_pidfd(::getpid(), self, error) == FEEDLANE_OK && poller.open(error) == FEEDLANE_OK);
  PROMISE(peer.open(trainer.segments, 0, 0, false, self.get(), poller, theirs, error) == FEEDLANE_OK);
  const std::uint32_t kind = in.pick(4);
  if (kind == 3) peer.expect(supervisor::Peer::Kind::thread);
  if (kind == 2) peer.expect(supervisor::Peer::Kind::child);  // as which another process has attached
  if (in.pick(8) == 7) peer.ask_to_end();
  for (std::uint32_t i = 1 + in.pick(4); i > 0; i--) {
    fuzz::Descriptors fds;
    switch (in.pick(4)) {
      case 0:
        fds.want(self.get());
        fuzz::send(in, theirs.get(), worker::Attached{worker::attached_magic, shm::layout_hash}, fds);
        break;
      case 1: {
        worker::Ready ready{worker::ready_magic, in.flag() ? FEEDLANE_E_INIT : FEEDLANE_OK, 0, {}};
        if (in.flag()) std::memset(ready.text, 'x', sizeof ready.text);
        fuzz::send(in, theirs.get(), ready, fds);
        break;
      }
      case 2: fuzz::send(in, theirs.get(), worker::Leaving{worker::leaving_magic}, fds); break;
      default: theirs.reset(); break;
    }
    const bool was_attached = peer.has_attached();
    const auto heard = peer.receive(poller, error);
    PROMISE(heard != supervisor::Peer::Message::nonsense || error.text[0] != '\0');
    PROMISE((heard == supervisor::Peer::Message::attached) == (!was_attached && peer.has_attached()));
    PROMISE(heard != supervisor::Peer::Message::ready || peer.state() == supervisor::State::ready);
    PROMISE(heard != supervisor::Peer::Message::cannot_open || peer.state() == supervisor::State::failed);
    if (!theirs || heard == supervisor::Peer::Message::hung_up) break;
  }
  // What the loader does with its tasks, and then with the worker.
  supervisor::TaskRing& tasks = peer.tasks();
  std::vector<std::uint64_t> ids;
  for (std::uint64_t id = 1; id <= 3 && tasks.has_room(); id++) {
    shm::TaskMessage task{};
    task.id = id;
    tasks.send(task);
    ids.push_back(id);
  }
  trainer.segments.worker_row(0)->begun_through.store(in.pick(5), std::memory_order_relaxed);
  PROMISE(tasks.revoke(ids, in.pick(4)) <= ids.size());
  PROMISE(tasks.revoked() + tasks.unfinished() == ids.size());
  const std::uint64_t id = in.pick(5);
  PROMISE(!tasks.forget_revoked(id) || tasks.may_decline(id));
  tasks.ring_doorbell();
  if (in.flag()) peer.let_leave(poller);
  peer.close(poller);
  PROMISE(peer.state() == supervisor::State::none && peer.pid() == 0 && !peer.has_process() && !peer.has_socket());
}

// ---- a ring's two ends ----

shm::RingPlan ring_plan() {
  shm::RingPlan plan;
  Error error;
  PROMISE(shm::make_ring_plan(24, 4, 2, plan, error) == FEEDLANE_OK);
  return plan;
}

void attach_sender(fuzz::Input& in) {
  struct Ring {
    Ring() {
      Error error;
      PROMISE(segments.create(shm::SegmentKind::ring_control, plan.control_bytes, plan.data_bytes, {plan.data_bytes},
                              no_accounts, error) == FEEDLANE_OK);
      geometry = segments.control<shm::RingGeometry>(sizeof(shm::SegmentHeader));
    }
    shm::RingPlan plan = ring_plan();
    shm::SegmentPair segments;
    shm::RingGeometry* geometry = nullptr;
  };
  static const Ring ring;
  *ring.geometry = ring.plan.geometry;
  if (in.pick(8) == 7) fuzz::edit(in, ring.geometry, sizeof *ring.geometry);
  ring.segments.control<shm::ReceiverRow>(ring.plan.receiver_rows)
      ->position.store(in.pick(4) == 3 ? in.u64() : 0, std::memory_order_relaxed);
  os::Fd mine, theirs, self;
  Error error;
  fuzz::make_pair(mine, theirs);
  PROMISE(os::open_pidfd(::getpid(), self, error) == FEEDLANE_OK);
  const os::Fd sender_event = fuzz::make_event(), receiver_event = fuzz::make_event();
  fuzz::Descriptors fds;
  for (const int fd :
       {ring.segments.control_fd(), ring.segments.data_fd(), sender_event.get(), receiver_event.get(), self.get()})
    fds.want(fd);
  fuzz::Descriptors none;
  if (in.pick(8) == 7) {
    fuzz::send(in, mine.get(),
               greeting::Refused{greeting::refused_magic, FEEDLANE_E_LIMIT, 0, 1, 2, "config.lanes", "no"}, none);
  } else {
    fuzz::send(in, mine.get(), channel::RingWelcome{channel::ring_welcome_magic, shm::layout_hash, 0, 0, 0}, fds);
  }
  // This process made the socket, so that no answer is awaited; what comes there all the same is the receiver's end.
  if (in.pick(8) == 7)
    fuzz::send(in, mine.get(), greeting::Refused{greeting::refused_magic, FEEDLANE_E_OS, EMFILE, 0, 0, "", "no"}, none);
  std::unique_ptr<channel::Sender> sender;
  Status s = channel::Sender::attach(std::move(theirs), os::Deadline::at(0), sender, error);
  PROMISE(s <= FEEDLANE_OK || s == FEEDLANE_TIMEOUT);
  PROMISE((s == FEEDLANE_OK) == (sender != nullptr));
  if (s != FEEDLANE_OK) return;
  for (std::uint32_t i = in.pick(8); i > 0; i--) {
    feedlane_span span{};
    const std::uint32_t want = 1 + in.pick(6);
    s = sender->reserve(want, 0, span, error);
    if (s != FEEDLANE_OK) break;
    // Another geometry of the same size is one too: fewer lanes, longer ones.
    PROMISE(span.count >= 1 && span.count <= want && span.stride >= 24);
    std::memset(span.data, 1, 24);
    const std::uint32_t count = in.pick(6);
    PROMISE((sender->commit(count, error) == FEEDLANE_OK) == (count <= span.count));
  }
  if (sender->message_bytes() > 1000) return;
  // As many as they say, of the size that its geometry says.
  const std::uint32_t count = in.pick(6);
  const std::vector<std::byte> messages(std::size_t{count} * sender->message_bytes());
  std::uint32_t sent = 0;
  s = sender->send(messages.data(), count, 0, sent, error);
  PROMISE(sent <= count && (s != FEEDLANE_OK || sent == count));
}

void hear_sender(fuzz::Input& in) {
  channel::Receiver receiver;
  os::Fd theirs, self;
  Error error;
  const bool by_path = in.pick(4) == 3;
  static const std::string path = "/tmp/feedlane-hello-fuzz-" + std::to_string(::getpid());
  PROMISE(receiver.create(ring_plan(), by_path ? path : "", no_accounts, error) == FEEDLANE_OK);
  if (by_path) PROMISE(os::connect_to(path, os::Deadline::never(), theirs, error) == FEEDLANE_OK);
  else PROMISE(receiver.offer(theirs, error) == FEEDLANE_OK);
  PROMISE(os::open_pidfd(::getpid(), self, error) == FEEDLANE_OK);
  for (std::uint32_t i = 1 + in.pick(3); i > 0 && theirs; i--) {
    fuzz::Descriptors fds;
    switch (in.pick(5)) {
      case 4: fuzz::send(in, theirs.get(), greeting::Word{channel::ring_asking_magic}, fds); break;
      case 0:
      case 1:
        if (in.flag()) fds.want(self.get());
        fuzz::send(in, theirs.get(), channel::RingAttached{channel::ring_attached_magic, 0, 0}, fds);
        break;
      case 2: fuzz::send(in, theirs.get(), greeting::Word{channel::ring_leaving_magic}, fds); break;
      default: theirs.reset(); break;
    }
    feedlane_span span{};
    const Status s = receiver.peek(1, 0, span, error);
    PROMISE(s == FEEDLANE_TIMEOUT || s == FEEDLANE_END || s == FEEDLANE_OK);
  }
  if (!theirs) PROMISE(receiver.arm(error) >= FEEDLANE_OK);
  PROMISE(receiver.offer(theirs, error) == FEEDLANE_OK);  // of two lanes one at least is free
}

// Of those that there can be: cheap enough for every run.
int count_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  const std::uint32_t first = in.pick(8);
  const std::uint32_t kind = first % 4;
  const test::OldKernel kernel(first >= 4);  // which lets a peer's descriptors through
  const int before = count_descriptors();
  switch (kind) {
    case 0: attach_worker(in); break;
    case 1: hear_worker(in); break;
    case 2: attach_sender(in); break;
    default: hear_sender(in); break;
  }
  static bool has_run[4];  // what is made once is there then
  PROMISE(count_descriptors() == before || !has_run[kind]);
  has_run[kind] = true;
  return 0;
}
