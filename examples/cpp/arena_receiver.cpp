// SPDX-License-Identifier: Apache-2.0
// Owns an arena and receives frames, which programs in any language send. Usage: arena_receiver PATH FRAMES
#include <feedlane/feedlane.hpp>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace {

void receive(const char* path, int frames) {
  feedlane::Arena arena({.bytes = 1 << 20, .path = path});
  std::puts("listening");
  std::fflush(stdout);
  for (int received = 0; received < frames;) {
    const auto batch = arena.receive();
    if (!batch) continue;  // a signal
    received++;
    const feedlane::Tensor frame = (*batch)["frame"];
    std::printf("%" PRId64 " x %" PRId64 ", row 1 begins with %g\n", frame.shape()[0], frame.shape()[1],
                static_cast<double>(frame.row<float>(1)[0]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) return std::fputs("usage: arena_receiver PATH FRAMES\n", stderr), 2;
    receive(argv[1], std::atoi(argv[2]));
    return 0;
  } catch (const feedlane::Error& error) {
    std::fprintf(stderr, "arena_receiver: %s\n", error.what());
    return 1;
  }
}
