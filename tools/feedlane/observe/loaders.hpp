// SPDX-License-Identifier: Apache-2.0
// Finds the loaders that a command is about, and what all commands say of one.
#pragma once

#include <cstdint>
#include <feedlane/monitor.hpp>
#include <string>
#include <vector>

#include "survey.hpp"
#include "words.hpp"

namespace observe {

// A loader in process `pid`, by which this command sees it.
struct Found {
  std::int64_t pid = 0;
  int nth = 0;
  std::string program;  // its command line's first words
  feedlane::Monitor monitor;
};

// The loaders of one process. `error` says why the process, or one of its loaders, cannot be read; its code is 0 if none is
// missing. E_PEER_DEAD: there is no such process. E_OS: it belongs to another user. E_ABI: another version's loader. E_LIMIT: it has
// more than a trainer has, and none was opened; `is_chosen` as of `survey`.
std::vector<Found> loaders_of(std::int64_t pid, feedlane::Error& error, bool is_chosen = true);
// Whether the list that came with this error may lack loaders of a process that runs: there was no descriptor left, for example.
// E_ABI and E_CORRUPT are about one loader; the others are in the list.
bool is_cut_short(const feedlane::Error& error);
// Whether this command lacked descriptors or memory to look.
bool is_shortage(const feedlane::Error& error);
// Whether an error says that a process has more than what is listed: a shortage, a loader or ring of another version or a damaged
// one, or too many of them. Other errors mean that the process has ended, or may not be looked at.
bool is_unreadable(const feedlane::Error& error);
// A loader or ring that cannot be read, or a process that was left out or of which this command lacked descriptors or memory to
// find them all.
struct Unreadable {
  std::int64_t pid = 0;
  std::string program;
  feedlane::Error error;
};

// The loaders of all processes, each once: not also in forked workers, which inherit its descriptors. `unreadable` is added to.
std::vector<Found> all_loaders(std::vector<Unreadable>& unreadable);
struct Search {
  std::vector<Found> loaders;
  std::vector<Unreadable> unreadable;
  bool is_short = false;  // some were left out because this command lacked descriptors or memory
};
// Those of `pid`, or of all processes if it is 0. If `pid` cannot be read at all, it is unreadable too.
Search find_loaders_quietly(std::int64_t pid);
// Writes on standard error what cannot be read.
void say_unreadable(const std::vector<Unreadable>& unreadable);
// Writes on standard error what cannot be read, and why `pid` has none.
Search find_loaders(std::int64_t pid);

}  // namespace observe
