// SPDX-License-Identifier: Apache-2.0
// The backends none and mlock, user-defined backends, and the choice of a backend.
#include "pinned/backend.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstring>

#include "base/versioned.hpp"
#include "os/limits.hpp"

namespace feedlane::pinned {
namespace {

class None : public Backend {
 public:
  Status register_memory(void*, std::uint64_t, Access, Error&) override { return FEEDLANE_OK; }
  Status unregister_memory(void*, std::uint64_t, Error&) override { return FEEDLANE_OK; }
  Status copy(void* device_memory, const void* host, std::uint64_t bytes, void*, Error&) override {
    std::memcpy(device_memory, host, bytes);
    return FEEDLANE_OK;
  }
  Status when_passed(void*, const Passed& passed, Error&) override {
    passed.notify(passed.cookie, FEEDLANE_OK);
    return FEEDLANE_OK;
  }
};

class Mlock final : public None {
 public:
  Status register_memory(void* address, std::uint64_t bytes, Access, Error& error) override {
    const std::uint64_t locked = os::locked_bytes(os::SystemFiles{});
    if (::mlock(address, bytes) == 0) return FEEDLANE_OK;
    const int reason = errno;
    // The kernel checks the limit before it locks any page: ENOMEM, or EPERM if the limit is 0.
    rlimit limit{};
    const bool is_known = (reason == ENOMEM || reason == EPERM) && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
    const std::uint64_t left = limit.rlim_cur > locked ? limit.rlim_cur - locked : 0;
    if (!is_known || left >= bytes || os::locked_bytes(os::SystemFiles{}) > locked) {
      // Pages before one that isn't mapped (ENOMEM) or couldn't be read in (EAGAIN) are locked now. Locks don't nest:
      // this also unlocks pages that the user had locked before, as unregistering does.
      (void)::munlock(address, bytes);
      return error.os(reason, "mlock of {} bytes", bytes);
    }
    (void)error.refuse(FEEDLANE_E_LIMIT, "RLIMIT_MEMLOCK", left, bytes,
                       "cannot lock {} bytes: RLIMIT_MEMLOCK is {} and leaves {} (ulimit -l)", bytes, limit.rlim_cur,
                       left);
    error.os_errno = reason;
    return error.code;
  }
  Status unregister_memory(void* address, std::uint64_t bytes, Error& error) override {
    return ::munlock(address, bytes) == 0 ? FEEDLANE_OK : error.os(errno, "munlock");
  }
};

class Custom final : public Backend {
 public:
  explicit Custom(const feedlane_backend& table) : table_(table) {}

  Status register_memory(void* address, std::uint64_t bytes, Access access, Error& error) override {
    const bool is_read_only = access == Access::read_only;
    const feedlane_register_memory_fn f = is_read_only ? table_.register_read_only : table_.register_memory;
    if (f == nullptr) return error.fail(FEEDLANE_E_UNSUPPORTED, "the backend has no callback `register_read_only`");
    return call(is_read_only ? "register_read_only" : "register_memory", error,
                [&](feedlane_error* e) { return f(table_.user_data, address, bytes, e); });
  }
  Status unregister_memory(void* address, std::uint64_t bytes, Error& error) override {
    return call("unregister_memory", error,
                [&](feedlane_error* e) { return table_.unregister_memory(table_.user_data, address, bytes, e); });
  }
  Status copy(void* device_memory, const void* host, std::uint64_t bytes, void* stream, Error& error) override {
    if (table_.copy == nullptr) return error.fail(FEEDLANE_E_UNSUPPORTED, "the backend has no callback `copy`");
    return call("copy", error, [&](feedlane_error* e) {
      return table_.copy(table_.user_data, device_memory, host, bytes, stream, e);
    });
  }
  Status when_passed(void* stream, const Passed& passed, Error& error) override {
    if (table_.when_passed == nullptr)
      return error.fail(FEEDLANE_E_UNSUPPORTED, "the backend has no callback `when_passed`");
    return call("when_passed", error, [&](feedlane_error* e) {
      return table_.when_passed(table_.user_data, stream, passed.notify, passed.cookie, e);
    });
  }
  [[nodiscard]] bool has_when_passed() const override { return table_.when_passed != nullptr; }

 private:
  template <class F>
  static Status call(const char* name, Error& error, F&& f) {
    feedlane_error report;
    feedlane_init(&report, sizeof report);
    const Status s = f(&report);
    return s == FEEDLANE_OK ? s : from_callback(name, s, report, error);
  }

  feedlane_backend table_;
};

Status check_no_device(std::int32_t device, Error& error) {
  return device == 0 ? FEEDLANE_OK : refuse(error, "config.device", device, 0, "this backend has no devices");
}

}  // namespace

Status make_none(std::int32_t device, std::unique_ptr<Backend>& out, Error& error) {
  const Status s = check_no_device(device, error);
  if (s == FEEDLANE_OK) out = std::make_unique<None>();
  return s;
}

Status make_mlock(std::int32_t device, std::unique_ptr<Backend>& out, Error& error) {
  const Status s = check_no_device(device, error);
  if (s == FEEDLANE_OK) out = std::make_unique<Mlock>();
  return s;
}

Status make_named(std::string_view name, std::int32_t device, std::unique_ptr<Backend>& out, Error& error) {
#define FEEDLANE_PINNED_MAKE(known) \
  if (name == #known) return make_##known(device, out, error);
  FEEDLANE_PINNED_BACKENDS(FEEDLANE_PINNED_MAKE)
#undef FEEDLANE_PINNED_MAKE
#define FEEDLANE_PINNED_NAME(known) #known ", "
  return error.refuse(FEEDLANE_E_UNSUPPORTED, "config.backend", 0, 0,
                      "config.backend is \"{}\": must be " FEEDLANE_PINNED_BACKENDS(
                          FEEDLANE_PINNED_NAME) "or set config.custom instead",
                      name);
#undef FEEDLANE_PINNED_NAME
}

Status make_custom(const feedlane_backend* table, std::unique_ptr<Backend>& out, Error& error) {
  feedlane_backend t;
  if (const Status s = read_versioned(table, t, "config.custom", error); s != FEEDLANE_OK) return s;
  if (t.register_memory == nullptr)
    return refuse_pointer(error, "config.custom.register_memory", false, "it is required");
  if (t.unregister_memory == nullptr)
    return refuse_pointer(error, "config.custom.unregister_memory", false, "it is required");
  out = std::make_unique<Custom>(t);
  return FEEDLANE_OK;
}

}  // namespace feedlane::pinned
