// SPDX-License-Identifier: Apache-2.0
// The words for each way in which a worker can end.
#include "supervisor/cause.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <string>

using feedlane::os::Ending;
using feedlane::supervisor::Member;
using feedlane::supervisor::Peer;
using feedlane::supervisor::Settings;

namespace {

constexpr Ending killed{.known = true, .signaled = true, .code = SIGKILL};

std::string words_of(const Member& m, const Ending& ending, std::int64_t oom_kills = -1,
                     std::int32_t start = FEEDLANE_START_SPAWN) {
  Settings settings;
  settings.start = start;
  feedlane::supervisor::Words words;
  feedlane::supervisor::describe_end(m, ending, settings, oom_kills, words);
  CHECK(std::strlen(words) + 1 < sizeof words);
  return words;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the cause of an exit contains its status, and the cause of a signal contains its name") {
  const Member m;
  CHECK(words_of(m, {.known = true, .code = 3}) == "exited with status 3");
  CHECK(words_of(m, {.known = true, .signaled = true, .code = SIGSEGV}) == "was killed by signal 11 (SIGSEGV)");
}

TEST_CASE("a SIGKILL from another sender is reported with what is known of the out-of-memory killer") {
  const Member m;
  CHECK(contains(words_of(m, killed, -1),
                 "was killed by signal 9 (SIGKILL), not by this loader: look for the out-of-memory killer"));
  CHECK(contains(words_of(m, killed, 0), "not by this loader, and not by the out-of-memory killer"));
  CHECK(contains(words_of(m, killed, 2), "the out-of-memory killer has killed 2 processes of its memory cgroup"));
}

TEST_CASE("a missed deadline is reported with its limit, and for forked workers with a hint at locks") {
  Member m;
  m.is_late = true;
  (void)m.verdict.refuse(FEEDLANE_E_HUNG, "config.task_timeout_ns", 1'200'000'000, 1'000'000'000, "late");
  CHECK(words_of(m, killed) == "missed config.task_timeout_ns (1000 ms) and was killed");
  CHECK(contains(words_of(m, killed, -1, FEEDLANE_START_FORK), "a lock that another thread of the trainer held"));
  m.peer.expect(Peer::Kind::thread);
  CHECK(words_of(m, {}) == "missed config.task_timeout_ns (1000 ms) and was cut off");
}

TEST_CASE("a worker that this process killed is reported with the reason, not with the signal") {
  Member m;
  m.has_hung_up = true;
  CHECK(words_of(m, killed, 0) == "was killed because it had closed its socket");
  m.lost_message = true;
  (void)m.verdict.fail(FEEDLANE_E_OS, "too many open files");
  CHECK(words_of(m, killed, 0) == "was killed because its message could not be received: too many open files");
}

TEST_CASE("if the exit status of a child is unknown, the reported cause says why") {
  Member m;
  CHECK(words_of(m, {}) == "ended");
  m.peer.expect(Peer::Kind::child);
  CHECK(words_of(m, {}) == "ended, and other code in this process took its exit status");
}

TEST_CASE("a worker number to which no external worker attached is reported so, and not as a killed process") {
  Member m;
  m.is_late = m.was_late = true;
  (void)m.verdict.refuse(FEEDLANE_E_HUNG, "config.start_timeout_ns", 2'000'000'000, 2'000'000'000, "late");
  CHECK(words_of(m, {}) == "no process has attached within 2000 ms (config.start_timeout_ns)");
}
