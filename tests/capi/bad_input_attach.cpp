// SPDX-License-Identifier: Apache-2.0
// Bad input: descriptors that lead to no trainer and no ring. They are taken in every case.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "bad_input.hpp"
#include "support/process.hpp"

using namespace feedlane::test;

namespace {

const std::string long_message(65536, 'x');

struct F {
  std::int32_t ends(int type) {
    int pair[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) == 0);
    peer.value = pair[0];
    return pair[1];
  }
  std::int32_t silent() { return ends(SOCK_SEQPACKET); }
  std::int32_t hung_up() {
    const std::int32_t fd = silent();
    REQUIRE(::close(peer.value) == 0);
    peer.value = -1;
    return fd;
  }
  std::int32_t saying(const std::string& words, int type = SOCK_SEQPACKET) {
    const std::int32_t fd = ends(type);
    REQUIRE(::send(peer.value, words.data(), words.size(), 0) == static_cast<ssize_t>(words.size()));
    return fd;
  }
  // Descriptors that nobody asked for must not stay open.
  std::int32_t passing_descriptors() {
    const std::int32_t fd = silent();
    REQUIRE(send_descriptors(peer.value, {"hello", 6}, std::vector<int>(40, peer.value)));
    return fd;
  }
  static std::int32_t closed_number() {
    const std::int32_t fd = ::dup(STDERR_FILENO);
    (void)::close(fd);
    return fd;
  }
  static std::int32_t file(const char* path) { return ::open(path, O_RDONLY | O_CLOEXEC); }
  static std::int32_t memory() { return ::memfd_create("bad-input", MFD_CLOEXEC); }
  static std::int32_t listening() {
    const std::int32_t fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) == 0);  // the kernel names it
    REQUIRE(::listen(fd, 1) == 0);
    return fd;
  }
  std::int32_t pipe_end() {
    int pair[2] = {-1, -1};
    REQUIRE(::pipe2(pair, O_CLOEXEC) == 0);
    peer.value = pair[1];
    return pair[0];
  }
  feedlane_dataset* table(std::size_t size = sizeof(feedlane_dataset)) {
    dataset.known = scripted_dataset();
    dataset.known.size = size;
    return &dataset.known;
  }
  feedlane_dataset* empty_table() { return &(dataset.known = fresh<feedlane_dataset>()); }
  [[nodiscard]] bool is_clean() const { return !worker.is_poisoned() && !tx.is_poisoned(); }

  Number peer;
  Later<feedlane_dataset> dataset{scripted_dataset()};
  Out<feedlane_worker> worker;
  Out<feedlane_tx> tx;
};

const std::string long_path(sizeof(sockaddr_un::sun_path), 'p');
constexpr std::int64_t path_bytes = sizeof(sockaddr_un::sun_path) - 1;

// The same for each function that takes a descriptor; `needed`: bytes of the welcome.
#define TAKES(function, needed, CALL)                                                                              \
  CALL("fd INT32_MIN", FEEDLANE_E_ARGUMENT, "fd", INT32_MIN, 0, INT32_MIN),                                        \
      CALL("fd that is closed", FEEDLANE_E_ARGUMENT, "fd", 1000000, 0, 1000000),                                   \
      CALL("/dev/null", FEEDLANE_E_OS, "", 0, 0, f.file("/dev/null")),                                             \
      CALL("a folder", FEEDLANE_E_OS, "", 0, 0, f.file("/")), CALL("memory", FEEDLANE_E_OS, "", 0, 0, f.memory()), \
      CALL("a pipe", FEEDLANE_E_OS, "", 0, 0, f.pipe_end()),                                                       \
      CALL("a listening socket", some_error, nullptr, 0, 0, f.listening()),                                        \
      CALL("hung up", FEEDLANE_E_PEER_DEAD, "", 0, 0, f.hung_up()),                                                \
      CALL("words", FEEDLANE_E_CORRUPT, "fd", 5, needed, f.saying("hello")),                                       \
      CALL("words of a stream", FEEDLANE_E_CORRUPT, "fd", 5, needed, f.saying("hello", SOCK_STREAM)),              \
      CALL("too long a message", FEEDLANE_E_CORRUPT, "fd", 65536, needed, f.saying(long_message)),                \
      CALL("zeros", FEEDLANE_E_CORRUPT, "fd", needed, needed, f.saying(std::string(needed, '\0'))),                \
      CALL("an empty message", FEEDLANE_E_PEER_DEAD, "", 0, 0, f.saying("")),                                      \
      CALL("too many descriptors", FEEDLANE_E_CORRUPT, "fd", 6, needed, f.passing_descriptors())

