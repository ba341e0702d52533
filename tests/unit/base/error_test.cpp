// SPDX-License-Identifier: Apache-2.0
// Errors as values: what they carry, and how texts are cut.
#include "base/error.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

using feedlane::Error;

TEST_CASE("refuse() fills an error with the argument, both numbers and a text, and clears the rest") {
  Error error;
  error.worker = 3;
  CHECK(error.refuse(FEEDLANE_E_LIMIT, "config.slots", 7, 4, "{} of {}", 7, 4) == FEEDLANE_E_LIMIT);
  CHECK(error.code == FEEDLANE_E_LIMIT);
  CHECK(std::string(error.argument) == "config.slots");
  CHECK(error.found == 7);
  CHECK(error.needed == 4);
  CHECK(std::string(error.text) == "7 of 4");
  CHECK_MESSAGE(error.worker == -1, "an error is filled from scratch");
}

TEST_CASE("an error of a system call names the reason, and a long text is cut to its buffer") {
  Error error;
  CHECK(error.os(ENOENT, "opening {}", "x") == FEEDLANE_E_OS);
  CHECK(error.os_errno == ENOENT);
  CHECK(std::string(error.text) == "opening x: No such file or directory");
  const std::string longest(1000, 'y');
  (void)error.os(ENOENT, "{}", longest.c_str());
  CHECK(std::strlen(error.text) == sizeof error.text - 1);
}

TEST_CASE("copy_text() cuts a text to the buffer and terminates it") {
  char out[4] = {'z', 'z', 'z', 'z'};
  feedlane::copy_text(out, sizeof out, "abcdef");
  CHECK(std::string(out) == "abc");
  feedlane::copy_text(out, 0, "q");
  CHECK(std::string(out) == "abc");
}
