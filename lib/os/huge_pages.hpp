// SPDX-License-Identifier: Apache-2.0
// Transparent huge pages for shared memory. Few systems enable them; an administrator can (transparent_hugepage/shmem_enabled,
// see the kernel's admin-guide/mm/transhuge).
#pragma once

#include <cstdint>

#include "os/limits.hpp"

namespace feedlane::os {

// Size of a huge page if mappings of shared memory get some on request (MADV_HUGEPAGE) and can be populated at once; else 0.
std::uint64_t huge_page_bytes(const SystemFiles& files);

// Populates a mapping of shared memory with as many huge pages as fit, by several threads that end before this returns. A
// reservation must follow: it fills what the system had no huge pages for with small ones. `page`: size of a huge page.
void fill_with_huge_pages(void* mapping, std::uint64_t bytes, std::uint64_t page, const SystemFiles& files);

// Bytes of the mapping that begins at `mapping` which this process has mapped by huge pages. Reads all mappings from /proc.
std::uint64_t huge_bytes(const void* mapping, const SystemFiles& files);

}  // namespace feedlane::os
