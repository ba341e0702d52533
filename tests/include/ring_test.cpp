// SPDX-License-Identifier: Apache-2.0
// Rings in C++: in place and by copies, from one thread to another, and their ends.
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <feedlane/feedlane.hpp>
#include <string>
#include <thread>
#include <vector>

using feedlane::Error;
using feedlane::Receiver;
using feedlane::Sender;
using namespace std::chrono_literals;

namespace {

std::span<const std::byte> bytes_of(const std::vector<std::uint64_t>& numbers) {
  return std::as_bytes(std::span(numbers));
}

std::uint64_t number_in(std::span<const std::byte> message) {
  std::uint64_t number = 0;
  std::memcpy(&number, message.data(), sizeof number);
  return number;
}

}  // namespace

TEST_CASE("messages sent in place and by copying arrive in order, and END follows when the sender leaves") {
  Receiver rx({.message_bytes = 8, .capacity = 8});
  std::thread sending([fd = rx.offer()] {
    Sender tx(fd);
    CHECK(tx.message_bytes() == 8);
    for (std::uint64_t n = 0; n < 100; n++) {
      const auto room = tx.reserve(1);
      REQUIRE(room);
      std::memcpy((*room)[0].data(), &n, sizeof n);
      tx.commit(1);
    }
    std::vector<std::uint64_t> rest(100);
    for (std::size_t i = 0; i < rest.size(); i++) rest[i] = 100 + i;
    CHECK(tx.send(bytes_of(rest)) == 100);
  });
  std::uint64_t expected = 0;
  while (expected < 100) {
    const auto got = rx.peek(4);
    REQUIRE(got);
    for (std::uint32_t i = 0; i < got->size(); i++) CHECK(number_in((*got)[i]) == expected++);
    rx.release(*got);
  }
  std::vector<std::uint64_t> numbers(16);
  for (std::uint32_t got = 0; (got = rx.receive(std::as_writable_bytes(std::span(numbers)))) != 0;)
    for (std::uint32_t i = 0; i < got; i++) CHECK(numbers[i] == expected++);
  CHECK(rx.outcome() == FEEDLANE_END);
  CHECK(expected == 200);
  sending.join();
}

TEST_CASE("an event loop waits on a ring's descriptor, and a sender connects by the ring's path") {
  const std::string path = "/tmp/feedlane-ring-cpp-" + std::to_string(::getpid());
  Receiver rx({.message_bytes = 8, .capacity = 8, .lanes = 2, .path = path});
  std::thread sending([&] {
    Sender tx(path);
    CHECK(tx.send(bytes_of({7})) == 1);
  });
  std::uint64_t number = 0;
  Error error;
  while (rx.receive(std::as_writable_bytes(std::span(&number, 1)), 0ns, error) == 0) {
    REQUIRE(!error);
    const std::optional<int> fd = rx.arm();
    if (!fd) continue;
    pollfd entry{*fd, POLLIN, 0};
    REQUIRE(::poll(&entry, 1, 60'000) == 1);
  }
  CHECK(number == 7);
  sending.join();
}

TEST_CASE("a closed receiver or sender fails with E_STATE, and an invalid ring is refused in both forms") {
  Receiver rx({.message_bytes = 8, .capacity = 8});
  Sender tx(rx.offer());
  Error error;
  rx.close();
  CHECK(rx.offer(error) == -1);
  CHECK(error.code() == FEEDLANE_E_STATE);
  tx.close();
  CHECK(!tx.reserve(1, 0ns, error));
  CHECK(error.code() == FEEDLANE_E_STATE);
  CHECK_THROWS_AS(Receiver({.message_bytes = 8, .capacity = 3}), Error);
  Receiver refused({.message_bytes = 8, .capacity = 3}, error);
  CHECK(error.argument() == "config.capacity");
  CHECK_THROWS_AS(Sender("/nonexistent/ring", 0ns), Error);
}
