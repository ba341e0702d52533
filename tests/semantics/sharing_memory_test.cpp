// SPDX-License-Identifier: Apache-2.0
// Shared loaders: the kernel keeps consumers from writing to batches, by their mapping and by any descriptor.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "semantics/sharing.hpp"
#include "support/events.hpp"
#include "support/sanitizers.hpp"
#include "support/skip.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

std::int32_t get_index(void*, const feedlane_row* row, feedlane_error*) {
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

// Forked workers, or threads, for a feeder that may run as another user.
struct Forked : Setup {
  explicit Forked(std::int64_t samples = 60) : Setup(samples, 2) {
    auto table = fresh<feedlane_dataset>();
    table.get = get_index;
    forked(1, table).fields({field("index", int64_type)});
  }
};

// The segments that a consumer is sent, in the order of its welcome: the loader's control and data, the catalogue, its delivery ring
// and its returns.
std::vector<int> segments_sent_over(int socket) {
  char words[512];
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec part{words, sizeof words};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0 || CMSG_FIRSTHDR(&message) == nullptr) return {};
  std::vector<int> descriptors(5);
  std::memcpy(descriptors.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), descriptors.size() * sizeof(int));
  return descriptors;
}

// The descriptor of data of the only loader in this process; -1: none.
int data_of_this_process() {
  for (const int fd : open_descriptors()) {
    char target[64] = {};
    (void)!::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
    const int access = ::fcntl(fd, F_GETFL) & O_ACCMODE;
    if (std::string(target) == "/memfd:feedlane-data (deleted)" && access == O_RDWR) return fd;
  }
  return -1;
}

// What a process of the same user can do with a descriptor of data that it has changed the mode of. "": nothing.
std::string write_in_spite(int readable) {
  std::string said;
  if (::fchmod(readable, 0600) != 0) return "fchmod";
  const int fd = ::open(("/proc/self/fd/" + std::to_string(readable)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return "open";
  const auto refused = [&](const char* what, bool is_refused) {
    if (!is_refused || errno != EPERM) said += std::string(" ") + what;
  };
  refused("mmap", ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  refused("write", ::pwrite(fd, "x", 1, 0) == -1);
  refused("hole", ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
  refused("truncate", ::ftruncate(fd, 0) == -1);
  void* const view = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  if (view == MAP_FAILED || ::mprotect(view, 4096, PROT_READ | PROT_WRITE) != -1) said += " mprotect";
  (void)::close(fd);
  return said;
}

struct Mapping {
  ino_t inode = 0;
  std::string rights;
};

Mapping mapping_of(const void* address) {
  std::ifstream file("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t from = 0, to = 0;
    char rights[8] = {};
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*s %lu", &from, &to, rights, &inode) != 4) continue;
    if (from <= wanted && wanted < to) return {static_cast<ino_t>(inode), rights};
  }
  return {};
}

void* page_of(const void* address) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) / page * page);
}

// A consumer in a process of its own looks at the first batch of an epoch, while this process polls the feeder.
template <class F>
std::string look_at_batch(Setup& s, F&& look) {
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Consumer c(feeder.get(), [&](feedlane_loader* l, Findings& f) {
    begin(l, 0);
    auto b = fresh<feedlane_batch>();
    EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
    look(b, f);
    EXPECT(f, copy_of(b).value("index", 1) == 1);
    EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
  });
  begin(feeder.get(), 0);
  std::int32_t status = serve(feeder.get());
  while (status == FEEDLANE_END && count_consumers(feeder.get()) != 0) status = serve(feeder.get());
  return c.finish();
}

}  // namespace

