// SPDX-License-Identifier: Apache-2.0
// Starting workers: the program, its environment, its configuration, and what is no worker.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Room for so many workers that attach; all others that are started are of another form.
class Tickets {
 public:
  explicit Tickets(int count) {
    REQUIRE(::pipe(ends_) == 0);
    REQUIRE(::fcntl(ends_[0], F_SETFL, O_NONBLOCK) == 0);
    name_ = std::to_string(ends_[0]);
    for (int i = 0; i < count; i++) REQUIRE(::write(ends_[1], "x", 1) == 1);
  }
  Tickets(const Tickets&) = delete;
  Tickets& operator=(const Tickets&) = delete;
  ~Tickets() {
    for (const int end : ends_) (void)::close(end);
  }
  void sell() const { REQUIRE(::write(ends_[1], "x", 1) == 1); }
  void admit(Setup& s, std::int32_t workers, const char* others) const {
    s.workers(workers, "ticket");
    s.argv = {worker_program, "ticket", name_.c_str(), others, nullptr};
  }

 private:
  int ends_[2] = {-1, -1};
  std::string name_;
};

// The number of the worker that is ready, -1: none is.
std::int32_t ready_one(const feedlane_loader* l, std::int32_t workers) {
  for (std::int32_t w = 0; w < workers; w++)
    if (worker_of(l, w).state == FEEDLANE_WORKER_READY) return w;
  return -1;
}

// What the one sample of a data set says in this field.
std::int64_t told(Setup& s, const char* name) {
  s.fields({field(name, int64_type)});
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  const Taken t = take(l.get(), &e);
  REQUIRE_MESSAGE(t.status == FEEDLANE_OK, e.text);
  return t.value(name);
}

}  // namespace

// promise: start-failure-named, worker-ends-starting
TEST_CASE("next fails with E_INIT, the program's name and its exit status if the program is not a worker") {
  for (const char* form : {"true", "leave", "goodbye"}) {
    CAPTURE(std::string(form));
    Setup s(4);
    s.workers(1, form);
    if (std::string(form) == "true") s.argv = {"/bin/true", nullptr};
    const Loader l = s.create();
    begin(l.get(), 0);
    for (int i = 0; i < 2; i++) {
      Error e;
      CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
      CHECK(std::string(e.argument) == "config.argv");
      CHECK(e.worker == 0);
      CHECK(e.says(s.argv[0]));
      CHECK(e.says(std::string(form) == "true" ? "exited with status 0" : "exited with status 7"));
      CHECK(e.says("before it attached"));
      CHECK(e.says("is "));
    }
  }
}

// promise: worker-ends-opening
TEST_CASE("next fails with E_INIT if a worker exits five times in a row while it opens its data set") {
  Setup s(4);
  feedlane_dataset table = s.dataset;
  table.open = [](void*, const feedlane_worker_info*, void**, feedlane_error*) -> std::int32_t { ::_exit(7); };
  s.forked(1, table);
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.worker == 0);
  CHECK_MESSAGE(e.says("exited with status 7 before it was ready (5 times in a row)"), std::string(e.text));
  CHECK(stats_of(l.get()).restarts == 4);
}

// promise: start-failure-named, worker-cant-attach
TEST_CASE("the error that ends the epoch has the reason why workers can't attach") {
  Setup s(4);
  s.workers(1);
  // No room for the descriptors that come with the welcome.
  const std::string command = std::string("ulimit -n 6; exec ") + worker_program + " get";
  s.argv = {"/bin/sh", "-c", command.c_str(), nullptr};
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.says("before it attached (5 times in a row): "));
  CHECK_MESSAGE(e.says("receiving the file descriptors of a message"), std::string(e.text));
  CHECK(e.says("Too many open files"));
}

// promise: start-failure-named
TEST_CASE("the error for a program that starts the worker as another process says that it must exec the worker") {
  Setup s(4);
  s.workers(1);
  const std::string command = std::string(worker_program) + " get & wait";
  s.argv = {"/bin/sh", "-c", command.c_str(), nullptr};
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(std::string(e.argument) == "config.argv");
  CHECK_MESSAGE(e.says("must exec the worker"), std::string(e.text));
}

