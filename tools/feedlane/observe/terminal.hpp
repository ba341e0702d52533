// SPDX-License-Identifier: Apache-2.0
// What commands write for people: colours, tables, keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <signal.h>

namespace observe {

enum class Colour { none, bold, red, green, yellow, magenta, cyan };

// Whether standard output is a terminal, and the environment has no NO_COLOR.
bool has_colours();
// The text in this colour, if there are colours.
std::string coloured(std::string_view text, Colour colour);
// Columns of the terminal at standard output; 0: it is none.
std::size_t terminal_width();
// At most `width` characters (bytes of UTF-8 that continue one are not counted); 0: no limit.
std::string cut(std::string_view text, std::size_t width);

// Rows of the same number of cells, aligned and printable; the first row is the header. Numbers are to be right-aligned: `left` has the
// columns that are not.
std::string table(std::vector<std::vector<std::string>> rows, const std::vector<std::size_t>& left);

// Reads single keys from standard input while it lives, if both it and standard output are terminals and this process is in
// the foreground. SIGINT, SIGTERM and SIGHUP end the wait for a key, and at any other time this process, with status 0 and the
// terminal restored. One at a time.
class Keys {
 public:
  Keys();
  ~Keys();
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  [[nodiscard]] bool is_on() const { return is_on_; }
  // Waits until `deadline_ns` (CLOCK_MONOTONIC) for a key, which it returns; nullopt: the time has come. 'q' also for the
  // signals.
  std::optional<char> wait(std::uint64_t deadline_ns);

 private:
  void set_single_keys();
  // With this mask of signals while it sleeps.
  std::optional<char> wait_with(const sigset_t& mask, std::uint64_t deadline_ns);

  bool is_on_ = false;
};

}  // namespace observe
