// SPDX-License-Identifier: Apache-2.0
// The digits as Feedlane sees them: the fields of a sample, what a worker must be told, and the callbacks that it runs.
// The same table serves spawned workers, external ones, and the trainer itself when it has none.
#pragma once

#include <feedlane.h>

#include <array>
#include <cstdint>
#include <string>

namespace digits {

/// The field numbers, in the order of digits_fields().
constexpr size_t image_field = 0;
constexpr size_t label_field = 1;

/// "image": float32 [8, 8]; "label": int64, a scalar.
std::array<feedlane_field, 2> digits_fields();

/// All that a worker needs to know, as the bytes for feedlane_loader_config.worker_config. A worker is another process:
/// it gets values, never pointers.
std::string digits_worker_config(const std::string& directory, uint64_t split_seed);

/// Needs no user_data: `open` finds everything in the worker's configuration.
feedlane_dataset digits_dataset();

}  // namespace digits