// promise: start-failure-named, worker-invalid-start
TEST_CASE("next fails with E_ABI after five starts of a program with another layout") {
  Setup s(4);
  const Loader l = s.workers(1, "other").create();
  begin(l.get(), 0);
  for (int i = 0; i < 2; i++) {
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_ABI);
    CHECK(std::string(e.argument) == "layout_hash");
    CHECK(e.worker == 0);
    CHECK(e.found == 1);
  }
  CHECK(stats_of(l.get()).restarts == 4);
  CHECK(stats_of(l.get()).invalid_results == 5);
}

// promise: start-failure-named, worker-no-program
TEST_CASE("begin fails with E_OS and the program's name if the program can't be executed") {
  for (const char* program : {"/nonexistent/feedlane-worker", "no-such-feedlane-worker-in-path", "/dev/null"}) {
    Setup s(4);
    s.workers(2);
    s.argv = {program, nullptr};
    const Loader l = s.create();
    Error e;
    CHECK(feedlane_loader_begin(l.get(), 0, &e) == FEEDLANE_E_OS);
    CHECK(e.os_errno != 0);
    CHECK(e.worker == 0);
    CHECK(e.says(program));
    CHECK(take(l.get()).status == FEEDLANE_E_STATE);
    CHECK_FALSE(has_children());
  }
}

// promise: start-spawn
TEST_CASE("a program is looked up in PATH") {
  Setup s(4);
  s.workers(1);
  s.argv = {"true", nullptr};
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.says("exited with status 0"));
}

// promise: start-failure-named, worker-never-attaches-alone
TEST_CASE("next fails with E_HUNG and the worker's number if a program does not attach within start_timeout_ns") {
  Setup s(4);
  s.workers(1, "never");
  s.config.start_timeout_ns = 100'000'000;
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_HUNG);
  CHECK(std::string(e.argument) == "config.start_timeout_ns");
  CHECK(e.needed == 100'000'000);
  CHECK(e.worker == 0);
  CHECK(take(l.get(), &e).status == FEEDLANE_E_HUNG);
}

