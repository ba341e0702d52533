// SPDX-License-Identifier: Apache-2.0
// Sampler handles, for the files of the C interface that use them.
#pragma once

#include "handle.hpp"
#include "sampler/sampler.hpp"

struct feedlane_sampler : feedlane::capi::Handle {
  static const char* noun() { return "sampler"; }

  std::unique_ptr<feedlane::sampler::Sampler> sampler;

  void wake() {}
};
