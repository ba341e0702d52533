// SPDX-License-Identifier: Apache-2.0
// Trains a small BERT on windows of tokens: some are masked, and the encoder predicts them. Worker processes copy the windows
// out of mapped files, shuffled over all of them, by the data set of examples/cpp/token_shards. Here a token is a byte of text.
#include <torch/torch.h>
#include <feedlane/feedlane.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "../cpp/common/program.hpp"
#include "../cpp/token_shards/corpus.hpp"
#include "../cpp/token_shards/token_dataset.hpp"
#include "in_place.hpp"
#include "proc.hpp"

namespace {

constexpr std::int64_t mask_token = 256;  // behind the values of a byte
constexpr std::int64_t vocabulary = 257;
constexpr std::int64_t width = 64;
constexpr double masked_share = 0.15;
constexpr std::int64_t averaged = 10;  // steps of a printed loss

struct Options {
  tokens::CorpusFiles files{.paths = {}, .token_bytes = sizeof(std::uint16_t), .length = 128};
  std::int64_t batch = 32;
  std::int64_t steps = 100;
  int workers = 2;
  bool costs = false;
  std::string make_shard;  ///< file to write, empty: none
};

const char* const usage =
    "Usage: tokens [options] SHARD...\n"
    "       tokens --make-shard SHARD TEXT...\n"
    "Trains a small BERT on windows of tokens, by libtorch. A token is a byte of text, in 16 bits.\n"
    "\n"
    "  --length N           tokens of a window (default 128)\n"
    "  --batch N            windows of a batch (default 32)\n"
    "  --steps N            batches in all (default 100), at least 10\n"
    "  --workers N          worker processes, which have no libtorch (default 2)\n"
    "  --costs              print the workers' start-up time and memory\n"
    "  --make-shard SHARD   write the texts to SHARD as tokens\n"
    "  --help\n";

common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  const std::vector<common::Option> table = {common::number("--length", 1, 4096, options.files.length),
                                             common::number("--batch", 1, 65536, options.batch),
                                             common::number("--steps", averaged, INT64_MAX, options.steps),
                                             common::number("--workers", 1, 256, options.workers),
                                             common::flag("--costs", options.costs),
                                             common::path("--make-shard", options.make_shard)};
  const auto operand = [&](const std::string& argument) {
    // A worker may have another working directory.
    options.files.paths.push_back(std::filesystem::absolute(argument).string());
    return true;
  };
  const auto contradiction = [&] { return std::string(options.files.paths.empty() ? "no file was named" : ""); };
  return common::parse_command_line(argc, argv, table, operand, contradiction, complaint);
}

void make_shard(const std::string& shard, const std::vector<std::string>& texts) {
  std::ofstream out(shard, std::ios::binary);
  for (const std::string& text : texts) {
    std::ifstream in(text, std::ios::binary);
    if (!in) throw std::runtime_error(text + ": can't be read");
    const std::vector<std::uint16_t> all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    for (const std::uint16_t token : all) out.put(static_cast<char>(token & 0xff)).put('\0');  // little-endian
  }
  if (!out.flush()) throw std::runtime_error(shard + ": can't be written");
}

/// Embeddings of tokens and places, two layers of self-attention, and scores for the tokens that are masked.
class Bert : public torch::nn::Module {
 public:
  explicit Bert(std::int64_t length)
      : token_(register_module("token", torch::nn::Embedding(vocabulary, width))),
        place_(register_module("place", torch::nn::Embedding(length, width))),
        encoder_(register_module("encoder", torch::nn::TransformerEncoder(make_layer(), 2))),
        score_(register_module("score", torch::nn::Linear(width, vocabulary))) {}

  /// `tokens`: int32 [windows, length]; `masked`: bool of that shape. Returns float [true ones in `masked`, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& masked) {
    const torch::Tensor x = token_(tokens.masked_fill(masked, mask_token)) + place_(torch::arange(tokens.size(1)));
    // libtorch's encoder takes the place first, the window second.
    const torch::Tensor y = encoder_->forward(x.transpose(0, 1)).transpose(0, 1);
    return score_(y.index({masked}));
  }

 private:
  static torch::nn::TransformerEncoderLayer make_layer() {
    return torch::nn::TransformerEncoderLayer(
        torch::nn::TransformerEncoderLayerOptions(width, 4).dim_feedforward(2 * width).dropout(0));
  }
  torch::nn::Embedding token_;
  torch::nn::Embedding place_;
  torch::nn::TransformerEncoder encoder_;
  torch::nn::Linear score_;
};

class Trainer {
 public:
  explicit Trainer(const Options& options)
      : options_(options), bert_(static_cast<std::int64_t>(options.files.length)) {}

  void run(feedlane::Loader& loader) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = Clock::now();
    Clock::time_point first;
    while (step_ < options_.steps) {
      for (const feedlane::Batch& batch : loader) {
        if (step_ == 0) first = Clock::now();
        const double loss = learn(in_place::tensor_of(loader, batch, 0), batch);
        sum_ += loss;
        if (++step_ % averaged == 0) {
          std::printf("step %lld: loss %.4f\n", static_cast<long long>(step_), sum_ / averaged);
          sum_ = 0;
        }
        if (step_ == options_.steps) break;
      }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - first).count();
    if (options_.costs) print_worker_costs(loader, began);
    const auto tokens = static_cast<double>(step_ * options_.batch) * static_cast<double>(options_.files.length);
    std::printf("batches in their slots: %lld of %lld\ntokens/s: %.0f\n", static_cast<long long>(in_slots_),
                static_cast<long long>(step_), tokens / seconds);
  }

 private:
  /// `windows`: int32 [batch, length + 1], in the slot.
  double learn(const torch::Tensor& windows, const feedlane::Batch& batch) {
    const torch::Tensor tokens = windows.narrow(1, 0, windows.size(1) - 1);  // a view
    in_slots_ += tokens.data_ptr() == batch[0].bytes().data();
    const torch::Tensor masked = torch::rand(tokens.sizes()) < masked_share;
    optimizer_.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(bert_.forward(tokens, masked),
                                                                    tokens.masked_select(masked).to(torch::kLong));
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }

  const Options& options_;
  Bert bert_;
  torch::optim::Adam optimizer_{bert_.parameters(), torch::optim::AdamOptions(2e-3)};
  std::int64_t step_ = 0;
  std::int64_t in_slots_ = 0;
  double sum_ = 0;
};

int run(const Options& options) {
  if (!options.make_shard.empty()) {
    make_shard(options.make_shard, options.files.paths);
    return 0;
  }
  const auto windows = static_cast<std::int64_t>(tokens::Corpus(options.files).size());
  if (windows < options.batch) return common::refuse("the files hold less than a batch", common::exit_failure);
  const feedlane::Sampler order =
      feedlane::Sampler::random({.length = windows, .seed = 1, .shuffle = feedlane::Shuffle::feistel});
  const std::vector<std::byte> config = options.files.pack();
  feedlane::Loader loader({.sampler = &order,
                           .fields = tokens::token_fields(options.files),
                           .batch_size = options.batch,
                           .drop_last = true,
                           .seed = 1,
                           .workers = options.workers,
                           .keep_workers = true,
                           .argv = {program_beside("tokens_worker")},
                           .worker_config = config});
  torch::manual_seed(1);
  Trainer(options).run(loader);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines as they come, also into a file
  Options options;
  std::string complaint;
  const common::Parsed parsed = parse_options(argc, argv, options, complaint);
  return common::run_trainer(parsed, usage, complaint, [&] { return run(options); });
}
