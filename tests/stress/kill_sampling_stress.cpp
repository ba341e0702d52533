// SPDX-License-Identifier: Apache-2.0
// Workers are killed at instructions of all that they do with the library: attach, ready, receive, grow, allocate, commit, ring,
// fail, detach. Every batch of every epoch comes once, in order, whole; what was committed before the kill
// is what comes, what wasn't is made again; and nothing grows.
//   kill_sampling_stress             each operation, at every action; then each in its turn, at random instructions
//   kill_sampling_stress actions OP  one kill at every action of one operation
//   kill_sampling_stress every OP    one kill at every instruction of one operation
// promise: fault-any-moment, worker-any-instruction
#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "feedlane.h"
#include "footprint.hpp"
#include "hunt.hpp"
#include "nursery.hpp"
#include "shared.hpp"
#include "support/api.hpp"
#include "support/slowness.hpp"

namespace {

using hunt::Op;

constexpr std::int64_t rows = 2;
constexpr std::int64_t batches = 1000;  // in an epoch
constexpr std::size_t noise_bytes = 200;

// ---- what is in a batch ----

bool is_to_fail(std::int64_t batch) { return batch % 3 == 1; }
std::uint64_t extra_bytes(std::int64_t batch) { return 100 + static_cast<std::uint64_t>(batch) % 50 * 200; }
unsigned char noise(std::int64_t of, std::uint64_t i) {
  return static_cast<unsigned char>(static_cast<std::uint64_t>(of) * 37 + i * 11 + i / 7);
}
std::string words_of(std::int64_t epoch, std::int64_t batch) {
  return "epoch " + std::to_string(epoch) + ", batch " + std::to_string(batch);
}

[[noreturn]] void die(const char* what, const feedlane_error& e) {
  std::fprintf(stderr, "%s: %s\n", what, e.text);
  std::_Exit(1);
}
void check(const char* what, std::int32_t status, const feedlane_error& e) {
  if (status != FEEDLANE_OK) die(what, e);
}
void compare(const char* what, std::int64_t found, std::int64_t needed) {
  if (found != needed) stress::die(what, static_cast<std::uint64_t>(found), static_cast<std::uint64_t>(needed));
}

// ---- the worker ----

class Worker {
 public:
  explicit Worker(bool is_led) : is_led_(is_led) { feedlane_init(&error_, sizeof error_); }

  // Leaves before its task number `leave`, or with it in hand.
  int work(int fd, std::int64_t leave, bool in_hand) {
    feedlane_worker* w = nullptr;
    doing(Op::attach,
          [&] { check("attach", feedlane_worker_attach(fd, nullptr, FEEDLANE_FOREVER, &w, &error_), error_); });
    doing(Op::ready, [&] { check("ready", feedlane_worker_ready(w, FEEDLANE_OK, nullptr, &error_), error_); });
    for (std::int64_t n = 0; n != leave || in_hand; n++) {
      std::int32_t s = FEEDLANE_OK;
      doing(Op::receive, [&] { s = feedlane_worker_next(w, FEEDLANE_FOREVER, &task_, &error_); });
      if (s == FEEDLANE_END || (s == FEEDLANE_OK && n == leave)) break;
      check("next", s, error_);
      make();
    }
    doing(Op::detach, [&] { (void)feedlane_worker_destroy(&w); });
    return 0;
  }

 private:
  template <class F>
  void doing(Op op, F&& f) {
    say(op);
    f();
    say(Op::none);
  }
  void say(Op op) const {
    if (!is_led_) return;
    stress::announce(task_ == nullptr ? hunt::Word{op, false, 0, 0, 0}.pack()
                                      : hunt::Word{op, true, task_->epoch, task_->batch, task_->attempt}.pack());
  }
  void make() {
    const feedlane_task& t = *task_;
    const std::string words = words_of(t.epoch, t.batch);
    if (!is_led_) {  // else it would make nearly all of them
      const timespec pause{0, 1'000'000};
      (void)::nanosleep(&pause, nullptr);
    }
    if (is_to_fail(t.batch)) {
      doing(Op::fail, [&] {
        check("fail", feedlane_task_fail(task_, 0, 0, words.c_str(), "where it happened", &error_), error_);
        task_ = nullptr;
      });
      return;
    }
    feedlane_field extra;
    feedlane_init(&extra, sizeof extra);
    extra.name = "extra";
    extra.dtype = {1, 8, 1};
    extra.ndim = 1;
    extra.shape[0] = static_cast<std::int64_t>(extra_bytes(t.batch));
    feedlane_tensor tensor;
    feedlane_init(&tensor, sizeof tensor);
    doing(Op::grow, [&] { check("tensor", feedlane_task_tensor(task_, 2, &extra, &tensor, &error_), error_); });
    for (std::uint64_t i = 0; i < t.count; i++) {
      std::memcpy(static_cast<std::int64_t*>(t.tensors[0].data) + i, t.indices + i, sizeof *t.indices);
      for (std::uint64_t k = 0; k < noise_bytes; k++)
        static_cast<unsigned char*>(t.tensors[1].data)[i * noise_bytes + k] = noise(t.indices[i], k);
    }
    for (std::uint64_t k = 0; k < tensor.bytes; k++) static_cast<unsigned char*>(tensor.data)[k] = noise(t.batch, k);
    doing(Op::allocate, [&] {
      check("metadata", feedlane_task_store(task_, FEEDLANE_STORE_METADATA, words.data(), words.size(), &error_),
            error_);
    });
    doing(Op::commit, [&] {
      check("commit", feedlane_task_commit(task_, t.count, &error_), error_);
      task_ = nullptr;
    });
  }