// promise: share-read-only, consumer-writes-tensor
TEST_CASE("a consumer that writes to a tensor is killed by SIGSEGV, and the batches of others are unchanged") {
  Shuffled s(60);
  const Epochs expected = plain_epochs(s, 1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Consumer writer(feeder.get(), [](feedlane_loader* l, Findings& f) {
    begin(l, 0);
    auto b = fresh<feedlane_batch>();
    EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
    (void)std::signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile char*>(b.tensors[1].data) = 1;
  });
  std::vector<std::unique_ptr<Consumer>> others;
  others.push_back(std::make_unique<Consumer>(feeder.get(),
                                              [&](feedlane_loader* l, Findings& f) { expect_epochs(l, expected, f); }));
  serve_epochs(feeder.get(), 1);
  finish(feeder.get(), others);
  (void)writer.finish();
  CHECK(WIFSIGNALED(writer.wait_status()));
  CHECK(WTERMSIG(writer.wait_status()) == SIGSEGV);
}

// promise: share-read-only
TEST_CASE("a consumer can't make its mapping writable, can't punch a hole in the memory and has no descriptor of it") {
  Forked s;
  CHECK(look_at_batch(s, [](const feedlane_batch& b, Findings& f) {
          const void* const data = b.tensors[0].data;
          const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
          EXPECT(f, mapping_of(data).rights == "r--s");
          EXPECT(f, ::mprotect(page_of(data), page, PROT_READ | PROT_WRITE) == -1);
          EXPECT(f, errno == EACCES);
          EXPECT(f, ::madvise(page_of(data), page, MADV_REMOVE) == -1);
          for (const int fd : open_descriptors()) {
            struct stat status {};
            EXPECT(f, ::fstat(fd, &status) == 0);
            EXPECT(f, status.st_ino != mapping_of(data).inode);
          }
          (void)::madvise(page_of(data), page, MADV_DONTNEED);  // its own page tables alone
        }) == "");
}

// promise: share-read-only, consumer-changes-mode
TEST_CASE("a process of the same user can't make batches of forked workers writable") {
  // The feeder gives up root, if it is, and its consumer is a child of its.
  CHECK(in_child([](Findings& f) {
          if (::getuid() == 0) EXPECT(f, ::setgid(65534) == 0 && ::setuid(65534) == 0);
          EXPECT(f, ::prctl(PR_SET_DUMPABLE, 1) == 0);  // setuid took it away
          Forked s;
          const pid_t feeder = ::getpid();
          const std::string said = look_at_batch(s, [&](const feedlane_batch& b, Findings& g) {
            int found = 0;
            for (int fd = 3; fd < 200; fd++) {
              const std::string path = "/proc/" + std::to_string(feeder) + "/fd/" + std::to_string(fd);
              struct stat status {};
              if (::stat(path.c_str(), &status) != 0 || status.st_ino != mapping_of(b.tensors[0].data).inode) continue;
              found++;
              EXPECT(g, ::open(path.c_str(), O_RDWR | O_CLOEXEC) == -1);
              EXPECT(g, errno == EACCES);
              const int readable = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
              EXPECT(g, readable >= 0);
              const int both = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
              EXPECT(g, ::fallocate(readable, both, 0, status.st_size) == -1);
              EXPECT(g, ::ftruncate(readable, 0) == -1);
              EXPECT(g, ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, readable, 0) == MAP_FAILED);
              g.expect(write_in_spite(readable).empty(), write_in_spite(readable).c_str(), __LINE__);
              EXPECT(g, ::fchmod(readable, 0400) == 0);
              (void)::close(readable);
            }
            EXPECT(g, found >= 1);
          });
          f.expect(said.empty(), said.c_str(), __LINE__);
        }) == "");
}

// promise: share-read-only
TEST_CASE("a consumer can't make the segments that it receives writable, except that of its own returns") {
  CHECK(in_child([](Findings& f) {
          if (::getuid() == 0) EXPECT(f, ::setgid(65534) == 0 && ::setuid(65534) == 0);
          EXPECT(f, ::prctl(PR_SET_DUMPABLE, 1) == 0);
          Forked s;
          const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
          const Place its(feeder.get());
          const std::vector<int> segments = segments_sent_over(its.fd);
          EXPECT(f, segments.size() == 5);
          for (std::size_t i = 0; i < segments.size(); i++) {
            const std::string said = write_in_spite(segments[i]);
            const bool is_own = i + 1 == segments.size();
            f.expect(said.empty() != is_own, (std::to_string(i) + said).c_str(), __LINE__);
          }
        }) == "");
}

