// SPDX-License-Identifier: Apache-2.0
// The worker's side: reads its configuration and writes samples into their rows.
#include "digits_dataset.hpp"

#include <cstring>
#include <span>
#include <stdexcept>

namespace digits {
namespace {

/// Begins the worker's configuration; the name of the data directory follows, without a terminator.
struct ConfigHeader {
  uint64_t split_seed;
};

}  // namespace

std::vector<feedlane::Field> digits_fields() {
  return {feedlane::field<float>("image", {side, side}), feedlane::field<int64_t>("label")};
}

std::string digits_worker_config(const std::string& directory, uint64_t split_seed) {
  const ConfigHeader header{split_seed};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes + directory;
}

DigitsDataset::DigitsDataset(const feedlane::WorkerInfo& info) {
  const std::span<const std::byte> config = info.config();
  if (config.size() <= sizeof(ConfigHeader)) throw std::runtime_error("no data directory was given");
  ConfigHeader header;
  std::memcpy(&header, config.data(), sizeof header);
  const std::span<const std::byte> name = config.subspan(sizeof header);
  const std::string directory(reinterpret_cast<const char*>(name.data()), name.size());
  if (std::string why; !digits_.open(directory, header.split_seed, why)) throw std::runtime_error(why);
}

void DigitsDataset::get(const feedlane::Row& row) const {
  if (row.index() < 0 || row.index() >= static_cast<int64_t>(train_count)) {
    throw std::out_of_range("there is no digit " + std::to_string(row.index()));
  }
  digits_.decode_train(static_cast<size_t>(row.index()), row.seed(), row.field<float>(image_field).data(),
                       row.field<int64_t>(label_field).data());
}

}  // namespace digits
