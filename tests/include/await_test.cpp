// SPDX-License-Identifier: Apache-2.0
// Coroutines that wait in an event loop, Asio's: no wake-up is lost, errors are thrown, and a wait that ends loses nothing.
#include <utility>  // Boost 1.74 lacks it
//
#include <boost/asio.hpp>

#ifdef BOOST_ASIO_HAS_CO_AWAIT  // Boost 1.74 has no coroutines for clang

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <feedlane/feedlane.hpp>
#include <functional>
#include <future>
#include <optional>
#include <semaphore>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace asio = boost::asio;
using namespace std::chrono_literals;
using feedlane::Arena;
using feedlane::Batch;
using feedlane::Error;
using feedlane::Loader;
using feedlane::Messages;
using feedlane::Receiver;
using feedlane::Sender;

namespace {

template <class T>
using Task = asio::awaitable<std::optional<T>>;
using Hook = std::function<void()>;

// Waits in the loop of `io`. `before` runs before each wait.
class Readable {
 public:
  explicit Readable(
      asio::io_context& io, Hook before = [] {})
      : events_(io), before_(std::move(before)) {}
  asio::awaitable<void> operator()(int fd) {
    if (!events_.is_open()) events_.assign(::dup(fd));
    before_();
    return events_.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
  }
  void cancel() { events_.cancel(); }

 private:
  asio::posix::stream_descriptor events_;
  Hook before_;
};

// The result of a task. Fails if the task still waits after a minute.
template <class T>
T run(asio::io_context& io, asio::awaitable<T> task) {
  std::future<T> result = asio::co_spawn(io, std::move(task), asio::use_future);
  io.restart();
  io.run_for(1min);
  REQUIRE_MESSAGE(result.wait_for(0s) == std::future_status::ready, "no wake-up came");
  return result.get();
}

std::optional<Batch> next(
    Loader& loader, const Hook& before = [] {}) {
  asio::io_context io;
  return run(io, feedlane::async_next<Task<Batch>>(loader, Readable(io, before)));
}

// A worker thread stands before each sample until it may pass. The third sample can't be made.
struct Gated {
  std::counting_semaphore<> permits{0};
  std::atomic<int> began{0};
  int passed = 0;  // the trainer's

  void get(const feedlane::Row& row, Error& error) {
    began++;
    began.notify_one();
    permits.acquire();
    if (row.index() == 2) return error.fail("the third sample");
    row.field<std::int64_t>(0)[0] = row.index();
  }
  // Lets the worker make the sample that it has begun or will begin.
  void pass() {
    began.wait(passed);
    passed++;
    permits.release();
  }
};

struct Threaded {
  Gated gated;
  feedlane::Sampler order = feedlane::Sampler::sequential(6);
  feedlane_dataset dataset = feedlane::dataset_of(gated);
  Loader loader{{.sampler = &order,
                 .fields = {feedlane::field<std::int64_t>("index")},
                 .batch_size = 1,
                 .dataset = &dataset,
                 .workers = 1,
                 .start = feedlane::Start::thread}};
  std::thread worker{[this] { (void)loader.run_worker(); }};

  Threaded() {
    loader.start_epoch(0);
    while (gated.began == 0) (void)loader.poll();  // the worker has come, so batches alone end waits
  }
  ~Threaded() {
    gated.permits.release(100);
    Error ignored;
    loader.stop(ignored);
    worker.join();
  }
};

std::int64_t number_in(const std::optional<Batch>& batch) {
  REQUIRE(batch);
  return (*batch)[0].as<std::int64_t>()[0];
}

}  // namespace

// promise: next-foreign-loop
TEST_CASE("a coroutine takes an epoch whose batches are made only while it waits, and an error of a batch is thrown") {
  Threaded t;
  const Hook pass = [&] {
    if (t.gated.passed < 6) t.gated.pass();
  };
  for (std::int64_t n = 0; n < 6; n++) {
    if (n == 2) CHECK_THROWS_WITH_AS(next(t.loader, pass), doctest::Contains("the third sample"), Error);
    else REQUIRE(number_in(next(t.loader, pass)) == n);
  }
  CHECK_FALSE(next(t.loader));
  CHECK_FALSE(next(t.loader));
}

