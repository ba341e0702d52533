// SPDX-License-Identifier: Apache-2.0
// Transparent huge pages for shared memory. Few systems enable them. An administrator can do so in
// transparent_hugepage/shmem_enabled; see admin-guide/mm/transhuge in the kernel's documentation.
#pragma once

#include <cstdint>

#include "os/limits.hpp"

namespace feedlane::os {

// Size of a huge page if mappings of shared memory get huge pages on request (MADV_HUGEPAGE) and can be populated; else
// 0.
std::uint64_t huge_page_bytes(const SystemFiles& files);

// Populates a mapping of shared memory with as many huge pages as fit, in several threads that end before this returns.
// A reservation must follow: it adds small pages where the system had no huge ones. `page`: size of a huge page.
void fill_with_huge_pages(void* mapping, std::uint64_t bytes, std::uint64_t page, const SystemFiles& files);

// Bytes that this process has mapped with huge pages, in the mapping that begins at `mapping`. Reads all mappings from
// /proc.
std::uint64_t huge_bytes(const void* mapping, const SystemFiles& files);

}  // namespace feedlane::os
