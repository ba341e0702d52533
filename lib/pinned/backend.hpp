// SPDX-License-Identifier: Apache-2.0
// How memory is registered with a device: none, mlock, CUDA, or a table of the user's. All are one table of functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/error.hpp"
#include "feedlane/pool.h"

namespace feedlane::pinned {

// Whom to tell that a stream has come so far, or failed: notify(cookie, status).
struct Passed {
  void (*notify)(void* cookie, std::int32_t status);
  void* cookie;
};

// Any thread, several at once. Closed by the destructor.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Whole pages.
  virtual Status register_memory(void* address, std::uint64_t bytes, Error& error) = 0;
  virtual Status unregister_memory(void* address, std::uint64_t bytes, Error& error) = 0;
  virtual Status copy(void* device_memory, const void* host, std::uint64_t bytes, void* stream, Error& error) = 0;
  // Tells `passed` once, on any thread, also before it returns; not at all if it fails. `passed` lives until then. Takes no
  // memory.
  virtual Status when_passed(void* stream, const Passed& passed, Error& error) = 0;
  [[nodiscard]] virtual bool has_when_passed() const { return true; }
  // Whether registered memory is what DLPack calls kDLCUDAHost.
  [[nodiscard]] virtual bool is_cuda() const { return false; }
};

// The device is this process's memory, streams are always done: what runs where there is no device.
std::unique_ptr<Backend> make_none();
// The same, but registered pages stay resident. E_LIMIT says what RLIMIT_MEMLOCK leaves.
std::unique_ptr<Backend> make_mlock();
// The user's table. E_ARGUMENT.
Status make_custom(const feedlane_backend* table, std::unique_ptr<Backend>& out, Error& error);
// By the driver's library, loaded here. E_UNSUPPORTED, E_DEVICE.
Status make_cuda(std::int32_t device, std::unique_ptr<Backend>& out, Error& error);

}  // namespace feedlane::pinned
