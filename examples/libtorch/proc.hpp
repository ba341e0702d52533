// SPDX-License-Identifier: Apache-2.0
// What /proc says of this program and of its workers.
#pragma once

#include <feedlane/loader.hpp>

#include <chrono>
#include <string>

/// The program `name` in the folder of this program. Throws if the folder can't be read.
std::string program_beside(const std::string& name);

/// What is mapped at `address` in this process: the name of a file or of shared memory; empty: neither.
std::string mapping_of(const void* address);

/// Prints a line for each worker process that is ready: milliseconds from `began`, the call that began the first epoch, until
/// it accepted tasks ("-" for a replacement), and its resident, proportional and private memory in MiB, from /proc.
void print_worker_costs(const feedlane::Loader& loader, std::chrono::steady_clock::time_point began);
