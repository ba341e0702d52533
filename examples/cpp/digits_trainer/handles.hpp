// SPDX-License-Identifier: Apache-2.0
// Feedlane's handles, errors and structs as C++ likes them: destroyed on leaving the scope, initialised on entering it.
#pragma once

#include <feedlane.h>

#include <memory>

namespace digits {

struct Destroy {
  void operator()(feedlane_sampler* sampler) const { feedlane_sampler_destroy(&sampler); }
  void operator()(feedlane_loader* loader) const { feedlane_loader_destroy(&loader); }
};

using Sampler = std::unique_ptr<feedlane_sampler, Destroy>;
using Loader = std::unique_ptr<feedlane_loader, Destroy>;

/// Any struct of feedlane.h that begins with `size`: zero means default, `size` is set.
template <class Struct>
Struct initialised() {
  Struct object;
  feedlane_init(&object, sizeof object);
  return object;
}

/// Prints all that `error` knows as one line on stderr; returns `status`, so that callers can `return complain(...)`.
int32_t complain(const char* what, int32_t status, const feedlane_error& error);

}  // namespace digits
