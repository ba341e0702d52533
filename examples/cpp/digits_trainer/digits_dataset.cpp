// SPDX-License-Identifier: Apache-2.0
#include "digits_dataset.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

#include "digits.hpp"
#include "handles.hpp"

namespace digits {
namespace {

constexpr feedlane_dtype float32{2, 32, 1};
constexpr feedlane_dtype int64{0, 64, 1};

/// Begins the worker's configuration; the name of the data directory follows, without a terminator.
struct ConfigHeader {
  uint64_t split_seed;
};

int32_t refuse(feedlane_error* err, int32_t status, const std::string& why) {
  std::snprintf(err->text, sizeof err->text, "%s", why.c_str());
  return status;
}

// The callbacks are called by C code: noexcept turns an exception that would cross it into an end of this process.

int32_t open_digits(void* /*user_data*/, const feedlane_worker_info* info, void** self, feedlane_error* err) noexcept {
  if (info->config_bytes <= sizeof(ConfigHeader)) return refuse(err, FEEDLANE_E_INIT, "no data directory was given");
  ConfigHeader header;
  std::memcpy(&header, info->config, sizeof header);
  const char* name = static_cast<const char*>(info->config) + sizeof header;
  const std::string directory(name, static_cast<size_t>(info->config_bytes) - sizeof header);

  auto digits = std::make_unique<Digits>();
  std::string why;
  if (!digits->open(directory, header.split_seed, why)) return refuse(err, FEEDLANE_E_INIT, why);
  *self = digits.release();
  return FEEDLANE_OK;
}

int32_t get_digit(void* self, const feedlane_row* row, feedlane_error* err) noexcept {
  if (row->index < 0 || row->index >= static_cast<int64_t>(train_count)) {
    return refuse(err, FEEDLANE_E_SAMPLE, "there is no digit " + std::to_string(row->index));
  }
  static_cast<const Digits*>(self)->decode_train(static_cast<size_t>(row->index), row->seed,
                                                 static_cast<float*>(row->fields[image_field]),
                                                 static_cast<int64_t*>(row->fields[label_field]));
  return FEEDLANE_OK;
}

void close_digits(void* self) noexcept { delete static_cast<Digits*>(self); }

}  // namespace

std::array<feedlane_field, 2> digits_fields() {
  auto image = initialised<feedlane_field>();
  image.name = "image";
  image.dtype = float32;
  image.ndim = 2;
  image.shape[0] = side;
  image.shape[1] = side;

  auto label = initialised<feedlane_field>();
  label.name = "label";
  label.dtype = int64;
  return {image, label};
}

std::string digits_worker_config(const std::string& directory, uint64_t split_seed) {
  const ConfigHeader header{split_seed};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes + directory;
}

feedlane_dataset digits_dataset() {
  auto dataset = initialised<feedlane_dataset>();
  dataset.open = open_digits;
  dataset.get = get_digit;
  dataset.close = close_digits;
  return dataset;
}

}  // namespace digits