#define ATTACH(what, status, argument, found, needed, fd) \
  REFUSES(feedlane_worker_attach, what, status, argument, found, needed, fd, nullptr, patience_ns, f.worker.place(), e)
#define RUN(what, status, argument, found, needed, fd) \
  REFUSES(feedlane_worker_run, what, status, argument, found, needed, fd, nullptr, f.table(), e)
#define JOIN(what, status, argument, found, needed, fd) \
  REFUSES(feedlane_tx_attach, what, status, argument, found, needed, fd, nullptr, patience_ns, f.tx.place(), nullptr, e)
#define JOIN_AT(what, status, argument, found, needed, fd, path) \
  REFUSES(feedlane_tx_attach, what, status, argument, found, needed, fd, path, 0, f.tx.place(), nullptr, e)

constexpr std::size_t table_bytes = sizeof(feedlane_dataset);

const Row<F> rows[] = {
    TAKES(feedlane_worker_attach, 56, ATTACH),
    ATTACH("fd -1", FEEDLANE_E_ARGUMENT, "fd", -1, 0, -1),
    REFUSES(feedlane_worker_attach, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.silent(), nullptr, 0, nullptr, e),
    REFUSES(feedlane_worker_attach, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.silent(), nullptr, -1,
            f.worker.place(), e),
    REFUSES(feedlane_worker_attach, "the least timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", INT64_MIN, 0, f.silent(),
            nullptr, INT64_MIN, f.worker.place(), e),
    REFUSES(feedlane_worker_attach, "silence", FEEDLANE_TIMEOUT, "", 0, 0, f.silent(), nullptr, 0, f.worker.place(), e),

    TAKES(feedlane_worker_run, 56, RUN),
    RUN("fd -1", FEEDLANE_E_ARGUMENT, "fd", -1, 0, -1),
    REFUSES(feedlane_worker_run, "dataset NULL", FEEDLANE_E_ARGUMENT, "dataset", 0, 1, f.silent(), nullptr, nullptr, e),
    REFUSES(feedlane_worker_run, "no get, no fetch", FEEDLANE_E_ARGUMENT, "dataset", 0, 1, f.silent(), nullptr,
            f.empty_table(), e),
    REFUSES(feedlane_worker_run, "size 0", FEEDLANE_E_ABI, "dataset", 0, table_bytes, f.silent(), nullptr, f.table(0),
            e),
    REFUSES(feedlane_worker_run, "size only", FEEDLANE_E_ARGUMENT, "dataset", 0, 1, f.silent(), nullptr, f.table(8), e),
    REFUSES(feedlane_worker_run, "the largest size", FEEDLANE_E_ABI, "dataset", -1, table_bytes, f.silent(), nullptr,
            f.table(SIZE_MAX), e),
    REFUSES(feedlane_worker_run, "a tail that says something", FEEDLANE_E_ABI, "dataset", table_bytes + 8, table_bytes,
            f.silent(), nullptr, f.table(table_bytes + 8), e),

    TAKES(feedlane_tx_attach, 32, JOIN),
    REFUSES(feedlane_tx_attach, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.silent(), nullptr, 0, nullptr, nullptr,
            e),
    REFUSES(feedlane_tx_attach, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.silent(), nullptr, -1,
            f.tx.place(), nullptr, e),
    JOIN_AT("silence", FEEDLANE_TIMEOUT, "", 0, 0, f.silent(), nullptr),
    JOIN_AT("neither fd nor path", FEEDLANE_E_ARGUMENT, "fd", -1, 0, -1, nullptr),
    JOIN_AT("both", FEEDLANE_E_ARGUMENT, "path", 1, 0, f.silent(), "ring"),
    JOIN_AT("an empty path", FEEDLANE_E_ARGUMENT, "path", 0, path_bytes, -1, ""),
    JOIN_AT("too long a path", FEEDLANE_E_ARGUMENT, "path", path_bytes + 1, path_bytes, -1, long_path.c_str()),
    JOIN_AT("no such path", FEEDLANE_E_PEER_DEAD, "", 0, 0, -1, "/nonexistent/ring"),
    JOIN_AT("a path of something else", FEEDLANE_E_PEER_DEAD, "", 0, 0, -1, "/dev/null"),
};

const Counted counted{rows};

}  // namespace

TEST_CASE("bad input: descriptors and paths that can't be attached to") { check_rows(rows); }
