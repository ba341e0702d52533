// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "handle.hpp"
#include "loader/sampler.hpp"

struct feedlane_sampler : feedlane::capi::Handle {
  std::unique_ptr<feedlane::loader::Sampler> sampler;

  void wake() {}
};
