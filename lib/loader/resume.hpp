// SPDX-License-Identifier: Apache-2.0
// Going on from a saved state.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "checkpoint/state.hpp"
#include "loader/config.hpp"
#include "loader/order.hpp"

namespace feedlane::loader {

// E_ARGUMENT: a number of the configuration is not that of the state, with the rule that wants it to be.
Status refuse_difference(const char* argument, Number found, Number needed, const char* rule, Error& error);
// Reads config.state, if there is one, checks it and hands it to the order. The configuration takes the state's seed.
Status read_resume(Config& config, Order& order, Error& error);
// The bytes of the largest state that a shard saved.
std::uint64_t largest_shard_state(const checkpoint::Progress& progress);

}  // namespace feedlane::loader
