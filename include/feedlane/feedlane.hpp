// SPDX-License-Identifier: Apache-2.0
/**
 * @file feedlane.hpp
 * The C++20 interface: header-only RAII classes over feedlane.h. The C interface is the only binary interface.
 *
 *     auto order = feedlane::Sampler::random(60000, seed);
 *     feedlane::Loader loader({.sampler = &order, .fields = {feedlane::field<float>("image", {28, 28})},
 *                              .batch_size = 64, .workers = 4, .keep_workers = true});
 *     for (int epoch = 0; epoch < 10; epoch++)
 *       for (feedlane::Batch& batch : loader) train(batch["image"].as<float>());
 */
#pragma once

#include "arena.hpp"
#include "await.hpp"
#include "callback.hpp"
#include "custom_sampler.hpp"
#include "dataset.hpp"
#include "error.hpp"
#include "language.hpp"
#include "loader.hpp"
#include "loader_options.hpp"
#include "monitor.hpp"
#include "pool.hpp"
#include "progress.hpp"
#include "ring.hpp"
#include "sampler.hpp"
#include "share.hpp"
#include "state.hpp"
#include "task.hpp"
#include "tensor.hpp"
#include "worker.hpp"
