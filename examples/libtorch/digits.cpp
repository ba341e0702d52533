// SPDX-License-Identifier: Apache-2.0
// Trains a small convolutional network with BatchNorm on handwritten digits. Worker processes decode them; the network reads
// each batch where the worker wrote it, in shared memory.
#include <torch/torch.h>
#include <feedlane/feedlane.hpp>

#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../cpp/common/program.hpp"
#include "../cpp/digits_trainer/digits.hpp"
#include "../cpp/digits_trainer/digits_dataset.hpp"
#include "in_place.hpp"
#include "proc.hpp"

namespace {

constexpr std::int64_t batch_size = 32;
constexpr std::uint64_t split_seed = 7;  // holds out the digits that examples/cpp/digits_trainer does
constexpr std::uint64_t network_seed = 1;
constexpr double first_rate = 0.01;
constexpr double decay = 0.8;  // of the rate, an epoch

enum class Worker { lean, self };

struct Options {
  int workers = 2;
  Worker worker = Worker::lean;
  std::int64_t epochs = 10;
  std::uint64_t seed = 1;
  std::string data = DIGITS_DATA_DIR;
  std::string losses;                          ///< file to write, empty: none
  std::optional<std::int64_t> kill_worker_at;  ///< batch number
  bool zero_copy = false;
  bool costs = false;
};

const char* const usage =
    "Usage: digits [options]\n"
    "Trains a small convolutional network with BatchNorm on handwritten digits, by libtorch.\n"
    "\n"
    "  --workers N               worker processes (default 2)\n"
    "  --worker PROGRAM          lean (default): digits_worker, which has no libtorch; self: this program again\n"
    "  --epochs N                default 10\n"
    "  --seed N                  of order and augmentation (default 1)\n"
    "  --data DIR                where the two optdigits files are\n"
    "  --losses FILE             write a line for each epoch: its number and its mean loss as a hexadecimal float\n"
    "  --kill-worker-at-batch N  SIGKILL a worker when batch N, counted from 0 over all epochs, is here\n"
    "  --zero-copy               compare the address of each tensor that the network reads with that in its slot\n"
    "  --costs                   print the workers' start-up time and memory after the first epoch\n"
    "  --help\n";

common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  const std::vector<common::Option> table = {
      common::number("--workers", 1, 256, options.workers),
      common::choice<Worker>("--worker", {{"lean", Worker::lean}, {"self", Worker::self}}, options.worker),
      common::number("--epochs", 1, 1000000, options.epochs),
      common::number<std::uint64_t>("--seed", 0, UINT64_MAX, options.seed),
      common::path("--data", options.data),
      common::path("--losses", options.losses),
      common::number("--kill-worker-at-batch", 0, INT64_MAX, options.kill_worker_at),
      common::flag("--zero-copy", options.zero_copy),
      common::flag("--costs", options.costs)};
  return common::parse_command_line(
      argc, argv, table, [](const std::string&) { return false; }, [] { return std::string(); }, complaint);
}

torch::nn::Sequential make_network() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), BatchNorm2d(16), ReLU(),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), BatchNorm2d(32), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(32 * digits::pixels / 4, digits::classes));
}

/// The digits that are held out: float [count, 1, 8, 8] and int64 [count].
struct HeldOut {
  explicit HeldOut(const std::string& directory) {
    digits::Digits all;
    if (std::string why; !all.open(directory, split_seed, why)) throw std::runtime_error(why);
    for (std::size_t i = 0; i < digits::held_out_count; i++)
      all.decode_held_out(i, images[i].data_ptr<float>(), labels[i].data_ptr<std::int64_t>());
  }
  double accuracy(torch::nn::Sequential& network) const {
    const torch::NoGradGuard no_grad;
    network->eval();
    const torch::Tensor right = network->forward(images).argmax(1).eq(labels);
    network->train();
    return right.to(torch::kDouble).mean().item<double>();
  }
  torch::Tensor images = torch::empty({digits::held_out_count, 1, digits::side, digits::side});
  torch::Tensor labels = torch::empty({digits::held_out_count}, torch::kLong);
};

class Trainer {
 public:
  Trainer(const Options& options, feedlane::Loader& loader) : options_(options), loader_(loader) {}

