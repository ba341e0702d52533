// SPDX-License-Identifier: Apache-2.0
// Admits consumers, and handles their messages on the sockets.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "greeting/host.hpp"
#include "os/memfd.hpp"
#include "os/process.hpp"
#include "sharing/audience.hpp"
#include "sharing/tags.hpp"

namespace feedlane::sharing {
namespace {

// Writes a state into a memfd, which the reply carries.
Status put_into_memfd(const std::vector<std::byte>& bytes, os::Fd& out, Error& error) {
  Status s = os::create_memfd("feedlane-state", bytes.size(), out, error);
  if (s != FEEDLANE_OK) return s;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pwrite(out.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno != EINTR) return error.os(errno, "writing a state of {} bytes", bytes.size());
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return s;
}

// Sends a consumer the state of the round that it requests.
void answer(const Stock& stock, const Link& link, const Request& request) {
  Reply reply{};
  reply.magic = reply_magic;
  reply.round = request.round;
  std::vector<std::byte> state;
  os::Fd memory;
  Error error;
  Status s = FEEDLANE_OK;
  try {
    s = stock.state(request.round, state, error);
    if (s == FEEDLANE_OK) s = put_into_memfd(state, memory, error);
  } catch (const std::bad_alloc&) {
    s = error.fail(FEEDLANE_E_MEMORY, "the feeder is out of memory");
  }
  if (s == FEEDLANE_OK) reply.bytes = state.size();
  else greeting::write_refused(error, reply.why);
  const int fd = memory.get();
  Error ignored;
  (void)greeting::send(link.socket.get(), reply, std::span(&fd, s == FEEDLANE_OK ? 1u : 0u), ignored);
}

// Consumers that get batches or hold some; with share deal, then the places without a consumer.
std::vector<feedlane_consumer_stats> list(const Links& links, const std::vector<Parcels>& backlogs) {
  std::vector<feedlane_consumer_stats> all;
  static constexpr std::int32_t states[] = {FEEDLANE_CONSUMER_OFFERED, FEEDLANE_CONSUMER_ATTACHED,
                                            FEEDLANE_CONSUMER_EVICTED, FEEDLANE_CONSUMER_LEFT};
  for (const std::unique_ptr<Link>& link : links.all) {
    const Link::Outstanding its = link->outstanding();
    if (!link->is_receiving() && its.held == 0) continue;
    feedlane_consumer_stats& one = all.emplace_back();
    one.id = link->place();
    one.state = states[static_cast<std::size_t>(link->state)];
    one.pid = link->pid;
    one.lag = link->lag();
    one.delivered = link->delivered;
    one.taken_back = link->taken_back;
    one.waiting = its.waiting;
    one.held = its.held;
  }
  for (std::size_t place = 0; place < backlogs.size(); place++) {
    if (links.at_place(place) != nullptr) continue;
    feedlane_consumer_stats& none = all.emplace_back();
    none.id = static_cast<std::int32_t>(place);
    for (const Parcel& parcel : backlogs[place]) none.waiting += parcel.has_slot() ? 1 : 0;
  }
  for (feedlane_consumer_stats& one : all) one.size = sizeof one;
  return all;
}

}  // namespace

// ---- places ----

Status Audience::find_place(const feedlane_consumer_config& config, std::int32_t& id, Error& error) const {
  const auto places = static_cast<std::int32_t>(loader_.config().consumers);
  if (config.id < -1 || config.id >= places)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.id", config.id, config.id < 0 ? -1 : places - 1,
                        "config.id is {}: must be -1 (any place) or below config.consumers, {}", config.id, places);
  if (config.lag < FEEDLANE_LAG_BLOCK || config.lag > FEEDLANE_LAG_OBSERVE)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.lag", config.lag, FEEDLANE_LAG_OBSERVE,
                        "config.lag is {}: must be one of FEEDLANE_LAG_...", config.lag);
  if (config.lag == FEEDLANE_LAG_OBSERVE && deals())
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.lag", config.lag, FEEDLANE_LAG_EVICT,
                        "FEEDLANE_LAG_OBSERVE is not available with FEEDLANE_SHARE_DEAL");
  constexpr std::int64_t longest_ns = FEEDLANE_FOREVER / 2;
  if (config.evict_after_ns < 0 || config.evict_after_ns > longest_ns)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.evict_after_ns", config.evict_after_ns,
                        config.evict_after_ns < 0 ? 0 : longest_ns, "config.evict_after_ns is {}: must be 0 to {}",
                        config.evict_after_ns, longest_ns);
  if (config.id >= 0 && links_.at_place(static_cast<std::size_t>(config.id)) != nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.id", config.id, -1, "place {} already has a consumer", config.id);
  for (id = std::max(config.id, 0); id < places; id++)
    if (links_.at_place(static_cast<std::size_t>(id)) == nullptr) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_LIMIT, "config.consumers", places, places + 1,
                      "every place has a consumer: raise config.consumers, which is {}", places);
}