// promise: start-failure-named, worker-never-opens
TEST_CASE("a worker that never finishes opening its data set counts as hung if tasks have a deadline") {
  for (const bool has_deadline : {true, false}) {
    CAPTURE(has_deadline);
    Setup s(6);
    const Gate gate;
    s.plan.gate_fd = gate.fd();
    s.plan.gate_open = 1;
    s.workers(2);
    s.config.start_timeout_ns = 1'000'000'000;
    s.config.task_timeout_ns = has_deadline ? 30'000'000'000 : 0;
    const Loader l = s.create();
    begin(l.get(), 0);
    Error e;
    if (has_deadline) {
      CHECK(take(l.get(), &e).status == FEEDLANE_E_HUNG);
      CHECK(std::string(e.argument) == "config.start_timeout_ns");
      CHECK(e.worker >= 0);
    } else {
      CHECK(take(l.get(), &e, 1'500'000'000).status == FEEDLANE_TIMEOUT);
      gate.open();
      check_sequence(take_rest(l.get()), 6, 1);
    }
  }
}

// promise: fault-late-start, worker-attaches-late
TEST_CASE("the tasks of a worker that attaches late or never, also the oldest task, are made by the other workers") {
  for (const std::int32_t attached : {1, 3}) {
    CAPTURE(attached);
    const Tickets tickets(attached);
    Setup s(200);
    tickets.admit(s, 4, "never");
    const Loader l = s.create();
    check_sequence(take_epoch(l.get(), 0), 200, 1);
    CHECK(stats_of(l.get()).restarts == 0);
    CHECK(stats_of(l.get()).invalid_results == 0);
  }
}

// promise: fault-late-start, worker-attaches-late
TEST_CASE("the tasks of a worker that opens its data set slowly, also the oldest task, are made by the other workers") {
  Setup s(200);
  const Gate gate;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_open = 2;
  s.config.keep_workers = 1;
  const Loader l = s.workers(3).create();
  const std::vector<Taken> first = take_epoch(l.get(), 0);
  check_sequence(first, 200, 1);
  for (const Taken& t : first) CHECK(t.worker != 1);
  gate.open();  // it declines what it was sent, and works from then on
  wait_until_ready(l.get(), 3);
  for (std::int64_t epoch = 1; epoch < 4; epoch++) check_sequence(take_epoch(l.get(), epoch), 200, 1);
  CHECK(worker_of(l.get(), 1).tasks > 0);
  CHECK(stats_of(l.get()).invalid_results == 0);
  CHECK(stats_of(l.get()).restarts == 0);
}

// promise: fault-late-start, worker-attaches-late
TEST_CASE("a replacement that attaches late delays no other worker") {
  const Tickets tickets(3);
  Setup s(400);
  tickets.admit(s, 3, "never");
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> all;
  for (int i = 0; i < 20; i++) all.push_back(take(l.get()));
  wait_until_ready(l.get(), 3);
  REQUIRE(::kill(static_cast<pid_t>(worker_of(l.get(), 1).pid), SIGKILL) == 0);
  for (Taken& t : take_rest(l.get())) all.push_back(std::move(t));
  check_sequence(all, 400, 1);
}

// promise: fault-late-start, worker-never-attaches-others
TEST_CASE("a worker that never attaches is reported and started again while others work, and the epoch continues") {
  const Tickets tickets(1);
  const Gate gate;
  Setup s(40);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 20;
  s.config.start_timeout_ns = 2'000'000'000;
  tickets.admit(s, 2, "never");
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> all;
  for (int i = 0; i < 20; i++) all.push_back(take(l.get()));
  std::vector<feedlane_event> hung;
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_WORKER_HUNG)) hung.push_back(e);
    return !hung.empty();
  }));
  CHECK(std::string(hung[0].what.argument) == "config.start_timeout_ns");
  CHECK(hung[0].what.worker == 1 - ready_one(l.get(), 2));
  tickets.sell();
  wait_until_ready(l.get(), 2);
  gate.open();
  for (Taken& t : take_rest(l.get())) all.push_back(std::move(t));
  check_sequence(all, 40, 1);
  CHECK(stats_of(l.get()).restarts >= 1);
}

// promise: fault-late-start, worker-five-starts
TEST_CASE("after five failed starts a worker stays missing while others work, and the next epoch starts it again") {
  for (const std::int32_t dispatch : {FEEDLANE_DISPATCH_LEAST_LOADED, FEEDLANE_DISPATCH_ROUND_ROBIN})
    for (const char* form : {"leave", "goodbye", "other"}) {
      CAPTURE(std::string(form));
      CAPTURE(dispatch);
      const Tickets tickets(1);
      const Gate gate;
      const Reports reports;
      Setup s(40);
      s.plan.gate_fd = gate.fd();
      s.plan.gate_open = 1;
      s.plan.report_fd = reports.fd();
      s.config.dispatch = dispatch;
      s.config.keep_workers = 1;
      tickets.admit(s, 2, form);
      const Loader l = s.create();
      begin(l.get(), 0);
      REQUIRE_MESSAGE(reports.next(), "one worker is ready before the other's first exit is seen");
      std::vector<feedlane_event> told;
      const auto is_given_up = [&] {
        (void)feedlane_loader_poll(l.get(), nullptr);
        for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_WARNING)) told.push_back(e);
        return !told.empty();
      };
      REQUIRE(eventually(is_given_up));
      CHECK(told[0].what.code == (std::string(form) == "other" ? FEEDLANE_E_ABI : FEEDLANE_E_INIT));
      gate.open();
      check_sequence(take_rest(l.get()), 40, 1);
      CHECK(stats_of(l.get()).restarts == 4);
      tickets.sell();
      begin(l.get(), 1);
      wait_until_ready(l.get(), 2);
      check_sequence(take_rest(l.get()), 40, 1);
    }
}

// promise: start-spawn
TEST_CASE("a worker gets the worker configuration byte for byte") {
  Setup s(1);
  s.workers(1);
  s.plan.traceback_bytes = 0x1234567890abcdef;
  const std::int64_t expected = checksum(&s.plan, sizeof s.plan);
  CHECK(told(s, "config") == expected);
}

