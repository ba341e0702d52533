// SPDX-License-Identifier: Apache-2.0
// Shared loaders: the kernel keeps consumers from writing to batches, by their mapping and by any descriptor.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "semantics/sharing.hpp"
#include "support/sanitizers.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

std::int32_t get_index(void*, const feedlane_row* row, feedlane_error*) {
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

// Forked workers, for a feeder that may run as another user.
struct Forked : Setup {
  explicit Forked(std::int64_t samples = 60) : Setup(samples, 2) {
    auto table = fresh<feedlane_dataset>();
    table.get = get_index;
    forked(1, table).fields({field("index", int64_type)});
  }
};

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

TEST_CASE("a consumer that writes to a tensor is killed by SIGSEGV, and the others' batches stay as they are") {
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

TEST_CASE("a consumer can neither make its mapping writable, nor take the memory away, nor keep a descriptor of it") {
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

TEST_CASE("another process of the same user can open a feeder's batches for reading only; root can do what it likes") {
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
              (void)::close(readable);
            }
            EXPECT(g, found >= 1);
          });
          f.expect(said.empty(), said.c_str(), __LINE__);
        }) == "");
}
