// SPDX-License-Identifier: Apache-2.0
// Backends register memory with a device and copy it there: those of the list below, or a user-defined table.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/error.hpp"
#include "feedlane/pool.h"

namespace feedlane::pinned {

// Called when a stream has reached a point, or has failed: notify(cookie, status).
struct Passed {
  void (*notify)(void* cookie, std::int32_t status);
  void* cookie;
};

// What the process may do with memory that it registers.
enum class Access { read_write, read_only };

// Thread safety: any thread, several at once. The destructor closes the backend.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // `address` and `bytes` are multiples of the page size.
  virtual Status register_memory(void* address, std::uint64_t bytes, Access access, Error& error) = 0;
  virtual Status unregister_memory(void* address, std::uint64_t bytes, Error& error) = 0;
  virtual Status copy(void* device_memory, const void* host, std::uint64_t bytes, void* stream, Error& error) = 0;
  // Calls `passed` once when the stream has reached this point, on any thread, possibly before this function returns.
  // Does not call it if this function fails. `passed` must stay valid until the call. Allocates nothing.
  virtual Status when_passed(void* stream, const Passed& passed, Error& error) = 0;
  [[nodiscard]] virtual bool has_when_passed() const { return true; }
  // DLPack's device type for registered memory; 0: it has none but kDLCPU.
  [[nodiscard]] virtual std::int32_t dlpack_device() const { return 0; }
};

// X(name): the backends that a program chooses by name.
//  - none: for machines without a device. Device memory is memory of this process, and streams are always complete.
//  - mlock: like none, but registered pages stay resident. E_LIMIT reports how much RLIMIT_MEMLOCK still allows.
//  - cuda: loads CUDA's driver.
#define FEEDLANE_PINNED_BACKENDS(X) X(none) X(mlock) X(cuda)

// `device`: ordinal of the device. E_UNSUPPORTED, E_DEVICE: there is no driver, or it failed. E_ARGUMENT: there is no
// such device; a backend without devices has only device 0.
#define FEEDLANE_PINNED_FACTORY(name) \
  Status make_##name(std::int32_t device, std::unique_ptr<Backend>& out, Error& error);
FEEDLANE_PINNED_BACKENDS(FEEDLANE_PINNED_FACTORY)
#undef FEEDLANE_PINNED_FACTORY

// The backend of this name. E_UNSUPPORTED: there is none, or see its factory.
Status make_named(std::string_view name, std::int32_t device, std::unique_ptr<Backend>& out, Error& error);
// A user-defined table. E_ARGUMENT, E_ABI.
Status make_custom(const feedlane_backend* table, std::unique_ptr<Backend>& out, Error& error);

}  // namespace feedlane::pinned
