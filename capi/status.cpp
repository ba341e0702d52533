// SPDX-License-Identifier: Apache-2.0
// feedlane/status.h: names of statuses, the version, and how an error reaches the caller.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "feedlane.h"
#include "handle.hpp"
#include "version.h"

namespace feedlane::capi {

void tell(feedlane_error* err, const Error& error) noexcept {
  if (err == nullptr || err->size < offsetof(feedlane_error, os_errno) || err->size > std::size_t{1} << 20) return;
  feedlane_error e = to_c(error);
  if (e.text[0] == '\0') copy_text(e.text, sizeof e.text, feedlane_status_text(error.code));
  if (err->size >= sizeof e) {
    e.detail = err->detail;
    e.detail_cap = err->detail_cap;
    if (e.detail != nullptr)
      std::memcpy(e.detail, error.detail.data(), std::min<std::size_t>(error.detail.size(), e.detail_cap));
  }
  write_versioned(err, e);
}

}  // namespace feedlane::capi

extern "C" {

uint32_t feedlane_abi_version(void) { return FEEDLANE_ABI; }

const char* feedlane_version(void) { return FEEDLANE_VERSION_TEXT; }

const char* feedlane_status_name(int32_t status) {
  switch (status) {
#define NAME(name, number, text) \
  case number: return #name;
    FEEDLANE_STATUS_TABLE(NAME)
#undef NAME
    default: return "UNKNOWN";
  }
}

const char* feedlane_status_text(int32_t status) {
  switch (status) {
#define TEXT(name, number, text) \
  case number: return text;
    FEEDLANE_STATUS_TABLE(TEXT)
#undef TEXT
    default: return "unknown status";
  }
}

}  // extern "C"
