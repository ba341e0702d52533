// SPDX-License-Identifier: Apache-2.0
// The devices that a program tests. Each program has a list of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"

namespace feedlane::test {

// The devices that this program tests, each by name. Empty: there is none here, and every case is vacuous; main says so.
std::vector<std::pair<std::string, std::function<std::unique_ptr<Device>()>>> devices();

}  // namespace feedlane::test
