// SPDX-License-Identifier: Apache-2.0
// Huge pages: where they are asked for, and how the kernel reports them.
#include "os/huge_pages.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdio>

#include "os/memfd.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::SystemFiles;
namespace os = feedlane::os;

namespace {

constexpr std::uint64_t mib = 1 << 20;

// Shared memory of so many bytes, mapped.
struct Shared {
  explicit Shared(std::uint64_t size) : bytes(size) {
    Error error;
    REQUIRE(os::create_memfd("test", bytes, fd, error) == FEEDLANE_OK);
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    REQUIRE(memory != MAP_FAILED);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(memory, bytes); }
  std::uint64_t bytes;
  os::Fd fd;
  void* memory = nullptr;
};

// Whether a huge page comes when one is asked for by hand.
bool gets_one(std::uint64_t page, const SystemFiles& files) {
  const Shared shared(2 * page);
  if (::madvise(shared.memory, shared.bytes, MADV_HUGEPAGE) != 0) return false;
  for (std::uint64_t i = 0; i < shared.bytes; i += 4096) static_cast<volatile char*>(shared.memory)[i] = 1;
  return os::huge_bytes(shared.memory, files) != 0;
}

std::string line_of(const void* begin, std::uint64_t bytes) {
  char line[128];
  const auto* from = static_cast<const char*>(begin);
  (void)std::snprintf(line, sizeof line, "%zx-%zx rw-s 00000000 00:01 7 /memfd:test (deleted)\n",
                      reinterpret_cast<std::size_t>(from), reinterpret_cast<std::size_t>(from + bytes));
  return line;
}

}  // namespace

TEST_CASE("huge pages are requested only where the system provides them on request") {
  const feedlane::test::Folder folder;
  SystemFiles files;
  files.huge_pages = folder.path() + "/huge";
  CHECK_MESSAGE(os::huge_page_bytes(files) == 0, "a system without them");
  folder.write("huge/hpage_pmd_size", "4194304\n");
  for (const char* offers : {"always within_size advise [never] deny force\n",
                             "always within_size advise never [deny] force\n", "\n", "always\n"}) {
    folder.write("huge/shmem_enabled", offers);
    CAPTURE(std::string(offers));
    CHECK(os::huge_page_bytes(files) == 0);
  }
  for (const char* offers :
       {"[always] within_size advise never deny force\n", "always [within_size] advise never deny force\n",
        "always within_size [advise] never deny force\n", "always within_size advise never deny [force]\n"}) {
    folder.write("huge/shmem_enabled", offers);
    CAPTURE(std::string(offers));
    CHECK(os::huge_page_bytes(files) == 4 * mib);
  }
  const auto size_says = [&](const char* rule, const char* of_size) {
    folder.write("huge/shmem_enabled", rule);
    folder.write("huge/hugepages-4096kB/shmem_enabled", of_size);
    return os::huge_page_bytes(files);
  };
  const char* const advise = "always within_size [advise] never deny force\n";
  const char* const never = "always within_size advise [never] deny force\n";
  const char* const deny = "always within_size advise never [deny] force\n";
  CHECK(size_says(advise, "always [inherit] within_size advise never\n") == 4 * mib);
  CHECK(size_says(advise, "always inherit within_size advise [never]\n") == 0);
  CHECK(size_says(never, "always [inherit] within_size advise never\n") == 0);
  CHECK(size_says(never, "always inherit within_size [advise] never\n") == 4 * mib);
  CHECK(size_says(deny, "[always] inherit within_size advise never\n") == 0);
  folder.write("huge/hpage_pmd_size", "\n");
  CHECK(os::huge_page_bytes(files) == 0);
}

TEST_CASE("memory is filled with as many huge pages as fit, stays zero, and can still be reserved and written") {
  const SystemFiles files;
  const std::uint64_t given = os::huge_page_bytes(files);
  const bool has_some = given != 0 && given <= 2 * mib;  // larger ones take too much memory for a test
  const std::uint64_t page = has_some ? given : 2 * mib;
  MESSAGE(
      (has_some ? "this system gives huge pages to shared memory" : "this system gives shared memory no huge pages"));
  for (const std::uint64_t bytes : {page / 2, 3 * page, 33 * page + 4096}) {
    const Shared shared(bytes);
    os::fill_with_huge_pages(shared.memory, bytes, page, files);
    Error error;
    REQUIRE(os::reserve(shared.fd.get(), 0, bytes, error) == FEEDLANE_OK);
    auto* const at = static_cast<unsigned char*>(shared.memory);
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < bytes; i++) sum += at[i];
    CHECK(sum == 0);
    for (std::uint64_t i = 0; i < bytes; i += 4096) at[i] = 1;
    CAPTURE(bytes);
    const std::uint64_t huge = os::huge_bytes(shared.memory, files);
    CHECK(huge % page == 0);
    CHECK(huge <= (has_some ? bytes : 0));
    if (has_some && bytes >= page && gets_one(page, files)) CHECK(huge != 0);  // the system may be short of more
  }
}

TEST_CASE("the number of bytes in huge pages is read from the smaps line of that mapping") {
  const feedlane::test::Folder folder;
  SystemFiles files;
  files.proc = folder.path();
  const auto* const base = reinterpret_cast<const char*>(std::uintptr_t{0x7f0000000000});
  const std::string rest = "Size:  8192 kB\nShmemPmdMapped:     ";
  folder.write("self/smaps", line_of(base - 4096, 4096) + rest + "2048 kB\n" + line_of(base, 8 * mib) + rest +
                                 "6144 kB\n" + line_of(base + 8 * mib, mib) + "Size: 1024 kB\n" +
                                 line_of(base + 9 * mib, mib) + rest + "4096 kB\n");
  CHECK(os::huge_bytes(base, files) == 6 * mib);
  CHECK(os::huge_bytes(base - 4096, files) == 2 * mib);
  CHECK_MESSAGE(os::huge_bytes(base + 8 * mib, files) == 0, "it has no such line, the next one has");
  CHECK_MESSAGE(os::huge_bytes(base + 4096, files) == 0, "in the middle of one");
  files.proc += "/nowhere";
  CHECK(os::huge_bytes(base, files) == 0);
}
