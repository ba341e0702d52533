// SPDX-License-Identifier: Apache-2.0
// The contents of an entry: its tensors and its metadata, described at its beginning. The member that puts the entry
// writes the description; every reader checks it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "feedlane/arena.h"
#include "feedlane/tensor.h"
#include "shm/arena_layout.hpp"

namespace feedlane::arena {

// Where the parts of an entry lie, as its maker plans them.
struct EntryPlan {
  std::vector<feedlane_tensor>
      tensors;  // `name` points to the caller's text, `offset` counts from the entry's beginning
  std::uint64_t metadata_offset = 0;
  std::uint64_t metadata_bytes = 0;
  std::uint64_t bytes = 0;  // of the entry
};

// E_ARGUMENT, E_ABI: a field is invalid.
Status plan_entry(const feedlane_put& put, EntryPlan& out, Error& error);
// Writes the description, and the metadata, to the entry's memory.
void write_contents(const EntryPlan& plan, const void* metadata, std::byte* entry);

// A reader's private copy of a description, because a faulty maker may change it at any time.
struct Described {
  std::vector<feedlane_tensor> tensors;
  std::vector<std::array<char, shm::name_bytes>> names;
  const void* metadata = nullptr;
  std::uint64_t metadata_bytes = 0;
};
// Reads each word of the description once, and checks that all parts lie in the entry. E_CORRUPT names the flaw.
// `offset`: of the entry in its segment. May throw bad_alloc.
Status read_contents(std::span<std::byte> entry, std::uint64_t offset, Described& out, Error& error);

}  // namespace feedlane::arena
