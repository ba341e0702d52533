// SPDX-License-Identifier: Apache-2.0
// Resuming from a saved state.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "checkpoint/state.hpp"
#include "loader/config.hpp"
#include "loader/order.hpp"

namespace feedlane::loader {

// Returns E_ARGUMENT because a number of the configuration differs from the state's. `rule` says why they must be
// equal.
Status refuse_difference(const char* argument, Number found, Number needed, const char* rule, Error& error);
// Reads config.state, if there is one, checks it and hands it to the order. The configuration takes the state's seed.
Status read_resume(Config& config, Order& order, Error& error);
// The size in bytes of the largest state that a shard saved.
std::uint64_t largest_shard_state(const checkpoint::Progress& progress);

}  // namespace feedlane::loader
