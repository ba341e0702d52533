// SPDX-License-Identifier: Apache-2.0
// Bad input: a welcome that was tampered with on its way, to a worker and to a ring's sender. Who attaches is a forked
// child, and takes the welcome of a real loader or ring, changes it, and hands it to itself.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <vector>

#include "bad_input.hpp"
#include "support/events.hpp"

using namespace feedlane::test;

namespace {

constexpr std::size_t control = 0, data = 1, own_event = 2, lifeline = 4;  // in the order of the descriptors passed

struct Letter {
  std::string bytes;
  std::vector<int> fds;

  void receive(int socket) {
    char room[512];
    iovec part{room, sizeof room};
    alignas(cmsghdr) char control_room[CMSG_SPACE(sizeof(int) * 16)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control_room;
    message.msg_controllen = sizeof control_room;
    const ssize_t got = wait_readable(socket) ? ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) : 0;
    bytes.assign(room, got > 0 ? static_cast<std::size_t>(got) : 0);
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      fds.resize((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(fds.data(), CMSG_DATA(h), fds.size() * sizeof(int));
    }
  }
  // Sends it, and returns the end where it has come.
  [[nodiscard]] int send(int& mine) {
    int pair[2] = {-1, -1};
    (void)::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
    mine = pair[0];
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) char control_room[CMSG_SPACE(sizeof(int) * 16)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control_room;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* h = CMSG_FIRSTHDR(&message);
      h->cmsg_level = SOL_SOCKET;
      h->cmsg_type = SCM_RIGHTS;
      h->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(h), fds.data(), fds.size() * sizeof(int));
    }
    (void)!::sendmsg(mine, &message, MSG_NOSIGNAL);
    return pair[1];
  }
  void replace(std::size_t which, int by) {
    (void)::close(fds[which]);
    fds[which] = by;
  }
  // A copy of a segment with the same seals, cut or filled up to `size`, with `put` at `offset`.
  void rewrite(std::size_t which, std::size_t size, std::size_t offset = 0, const std::string& put = "") {
    std::string content(size, '\0');
    (void)!::pread(fds[which], content.data(), size, 0);
    content.replace(offset, put.size(), put);
    const int copy = ::memfd_create("bad-input", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    (void)!::write(copy, content.data(), content.size());
    constexpr int f_seal_exec = 0x20;  // would add F_SEAL_WRITE to a copy that is executable
    (void)::fcntl(copy, F_ADD_SEALS, ::fcntl(fds[which], F_GET_SEALS) & ~f_seal_exec);
    replace(which, copy);
  }
  [[nodiscard]] std::size_t size_of(std::size_t which) const {
    return static_cast<std::size_t>(::lseek(fds[which], 0, SEEK_END));
  }
};

// A loader with an external worker, or a ring, and the welcome that it gave.
Letter welcome_of_loader() {
  auto* setup = new Setup(6, 2);  // the child ends without cleaning up
  feedlane_loader* l = setup->external(1).create().release();
  std::int32_t id = -1, fd = -1;
  (void)feedlane_loader_open_worker(l, &id, &fd, nullptr);
  Letter letter;
  letter.receive(fd);
  return letter;
}

Letter welcome_of_ring() {
  auto config = fresh<feedlane_ring_config>();
  config.message_bytes = 8;
  config.capacity = 64;  // a lane of more than a page
  feedlane_rx* rx = nullptr;
  std::int32_t fd = -1;
  (void)feedlane_rx_create(&config, &rx, nullptr);
  (void)feedlane_rx_offer(rx, &fd, nullptr);
  Letter letter;
  letter.receive(fd);
  return letter;
}

struct Side {
  const char* name;
  Letter (*welcome)();
  Letter (*others)();  // of another kind
};
const Side sides[] = {{"worker", welcome_of_loader, welcome_of_ring}, {"sender", welcome_of_ring, welcome_of_loader}};

struct Forgery {
  const char* what;
  std::int32_t status;
  const char*
      argument;  // "": not promised; behind a "*" half of a segment's name; "A|B": A for a worker, B for a sender
  void (*change)(Letter& l, const Side& side);
};

int null_file() { return ::open("/dev/null", O_RDWR | O_CLOEXEC); }

const Forgery forgeries[] = {
    {"another magic", FEEDLANE_E_CORRUPT, "fd", [](Letter& l, const Side&) { l.bytes[0] ^= 1; }},
    {"another layout", FEEDLANE_E_ABI, "layout_hash", [](Letter& l, const Side&) { l.bytes[8] ^= 1; }},
    {"a worker or lane too many", FEEDLANE_E_CORRUPT, "", [](Letter& l, const Side&) { l.bytes[16] = 1; }},
    {"the last worker or lane of all", FEEDLANE_E_CORRUPT, "",
     [](Letter& l, const Side&) { l.bytes.replace(16, 4, 4, '\xff'); }},
    {"cut by a byte", FEEDLANE_E_CORRUPT, "fd", [](Letter& l, const Side&) { l.bytes.pop_back(); }},
    {"a byte more", FEEDLANE_E_CORRUPT, "fd", [](Letter& l, const Side&) { l.bytes.push_back('\0'); }},
    {"no descriptors", FEEDLANE_E_CORRUPT, "fd", [](Letter& l, const Side&) { l.fds.clear(); }},
    {"a descriptor less", FEEDLANE_E_CORRUPT, "fd", [](Letter& l, const Side&) { l.fds.pop_back(); }},
    {"a descriptor more", FEEDLANE_E_CORRUPT, "fd", [](Letter& l, const Side&) { l.fds.push_back(l.fds[0]); }},
    {"control is a file", FEEDLANE_E_CORRUPT, "*control",
     [](Letter& l, const Side&) { l.replace(control, null_file()); }},
    {"data is a file", FEEDLANE_E_CORRUPT, "*data", [](Letter& l, const Side&) { l.replace(data, null_file()); }},
    {"data without seals", FEEDLANE_E_CORRUPT, "*data",
     [](Letter& l, const Side&) { l.replace(data, ::memfd_create("bad-input", MFD_CLOEXEC)); }},
    {"control and data swapped", FEEDLANE_E_CORRUPT, "*control",
     [](Letter& l, const Side&) { std::swap(l.fds[control], l.fds[data]); }},
    {"data is control too", some_error, "", [](Letter& l, const Side&) { l.replace(data, ::dup(l.fds[control])); }},
    {"control cut to nothing", FEEDLANE_E_CORRUPT, "*control", [](Letter& l, const Side&) { l.rewrite(control, 0); }},
    {"control cut in its header", FEEDLANE_E_CORRUPT, "*control",
     [](Letter& l, const Side&) { l.rewrite(control, 100); }},
    {"control cut behind its header", FEEDLANE_E_CORRUPT, "segment_bytes",
     [](Letter& l, const Side&) { l.rewrite(control, 4096 - 64); }},
    {"data cut by a page", FEEDLANE_E_CORRUPT, "geometry.data_inode|segment_bytes",
     [](Letter& l, const Side&) { l.rewrite(data, l.size_of(data) - 4096); }},
    {"data longer by a page", FEEDLANE_E_CORRUPT, "geometry.data_inode|segment_bytes",
     [](Letter& l, const Side&) { l.rewrite(data, l.size_of(data) + 4096); }},
    {"control without its magic", FEEDLANE_E_CORRUPT, "magic",
     [](Letter& l, const Side&) { l.rewrite(control, l.size_of(control), 0, std::string(8, '\0')); }},
    {"control of another version", FEEDLANE_E_ABI, "major",
     [](Letter& l, const Side&) { l.rewrite(control, l.size_of(control), 12, "\x7f"); }},
    {"data of another byte order", some_error, "geometry.data_inode|byte_order",
     [](Letter& l, const Side&) { l.rewrite(data, l.size_of(data), 16, std::string("\x01\x02\x03\x04")); }},
    {"all numbers at their largest", FEEDLANE_E_CORRUPT, "",
     [](Letter& l, const Side&) { l.rewrite(control, l.size_of(control), 128, std::string(24, '\xff')); }},
    {"all numbers zero", FEEDLANE_E_CORRUPT, "",
     [](Letter& l, const Side&) { l.rewrite(control, l.size_of(control), 128, std::string(24, '\0')); }},
    {"another one's data", FEEDLANE_E_CORRUPT, "geometry.data_inode|pair_id",
     [](Letter& l, const Side& side) { l.replace(data, side.welcome().fds[data]); }},
    {"control of another kind", FEEDLANE_E_CORRUPT, "kind",
     [](Letter& l, const Side& side) { l.replace(control, side.others().fds[control]); }},
    {"events that are a file", some_error, "", [](Letter& l, const Side&) { l.replace(own_event, null_file()); }},
    {"a peer that is a file", some_error, "", [](Letter& l, const Side&) { l.replace(l.fds.size() - 1, null_file()); }},
};

bool is_meant(const std::string& argument, const Side& side, const std::string& found) {
  if (argument.empty()) return true;
  if (const std::size_t bar = argument.find('|'); bar != std::string::npos)
    return found == (side.welcome == welcome_of_loader ? argument.substr(0, bar) : argument.substr(bar + 1));
  if (argument[0] != '*') return argument == found;
  return found == std::string(side.welcome == welcome_of_loader ? "feedlane-" : "feedlane-ring-") + argument.substr(1);
}

std::int32_t attach(const Side& side, int fd, feedlane_error* e, bool& is_null) {
  feedlane_worker* w = Out<feedlane_worker>::poison();
  feedlane_tx* tx = Out<feedlane_tx>::poison();
  const bool is_worker = side.welcome == welcome_of_loader;
  const std::int32_t status = is_worker ? feedlane_worker_attach(fd, nullptr, patience_ns, &w, e)
                                        : feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, e);
  is_null = is_worker ? w == nullptr : tx == nullptr;
  return status;
}