// promise: next-foreign-loop
TEST_CASE("a coroutine that is destroyed, or whose wait fails, leaves its batch to the next one") {
  Threaded t;
  {
    asio::io_context io;
    bool waits = false, is_over = false;
    asio::co_spawn(io, feedlane::async_next<Task<Batch>>(t.loader, Readable(io, [&] { waits = true; })),
                   [&](std::exception_ptr, const std::optional<Batch>&) { is_over = true; });
    io.poll();
    CHECK(waits);
    CHECK_FALSE(is_over);
  }
  asio::io_context io;
  Readable readable(io, [&] { asio::post(io, [&] { readable.cancel(); }); });
  CHECK_THROWS_AS(run(io, feedlane::async_next<Task<Batch>>(t.loader, std::ref(readable))),
                  boost::system::system_error);
  for (std::int64_t n = 0; n < 2; n++) CHECK(number_in(next(t.loader, [&] { t.gated.pass(); })) == n);
}

// promise: next-foreign-loop
TEST_CASE("interrupt() and close end a coroutine's wait by exceptions, and only after close it can't take batches") {
  Threaded t;
  CHECK_THROWS_AS(next(t.loader, [&] { t.loader.interrupt(); }), Loader::Interrupted);
  CHECK(number_in(next(t.loader, [&] { t.gated.pass(); })) == 0);
  try {
    (void)next(t.loader, [&] { (void)feedlane_loader_close(t.loader.c()); });
    FAIL("the loader is closed");
  } catch (const Error& error) {
    CHECK(error.code() == FEEDLANE_E_STATE);
    CHECK(dynamic_cast<const Loader::Interrupted*>(&error) == nullptr);
  }
}

// promise: share-event-loops
TEST_CASE("a consumer's coroutine takes the feeder's batches until the epoch ends") {
  struct Index {
    void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
  } index;
  const feedlane::Sampler order = feedlane::Sampler::sequential(40);
  const feedlane_dataset dataset = feedlane::dataset_of(index);
  Loader feeder({.sampler = &order,
                 .fields = {feedlane::field<std::int64_t>("index")},
                 .batch_size = 4,
                 .dataset = &dataset,
                 .workers = 1,
                 .start = feedlane::Start::fork,
                 .share = feedlane::Share::every});
  feedlane::Place place = feedlane::open_consumer(feeder);
  Loader consumer = feedlane::join(place.release());
  feeder.start_epoch(0);
  consumer.start_epoch(0);
  asio::io_context io;
  std::int64_t expected = 0;
  const auto train = [&]() -> asio::awaitable<void> {
    while (const auto batch = co_await feedlane::async_next<Task<Batch>>(consumer, Readable(io)))
      CHECK(number_in(batch) == std::exchange(expected, expected + 4));
  };
  std::thread serving([&] { feedlane::serve(feeder); });
  run(io, train());
  serving.join();
  CHECK(expected == 40);
}

TEST_CASE("a coroutine peeks at messages that are sent while it waits, and at none when the sender has left") {
  Receiver rx({.message_bytes = 8, .capacity = 4});
  std::optional<Sender> tx(std::in_place, rx.offer());
  const std::uint64_t sent = 7;
  asio::io_context io;
  const auto peek = [&](const Hook& before) {
    return feedlane::async_peek<Task<Messages>>(rx, 4, Readable(io, before));
  };
  const auto messages = run(io, peek([&] { CHECK(tx->send(std::as_bytes(std::span(&sent, 1))) == 1); }));
  REQUIRE(messages);
  CHECK(std::memcmp((*messages)[0].data(), &sent, sizeof sent) == 0);
  rx.release(*messages);
  CHECK_FALSE(run(io, peek([&] { tx.reset(); })));
}

TEST_CASE("a message that comes after a coroutine has looked, and before it waits, ends the wait") {
  Receiver rx({.message_bytes = 8, .capacity = 4});
  Sender tx(rx.offer());
  const std::uint64_t sent = 7;
  int looks = 0;
  asio::io_context io;
  const auto look = [&](Error& error) {
    auto messages = rx.peek(4, 0ns, error);
    if (looks++ == 0) CHECK(tx.send(std::as_bytes(std::span(&sent, 1))) == 1);
    return messages;
  };
  CHECK(run(io, feedlane::detail::taken<Task<Messages>>(rx, Readable(io), look)));
  CHECK(looks == 2);
}

TEST_CASE("the owner of an arena serves members, and receives what they send, in a coroutine") {
  Arena owner({.bytes = 1 << 20});
  std::thread sending([fd = owner.offer()] {
    Arena member = Arena::join(fd);
    auto batch = member.reserve({.fields = {feedlane::field<std::int64_t>("number")}});
    REQUIRE(batch);
    (*batch)[0].as<std::int64_t>()[0] = 7;
    CHECK(member.publish(std::move(*batch)));
  });
  asio::io_context io;
  CHECK(number_in(run(io, feedlane::async_receive<Task<Batch>>(owner, Readable(io)))) == 7);
  sending.join();
}

#endif
