// SPDX-License-Identifier: Apache-2.0
// A call that never returns must not stop a whole run: a test case that takes longer ends its program, with its name.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "slowness.hpp"

namespace {

const auto longest_case_s = 40 * static_cast<unsigned>(feedlane::test::slowness());
const char* running = "";

void write_text(const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); }

void give_up(int) {
  write_text("watchdog: this test case hangs: ");
  write_text(running);
  write_text("\n");
  ::_exit(124);
}

class Watchdog : public doctest::IReporter {
 public:
  explicit Watchdog(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& test) override {
    running = test.m_name;
    (void)std::signal(SIGALRM, give_up);
    (void)::alarm(longest_case_s);
  }
  void test_case_reenter(const doctest::TestCaseData&) override { (void)::alarm(longest_case_s); }
  void test_case_end(const doctest::CurrentTestCaseStats&) override { (void)::alarm(0); }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("watchdog", 1, Watchdog);

}  // namespace