Status Audience::open_consumer(const feedlane_consumer_config& config, std::int32_t& id, os::Fd& theirs, Error& error) {
  handle_pending();  // may free places of consumers that have ended
  os::Fd mine, other;
  std::unique_ptr<Link> link;
  Status s = os::create_socket_pair(mine, other, error);
  if (s == FEEDLANE_OK) s = make_link(config, link, error);
  if (s != FEEDLANE_OK) return s;
  id = link->place();
  s = admit(std::move(link), std::move(mine), error);
  if (s == FEEDLANE_OK) theirs = std::move(other);
  return s;
}

// Creates everything that a consumer needs of the feeder.
Status Audience::make_link(const feedlane_consumer_config& config, std::unique_ptr<Link>& link, Error& error) {
  std::int32_t id = 0;
  forget_gone();
  Status s = find_place(config, id, error);
  if (s != FEEDLANE_OK) return s;
  links_.all.reserve(links_.all.size() + 1);
  constexpr std::int64_t standard_ns = 60'000'000'000;
  link = std::make_unique<Link>(++last_number_, id, config.lag,
                                config.evict_after_ns == 0 ? standard_ns : config.evict_after_ns);
  link->reserve(1 + (deals() ? backlogs_[static_cast<std::size_t>(id)].size() : 0));
  s = os::check_memory({plan_.delivery_bytes, plan_.returns_bytes}, plan_.delivery_bytes + plan_.returns_bytes, files_,
                       error);
  return s == FEEDLANE_OK ? link->create(plan_, files_, error) : s;
}

// Allocates no memory.
Status Audience::admit(std::unique_ptr<Link> link, os::Fd socket, Error& error) {
  link->socket = std::move(socket);
  Status s = poller_.add(link->socket.get(), EventTag::make(EventTag::socket, link->number()), error);
  if (s == FEEDLANE_OK)
    s = poller_.add_bell(link->feeder_event.get(), EventTag::make(EventTag::bell, link->number()), error);
  if (s == FEEDLANE_OK) s = welcome(*link, error);
  if (s != FEEDLANE_OK) {
    greeting::refuse(link->socket.get(), error);
    poller_.remove(link->socket.get());
    poller_.remove(link->feeder_event.get());
    return s;
  }
  send_missed(*link);
  links_.all.push_back(std::move(link));
  return s;
}

// The poller may tell of a successor's connection before it tells of its predecessor's end. Links of consumers that were
// evicted or are leaving, and hold nothing, are kept until the consumers send `left` or end, which may be never: no more of
// them are kept than there are places.
void Audience::forget_gone() {
  std::vector<std::uint32_t> numbers, idle;
  for (const std::unique_ptr<Link>& link : links_.all) numbers.push_back(link->number());
  idle.reserve(numbers.size());
  for (const std::uint32_t number : numbers) {
    if (Link* const link = links_.find(number); link->state == Link::State::offered) read_message(*link);
    const Link* const link = links_.find(number);
    if (link == nullptr) continue;
    if (link->process && os::has_ended(link->process.get())) end_link(number, "has ended");
    else if (!link->is_concerned()) idle.push_back(number);
  }
  for (std::size_t i = 0; i + loader_.config().consumers < idle.size(); i++) end_link(idle[i], nullptr);
}

Status Audience::welcome(Link& link, Error& error) {
  const shm::Segments& segments = loader_.memory().segments;
  Welcome message{};
  message.magic = welcome_magic;
  message.layout_hash = shm::share_layout_hash;
  message.id = link.place();
  message.share = loader_.config().share;
  message.lag = link.lag();
  message.wants_pidfd = os::names_senders(link.socket.get()) ? 0 : 1;
  const Parcels& backlog = deals() ? backlogs_[static_cast<std::size_t>(link.place())] : Parcels();
  const std::int64_t next = epoch.number < 0 ? loader_.first_epoch() : epoch.number + (epoch.is_in_progress ? 0 : 1);
  message.epoch = backlog.empty() ? next : backlog.front().epoch;
  message.epoch_batches = batches_of_consumer(link.place());
  int fds[welcome_fds];
  fds[welcome_control] = segments.control_fd();
  fds[welcome_data] = readable_data_.get();
  fds[welcome_catalogue] = catalogue_.control_fd();
  fds[welcome_delivery] = link.segments().control_fd();
  fds[welcome_returns] = link.segments().data_fd();
  fds[welcome_consumer_event] = link.consumer_event.get();
  fds[welcome_feeder_event] = link.feeder_event.get();
  fds[welcome_feeder] = self_.get();
  const Status s = greeting::send(link.socket.get(), message, fds, error);
  link.close_segment_fds();
  return s;
}

