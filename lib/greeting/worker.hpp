// SPDX-License-Identifier: Apache-2.0
// Messages between trainer and worker on their socket, before the rings are used and at the end. Each is one datagram:
//
//   trainer -> worker: Welcome, with the descriptors of WelcomeFd; sent before the worker starts
//   worker -> trainer: Attached; with the worker's own pidfd, if the trainer asks for it
//   worker -> trainer: Ready, when the data set is open or can't be opened; instead of Attached, why it can't attach
//   worker -> trainer: Leaving, once it has detached by itself and unmapped everything; its process may continue to run
#pragma once

#include <cstdint>

#include "greeting/messages.hpp"

namespace feedlane::worker {

// Environment variable of a started worker: the number of the socket's descriptor.
constexpr const char* fd_variable = "FEEDLANE_WORKER_FD";

constexpr std::uint64_t welcome_magic = 0x33454d4f434c4557;   // "WELCOME3"
constexpr std::uint64_t attached_magic = 0x3144454843415441;  // "ATACHED1"
constexpr std::uint64_t ready_magic = 0x3130305944414552;     // "READY001"

constexpr std::uint64_t leaving_magic = 0x31474e495641454c;  // "LEAVING1"

enum WelcomeFd : std::uint32_t {
  welcome_control,        // control segment
  welcome_data,           // data segment
  welcome_worker_event,   // rings the worker
  welcome_trainer_event,  // rings the trainer; one per worker, so that no worker can drain another one's
  welcome_lifeline,       // read end
  welcome_trainer,        // pidfd of the trainer
  welcome_fds
};

struct Welcome {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::uint32_t worker;
  std::uint32_t generation;
  std::uint64_t task_start;    // position of the task ring's consumer
  std::uint64_t result_start;  // position of the result lane's producer
  std::uint32_t tied;          // 1: the worker ties itself to the lifeline
  std::uint32_t wants_pidfd;   // 1: with Attached; 0: the trainer gets one from the kernel, and refuses descriptors
  std::int64_t epoch;          // the epoch begun last
};
static_assert(sizeof(Welcome) == 56);

struct Attached {
  std::uint64_t magic;
  std::uint64_t layout_hash;
};
static_assert(sizeof(Attached) == 16);

struct Ready {
  std::uint64_t magic;
  std::int32_t status;
  std::int32_t reserved;
  char text[shm::text_bytes];
};
static_assert(sizeof(Ready) == 400);

struct Leaving {
  std::uint64_t magic;
};
static_assert(sizeof(Leaving) == sizeof(greeting::Word));

}  // namespace feedlane::worker
