// SPDX-License-Identifier: Apache-2.0
// Lists of processors and memory nodes, and what the kernel makes of them.
#include "os/placement.hpp"

#include <doctest/doctest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstring>

#include "os/memfd.hpp"
#include "os/process.hpp"
#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::NumberSet;
using feedlane::os::SystemFiles;
namespace os = feedlane::os;

namespace {

using Numbers = std::vector<std::uint32_t>;

NumberSet set_of(const char* list) {
  NumberSet set;
  REQUIRE_MESSAGE(set.read(list), list);
  return set;
}

// The policy of the memory at an address: mode, and the first 64 nodes.
struct Policy {
  int mode = -1;
  unsigned long nodes[16] = {};
};
Policy policy_at(void* address) {
  Policy policy;
  REQUIRE(::syscall(SYS_get_mempolicy, &policy.mode, policy.nodes, 8 * sizeof policy.nodes, address, MPOL_F_ADDR) == 0);
  return policy;
}

}  // namespace

TEST_CASE("only lists in the kernel's format are accepted") {
  CHECK(set_of("0").numbers() == Numbers{0});
  CHECK(set_of("3,0-1").numbers() == Numbers{0, 1, 3});
  CHECK(set_of("62-66").numbers() == Numbers{62, 63, 64, 65, 66});
  CHECK(set_of("8191").last() == 8191);
  CHECK(set_of("62-66").bytes() == 16);
  CHECK(set_of("1,1,0-1").count() == 2);
  NumberSet kept = set_of("7");
  for (const char* list : {"", " ", "a", "1,", ",1", "1-", "-1", "2-1", "1--2", "1 2", "1;2", "8192", "0-8192",
                           "99999999999", "0x1", "1-2-3"}) {
    CAPTURE(list);
    CHECK_FALSE(kept.read(list));
    CHECK(kept.numbers() == Numbers{7});
  }
  CHECK(kept.has(7));
  CHECK_FALSE(kept.has(8));
  CHECK_FALSE(kept.has(1000));
  CHECK(NumberSet{}.is_empty());
}

TEST_CASE("the processor set of this system can be read, and a missing file gives an empty set") {
  const SystemFiles files;
  CHECK(os::read_set(files.processors + "/online").has(static_cast<std::uint32_t>(::sched_getcpu())));
  CHECK(os::read_set("/nowhere").is_empty());
}

TEST_CASE("nodes have room for a request if each has enough free or reclaimable memory for its share") {
  const feedlane::test::Folder folder;
  SystemFiles files;
  files.nodes = folder.path();
  folder.write("node0/meminfo",
               "Node 0 MemTotal:       1000 kB\nNode 0 MemFree:         100 kB\nNode 0 Active(anon):     50 kB\n"
               "Node 0 Active(file):     20 kB\nNode 0 Inactive(file):    3 kB\nNode 0 SReclaimable:      4 kB\n");
  folder.write("node2/meminfo", "Node 2 MemFree:           1 kB\n");
  Error error;
  CHECK(os::check_room_of_nodes(set_of("0"), 119 * 1024, files, error) == FEEDLANE_OK);
  CHECK(os::check_room_of_nodes(set_of("0"), 120 * 1024, files, error) == FEEDLANE_E_MEMORY);
  CHECK(error.found == 127 * 1024);
  CHECK(error.needed == 120 * 1024 + 120 * 64);
  CHECK(std::string(error.argument) == "config.memory_nodes");
  CHECK(os::check_room_of_nodes(set_of("0,2"), 1024, files, error) == FEEDLANE_OK);
  CHECK(os::check_room_of_nodes(set_of("0,2"), 3 * 1024, files, error) == FEEDLANE_E_MEMORY);
  CHECK(error.found == 1024);
  CHECK_MESSAGE(os::check_room_of_nodes(set_of("5"), 1 << 30, files, error) == FEEDLANE_OK, "it does not say");
}