// A loader of this process would not have it for a worker.
void pretend_another_trainer(Letter& letter) {
  letter.replace(letter.fds.size() - 1, static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
}

void try_forgery(const Side& side, const Forgery& forgery, Findings& found) {
  Letter letter = side.welcome();
  // The loader's lifeline would end this process with it.
  int own_line[2] = {-1, -1};
  (void)!::pipe2(own_line, O_CLOEXEC);
  if (side.welcome == welcome_of_loader) {
    letter.replace(lifeline, own_line[0]);
    pretend_another_trainer(letter);
  }
  forgery.change(letter, side);
  int mine = -1;
  const int fd = letter.send(mine);
  const std::vector<int> before = open_descriptors();
  const std::size_t mapped = mappings_of("memfd:");
  Error e;
  bool is_null = false;
  const std::int32_t status = attach(side, fd, &e, is_null);
  found.expect(is_answer(status, forgery.status), ("status " + std::to_string(status) + ": " + e.text).c_str(),
               __LINE__);
  found.expect(is_meant(forgery.argument, side, e.argument), e.argument, __LINE__);
  EXPECT(found, is_null);
  EXPECT(found, e.code == status);
  EXPECT(found, ::fcntl(fd, F_GETFD) < 0);
  EXPECT(found, open_descriptors().size() == before.size() - 1);
  EXPECT(found, mappings_of("memfd:") == mapped);
}

}  // namespace

TEST_CASE("bad input: a welcome message that was changed on its way") {
  for (const Side& side : sides) {
    for (const Forgery& forgery : forgeries) {
      INFO(std::string(side.name), ": ", std::string(forgery.what));
      CHECK(in_child([&](Findings& found) { try_forgery(side, forgery, found); }) == "");
    }
  }
}

TEST_CASE("bad input: a process whose attach failed is not tied to the trainer's life") {
  CHECK(in_child([](Findings& found) {
          Letter letter = welcome_of_loader();
          int own_line[2] = {-1, -1};
          (void)!::pipe2(own_line, O_CLOEXEC);
          letter.replace(lifeline, ::dup(own_line[0]));
          pretend_another_trainer(letter);
          std::swap(letter.fds[control], letter.fds[data]);
          int mine = -1;
          const int fd = letter.send(mine);
          Error e;
          bool is_null = false;
          EXPECT(found, attach(sides[0], fd, &e, is_null) == FEEDLANE_E_CORRUPT && is_null);
          (void)::close(own_line[1]);  // somebody else has the read end still
        }) == "");
}
