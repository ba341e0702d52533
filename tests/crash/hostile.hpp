// SPDX-License-Identifier: Apache-2.0
// What a worker that has gone wild can reach: all that its process holds of its loader, found as a stray pointer or a wrong
// number would find it, without asking the library.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ring/spsc.hpp"
#include "shm/layout.hpp"
#include "shm/plan.hpp"
#include "tensors/slot.hpp"

namespace feedlane::test {

// A result that a worker sends, and what it describes: a whole batch, or a failure; and what is changed of it.
struct Lie {
  const char* what;
  void (*edit)(shm::ResultMessage&, tensors::Slot&);
  bool is_failure;
};

// Of the process that asks. In a forked worker the trainer's mapping of data may be found: it is the same memory.
class Inside {
 public:
  // `not_its`: descriptors that were there before the loader.
  explicit Inside(std::uint32_t worker, const std::vector<int>& not_its = {}) : worker_(worker) {
    find_mappings();
    find_descriptors(not_its);
    if (control == nullptr || data == nullptr) ::_exit(99);
    Error error;
    if (shm::make_plan(*reinterpret_cast<const shm::Geometry*>(control + sizeof(shm::SegmentHeader)), plan, error) !=
        FEEDLANE_OK)
      ::_exit(98);
  }

  [[nodiscard]] shm::WorkerRow& row() const {
    return reinterpret_cast<shm::WorkerRow*>(data + plan.worker_rows)[worker_];
  }
  [[nodiscard]] ring::Cells lane() const {
    return {data + plan.result_lanes + worker_ * plan.ring_bytes, 64, plan.geometry.ring_capacity};
  }
  // Where the trainer will read next.
  [[nodiscard]] std::uint64_t lane_position() const {
    return reinterpret_cast<const shm::TrainerRow*>(control + plan.trainer_rows)[worker_].result_position.load(
        std::memory_order_relaxed);
  }
  [[nodiscard]] std::byte* slot_header(std::uint32_t slot) const {
    return data + plan.slot_headers + slot * sizeof(shm::SlotHeader);
  }
  [[nodiscard]] std::byte* payload(std::uint32_t slot) const { return data + plan.payload_of(slot); }

  // Both eventfds, whoever sleeps; a worker that waits itself is none of our business here.
  void ring_all() const {
    const std::uint64_t one = 1;
    for (const int event : events) (void)!::write(event, &one, sizeof one);
  }

  // The result of this task, which it has in hand. Results that were committed before are read first: their cells are not reused.
  void send(const feedlane_task& task, const Lie& lie, std::uint32_t rows) const {
    const feedlane_tensor& tensor = task.tensors[0];
    tensors::Slot slot;
    slot.number = static_cast<std::uint32_t>((tensor.offset - plan.payload) / plan.slot_stride);
    slot.header = reinterpret_cast<shm::SlotHeader*>(slot_header(slot.number));
    slot.records = reinterpret_cast<shm::SampleRecord*>(data + plan.records + slot.number * plan.record_bytes);
    slot.payload_bytes = plan.geometry.slot_bytes;
    slot.payload_offset = plan.payload_of(slot.number);
    slot.payload = data + slot.payload_offset;
    if (lie.is_failure) tensors::write_failure(slot, task.id, 0, false, "damaged", {}, 0);
    else tensors::write_batch(slot, task.id, {tensor}, {});
    shm::ResultMessage result{};
    result.id = task.id;
    result.slot = slot.number;
    result.status = lie.is_failure ? FEEDLANE_E_SAMPLE : FEEDLANE_OK;
    result.rows = rows;
    lie.edit(result, slot);
    std::uint64_t at = lane_position();
    for (; lane().sequence(at).load(std::memory_order_acquire) == at + 1; at = lane_position()) ::usleep(100);
    std::memcpy(lane().message(at), &result, sizeof result);
    lane().sequence(at).store(at + 1, std::memory_order_release);
    ring_all();
  }

  const std::byte* control = nullptr;
  std::byte* data = nullptr;
  shm::Plan plan;
  int data_fd = -1;
  int control_fd = -1;
  int socket = -1;
  std::vector<int> events;

 private:
  void find_mappings() {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    char line[512];
    while (maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
      auto* const start = reinterpret_cast<std::byte*>(std::strtoull(line, nullptr, 16));
      if (std::strstr(line, "memfd:feedlane-control") != nullptr) control = start;
      if (std::strstr(line, "memfd:feedlane-data") != nullptr && std::strstr(line, " rw") != nullptr) data = start;
    }
    if (maps != nullptr) (void)std::fclose(maps);
  }

  void find_descriptors(const std::vector<int>& not_its) {
    DIR* folder = ::opendir("/proc/self/fd");
    if (folder == nullptr) return;
    while (const dirent* entry = ::readdir(folder)) {
      const int fd = std::atoi(entry->d_name);
      if (fd < 3 || fd == ::dirfd(folder) || std::find(not_its.begin(), not_its.end(), fd) != not_its.end()) continue;
      char target[256] = {};
      (void)!::readlinkat(::dirfd(folder), entry->d_name, target, sizeof target - 1);
      const std::string name(target);
      if (name.find("memfd:feedlane-data") != std::string::npos) data_fd = fd;
      if (name.find("memfd:feedlane-control") != std::string::npos) control_fd = fd;
      if (name.find("[eventfd]") != std::string::npos) events.push_back(fd);
      int type = 0;
      socklen_t size = sizeof type;
      if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) socket = fd;
    }
    (void)::closedir(folder);
  }

  std::uint32_t worker_;
};

// One message with descriptors, as a worker may send it.
inline bool send_over(int socket, const void* bytes, std::size_t count, const std::vector<int>& fds) {
  iovec part{const_cast<void*>(bytes), count};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

// The events and the sockets of a peer that this process has.
inline void find_descriptors(std::vector<int>& events, std::vector<int>& sockets) {
  for (int fd = 3; fd < 100; fd++) {
    char target[64] = {};
    (void)!::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
    if (std::strstr(target, "[eventfd]") != nullptr) events.push_back(fd);
    int type = 0;
    socklen_t size = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) sockets.push_back(fd);
  }
}

// Writes to memory that AddressSanitizer would rightly report.
__attribute__((no_sanitize("address", "thread"))) inline void spoil(std::byte* at, std::size_t bytes,
                                                                    std::uint64_t& seed, int pattern = -1) {
  for (std::size_t i = 0; i < bytes; i++) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    static_cast<volatile std::byte*>(at)[i] =
        static_cast<std::byte>(pattern >= 0 ? pattern : static_cast<int>(seed >> 56));
  }
}

}  // namespace feedlane::test
