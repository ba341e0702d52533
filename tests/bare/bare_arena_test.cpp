// SPDX-License-Identifier: Apache-2.0
// Bare members of an arena put, get, send, receive, make and hold entries, and are killed.
#include <doctest/doctest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

#include "semantics/arena.hpp"

using namespace feedlane::test;
using namespace feedlane::test::arenas;

namespace {

class BareMember {
 public:
  explicit BareMember(feedlane_arena* owner) {
    const Pipe in, out;
    const int fd = offer(owner);
    posix_spawn_file_actions_t actions;
    REQUIRE(::posix_spawn_file_actions_init(&actions) == 0);
    (void)::posix_spawn_file_actions_adddup2(&actions, in.fds[0], 0);
    (void)::posix_spawn_file_actions_adddup2(&actions, out.fds[1], 1);
    (void)::posix_spawn_file_actions_adddup2(&actions, fd, fd);  // stays open
    std::string number = std::to_string(fd), program = BARE_MEMBER;
    char* argv[] = {program.data(), number.data(), nullptr};
    REQUIRE(::posix_spawn(&pid_, BARE_MEMBER, &actions, nullptr, argv, environ) == 0);
    (void)::posix_spawn_file_actions_destroy(&actions);
    (void)::close(fd);
    commands_ = ::dup(in.fds[1]);
    answers_ = ::dup(out.fds[0]);
    (void)::fcntl(commands_, F_SETFD, FD_CLOEXEC);
    (void)::fcntl(answers_, F_SETFD, FD_CLOEXEC);
  }
  BareMember(const BareMember&) = delete;
  BareMember& operator=(const BareMember&) = delete;
  ~BareMember() { (void)end(SIGKILL); }

  void tell(const std::string& command) const {
    const std::string line = command + "\n";
    CHECK(::write(commands_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  }
  // The answer to the oldest command that has none; "": the member has ended.
  [[nodiscard]] std::string answer() const {
    std::string line;
    for (char c = 0; wait_readable(answers_, patience_ns) && ::read(answers_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  [[nodiscard]] std::string say(const std::string& command) const {
    tell(command);
    return answer();
  }
  // Sends the signal, or lets the member leave (0). Returns its wait status.
  int end(int signal) {
    if (pid_ < 0) return -1;
    if (signal != 0) (void)::kill(pid_, signal);
    (void)::close(commands_);  // it leaves
    int status = -1;
    (void)::waitpid(std::exchange(pid_, -1), &status, 0);
    (void)::close(answers_);
    return status;
  }

 private:
  pid_t pid_ = -1;
  int commands_ = -1;
  int answers_ = -1;
};

void check_empty(feedlane_arena* a) {
  CHECK(eventually([&] {
    (void)feedlane_arena_receive(a, 0, nullptr, nullptr);
    const feedlane_arena_stats s = stats_of(a);
    return s.members == 1 && s.entries == 0 && s.used_bytes == 0 && s.waiting == 0;
  }));
}

}  // namespace

TEST_CASE("a bare member and the library exchange entries with and without keys, and the bare member leaves") {
  const Arena a = create();
  {
    const Serving serving(a.get());
    BareMember m(a.get());
    REQUIRE(put(a.get(), "of the owner", 7, 1000) == FEEDLANE_OK);
    CHECK(m.say("look missing") == "none");
    CHECK(m.say("look of") == "none");
    REQUIRE(put(a.get(), "owner's", 7, 1000) == FEEDLANE_OK);
    CHECK(m.say("look owner's") == "7 1000");
    CHECK(m.say("put member's 50000 3000") == "ok");
    CHECK(m.say("look member's") == "50000 3000");
    CHECK(look(a.get(), "member's") == 50000);
    CHECK(m.say("put member's 60000 1") == "ok");
    CHECK(look(a.get(), "member's") == 60000);
    const std::string longest(64, 'k');
    CHECK(m.say("put " + longest + " 8 8") == "ok");
    CHECK(look(a.get(), longest) == 8);
    REQUIRE(put(a.get(), "", 900, 20) == FEEDLANE_OK);
    CHECK(m.say("receive") == "900 20");
    for (const char* key : {"owner's", "member's", longest.c_str()}) {
      CHECK(m.say("drop " + std::string(key)) == "ok");
      CHECK(look(a.get(), key, 0) == nothing);
    }
    CHECK(feedlane_arena_drop(a.get(), "of the owner", 12, patience_ns, nullptr) == FEEDLANE_OK);
    CHECK(m.end(0) == 0);
  }
  check_empty(a.get());
}

TEST_CASE("what a bare member sends comes in order, also more than its ring has cells") {
  const Arena a = create();
  BareMember m(a.get());
  constexpr int entries = 1000;
  for (int i = 0; i < entries; i++) m.tell("put - " + std::to_string(i) + " 4");
  for (int i = 0; i < entries; i++) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    REQUIRE(feedlane_arena_receive(a.get(), patience_ns, &batch, nullptr) == FEEDLANE_OK);
    CHECK(first_of(batch) == i);
    CHECK(feedlane_batch_release(a.get(), batch.token) == FEEDLANE_OK);
  }
  CHECK(m.end(SIGKILL) == SIGKILL);
  check_empty(a.get());
}

TEST_CASE(
    "a bare member that waits is woken by an entry, and one that may make an entry passes its right on by its death") {
  const Arena a = create();
  {
    const Serving serving(a.get());
    BareMember first(a.get()), second(a.get()), third(a.get());
    CHECK(first.say("make key") == "make");
    second.tell("make key");
    third.tell("get key");
    CHECK(eventually([&] { return stats_of(a.get()).waiting == 2; }));
    CHECK(first.end(SIGKILL) == SIGKILL);
    CHECK(second.answer() == "make");
    CHECK(second.say("put key 3 30") == "ok");
    CHECK(third.answer() == "3 30");
    CHECK(third.say("drop key") == "ok");
  }
  check_empty(a.get());
}

TEST_CASE("what a bare member holds stays whole in a full arena, until it lets the entry go or is killed") {
  const Arena a = create(mib);
  const std::string held = "1 " + std::to_string(quarter);
  for (const bool is_killed : {false, true}) {
    CAPTURE(is_killed);
    const Serving serving(a.get());
    BareMember m(a.get());
    REQUIRE(put(a.get(), "held", 1, quarter) == FEEDLANE_OK);
    CHECK(m.say("hold held") == held);
    for (int i = 0; i < 20; i++) REQUIRE(put(a.get(), "k" + std::to_string(i), i * 1000, quarter) == FEEDLANE_OK);
    CHECK(m.say("check") == held);
    CHECK(look(a.get(), "held", 0) == 1);
    if (is_killed) CHECK(m.end(SIGKILL) == SIGKILL);
    else CHECK(m.say("let") == held);
    CHECK(eventually([&] {  // the owner learns of a death a little later
      for (int i = 0; i < 20; i++) REQUIRE(put(a.get(), "k" + std::to_string(i), i * 1000, quarter) == FEEDLANE_OK);
      return look(a.get(), "held", 0) == nothing;
    }));
  }
}
