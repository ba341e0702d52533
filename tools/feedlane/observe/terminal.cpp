// SPDX-License-Identifier: Apache-2.0
// The terminal at standard output and standard input.
#include "terminal.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "words.hpp"

namespace observe {

bool has_colours() {
  static const bool has = [] {
    const char* forbidden = std::getenv("NO_COLOR");
    return ::isatty(STDOUT_FILENO) == 1 && (forbidden == nullptr || *forbidden == '\0');
  }();
  return has;
}

std::string coloured(std::string_view text, Colour colour) {
  static constexpr const char* codes[] = {"", "1", "31", "32", "33", "35", "36"};
  if (colour == Colour::none || !has_colours()) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", codes[static_cast<int>(colour)], text);
}

std::size_t terminal_width() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::size_t width_of(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), continues_character));
}

std::string padded(std::string_view text, std::size_t width, bool is_left) {
  const std::string space(width - width_of(text), ' ');
  return is_left ? std::string(text) + space : space + std::string(text);
}

}  // namespace

std::string cut(std::string_view text, std::size_t width) {
  if (width == 0) return std::string(text);
  std::size_t end = 0;
  for (std::size_t count = 0; end < text.size(); end++)
    if (!continues_character(text[end]) && ++count > width) break;
  return std::string(text.substr(0, end));
}

std::string table(std::vector<std::vector<std::string>> rows, const std::vector<std::size_t>& left) {
  std::vector<std::size_t> widths;
  for (auto& row : rows)
    for (std::string& cell : row) cell = printable(cell);
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); c++) {
      if (c == widths.size()) widths.push_back(0);
      widths[c] = std::max(widths[c], width_of(row[c]));
    }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); r++) {
    std::string line;
    for (std::size_t c = 0; c < rows[r].size(); c++) {
      const bool is_left = std::find(left.begin(), left.end(), c) != left.end();
      if (c != 0) line += "  ";
      line += padded(rows[r][c], widths[c], is_left);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += coloured(line, r == 0 ? Colour::bold : Colour::none) + "\n";
  }
  return text;
}

// ---- keys ----

namespace {

volatile sig_atomic_t was_ended = 0;
volatile sig_atomic_t was_continued = 0;
volatile sig_atomic_t is_waiting = 0;
volatile sig_atomic_t is_changed = 0;  // the terminal's mode is not `saved`
termios saved;

// Whatever else is being done when this process is to end, another process's memory may make it take long.
void note(int number) {
  if (number == SIGCONT) {
    was_continued = 1;
    return;
  }
  was_ended = 1;
  if (is_waiting != 0) return;
  if (is_changed != 0) (void)::tcsetattr(STDIN_FILENO, TCSANOW, &saved);
  ::_exit(0);
}

constexpr int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGCONT};

// Blocked before ppoll: otherwise one that comes just before it would be noticed only at its end.
sigset_t caught_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : caught) sigaddset(&set, number);
  return set;
}

}  // namespace

Keys::Keys() {
  struct sigaction action {};
  action.sa_handler = note;
  for (const int number : caught) {
    struct sigaction before {};
    (void)::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) (void)::sigaction(number, &action, nullptr);
  }
  is_on_ = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp() &&
           ::tcgetattr(STDIN_FILENO, &saved) == 0;
  set_single_keys();
}

Keys::~Keys() {
  if (is_on_) (void)::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
  is_changed = 0;
  for (const int number : caught) (void)::signal(number, SIG_DFL);
}

void Keys::set_single_keys() {
  if (!is_on_) return;
  termios single = saved;
  single.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // ISIG stays: Ctrl-C and Ctrl-Z are signals
  single.c_cc[VMIN] = 1;
  single.c_cc[VTIME] = 0;
  is_changed = 1;
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &single);
}

std::optional<char> Keys::wait(std::uint64_t deadline_ns) {
  const sigset_t set = caught_set();
  sigset_t before;
  is_waiting = 1;
  (void)::sigprocmask(SIG_BLOCK, &set, &before);
  const std::optional<char> key = wait_with(before, deadline_ns);
  (void)::sigprocmask(SIG_SETMASK, &before, nullptr);  // one that arrives now is noted
  is_waiting = 0;
  return was_ended != 0 ? 'q' : key;
}

std::optional<char> Keys::wait_with(const sigset_t& mask, std::uint64_t deadline_ns) {
  for (;;) {
    if (was_ended != 0) return 'q';
    // A shell sets its own modes while this process is stopped.
    if (was_continued != 0) set_single_keys();
    was_continued = 0;
    const std::uint64_t now = now_ns();
    if (now >= deadline_ns) return std::nullopt;
    const std::uint64_t left = deadline_ns - now;
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    pollfd input{is_on_ ? STDIN_FILENO : -1, POLLIN, 0};
    if (::ppoll(&input, 1, &timeout, &mask) <= 0) continue;
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) == 1) return key;
    return 'q';  // the terminal is gone
  }
}

}  // namespace observe
