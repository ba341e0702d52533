// SPDX-License-Identifier: Apache-2.0
// How a consumer joins its feeder, and leaves it.
#include <algorithm>
#include <span>
#include <utility>

#include "greeting/guest.hpp"
#include "os/event.hpp"
#include "os/membarrier.hpp"
#include "sharing/consumer.hpp"

namespace feedlane::sharing {

namespace {

enum Tag : std::uint64_t { tag_own_event, tag_feeder, tag_socket };
constexpr greeting::Expected expected{welcome_magic, shm::share_layout_hash, welcome_fds, "feeder"};

}  // namespace

Consumer::Consumer() : leases_(*this, events_) {}

Status Consumer::join(os::Fd socket, pinned::Pool* pool, os::Deadline deadline, std::unique_ptr<Consumer>& out,
                      Error& error) {
  std::unique_ptr<Consumer> c(new Consumer);
  Status s = c->receive_welcome(socket.get(), {}, deadline, error);
  if (s == FEEDLANE_OK) s = c->finish_joining(std::move(socket), pool, deadline, error);
  if (s == FEEDLANE_OK) out = std::move(c);
  return s;
}

Status Consumer::join(const std::string& path, const feedlane_consumer_config& config, pinned::Pool* pool,
                      os::Deadline deadline, std::unique_ptr<Consumer>& out, Error& error) {
  std::unique_ptr<Consumer> c(new Consumer);
  os::Fd socket;
  const Asking asking{asking_magic, config.id, config.lag, config.evict_after_ns};
  Status s = os::connect_to(path, deadline, socket, error);
  if (s == FEEDLANE_OK) s = c->receive_welcome(socket.get(), greeting::bytes_of(asking), deadline, error);
  if (s == FEEDLANE_OK) s = c->finish_joining(std::move(socket), pool, deadline, error);
  if (s == FEEDLANE_OK) out = std::move(c);
  return s;
}

Status Consumer::receive_welcome(int socket, std::span<const std::byte> request, os::Deadline deadline, Error& error) {
  Welcome welcome{};
  os::Received received;
  os::Fd peer;  // pidfd: a forked child of the feeder may hold the socket's other end after the feeder's death
  Status s = os::open_peer(socket, peer, error);
  if (s == FEEDLANE_OK)
    s = greeting::receive_welcome(socket, peer.get(), expected, request, deadline, greeting::bytes_of(welcome),
                                  received, error);
  return s == FEEDLANE_OK ? read_welcome(welcome, received, error) : s;
}

Status Consumer::read_welcome(const Welcome& welcome, os::Received& received, Error& error) {
  if (welcome.epoch < 0 || welcome.epoch > last_epoch)
    return error.refuse(FEEDLANE_E_CORRUPT, "welcome.epoch", welcome.epoch, 0,
                        "the feeder's welcome message has the invalid epoch {}", welcome.epoch);
  own_event_ = std::move(received.fds[welcome_consumer_event]);
  feeder_event_ = std::move(received.fds[welcome_feeder_event]);
  feeder_ = std::move(received.fds[welcome_feeder]);
  Status s = os::check_bell(feeder_event_.get(), error);
  if (s == FEEDLANE_OK)
    s = segments_.watch(received.fds[welcome_control].get(), received.fds[welcome_data].get(), error);
  if (s == FEEDLANE_OK)
    s = catalogue_.attach_control(shm::SegmentKind::share_catalogue, received.fds[welcome_catalogue].get(), error);
  if (s == FEEDLANE_OK)
    s = pair_.attach(shm::SegmentKind::share_delivery, received.fds[welcome_delivery].get(),
                     received.fds[welcome_returns].get(), shm::Access::read_write, error);
  if (s != FEEDLANE_OK) return s;
  const auto geometry = *pair_.control<shm::ShareGeometry>(sizeof(shm::SegmentHeader));
  if (shm::make_share_plan(geometry, plan_, error) != FEEDLANE_OK) return error.code = FEEDLANE_E_CORRUPT;
  if (geometry.slots != segments_.plan().geometry.slots)
    return error.refuse(FEEDLANE_E_CORRUPT, "share.slots", geometry.slots, segments_.plan().geometry.slots,
                        "the feeder shares {} slots, but its loader has {}", geometry.slots,
                        segments_.plan().geometry.slots);
  s = pair_.check_sizes(plan_.delivery_bytes, plan_.returns_bytes, error);
  if (s == FEEDLANE_OK) s = catalogue_.check_control_size(plan_.catalogue_bytes, error);
  if (s != FEEDLANE_OK) return s;
  role_.place = welcome.id;
  role_.share = welcome.share;
  role_.lag = welcome.lag;
  next_epoch_.store(welcome.epoch, std::memory_order_relaxed);  // only a number
  epoch_batches_.store(std::max<std::int64_t>(welcome.epoch_batches, -1), std::memory_order_relaxed);
  wants_pidfd_ = welcome.wants_pidfd != 0;
  slots_.reset(geometry.slots, counters_);
  batches_.resize(geometry.slots);
  const ring::Cells cells{pair_.control<std::byte>(plan_.cells), shm::delivery_cell_bytes, geometry.capacity};
  ring_ = ring::Consumer(cells, 0, &row().position);
  bell_ = ring::Doorbell(&segments_.trainer_block()->sleeping, feeder_event_.get());
  return s;
}

Status Consumer::finish_joining(os::Fd socket, pinned::Pool* pool, os::Deadline deadline, Error& error) {
  const std::int64_t left_ns = deadline.remaining_ns();  // the feeder's time, of which the registration takes none
  Status s = pool == nullptr ? FEEDLANE_OK : registered_.open(*pool, segments_, error);
  if (s == FEEDLANE_OK) s = waiter_.open(error);
  if (s == FEEDLANE_OK) s = wakeups_.open(waiter_.poller(), &row().sleeping, error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add_bell(own_event_.get(), tag_own_event, error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add(feeder_.get(), tag_feeder, error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add(socket.get(), tag_socket, error);
  if (s != FEEDLANE_OK) return s;
  waiter_.use(&row().sleeping, ring::FencedBy::publisher, 2);
  socket_ = std::move(socket);
  return greeting::attach(socket_.get(), feeder_.get(), expected, greeting::bytes_of(greeting::Word{attached_magic}),
                          wants_pidfd_, pool == nullptr ? deadline : os::Deadline::after(left_ns), error);
}

void Consumer::leave() noexcept {
  if (socket_) greeting::say(socket_.get(), leaving_magic);
}

Consumer::~Consumer() {
  registered_.close();
  if (!socket_) return;  // never joined
  segments_.unmap();
  catalogue_.unmap();
  pair_.unmap();
  greeting::say(socket_.get(), left_magic);
}

Status Consumer::handle(const os::Poller::Event& event, Error& error) {
  if (wakeups_.handle(event) || event.tag == tag_own_event) return FEEDLANE_OK;
  if (event.tag == tag_feeder) {
    is_feeder_gone_ = true;
    waiter_.poller().remove(feeder_.get());
  } else {
    // The only messages left are replies that came too late.
    Reply late;
    os::Received received;
    const Status s = os::receive_message(socket_.get(), greeting::bytes_of(late), received, error);
    if (s != FEEDLANE_END && s != FEEDLANE_E_PEER_DEAD) return FEEDLANE_OK;
    is_feeder_gone_ = true;
    waiter_.poller().remove(socket_.get());
  }
  return FEEDLANE_OK;
}

}  // namespace feedlane::sharing
