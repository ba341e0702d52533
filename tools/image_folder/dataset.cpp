// SPDX-License-Identifier: Apache-2.0
// Reads files, chooses their decoder, and writes rows.
#include "dataset.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>

namespace images {
namespace {

constexpr size_t image_field = 0;
constexpr size_t label_field = 1;
constexpr int64_t longest_side = 65536;
constexpr off_t largest_file = off_t{1} << 30;

class Descriptor {
 public:
  /// Not waiting: a FIFO may have a picture's name.
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

/// By errno: network file systems fail from time to time.
[[noreturn]] void fail() {
  const int error = errno;
  const char* const why = std::strerror(error);
  if (error == EIO || error == ESTALE || error == ETIMEDOUT || error == EAGAIN) throw feedlane::Transient(why);
  throw std::runtime_error(why);
}

template <class T>
bool has_type(const feedlane_field& field) {
  constexpr feedlane_dtype wanted = feedlane::dtype_of<T>();
  return field.dtype.code == wanted.code && field.dtype.bits == wanted.bits && field.dtype.lanes == wanted.lanes;
}

}  // namespace

void Dataset::read_fields(const feedlane_worker_info& info) {
  const std::string wanted =
      "the loader's fields must be \"image\", float32 or uint8 [3, height, width], and \"label\", int64 []";
  if (info.field_count != 2) throw std::runtime_error(wanted + "; it has " + std::to_string(info.field_count));
  const feedlane_field& image = info.fields[image_field];
  const feedlane_field& label = info.fields[label_field];
  is_float_ = has_type<float>(image);
  const bool has_shape = image.ndim == 3 && image.shape[0] == 3 && image.shape[1] >= 1 && image.shape[2] >= 1;
  if (std::strcmp(image.name, "image") != 0 || !has_shape || (!is_float_ && !has_type<uint8_t>(image)) ||
      std::strcmp(label.name, "label") != 0 || label.ndim != 0 || !has_type<int64_t>(label))
    throw std::runtime_error(wanted);
  if (std::max(image.shape[1], image.shape[2]) > longest_side)
    throw std::runtime_error("the image has " + std::to_string(image.shape[1]) + " x " +
                             std::to_string(image.shape[2]) + " pixels: must be at most 65536 each");
  size_ = {static_cast<uint32_t>(image.shape[2]), static_cast<uint32_t>(image.shape[1])};
}

void Dataset::open(const feedlane::WorkerInfo& info) {
  if (!complaint_.empty()) throw std::runtime_error(complaint_);
  if (info.iterable()) throw std::runtime_error("the loader is iterable: must have a sampler over the list's samples");
  read_fields(info.c());
  list_ = List(info.config());
  const uint32_t longest = std::max(size_.width, size_.height);
  if (!options_.transform.train && options_.transform.resize < longest)
    throw std::runtime_error("--resize " + std::to_string(options_.transform.resize) + ": must be at least " +
                             std::to_string(longest) + ", the longer side of the crop");
  if (!is_float_ && options_.normalises)
    throw std::runtime_error("--mean and --std need a field \"image\" of float32, not uint8");
  for (size_t c = 0; c < 3; c++) {
    normalisation_.scale[c] = static_cast<float>(1 / (255 * options_.deviation[c]));
    normalisation_.offset[c] = static_cast<float>(-options_.mean[c] / options_.deviation[c]);
  }
  resizer_.emplace(size_.width, size_.height);
}

void Dataset::read(const std::string& path) {
  const Descriptor file(path);
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) fail();
  if (!S_ISREG(status.st_mode)) throw std::runtime_error("it is not a regular file");
  if (status.st_size > largest_file)
    throw std::runtime_error("the file has " + std::to_string(status.st_size) + " bytes: must be at most 2^30");
  file_.resize(static_cast<size_t>(status.st_size));
  size_t got = 0;
  while (got < file_.size()) {
    const ssize_t n = ::read(file.get(), file_.data() + got, file_.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    if (n == 0) break;  // it has become shorter
    got += static_cast<size_t>(n);
  }
  file_.resize(got);
}

View Dataset::decode(uint64_t seed, Placement& at) {
  const Size picture = decoder_.open(file_);
  if (uint64_t{picture.width} * picture.height > options_.max_pixels)
    throw std::runtime_error("the picture has " + std::to_string(picture.width) + " x " +
                             std::to_string(picture.height) + " pixels: must be at most " +
                             std::to_string(options_.max_pixels) + ", see --max-pixels");
  const View view = choose_view(options_.transform, picture.width, picture.height, size_, seed);
  decoder_.decode(view.region, step_of(view, size_), pixels_, at);
  return view;
}

void Dataset::get(const feedlane::Row& row) {
  const auto index = static_cast<size_t>(row.index());
  if (row.index() < 0 || index >= list_.size())
    throw std::runtime_error("index " + std::to_string(row.index()) + ": the list has " + std::to_string(list_.size()) +
                             " samples");
  const List::Sample sample = list_[index];
  const std::string path =
      sample.path.starts_with('/') ? std::string(sample.path) : options_.root + "/" + std::string(sample.path);
  Placement at;
  View view;
  try {
    read(path);
    view = decode(row.seed(), at);
  } catch (const feedlane::Transient& error) {
    throw feedlane::Transient(path + ": " + error.what());
  } catch (const std::exception& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
  if (is_float_) resizer_->resize(pixels_, at, view, normalisation_, row.field<float>(image_field).data());
  else resizer_->resize(pixels_, at, view, row.field<uint8_t>(image_field).data());
  row.field<int64_t>(label_field)[0] = sample.label;
}

std::optional<int64_t> Dataset::substitute(int64_t, uint64_t seed, uint32_t tries) const {
  std::mt19937_64 random(seed + tries + 1);
  return static_cast<int64_t>(random() % list_.size());
}

}  // namespace images
