// SPDX-License-Identifier: Apache-2.0
// Transparent huge pages of shared memory, which few systems give and an administrator may allow
// (transparent_hugepage/shmem_enabled; the kernel's admin-guide/mm/transhuge).
#pragma once

#include <cstdint>

#include "os/limits.hpp"

namespace feedlane::os {

// Of a huge page, where mappings of shared memory get some if they ask (MADV_HUGEPAGE) and can be filled with them at once;
// else 0.
std::uint64_t huge_page_bytes(const SystemFiles& files);

// Asks for huge pages for a mapping of shared memory, and fills it with as many as fit whole, by several threads that end
// before this returns: the reservation that follows finds them there. Where the system has none left pages are small.
// `page`: of a huge page.
void fill_with_huge_pages(void* mapping, std::uint64_t bytes, std::uint64_t page, const SystemFiles& files);

// What this process has mapped by huge pages of the mapping that begins there, in bytes. Walks through all mappings.
std::uint64_t huge_bytes(const void* mapping, const SystemFiles& files);

}  // namespace feedlane::os
