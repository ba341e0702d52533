// SPDX-License-Identifier: Apache-2.0
// How a process becomes a worker, and what is refused on the way. A process that has attached is tied to its trainer's
// life, so whatever attaches here is a forked child.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "support/namespaces.hpp"
#include "support/old_kernel.hpp"
#include "support/process.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr const char* variable = "FEEDLANE_WORKER_FD";

// A connected pair like the one between trainer and worker.
struct Pair {
  Pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() { (void)::close(ends[0]); }
  int ends[2] = {-1, -1};
};

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("attaching to a number that is not an open descriptor is refused") {
  const int free_number = ::dup(STDERR_FILENO);
  REQUIRE(::close(free_number) == 0);
  for (const int fd : {-1, -7, free_number}) {
    auto* w = reinterpret_cast<feedlane_worker*>(1);
    Error e;
    CHECK(feedlane_worker_attach(fd, nullptr, 0, &w, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "fd");
    CHECK(e.found == fd);
    CHECK(w == nullptr);
    const feedlane_dataset table = scripted_dataset();
    CHECK(feedlane_worker_run(fd, nullptr, &table, &e) == FEEDLANE_E_ARGUMENT);
  }
}

TEST_CASE("an attach that fails closes its descriptor") {
  feedlane_worker* w = nullptr;
  Error e;
  SUBCASE("no message arrives in time") {
    const Pair pair;
    CHECK(feedlane_worker_attach(pair.ends[1], nullptr, 0, &w, &e) == FEEDLANE_TIMEOUT);
    CHECK_FALSE(is_open(pair.ends[1]));
    const Pair another;
    CHECK(feedlane_worker_attach(another.ends[1], nullptr, 1'000'000, &w, &e) == FEEDLANE_TIMEOUT);
    CHECK_FALSE(is_open(another.ends[1]));
  }
  SUBCASE("the trainer has ended") {
    Pair pair;
    REQUIRE(::close(pair.ends[0]) == 0);
    pair.ends[0] = -1;
    CHECK(feedlane_worker_attach(pair.ends[1], nullptr, FEEDLANE_FOREVER, &w, &e) == FEEDLANE_E_PEER_DEAD);
    CHECK_FALSE(is_open(pair.ends[1]));
  }
  SUBCASE("the message is not a welcome") {
    const Pair pair;
    REQUIRE(::send(pair.ends[0], "hello", 5, 0) == 5);
    CHECK(feedlane_worker_attach(pair.ends[1], nullptr, FEEDLANE_FOREVER, &w, &e) == FEEDLANE_E_CORRUPT);
    CHECK(e.found == 5);
    CHECK_FALSE(is_open(pair.ends[1]));
  }
  SUBCASE("the timeout is negative") {
    const Pair pair;
    CHECK(feedlane_worker_attach(pair.ends[1], nullptr, -1, &w, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "timeout_ns");
    CHECK_FALSE(is_open(pair.ends[1]));
  }
  SUBCASE("the pointer for the handle is NULL") {
    const Pair pair;
    CHECK(feedlane_worker_attach(pair.ends[1], nullptr, 0, nullptr, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "out");
    CHECK_FALSE(is_open(pair.ends[1]));
  }
  SUBCASE("the descriptor is not a socket") {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(feedlane_worker_attach(fd, nullptr, 0, &w, &e) == FEEDLANE_E_OS);
    CHECK(e.os_errno == ENOTSOCK);
    CHECK_FALSE(is_open(fd));
  }
  SUBCASE("the data set has neither get nor fetch") {
    const Pair pair;
    const auto table = fresh<feedlane_dataset>();
    CHECK(feedlane_worker_run(pair.ends[1], nullptr, &table, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "dataset");
    CHECK_FALSE(is_open(pair.ends[1]));
  }
  SUBCASE("the data set is NULL") {
    const Pair pair;
    CHECK(feedlane_worker_run(pair.ends[1], nullptr, nullptr, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "dataset");
    CHECK_FALSE(is_open(pair.ends[1]));
  }
  CHECK(w == nullptr);
}

TEST_CASE("feedlane_worker_fd removes the descriptor from the environment and marks the process as a worker") {
  CHECK(in_child([](Findings& f) {
          const int fd = ::dup(STDERR_FILENO);
          (void)::setenv(variable, std::to_string(fd).c_str(), 1);
          EXPECT(f, feedlane_worker_fd() == fd);
          EXPECT(f, std::getenv(variable) == nullptr);
          EXPECT(f, ::fcntl(fd, F_GETFD) == FD_CLOEXEC);
          EXPECT(f, feedlane_worker_fd() == -1);
          Loader loader;
          Error e;
          EXPECT(f, Setup(1).workers(1).try_create(loader, &e) == FEEDLANE_E_STATE);
          EXPECT(f, std::string(e.argument) == "config.workers");
          EXPECT(f, Setup(1).try_create(loader, &e) == FEEDLANE_OK);
        }) == "");
}

TEST_CASE("a process started as a worker can't start workers, even before it calls feedlane_worker_fd") {
  CHECK(in_child([](Findings& f) {
          (void)::setenv(variable, "2", 1);
          Loader loader;
          EXPECT(f, Setup(1).workers(1).try_create(loader, nullptr) == FEEDLANE_E_STATE);
          EXPECT(f, Setup(1).external(1).try_create(loader, nullptr) == FEEDLANE_E_STATE);
        }) == "");
}

TEST_CASE("feedlane_worker_fd returns -1 without a valid variable") {
  CHECK(in_child([](Findings& f) {
          EXPECT(f, feedlane_worker_fd() == -1);
          for (const char* nonsense : {"", "x", "2x", " ", "-1", "99999", "4294967298", "99999999999999999999"}) {
            (void)::setenv(variable, nonsense, 1);
            EXPECT(f, feedlane_worker_fd() == -1);
            EXPECT(f, std::getenv(variable) == nullptr);
          }
          Loader loader;
          EXPECT(f, Setup(1).workers(1).try_create(loader, nullptr) == FEEDLANE_OK);
        }) == "");
}

// promise: seed-info
TEST_CASE("an attached worker gets its number, generation and configuration") {
  Setup s(4, 2);
  s.external(3);
  const Loader l = s.create();
  std::int32_t id = 2;
  int fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  CHECK(id == 2);
  Child worker({fd}, [&](Findings& f) {
    feedlane_worker* w = nullptr;
    Error e;
    EXPECT(f, feedlane_worker_attach(fd, nullptr, patience_ns, &w, &e) == FEEDLANE_OK);
    auto info = fresh<feedlane_worker_info>();
    EXPECT(f, feedlane_worker_get_info(w, &info) == FEEDLANE_OK);
    EXPECT(f, info.id == 2 && info.count == 3 && info.generation == 0);
    EXPECT(f, info.seed == 99 + 2);
    EXPECT(f,
           info.config_bytes == sizeof(Plan) && checksum(info.config, sizeof(Plan)) == checksum(&s.plan, sizeof(Plan)));
    EXPECT(f, info.field_count == 2 && std::string(info.fields[0].name) == "index");
    EXPECT(f, info.fields[1].dtype.code == 1 && info.fields[1].dtype.bits == 64 && info.fields[1].ndim == 0);
    info.size = 0;
    EXPECT(f, feedlane_worker_get_info(w, &info) == FEEDLANE_E_ABI);
    EXPECT(f, feedlane_worker_get_info(w, nullptr) == FEEDLANE_E_ARGUMENT);
    EXPECT(f, feedlane_worker_destroy(&w) == FEEDLANE_OK && w == nullptr);
    EXPECT(f, feedlane_worker_destroy(&w) == FEEDLANE_OK);
  });
  (void)::close(fd);
  CHECK(worker.finish() == "");
}

// promise: worker-trainer-thread
TEST_CASE("a thread of the trainer is refused as an external worker, and the trainer and other workers stay alive") {
  Setup s(4, 2);
  s.external(2);
  const Loader l = s.create();
  begin(l.get(), 0);
  std::int32_t id = 0;
  int fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  Process honest(worker_program, "get", fd);
  (void)::close(fd);
  id = 1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  feedlane_worker* w = nullptr;
  Error e;
  CHECK(feedlane_worker_attach(fd, nullptr, patience_ns, &w, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(w == nullptr);
  CHECK_MESSAGE(std::string(e.text).find("FEEDLANE_START_THREAD") != std::string::npos, e.text);
  std::int64_t batches = 0;
  std::int32_t status = FEEDLANE_OK;
  while ((status = take(l.get()).status) == FEEDLANE_OK || (status == FEEDLANE_E_PEER_DEAD && batches == 0))
    batches += status == FEEDLANE_OK;
  CHECK(status == FEEDLANE_END);
  CHECK(batches == 2);
}

TEST_CASE("a worker without a configuration gets NULL") {
  Setup s(1);
  s.external(1).connect();
  s.config.worker_config = nullptr;
  s.config.worker_config_bytes = 0;
  feedlane_loader* handle = nullptr;
  REQUIRE(feedlane_loader_create(&s.config, &handle, nullptr) == FEEDLANE_OK);
  const Loader l(handle);
  std::int32_t id = -1;
  int fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  Child worker({fd}, [&](Findings& f) {
    feedlane_worker* w = nullptr;
    EXPECT(f, feedlane_worker_attach(fd, nullptr, patience_ns, &w, nullptr) == FEEDLANE_OK);
    auto info = fresh<feedlane_worker_info>();
    EXPECT(f, feedlane_worker_get_info(w, &info) == FEEDLANE_OK);
    EXPECT(f, info.config == nullptr && info.config_bytes == 0);
  });
  (void)::close(fd);
  CHECK(worker.finish() == "");
}

TEST_CASE("a worker's socket is not inherited by exec, however it was passed") {
  Setup s(2);
  s.external(1);
  const Loader l = s.create();
  std::int32_t id = -1;
  std::int32_t fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  Child child({fd}, [&](Findings& f) {
    EXPECT(f, ::fcntl(fd, F_SETFD, 0) == 0);
    feedlane_worker* w = nullptr;
    EXPECT(f, feedlane_worker_attach(fd, nullptr, patience_ns, &w, nullptr) == FEEDLANE_OK);
    EXPECT(f, (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    EXPECT(f, feedlane_worker_destroy(&w) == FEEDLANE_OK);
  });
  (void)::close(fd);
  CHECK(child.finish() == "");
}

namespace {

void use_external_worker(Findings& f) {
  Setup s(8);
  s.external(1);
  const Loader l = s.create();
  std::int32_t id = -1;
  std::int32_t fd = -1;
  EXPECT(f, feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  const Process worker(worker_program, "get", fd);
  (void)::close(fd);
  EXPECT(f, feedlane_loader_begin(l.get(), 0, nullptr) == FEEDLANE_OK);
  auto batch = fresh<feedlane_batch>();
  EXPECT(f, feedlane_loader_next(l.get(), patience_ns, &batch, nullptr) == FEEDLANE_OK);
  EXPECT(f, worker_of(l.get(), 0).pid == worker.pid());
}

}  // namespace

TEST_CASE("external workers attach in a PID namespace whose /proc belongs to another namespace") {
  if (!has_pid_namespaces()) return skip("this user can't make PID namespaces");
  for (const bool is_old : {false, true}) {
    CAPTURE(is_old);
    const std::string found = in_child([&](Findings& f) {
      const OldKernel kernel(is_old);
      EXPECT(f, ::unshare(CLONE_NEWPID) == 0);
      EXPECT(f, in_child(use_external_worker) == "");
    });
    CHECK(found == "");
  }
}