  bool is_led_;
  const feedlane_task* task_ = nullptr;
  feedlane_error error_{};
};

// ---- the trainer ----

class Trainer {
 public:
  static constexpr std::size_t warm_up = 20;  // kills

  explicit Trainer(hunt::Hunter& hunter) : hunter_(hunter) {
    feedlane_init(&error_, sizeof error_);
    feedlane_sampler* sampler = nullptr;
    check("sampler", feedlane::test::sequential_sampler(rows * batches, &sampler, &error_), error_);
    feedlane_field fields[2];
    for (feedlane_field& f : fields) feedlane_init(&f, sizeof f);
    fields[0].name = "index";
    fields[0].dtype = {0, 64, 1};
    fields[1].name = "noise";
    fields[1].dtype = {1, 8, 1};
    fields[1].ndim = 1;
    fields[1].shape[0] = noise_bytes;
    feedlane_loader_config c;
    feedlane_init(&c, sizeof c);
    c.sampler = sampler;
    c.fields = fields;
    c.field_count = 2;
    c.batch_size = rows;
    c.workers = hunt::places;
    c.start = FEEDLANE_START_EXTERNAL;
    c.max_kills_per_batch = INT32_MAX;
    check("loader", feedlane_loader_create(&c, &loader_, &error_), error_);
    (void)feedlane_sampler_destroy(&sampler);
  }

  void run() {
    for (std::int64_t epoch = 0; !hunter_.is_done(); epoch++) {
      check("begin", feedlane_loader_begin(loader_, epoch, &error_), error_);
      made_by_.emplace_back();
      for (std::int64_t i = 0; i <= batches; i++) take(epoch, i);
    }
    last_ = stress::footprint();
    feedlane_stats stats;
    feedlane_init(&stats, sizeof stats);
    (void)feedlane::test::observe(loader_, feedlane_monitor_get_stats, &stats);
    compare("results that made no sense", static_cast<std::int64_t>(stats.invalid_results), 0);
    compare("results that came too late", static_cast<std::int64_t>(stats.late_results), 0);
    compare("slots that are free", static_cast<std::int64_t>(stats.slots_free), static_cast<std::int64_t>(stats.slots));
    compare("destroy", feedlane_loader_destroy(&loader_), FEEDLANE_OK);
  }

  // What was committed came; what wasn't was made again.
  void judge(const std::deque<hunt::Kill>& kills) const {
    for (const hunt::Kill& k : kills) {
      // A worker that receives commits nothing; when it has received, it has a task in hand.
      if (k.op == Op::receive) compare("a result of a worker that was receiving", k.committed ? 1 : 0, 0);
      if (!k.at.in_hand) continue;
      const std::int64_t by = made_by_[static_cast<std::size_t>(k.at.epoch)][static_cast<std::size_t>(k.at.batch)];
      const std::string where = std::string(hunt::names[static_cast<std::size_t>(k.op)]) + " after " +
                                std::to_string(k.steps) + " instructions or actions, " +
                                words_of(k.at.epoch, k.at.batch);
      if (k.committed) compare((where + ": it was committed and came from another attempt").c_str(), by, k.at.attempt);
      else if (by <= k.at.attempt)
        compare((where + ": it wasn't committed and came all the same").c_str(), by, k.at.attempt + 1);
    }
  }
  [[nodiscard]] std::int64_t epochs() const { return static_cast<std::int64_t>(made_by_.size()); }
  [[nodiscard]] const stress::Footprint& first() const { return first_; }
  [[nodiscard]] const stress::Footprint& last() const { return last_; }