  /// One epoch; its mean loss over the rows.
  double run_epoch() {
    const double rate = first_rate * std::pow(decay, loader_.next_epoch());
    for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) group.options().set_lr(rate);
    double loss = 0;
    std::int64_t rows = 0;
    for (const feedlane::Batch& batch : loader_) {
      if (batches_++ == options_.kill_worker_at) kill_a_worker();
      loss += learn(batch) * static_cast<double>(batch.rows());
      rows += static_cast<std::int64_t>(batch.rows());
    }
    return loss / static_cast<double>(rows);
  }
  torch::nn::Sequential& network() { return network_; }
  void print_zero_copy() const {
    std::printf("the first batch lies in %s\n", mapping_.c_str());
    std::printf("zero copy: %lld of %lld tensors lie in their slots, %llu slots held at the end\n",
                static_cast<long long>(in_slots_), static_cast<long long>(2 * batches_),
                static_cast<unsigned long long>(loader_.stats().slots_held));
  }

 private:
  double learn(const feedlane::Batch& batch) {
    // A dimension of one channel: a view, and no copy either.
    const torch::Tensor images = in_place::tensor_of(loader_, batch, digits::image_field).unsqueeze(1);
    const torch::Tensor labels = in_place::tensor_of(loader_, batch, digits::label_field);
    in_slots_ += images.data_ptr() == batch[digits::image_field].bytes().data();
    in_slots_ += labels.data_ptr() == batch[digits::label_field].bytes().data();
    if (options_.zero_copy && mapping_.empty()) mapping_ = mapping_of(images.data_ptr());
    optimizer_.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(network_->forward(images), labels);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }
  void kill_a_worker() const {
    for (const feedlane_worker_stats& worker : loader_.worker_stats())
      if (worker.state == FEEDLANE_WORKER_READY && kill(static_cast<pid_t>(worker.pid), SIGKILL) == 0) return;
    throw std::runtime_error("--kill-worker-at-batch: no worker is ready");
  }

  const Options& options_;
  feedlane::Loader& loader_;
  torch::nn::Sequential network_ = make_network();
  torch::optim::SGD optimizer_{network_->parameters(), torch::optim::SGDOptions(first_rate).momentum(0.9)};
  std::int64_t batches_ = 0;
  std::int64_t in_slots_ = 0;
  std::string mapping_;  ///< of the first batch
};

void train(const Options& options, feedlane::Loader& loader, std::FILE* losses) {
  const HeldOut held_out(options.data);
  Trainer trainer(options, loader);
  double accuracy = 0;
  for (std::int64_t epoch = 0; epoch < options.epochs; epoch++) {
    const auto began = std::chrono::steady_clock::now();
    const double loss = trainer.run_epoch();
    if (epoch == 0 && options.costs) print_worker_costs(loader, began);
    accuracy = held_out.accuracy(trainer.network());
    std::printf("epoch %lld: loss %.4f, test accuracy %.3f\n", static_cast<long long>(epoch), loss, accuracy);
    // "%a" keeps every bit, so that two runs can be compared exactly.
    if (losses != nullptr) std::fprintf(losses, "%lld %a\n", static_cast<long long>(epoch), loss);
  }
  if (options.zero_copy) trainer.print_zero_copy();
  std::printf("restarts: %llu\ntest accuracy: %.3f\n", static_cast<unsigned long long>(loader.stats().restarts),
              accuracy);
}

int run(Options options) {
  options.data = std::filesystem::absolute(options.data).string();
  const feedlane::Sampler order = feedlane::Sampler::random(digits::train_count, options.seed);
  const std::string config = digits::digits_worker_config(options.data, split_seed);
  feedlane::LoaderOptions wanted{.sampler = &order,
                                 .fields = digits::digits_fields(),
                                 .batch_size = batch_size,
                                 .seed = options.seed,
                                 .workers = options.workers,
                                 .keep_workers = true,
                                 .worker_config = std::as_bytes(std::span(config))};
  if (options.worker == Worker::lean) wanted.argv = {program_beside("digits_worker")};
  feedlane::Loader loader(wanted);
  if (options.kill_worker_at && *options.kill_worker_at >= options.epochs * loader.length())
    return common::refuse("--kill-worker-at-batch: the run has fewer batches", common::exit_usage);

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> losses(nullptr, std::fclose);
  if (!options.losses.empty()) {
    losses.reset(std::fopen(options.losses.c_str(), "w"));
    if (!losses) return common::refuse(options.losses + ": can't be written", common::exit_failure);
  }
  // One thread: the network is small, and sums keep one order, so that runs can be compared to the last bit.
  torch::set_num_threads(1);
  torch::manual_seed(network_seed);
  train(options, loader, losses.get());
  if (losses && std::fclose(losses.release()) != 0)
    return common::refuse(options.losses + ": can't be written", common::exit_failure);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // --worker self: was this process started as a worker? libtorch is loaded by now in any case.
  if (feedlane::is_worker()) return common::run_worker<digits::DigitsDataset>();

  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines as they come, also into a file
  Options options;
  std::string complaint;
  const common::Parsed parsed = parse_options(argc, argv, options, complaint);
  return common::run_trainer(parsed, usage, complaint, [&] { return run(options); });
}
