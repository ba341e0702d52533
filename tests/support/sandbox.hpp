// SPDX-License-Identifier: Apache-2.0
// System calls refused from here on, as containers refuse them: for this process, for good. False where that can't be had.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace feedlane::test {

// The kernel does `named` with the system calls of these numbers, `others` with all others: SECCOMP_RET_...
inline bool filter_system_calls(std::span<const long> numbers, std::uint32_t named, std::uint32_t others) {
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long number : numbers) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, named));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, others));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

inline bool filter_system_calls(std::initializer_list<long> numbers, std::uint32_t named, std::uint32_t others) {
  return filter_system_calls(std::span<const long>(numbers.begin(), numbers.size()), named, others);
}

inline bool refuse_system_call(long number) {
  return filter_system_calls({number}, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW);
}

}  // namespace feedlane::test