 private:
  // Batch i of the epoch, or its end behind the last one.
  void take(std::int64_t epoch, std::int64_t i) {
    fill_places();
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    const std::int32_t s =
        feedlane_loader_next(loader_, INT64_C(60'000'000'000) * feedlane::test::slowness(), &batch, &error_);
    feedlane_event event;
    feedlane_init(&event, sizeof event);
    while (feedlane_loader_event(loader_, &event) == FEEDLANE_OK) continue;
    if (!has_first_ && hunter_.kills() > warm_up) {
      first_ = stress::footprint();
      has_first_ = true;
    }
    if (i == batches) return compare("the end of the epoch", s, FEEDLANE_END);
    if (is_to_fail(i)) {
      compare("the status of a batch that fails", s, FEEDLANE_E_SAMPLE);
      compare("epoch", error_.epoch, epoch);
      compare("batch", error_.batch, i);
      if (std::string(error_.text).find(words_of(epoch, i)) == std::string::npos) die("another text", error_);
      made_by_.back()[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(error_.attempt);
      return;
    }
    check("next", s, error_);
    look_at(batch, epoch, i);
    compare("release", feedlane_batch_release(loader_, batch.token), FEEDLANE_OK);
    made_by_.back()[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(batch.attempt);
  }

  static void look_at(const feedlane_batch& b, std::int64_t epoch, std::int64_t i) {
    compare("epoch", b.epoch, epoch);
    compare("batch", b.batch, i);
    compare("rows", static_cast<std::int64_t>(b.count), rows);
    compare("tensors", static_cast<std::int64_t>(b.tensor_count), 3);
    for (std::int64_t row = 0; row < rows; row++) {
      compare("index", static_cast<const std::int64_t*>(b.tensors[0].data)[row], i * rows + row);
      for (std::uint64_t k = 0; k < noise_bytes; k++)
        compare("noise",
                static_cast<const unsigned char*>(b.tensors[1].data)[static_cast<std::uint64_t>(row) * noise_bytes + k],
                noise(i * rows + row, k));
    }
    compare("bytes", static_cast<std::int64_t>(b.tensors[2].bytes), static_cast<std::int64_t>(extra_bytes(i)));
    for (std::uint64_t k = 0; k < extra_bytes(i); k++)
      compare("extra", static_cast<const unsigned char*>(b.tensors[2].data)[k], noise(i, k));
    const std::string words = words_of(epoch, i);
    if (b.metadata_bytes != words.size() || std::memcmp(b.metadata, words.data(), words.size()) != 0)
      stress::die("metadata", b.metadata_bytes, words.size());
  }

  void fill_places() {
    hunt::Offer offer;
    while (!hunter_.is_done()) {
      offer.place = -1;
      const std::int32_t s = feedlane_loader_open_worker(loader_, &offer.place, &offer.fd, &error_);
      if (s == FEEDLANE_END) return;
      check("open_worker", s, error_);
      hunter_.offer(offer);
    }
  }

  hunt::Hunter& hunter_;
  feedlane_loader* loader_ = nullptr;
  feedlane_error error_{};
  std::deque<std::array<std::int16_t, batches>> made_by_;  // which attempt, of every batch of every epoch
  bool has_first_ = false;
  stress::Footprint first_, last_;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc == 5 && arguments[1] == "worker")
    return Worker(arguments[4] != "free").work(std::atoi(argv[2]), std::atoll(argv[3]), arguments[4] == "in-hand");
  std::unique_ptr<hunt::Choice> choice;
  if (argc == 3)
    choice = hunt::every(hunt::op_of(arguments[2]),
                         arguments[1] == "every" ? stress::Unit::instruction : stress::Unit::action);
  else choice = hunt::all(stress::length(200, 6'000), stress::length(0, 1) != 0);
  if (choice == nullptr) return 2;
  hunt::Hunter hunter(*choice);
  Trainer trainer(hunter);
  hunter.start();
  trainer.run();
  const std::deque<hunt::Kill> kills = hunter.finish();
  trainer.judge(kills);
  // The place of a worker that was just killed: its socket, its events, its lifeline, its pidfd, the offer.
  if (kills.size() > Trainer::warm_up)
    stress::check_growth(trainer.first(), trainer.last(), {.resident_kib = 4096, .descriptors = 8, .mappings = 0});
  hunt::print(kills, hunter.lengths());
  std::printf("%zu kills; %lld epochs of %lld batches, each once, in order, whole; resident %llu -> %llu KiB\n",
              kills.size(), static_cast<long long>(trainer.epochs()), static_cast<long long>(batches),
              static_cast<unsigned long long>(trainer.first().resident_kib),
              static_cast<unsigned long long>(trainer.last().resident_kib));
  return 0;
}