// promise: share-other-user
TEST_CASE("a consumer of another user can't reopen the descriptors that it receives, for writing or for reading") {
  if (::getuid() != 0) return skip("root, to be two users");
  Setup s(20);
  s.workers(1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Place its(feeder.get());
  CHECK(in_child([&](Findings& f) {
          EXPECT(f, ::setgid(12345) == 0 && ::setuid(12345) == 0);
          EXPECT(f, ::prctl(PR_SET_DUMPABLE, 1) == 0);
          const std::vector<int> segments = segments_sent_over(its.fd);
          EXPECT(f, segments.size() == 5);
          for (const int fd : segments) {
            const std::string path = "/proc/self/fd/" + std::to_string(fd);
            EXPECT(f, ::fchmod(fd, 0666) == -1 && errno == EPERM);
            EXPECT(f, ::open(path.c_str(), O_RDWR | O_CLOEXEC) == -1 && errno == EACCES);
            EXPECT(f, ::open(path.c_str(), O_RDONLY | O_CLOEXEC) == -1 && errno == EACCES);
          }
        }) == "");
}

// promise: share-other-user
TEST_CASE("a consumer of another user takes batches if it joins by the descriptor of its place") {
  if (::getuid() != 0) return skip("root, to be two users");
  Setup s(20);
  s.workers(1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Place its(feeder.get());
  Child consumer(std::vector<int>{its.fd}, [&](Findings& f) {
    EXPECT(f, ::setgid(12345) == 0 && ::setuid(12345) == 0);
    feedlane_loader* l = nullptr;
    Error e;
    f.expect(feedlane_loader_join(its.fd, nullptr, nullptr, patience_ns, &l, &e) == FEEDLANE_OK, e.text, __LINE__);
    if (l == nullptr) return;
    begin(l, 0);
    EXPECT(f, take_rest(l).size() == 20);
    EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  });
  (void)::close(its.release());
  serve_epochs(feeder.get(), 1);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  CHECK(consumer.finish() == "");
}

// promise: share-read-only
TEST_CASE("shared data is sealed against new writable mappings, unless workers are spawned") {
  for (const bool is_shared : {false, true})
    for (const std::int32_t start : {FEEDLANE_START_SPAWN, FEEDLANE_START_FORK, FEEDLANE_START_THREAD}) {
      CAPTURE(is_shared);
      CAPTURE(start);
      Setup s(20);
      Forked forked;
      if (start == FEEDLANE_START_SPAWN) s.workers(1);
      if (start == FEEDLANE_START_THREAD) s.external(1).config.start = start;
      Setup& setup = start == FEEDLANE_START_FORK ? forked : s;
      if (is_shared) shared(setup, FEEDLANE_SHARE_EVERY, 1);
      const Loader l = setup.create();
      const int data = data_of_this_process();
      REQUIRE(data >= 0);
      const bool is_sealed = (::fcntl(data, F_GET_SEALS) & F_SEAL_FUTURE_WRITE) != 0;
      CHECK(is_sealed == (is_shared && start != FEEDLANE_START_SPAWN));
      struct stat status {};
      CHECK(::fstat(data, &status) == 0);
      CHECK((status.st_mode & 0777) == 0400);
    }
}

// promise: share-read-only
TEST_CASE("a forked worker that replaces a killed one makes batches for the consumers") {
  Forked s(40);
  static std::int64_t* killed;
  const OverFork<std::int64_t> memory;
  killed = &*memory;
  *killed = 0;
  s.dataset.get = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (row->index == 7 && std::exchange(*killed, 1) == 0) (void)::raise(SIGKILL);
    return get_index(self, row, err);
  };
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  for (std::int64_t batch = 0; batch < 20; batch++) {
    const Taken t = polled(feeder.get(), l.get());
    CHECK(t.status == FEEDLANE_OK);
    CHECK(t.value("index", 1) == 2 * batch + 1);
  }
  CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_END);
  CHECK(stats_of(feeder.get()).restarts == 1);
}

// promise: share-changed-mode, consumer-changes-mode
TEST_CASE(
    "if the file mode of data was changed, the error for an invalid word says that another process may be the cause") {
  Setup s(60);
  s.workers(1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_OK);
  const int data = data_of_this_process();
  REQUIRE(data >= 0);
  struct stat status {};
  REQUIRE(::fstat(data, &status) == 0);
  REQUIRE(::fchmod(data, 0600) == 0);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const writable = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
  REQUIRE(writable != MAP_FAILED);
  std::vector<feedlane_event> invalid;
  CHECK(poll_until(feeder.get(), [&] {
    std::memset(static_cast<char*>(writable) + 128, 0xee, 4096);  // the worker's row
    auto b = fresh<feedlane_batch>();
    if (feedlane_loader_next(l.get(), 0, &b, nullptr) == FEEDLANE_OK) (void)feedlane_batch_release(l.get(), b.token);
    invalid = events_of(feeder.get(), FEEDLANE_EVENT_INVALID);
    return !invalid.empty();
  }));
  (void)::munmap(writable, bytes);
  CHECK(std::string(invalid.at(0).what.text).find("another process may have written") != std::string::npos);
}
