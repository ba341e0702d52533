// SPDX-License-Identifier: Apache-2.0
// Texts for each way in which a worker can end.
#include "supervisor/cause.hpp"

#include <csignal>

#include "os/signals.hpp"

namespace feedlane::supervisor {
namespace {

// A fork copies one thread only, so locks that other threads held stay locked in the child.
const char* hint_at_forks(const Settings& settings) {
  return settings.start == FEEDLANE_START_FORK
             ? "; a forked worker hangs on a lock that another thread of the trainer held: spawn workers instead"
             : "";
}

void describe_signal(const Member& m, int signal, std::int64_t oom_kills, Words& out) {
  char tail[112] = "";
  if (oom_kills > 0)
    (void)format_to(tail, ": the out-of-memory killer has killed {} processes of its memory cgroup", oom_kills);
  const bool is_others = signal == SIGKILL && !m.peer.has_left();
  (void)format_to(out, "was killed by signal {} ({}){}{}", signal, os::signal_name(signal),
                  is_others           ? ", not by this loader"
                  : m.peer.has_left() ? ", because it had left and did not exit"
                                      : "",
                  !is_others       ? ""
                  : oom_kills == 0 ? ", and not by the out-of-memory killer"
                  : oom_kills < 0  ? ": look for the out-of-memory killer in the kernel's log"
                                   : tail);
}

}  // namespace

void name_process(pid_t pid, Name& out) {
  out[0] = '\0';
  if (pid != 0) (void)format_to(out, "process {} ", pid);
}

void describe_end(const Member& m, const os::Ending& ending, const Settings& settings, std::int64_t oom_kills,
                  Words& out) {
  const Error& verdict = m.verdict;
  const char* const was_killed = m.peer.is_thread() ? "was cut off" : "was killed";
  if (m.is_late && m.was_late && !m.peer.has_attached() && !m.peer.is_child())
    (void)format_to(out, "no process has attached within {} ms ({})", verdict.needed / 1'000'000, verdict.argument);
  else if (m.is_late)
    (void)format_to(out, "missed {} ({} ms) and {}{}", verdict.argument, verdict.needed / 1'000'000, was_killed,
                    hint_at_forks(settings));
  else if (verdict.code != FEEDLANE_OK && (m.peer.was_cut_off() || !m.peer.has_process()))
    (void)format_to(out, "{} {}: {}", was_killed,
                    m.is_invalid ? "because it sent invalid data" : "because its message could not be received",
                    first(150, verdict.text));
  else if (m.has_hung_up) (void)format_to(out, "{} because it had closed its socket", was_killed);
  else if (ending.known && ending.signaled) describe_signal(m, ending.code, oom_kills, out);
  else if (ending.known) (void)format_to(out, "exited with status {}", ending.code);
  else
    (void)format_to(out, "ended{}", m.peer.is_child() ? ", and other code in this process took its exit status" : "");
}

}  // namespace feedlane::supervisor