// promise: start-spawn
TEST_CASE("numeric libraries use one thread per worker, unless OMP_NUM_THREADS is set") {
  REQUIRE(::unsetenv("OMP_NUM_THREADS") == 0);
  Setup standard(1);
  CHECK(told(standard.workers(1), "omp") == 1);
  REQUIRE(::setenv("OMP_NUM_THREADS", "5", 1) == 0);
  Setup inherited(1);
  CHECK(told(inherited.workers(1), "omp") == 5);
  Setup inline_loader(1);
  CHECK(told(inline_loader, "omp") == 5);
  const char* const own[] = {"OMP_NUM_THREADS=7", nullptr};
  Setup given(1);
  given.config.envp = own;
  CHECK(told(given.workers(1), "omp") == 7);
  const char* const none[] = {nullptr};
  Setup empty(1);
  empty.config.envp = none;
  CHECK_MESSAGE(told(empty.workers(1), "omp") == 1, "an environment of the user's own, with nothing in it");
  REQUIRE(::unsetenv("OMP_NUM_THREADS") == 0);
}

// promise: start-open, seed-info, fault-ctrl-c-workers, torch-worker-info
TEST_CASE("each worker knows its number and generation, and has its own process and process group") {
  Setup s(40);
  s.workers(3).fields({field("worker", int64_type), field("pid", int64_type), field("generation", int64_type),
                       field("batch", int64_type), field("group", int64_type)});
  s.config.keep_workers = 1;
  const Loader l = s.create();
  for (const Taken& t : take_epoch(l.get(), 0)) {
    CHECK(t.value("worker") == t.worker);
    CHECK(t.value("pid") == worker_of(l.get(), t.worker).pid);
    CHECK(t.value("generation") == 0);
    CHECK(t.value("batch") == t.batch);
    CHECK(t.value("pid") != ::getpid());
    CHECK_MESSAGE(t.value("group") == t.value("pid"), "Ctrl-C in a terminal goes to the trainer alone");
  }
}

// promise: start-nested-refused
TEST_CASE("a loader with workers inside a worker is refused with E_STATE") {
  Setup s(1);
  s.plan.nest = 1;
  CHECK(told(s.workers(1), "nested") == FEEDLANE_E_STATE);
  Setup pull(1);
  pull.plan.nest = 1;
  CHECK(told(pull.workers(1, "pull"), "nested") == FEEDLANE_E_STATE);
}

// promise: start-spawn
TEST_CASE("without argv the trainer's own program is started as the worker") {
  Process trainer(worker_program, "train", -1);
  CHECK(trainer.wait() == 0);
}

// promise: start-spawn
TEST_CASE("a trainer whose program file is removed or replaced starts workers from the program that is running") {
  for (const char* form : {"train-removed", "train-replaced"}) {
    CAPTURE(std::string(form));
    const std::string copy =
        std::string(worker_program) + "." + std::to_string(::getpid());  // where its library is found
    std::filesystem::copy_file(worker_program, copy, std::filesystem::copy_options::overwrite_existing);
    Process trainer(copy.c_str(), form, -1);
    CHECK(trainer.wait() == 0);
    (void)::unlink(copy.c_str());
  }
}

// promise: start-spawn
TEST_CASE("a relative program and PATH are resolved as at the loader's creation, and workers run in that directory") {
  const std::string before = std::filesystem::current_path();
  std::string folder = std::filesystem::temp_directory_path() / "feedlane-test-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  REQUIRE(::symlink(worker_program, (folder + "/the-worker").c_str()) == 0);
  const std::string path = std::getenv("PATH");
  for (const char* program : {"./the-worker", "the-worker"}) {
    CAPTURE(std::string(program));
    Setup s(4);
    s.workers(1);
    s.argv = {program, "get", nullptr};
    REQUIRE(::chdir(folder.c_str()) == 0);
    REQUIRE(::setenv("PATH", (".:" + path).c_str(), 1) == 0);
    const Loader l = s.create();
    check_sequence(take_epoch(l.get(), 0), 4, 1);
    REQUIRE(::setenv("PATH", path.c_str(), 1) == 0);
    REQUIRE(::chdir("/") == 0);
    begin(l.get(), 1);
    Error e;
    CHECK_MESSAGE(take(l.get(), &e).status == FEEDLANE_OK, std::string(e.text));
    char cwd[4096] = {};
    const std::string link = "/proc/" + std::to_string(worker_of(l.get(), 0).pid) + "/cwd";
    CHECK(::readlink(link.c_str(), cwd, sizeof cwd - 1) > 0);
    CHECK(std::filesystem::equivalent(cwd, folder));
    CHECK(take_rest(l.get()).size() == 3);
  }
  std::filesystem::current_path(before);
  std::filesystem::remove_all(folder);
}

