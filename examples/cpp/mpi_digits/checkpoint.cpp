// SPDX-License-Identifier: Apache-2.0
// A checkpoint as bytes: a header, then the counts, the network and the loader's state.
#include "checkpoint.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <stdexcept>

#include "../common/checksum.hpp"

namespace mpi_digits {
namespace {

constexpr std::array<char, 8> magic{'m', 'p', 'i', 'd', 'i', 'g', '0', '1'};

struct Header {
  std::array<char, 8> magic;
  uint64_t checksum;  ///< of all that follows
  int64_t epoch;
  int64_t batches;
  int64_t batches_of_epoch;
  digits::Score score;
  int64_t global_batch;
  uint64_t seed;
  uint64_t network;  ///< numbers
  uint64_t loader;   ///< bytes
};
constexpr size_t summed_from = offsetof(Header, epoch);

uint64_t checksum_of(const std::string& bytes) {
  common::Checksum sum;
  sum.add(std::as_bytes(std::span(bytes).subspan(summed_from)));
  return sum.value();
}

template <class T>
void append(std::string& bytes, const std::vector<T>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
size_t take(const std::string& bytes, size_t at, std::vector<T>& values) {
  std::memcpy(values.data(), bytes.data() + at, values.size() * sizeof(T));
  return at + values.size() * sizeof(T);
}

}  // namespace

std::string Checkpoint::bytes() const {
  Header header{magic,        0,    progress.epoch, progress.batches, progress.batches_of_epoch, progress.score,
                global_batch, seed, network.size(), loader.size()};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  append(bytes, progress.trained);
  append(bytes, network);
  append(bytes, loader);
  header.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Checkpoint Checkpoint::parse(const std::string& bytes, const std::string& path) {
  Header header;
  if (bytes.size() < sizeof header || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    throw std::runtime_error(path + ": holds no checkpoint of this program");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.checksum != checksum_of(bytes)) throw std::runtime_error(path + ": is damaged");

  Checkpoint checkpoint;
  checkpoint.progress.epoch = header.epoch;
  checkpoint.progress.batches = header.batches;
  checkpoint.progress.batches_of_epoch = header.batches_of_epoch;
  checkpoint.progress.score = header.score;
  checkpoint.global_batch = header.global_batch;
  checkpoint.seed = header.seed;
  checkpoint.network.resize(header.network);
  checkpoint.loader.resize(header.loader);
  size_t at = take(bytes, sizeof header, checkpoint.progress.trained);
  at = take(bytes, at, checkpoint.network);
  (void)take(bytes, at, checkpoint.loader);
  return checkpoint;
}

std::vector<double> network_values(Network& network) {
  std::vector<double> values;
  for (const std::span<double> part : network.state()) values.insert(values.end(), part.begin(), part.end());
  return values;
}

void set_network_values(Network& network, const std::vector<double>& values) {
  const double* from = values.data();
  for (const std::span<double> part : network.state()) {
    std::copy_n(from, part.size(), part.begin());
    from += part.size();
  }
}

}  // namespace mpi_digits
