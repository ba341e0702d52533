// SPDX-License-Identifier: Apache-2.0
// What is measured of a channel: there and back, and one way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "measure.hpp"

namespace bench {

inline std::uint64_t number(std::int64_t count) { return static_cast<std::uint64_t>(count); }

// ns there and back, and the processor time of both sides. Each side waits as its channel waits.
template <class C>
Measured round_trip(std::uint64_t count) {
  using M = typename C::Message;
  C there, back;
  CpuOfAll cpu;
  std::optional<Child> echo;
  echo.emplace(1, [&] {
    M m{};
    there.open_receiver();
    there.receive(m);
    back.open_sender();
    back.send(m);
    for (std::uint64_t i = 0; i < count + count / 8; i++) {
      if (i == count / 8) cpu.begin();
      there.receive(m);
      m.words[6]++;
      back.send(m);
    }
    cpu.end();
    back.close();
    there.close();
  });
  M m{};
  there.open_sender();
  there.send(m);
  back.open_receiver();
  back.receive(m);
  std::int64_t began = 0;
  for (std::uint64_t i = 0; i < count + count / 8; i++) {
    if (i == count / 8) {
      began = now_ns();
      cpu.begin();
    }
    m.words[0] = i;
    there.send(m);
    back.receive(m);
    if (m.words[0] != i) fail("a message came back with other contents");
  }
  const auto ns = static_cast<double>(now_ns() - began);
  cpu.end();
  echo.reset();
  return {ns / static_cast<double>(count), cpu.per(count)};
}

// Million messages a second, from the first received to the last, and the processor time of all sides. Producers begin together: one that came when the others
// had left would be measured alone, and their leaving is the end of what a ring's receiver waits for.
template <class C>
Measured one_way(C& channel, std::uint64_t producers, std::uint64_t count) {
  using M = typename C::Message;
  constexpr std::size_t last = sizeof(M) / 8 - 1;
  std::vector<std::unique_ptr<Child>> children;
  const std::size_t others = std::max<std::size_t>(processors().size() - 1, 1);
  Gate gate;
  CpuOfAll cpu;
  for (std::uint64_t p = 0; p < producers; p++) {
    children.push_back(std::make_unique<Child>(1 + p % others, [&] {
      channel.open_sender();
      gate.pass(producers);
      cpu.begin();
      M m{};
      m.words[1] = p;
      for (std::uint64_t i = 0; i < count; i++) {
        m.words[0] = m.words[last] = i;
        channel.send(m);
      }
      cpu.end();
      channel.close();
    }));
  }
  channel.open_receiver();
  std::vector<std::uint64_t> expected(producers);
  M m{};
  channel.receive(m);
  expected.at(m.words[1])++;
  const std::int64_t began = now_ns();
  cpu.begin();
  for (std::uint64_t i = 1; i < count * producers; i++) {
    channel.receive(m);
    if (m.words[0] != expected[m.words[1]]++ || m.words[last] != m.words[0]) fail("a message is out of order or torn");
  }
  const auto ns = static_cast<double>(now_ns() - began);
  cpu.end();
  if constexpr (requires { channel.give_back(); }) channel.give_back();
  children.clear();
  channel.close();
  return {static_cast<double>(count * producers - 1) * 1e3 / ns, cpu.per(count * producers)};
}
template <class C>
Measured one_way(std::uint64_t producers, std::uint64_t count) {
  C channel;
  return one_way(channel, producers, count);
}
// By queues that move so many messages at once: R is Ring or BoostLanes.
template <class R>
Measured one_way_by(std::uint32_t sent, std::uint32_t received, std::uint64_t producers, std::uint64_t count) {
  R channel(static_cast<std::uint32_t>(producers), sent, received);
  return one_way(channel, producers, count);
}

}  // namespace bench