// Sends a new consumer the begin of an epoch in progress, and the messages that wait for its place. The link has memory
// for them.
void Audience::send_missed(Link& link) {
  Parcels none;
  Parcels& backlog = deals() ? backlogs_[static_cast<std::size_t>(link.place())] : none;
  const bool starts_with_begin = !backlog.empty() && backlog.front().kind == shm::DeliveryKind::begin;
  if (!starts_with_begin && (!backlog.empty() || epoch.is_in_progress)) {
    Parcel parcel;
    parcel.kind = shm::DeliveryKind::begin;
    parcel.epoch = backlog.empty() ? epoch.number : backlog.front().epoch;
    parcel.batch = batches_of_consumer(link.place());
    parcel.round = backlog.empty() ? round_ : backlog.front().round - 1;
    (void)link.deliver(parcel);
  }
  for (const Parcel& parcel : backlog) (void)link.deliver(parcel);
  backlog.clear();
}

// ---- events ----

void Audience::handle(const os::Poller::Event& event) {
  if (greeting::Guests::owns(event.tag)) return handle_guest(event.tag);
  const EventTag tag = EventTag::read(event.tag);
  Link* const link = links_.find(tag.number);
  if (link == nullptr) return;
  if (tag.kind == EventTag::process) end_link(tag.number, "has ended");
  else if (tag.kind == EventTag::socket) read_message(*link);
}

void Audience::handle_guest(std::uint64_t tag) {
  Asking asking{};
  std::uint32_t guest = 0;
  Error error;
  Status s = guests_.handle(tag, greeting::bytes_of(asking), guest, error);
  has_events_ = true;  // there may be more connections
  if (s == FEEDLANE_AGAIN) return;
  std::unique_ptr<Link> link;
  if (s == FEEDLANE_OK) {
    feedlane_consumer_config config{};
    config.id = asking.id;
    config.lag = asking.lag;
    config.evict_after_ns = asking.evict_after_ns;
    try {
      s = make_link(config, link, error);
    } catch (const std::bad_alloc&) {
      s = error.fail(FEEDLANE_E_MEMORY, "the feeder is out of memory");
    }
    if (greeting::Guests::lacks_descriptors(error)) guests_.pause();
  }
  if (greeting::Guests::lacks_descriptors(error)) return loader_.events().push(FEEDLANE_EVENT_WARNING, error);
  os::Fd socket = guests_.take(guest);
  if (s != FEEDLANE_OK) return greeting::refuse(socket.get(), error);
  (void)admit(std::move(link), std::move(socket), error);
}

void Audience::read_message(Link& link) {
  reserve_at(link.place(), link.out());  // a message can be read only once, and may be `leaving`
  union {
    greeting::Word word;
    Request request;
  } message{};
  os::Received received;
  Error error;
  Status s = os::receive_message(link.socket.get(), greeting::bytes_of(message), received, error);
  if (s == FEEDLANE_AGAIN) return;
  const std::uint64_t magic = s == FEEDLANE_OK && !received.truncated ? message.word.magic : 0;
  if (link.state == Link::State::offered) {
    if (s < 0) greeting::refuse(link.socket.get(), error);
    if (magic != attached_magic) return end_link(link.number(), "never joined");
    const std::uint64_t tag = EventTag::make(EventTag::process, link.number());
    s = greeting::accept(link.socket.get(), received, poller_, tag, link.process, error);
    if (s != FEEDLANE_OK) return end_link(link.number(), "could not be monitored");
    link.state = Link::State::attached;
    link.stall.since_ns = 0;  // its own time starts now
    link.pid = received.pid;
  } else if (magic == request_magic && received.bytes == sizeof(Request)) {
    answer(stock_, link, message.request);
  } else if (magic == leaving_magic) {
    if (!link.is_receiving()) return;
    tell(FEEDLANE_EVENT_CONSUMER_LEFT, link, "has left");
    collect(link);
    take_back(link);
    link.state = Link::State::leaving;
  } else if (magic == left_magic || !link.process) {  // nothing else reports the end of a consumer in this process
    end_link(link.number(), "has left");
  } else {
    // A closed socket or an invalid message doesn't prove that the process has ended: its pidfd does.
    poller_.remove(link.socket.get());
    os::discard_messages(link.socket.get());
    link.socket.reset();
  }
}

Status Audience::stats(std::int32_t nth, feedlane_consumer_stats& out) {
  if (nth < 0) return FEEDLANE_E_ARGUMENT;
  const auto n = static_cast<std::size_t>(nth);
  if (n == 0 || n != next_listed_) {
    handle_pending();
    listed_ = list(links_, backlogs_);
  }
  next_listed_ = n + 1;
  if (n >= listed_.size()) return FEEDLANE_END;
  out = listed_[n];
  return FEEDLANE_OK;
}

}  // namespace feedlane::sharing