// promise: start-spawn
TEST_CASE("begin fails if the directory of the creation can't be entered again, but only if the trainer has left it") {
  if (::geteuid() != 0) return skip("only root can drop privileges");
  for (const bool leaves : {false, true}) {
    CAPTURE(leaves);
    const std::string found = in_child([&](Findings& f) {
      std::string folder = std::filesystem::temp_directory_path() / "feedlane-test-XXXXXX";
      EXPECT(f, ::mkdtemp(folder.data()) != nullptr && ::chdir(folder.c_str()) == 0);  // of mode 0700
      Setup s(4);
      s.workers(1);
      s.argv = {"/bin/true", nullptr};
      const Loader l = s.create();
      EXPECT(f, ::setresuid(12345, 12345, 12345) == 0);
      if (leaves) EXPECT(f, ::chdir("/") == 0);
      Error e;
      const std::int32_t status = feedlane_loader_begin(l.get(), 0, &e);
      f.expect(status == (leaves ? FEEDLANE_E_OS : FEEDLANE_OK), e.text, __LINE__);
      if (leaves)
        f.expect(e.os_errno == EACCES && e.says("in the directory in which the loader was created"), e.text, __LINE__);
    });
    CHECK_MESSAGE(found.empty(), found);
  }
}

// promise: monitor-other-process
TEST_CASE("the counters of all workers add up to the yielded batches, samples and bytes") {
  Setup s(31, 2);
  s.workers(3);
  const Loader l = s.create();
  const std::vector<Taken> taken = take_epoch(l.get(), 0);
  std::vector<std::uint64_t> by_worker(3);
  for (const Taken& t : taken) by_worker[static_cast<std::size_t>(t.worker)]++;
  std::uint64_t samples = 0;
  std::uint64_t bytes = 0;
  for (std::int32_t w = 0; w < 3; w++) {
    const feedlane_worker_stats stats = worker_of(l.get(), w);
    CHECK(stats.tasks == by_worker[static_cast<std::size_t>(w)]);
    CHECK(stats.errors == 0);
    samples += stats.samples;
    bytes += stats.bytes;
  }
  CHECK(samples == 31);
  CHECK(bytes == 31 * 16);
  auto past = fresh<feedlane_worker_stats>();
  CHECK(observe(l.get(), feedlane_monitor_get_worker_stats, 3, &past) == FEEDLANE_END);
  CHECK(observe(l.get(), feedlane_monitor_get_worker_stats, -1, &past) == FEEDLANE_E_ARGUMENT);
}

// promise: fault-late-start
TEST_CASE("a worker that becomes ready late gets tasks although next never has to wait") {
  const Gate gate;
  constexpr int samples = 20'000;
  Setup s(samples);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_open = 2;
  const Loader l = s.workers(2).create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  const auto tasks = [&] { return worker_of(l.get(), 0).tasks + worker_of(l.get(), 1).tasks; };
  for (int i = 0; i < samples - 100 && worker_of(l.get(), 1).state != FEEDLANE_WORKER_READY; i++) {
    // Made, and not heard of. But for one that its worker has declined: that one the trainer sends out again.
    for (int tries = 0; i > 150 && tries < 50 && tasks() <= static_cast<std::uint64_t>(i); tries++) ::usleep(200);
    taken.push_back(take(l.get()));
    if (i == 200) gate.open();
  }
  CHECK(worker_of(l.get(), 1).state == FEEDLANE_WORKER_READY);
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_sequence(taken, samples, 1);
}
