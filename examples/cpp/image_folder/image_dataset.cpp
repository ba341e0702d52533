// SPDX-License-Identifier: Apache-2.0
// The worker's side: decodes, crops, resizes and normalises a picture into its row.
#include "image_dataset.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "augment.hpp"

namespace images {
namespace {

/// Of ImageNet, for values from 0 to 1.
constexpr std::array<float, 3> mean{0.485f, 0.456f, 0.406f};
constexpr std::array<float, 3> deviation{0.229f, 0.224f, 0.225f};

Normalisation normalisation() {
  Normalisation n{};
  for (size_t c = 0; c < 3; c++) {
    n.scale[c] = 1 / (255 * deviation[c]);
    n.offset[c] = -mean[c] / deviation[c];
  }
  return n;
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

/// By errno: network file systems have their moments.
[[noreturn]] void fail(const std::string& path) {
  const int error = errno;
  const std::string why = path + ": " + std::strerror(error);
  if (error == EIO || error == ESTALE || error == ETIMEDOUT || error == EAGAIN) throw feedlane::Transient(why);
  throw std::runtime_error(why);
}

}  // namespace

std::vector<feedlane::Field> image_fields(const Recipe& recipe) {
  const std::vector<int64_t> shape{3, recipe.side, recipe.side};
  return {recipe.bytes ? feedlane::field<uint8_t>("image", shape) : feedlane::field<float>("image", shape),
          feedlane::field<int64_t>("label")};
}

ImageDataset::ImageDataset(const feedlane::WorkerInfo& info)
    : recipe_(Recipe::unpack(info.config())), folder_(recipe_.root), resizer_(recipe_.side) {
  if (folder_.fingerprint() != recipe_.fingerprint)
    throw std::runtime_error(recipe_.root + ": the folder has changed since the run began");
}

void ImageDataset::read(const std::string& path) {
  const Descriptor file(path);
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) fail(path);
  file_.resize(static_cast<size_t>(status.st_size));
  size_t got = 0;
  while (got < file_.size()) {
    const ssize_t n = ::read(file.get(), file_.data() + got, file_.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path);
    if (n == 0) break;  // shorter by now
    got += static_cast<size_t>(n);
  }
  if (got == 0) throw std::runtime_error(path + ": the file is empty");
  file_.resize(got);
}

void ImageDataset::get(const feedlane::Row& row) {
  const auto sample = static_cast<size_t>(row.index());
  const std::string path = folder_.path(sample);
  read(path);
  uint32_t width = 0;
  uint32_t height = 0;
  std::string why;
  if (!decoder_.open(file_, width, height, why)) throw std::runtime_error(path + ": " + why);
  common::Random random(row.seed());
  const Augmentation chosen = augment(width, height, random);
  Box box;
  if (!decoder_.decode(chosen.crop, recipe_.side, pixels_, box, why)) throw std::runtime_error(path + ": " + why);
  static const Normalisation to_unit = normalisation();
  if (recipe_.bytes) resizer_.resize(pixels_, box, chosen.flip, row.field<uint8_t>(image_field).data());
  else resizer_.resize(pixels_, box, chosen.flip, to_unit, row.field<float>(image_field).data());
  row.field<int64_t>(label_field)[0] = folder_.label(sample);
}

std::optional<int64_t> ImageDataset::substitute(int64_t, uint64_t seed, uint32_t tries) const {
  common::Random random(seed + tries + 1);
  return static_cast<int64_t>(random.below(folder_.size()));
}

}  // namespace images
