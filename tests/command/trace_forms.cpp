// SPDX-License-Identifier: Apache-2.0
// Writes made-up records in the forms of `feedlane trace`, so that a test knows what must be in the files.
//
// Usage: trace_forms PERFETTO JSON [TORCH MERGED]
// Standard input: {"records": [...], "clocks": [...], ...}, members as in Recording, feedlane_batch_record and Clocks.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "trace_forms.hpp"

namespace {

using nlohmann::json;

feedlane_batch_record record_of(const json& given) {
  feedlane_batch_record r{};
  r.size = sizeof r;
  const auto set = [&given](const char* name, auto& member) { member = given.value(name, member); };
  set("task", r.task);
  set("epoch", r.epoch);
  set("batch", r.batch);
  set("worker", r.worker);
  set("attempt", r.attempt);
  set("slot", r.slot);
  set("status", r.status);
  set("rows", r.rows);
  set("bytes", r.bytes);
  set("dispatched_ns", r.dispatched_ns);
  set("begun_ns", r.begun_ns);
  set("committed_ns", r.committed_ns);
  set("swept_ns", r.swept_ns);
  set("yielded_ns", r.yielded_ns);
  set("released_ns", r.released_ns);
  set("exposed_ns", r.exposed_ns);
  return r;
}

observe::Recording recording_of(const json& given) {
  observe::Recording recording;
  recording.pid = given.at("pid");
  recording.nth = given.value("nth", 0);
  recording.program = given.at("program");
  recording.lost = given.value("lost", std::uint64_t{0});
  recording.earlier = given.value("earlier", std::uint64_t{0});
  std::snprintf(recording.info.name, sizeof recording.info.name, "%s", given.value("name", "").c_str());
  for (const json& record : given.at("records")) recording.records.push_back(record_of(record));
  for (const json& c : given.at("clocks"))
    recording.clocks.push_back({c.at("monotonic_ns"), c.at("boottime_ns"), c.at("realtime_ns")});
  return recording;
}

std::string contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 5) return 2;
  const observe::Recording recording = recording_of(json::parse(std::cin));
  std::ofstream(argv[1], std::ios::binary) << observe::perfetto_trace(recording);
  std::ofstream(argv[2], std::ios::binary) << observe::chrome_trace(recording);
  if (argc == 3) return 0;
  std::string why;
  const std::string both = observe::merged_trace(recording, contents(argv[3]), why);
  std::fprintf(stderr, "%s", why.c_str());
  std::ofstream(argv[4], std::ios::binary) << both;
  return both.empty() ? 1 : 0;
}