// promise: torch-placement
TEST_CASE("memory bound to nodes is bound in every mapping") {
  const NumberSet nodes = os::read_set(SystemFiles{}.nodes + "/has_memory");
  if (nodes.is_empty()) return feedlane::test::skip("a kernel without memory nodes");
  constexpr std::uint64_t bytes = 1 << 20;
  os::Fd fd;
  Error error;
  REQUIRE(os::create_memfd("test", bytes, fd, error) == FEEDLANE_OK);
  void* const one = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  void* const other = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(one != MAP_FAILED);
  REQUIRE(other != MAP_FAILED);
  NumberSet last;
  REQUIRE(last.read(std::to_string(nodes.last())));
  const feedlane::Status bound = os::bind_memory(one, bytes, last, error);
  if (bound == FEEDLANE_E_OS && error.os_errno == EPERM) return feedlane::test::skip("mbind is forbidden here");
  REQUIRE(bound == FEEDLANE_OK);
  for (void* const at : {one, other}) {
    const Policy policy = policy_at(static_cast<char*>(at) + bytes / 2);
    CHECK(policy.mode == MPOL_BIND);
    CHECK(policy.nodes[0] == last.words()[0]);
    std::memset(at, 1, bytes);
  }
  int node = -1;
  REQUIRE(::syscall(SYS_get_mempolicy, &node, nullptr, 0, other, MPOL_F_NODE | MPOL_F_ADDR) == 0);
  CHECK(static_cast<std::uint32_t>(node) == nodes.last());

  NumberSet none;
  REQUIRE(none.read("1000"));
  CHECK(os::bind_memory(one, bytes, none, error) == FEEDLANE_E_OS);
  ::munmap(one, bytes);
  ::munmap(other, bytes);
}

TEST_CASE("the memory nodes of the cpuset are read from the process's own status file") {
  const feedlane::test::Folder folder;
  SystemFiles files;
  files.proc = folder.path();
  CHECK(os::allowed_nodes(files).is_empty());
  folder.write("self/status", "Name:\tx\nMems_allowed:\t3\nMems_allowed_list:\t0-1,4\n");
  CHECK(os::allowed_nodes(files).numbers() == Numbers{0, 1, 4});
}

TEST_CASE("starting a child on processors that don't exist fails with E_OS and their number, and leaves no child") {
  NumberSet none;
  REQUIRE(none.read("8190-8191"));
  pid_t pid = 0;
  os::Fd pidfd;
  Error error;
  CHECK(os::spawn({.argv = {"/bin/true"}, .environment = {}, .cpus = &none}, pid, pidfd, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == EINVAL);
  CHECK(std::string(error.text).find("pinning a worker to 2 processors (the highest: 8191)") != std::string::npos);
  CHECK_FALSE(pidfd);
  const feedlane::Status forked = os::fork_process(pid, pidfd, error, -1, &none);
  if (forked == FEEDLANE_OK && pid == 0) ::_exit(3);
  CHECK(forked == FEEDLANE_E_OS);
  CHECK(error.os_errno == EINVAL);
  CHECK_FALSE(pidfd);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

TEST_CASE("a process runs on the processors it is given, and processors that don't exist are refused") {
  const auto cpu = static_cast<std::uint32_t>(::sched_getcpu());
  const pid_t pid = feedlane::test::fork_child([&] {
    NumberSet one;
    if (!one.read(std::to_string(cpu)) || os::run_on(one) != 0) ::_exit(1);
    cpu_set_t mine;
    CPU_ZERO(&mine);
    if (::sched_getaffinity(0, sizeof mine, &mine) != 0 || CPU_COUNT(&mine) != 1 || !CPU_ISSET(cpu, &mine)) ::_exit(2);
    NumberSet none;
    if (!none.read("8191") || os::run_on(none) != EINVAL) ::_exit(3);
  });
  const int status = feedlane::test::wait_for_end(pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
