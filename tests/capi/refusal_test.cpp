// SPDX-License-Identifier: Apache-2.0
// Every configuration that a loader refuses: by the name of the field, with the number found and the number needed.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

enum Kind { inline_loader, spawning, external };

struct Refusal {
  const char* argument;
  std::int64_t found, needed;
  Kind kind;
  void (*change)(Setup&);
  std::int32_t status = FEEDLANE_E_ARGUMENT;
};

const char* const no_words[] = {nullptr};
const char* const one_word[] = {"word", nullptr};

#define SET(member, value) [](Setup& s) { s.config.member = (value); }

const Refusal numbers[] = {
    {"config.batch_size", -2, -1, inline_loader, SET(batch_size, -2)},
    {"config.batch_size", (1 << 30) + 1, 1 << 30, inline_loader, SET(batch_size, (1 << 30) + 1)},
    {"config.drop_last", -1, 0, inline_loader, SET(drop_last, -1)},
    {"config.drop_last", 2, 1, inline_loader, SET(drop_last, 2)},
    {"config.has_seed", -1, 0, inline_loader, SET(has_seed, -1)},
    {"config.has_seed", 2, 1, inline_loader, SET(has_seed, 2)},
    {"config.workers", -1, 0, inline_loader, SET(workers, -1)},
    {"config.workers", 4097, 4096, spawning, SET(workers, 4097)},
    {"config.prefetch_factor", -2, -1, spawning, SET(prefetch_factor, -2)},
    {"config.prefetch_factor", 65537, 65536, spawning, SET(prefetch_factor, 65537)},
    {"config.keep_workers", -1, 0, spawning, SET(keep_workers, -1)},
    {"config.keep_workers", 2, 1, spawning, SET(keep_workers, 2)},
    {"config.held", -1, 0, inline_loader, SET(held, -1)},
    {"config.held", (1 << 19) + 1, 1 << 19, inline_loader, SET(held, (1 << 19) + 1)},
    {"config.reserved", 1, 0, inline_loader, SET(reserved, 1)},
    {"config.worker_config_bytes", (1 << 30) + 1, 1 << 30, spawning, SET(worker_config_bytes, (1 << 30) + 1)},
    {"config.worker_config_bytes", INT64_MAX, 1 << 30, spawning, SET(worker_config_bytes, UINT64_MAX)},
    {"config.start_timeout_ns", -1, 0, spawning, SET(start_timeout_ns, -1)},
    {"config.stop_timeout_ns", -1, 0, spawning, SET(stop_timeout_ns, -1)},
    {"config.term_timeout_ns", -5, 0, spawning, SET(term_timeout_ns, -5)},
    {"config.max_restarts", -2, -1, spawning, SET(max_restarts, -2)},
    {"config.max_kills_per_batch", -1, 0, spawning, SET(max_kills_per_batch, -1)},
    {"config.no_lifeline", -1, 0, spawning, SET(no_lifeline, -1)},
    {"config.no_lifeline", 2, 1, spawning, SET(no_lifeline, 2)},
    {"config.staged", -1, 0, spawning, SET(staged, -1)},
    {"config.staged", (1 << 16) + 1, 1 << 16, spawning, SET(staged, (1 << 16) + 1)},
};

const Refusal combinations[] = {
    {"config.sampler", 0, 1, inline_loader, SET(sampler, nullptr)},
    {"config.sampler", 0, 1, spawning, SET(sampler, nullptr)},
    {"config.start", -1, 0, spawning, SET(start, -1)},
    {"config.start", FEEDLANE_START_EXTERNAL, 0, inline_loader, SET(start, FEEDLANE_START_EXTERNAL)},
    {"config.dataset", 0, 1, inline_loader, SET(dataset, nullptr)},
    {"config.dataset", 1, 0, spawning, [](Setup& s) { s.config.dataset = &s.dataset; }},
    {"config.dataset", 1, 0, external, [](Setup& s) { s.config.dataset = &s.dataset; }},
    {"config.dataset", 0, 1, inline_loader, [](Setup& s) { s.dataset.get = nullptr; }},
    {"config.dataset", 4, sizeof(feedlane_dataset), inline_loader, [](Setup& s) { s.dataset.size = 4; },
     FEEDLANE_E_ABI},
    {"config.prefetch_factor", 2, 0, inline_loader, SET(prefetch_factor, 2)},
    {"config.keep_workers", 1, 0, inline_loader, SET(keep_workers, 1)},
    {"config.no_lifeline", 1, 0, inline_loader, SET(no_lifeline, 1)},
    {"config.staged", 2, 0, spawning, SET(staged, 2)},
    {"config.argv", 1, 0, inline_loader, SET(argv, one_word)},
    {"config.argv", 1, 0, external, SET(argv, one_word)},
    {"config.argv", 0, 1, spawning, SET(argv, no_words)},
    {"config.envp", 1, 0, inline_loader, SET(envp, no_words)},
    {"config.envp", 1, 0, external, SET(envp, no_words)},
    {"config.worker_config", 0, sizeof(Plan), spawning, SET(worker_config, nullptr)},
    {"config.fields", 0, 1, inline_loader, SET(fields, nullptr)},
    {"config.fields", 0, 1, inline_loader, SET(field_count, 0)},
    {"config.fields", 65, 64, inline_loader,
     [](Setup& s) {
       s.field_list.assign(65, s.field_list[0]);
       s.connect();
     }},
};

const char* const name_of_32_bytes = "a23456789b23456789c23456789d2345";

#define SET_FIELD(member, value) [](Setup& s) { s.field_list[1].member = (value); }

const Refusal fields[] = {
    {"config.fields[1].name", 0, 1, inline_loader, SET_FIELD(name, nullptr)},
    {"config.fields[1].name", 0, 31, inline_loader, SET_FIELD(name, "")},
    {"config.fields[1].name", 32, 31, inline_loader, SET_FIELD(name, name_of_32_bytes)},
    {"config.fields[1].name", 1, -1, inline_loader, SET_FIELD(name, "index")},
    {"config.fields[1].dtype.code", 3, 6, inline_loader, SET_FIELD(dtype.code, 3)},
    {"config.fields[1].dtype.code", 7, 6, inline_loader, SET_FIELD(dtype.code, 7)},
    {"config.fields[1].dtype.bits", 0, 8, inline_loader, SET_FIELD(dtype.bits, 0)},
    {"config.fields[1].dtype.bits", 12, 8, inline_loader, SET_FIELD(dtype.bits, 12)},
    {"config.fields[1].ndim", -1, 7, inline_loader, SET_FIELD(ndim, -1)},
    {"config.fields[1].ndim", 8, 7, inline_loader, SET_FIELD(ndim, 8)},
    {"config.fields[1].shape", -2, 0, inline_loader,
     [](Setup& s) {
       s.field_list[1] = field("x", uint8_type, {3, -2});
     }},
    {"config.fields[1].shape", INT64_MAX, INT64_C(1) << 40, inline_loader,
     [](Setup& s) {
       s.field_list[1] = field("x", uint8_type, {2, INT64_MAX});
     }},
    {"config.fields[1].shape", INT64_C(1) << 40, INT64_C(1) << 40, inline_loader,
     [](Setup& s) {
       s.config.batch_size = 2;
       s.field_list[1] = field("x", uint8_type, {INT64_C(1) << 40});
     }},
    {"config.fields[1].name", 39, 31, inline_loader, SET_FIELD(name, "a-name-that-is-longer-than-any-name-may")},
    {"config.fields[0].size", 8, offsetof(feedlane_field, dtype), inline_loader,
     [](Setup& s) { s.field_list[0].size = 8; }, FEEDLANE_E_ABI},
    {"config.fields[1].size", 96, sizeof(feedlane_field), inline_loader, [](Setup& s) { s.field_list[1].size = 96; },
     FEEDLANE_E_ABI},
};

const Refusal too_much[] = {
    {"config.prefetch_factor", 4096 * 65536 + 2, 1 << 20, spawning,
     [](Setup& s) { s.config.workers = 4096, s.config.prefetch_factor = 65536; }, FEEDLANE_E_LIMIT},
    {"config.fields", (INT64_C(1) << 40) + 65536, INT64_C(1) << 40, inline_loader,
     [](Setup& s) {  // the rest of the fields takes what is left
       s.config.batch_size = 1;
       s.field_list[1] = field("x", uint8_type, {(INT64_C(1) << 40) - 256});
     },
     FEEDLANE_E_LIMIT},
    {"arena", INT64_C(288230969125724160), INT64_C(1) << 46, inline_loader,
     [](Setup& s) {
       s.config.held = 1 << 19;
       s.field_list[1] = field("x", uint8_type, {INT64_C(1) << 39});
     },
     FEEDLANE_E_LIMIT},
};

void check(const Refusal& r) {
  Setup s(8);
  if (r.kind == spawning) s.workers(1);
  if (r.kind == external) s.external(1);
  s.connect();
  r.change(s);
  auto* loader = reinterpret_cast<feedlane_loader*>(1);
  Error e;
  INFO(std::string(r.argument), " found ", r.found);
  CHECK(feedlane_loader_create(&s.config, &loader, &e) == r.status);
  CHECK(loader == nullptr);
  CHECK(e.code == r.status);
  CHECK(std::string(e.argument) == r.argument);
  CHECK(e.found == r.found);
  CHECK(e.needed == r.needed);
  CHECK(e.text[0] != '\0');
}

}  // namespace

// promise: config-other-invalid
TEST_CASE("a number out of range is refused with its name, the number and the limit") {
  for (const Refusal& r : numbers) check(r);
}

// promise: config-other-invalid, torch-combinations
TEST_CASE("contradictory members of a configuration are refused by name") {
  for (const Refusal& r : combinations) check(r);
}

// promise: config-other-invalid
TEST_CASE("an invalid field is refused with its number and member") {
  for (const Refusal& r : fields) check(r);
}

// promise: config-other-invalid
TEST_CASE("more slots or bytes than a loader can ever have are refused with E_LIMIT") {
  for (const Refusal& r : too_much) check(r);
}

// promise: config-small-arena, fault-little-memory
TEST_CASE("an arena larger than this machine's memory is refused with E_MEMORY and the available and needed bytes") {
  Setup s(8);
  s.field_list[1] = field("x", uint8_type, {INT64_C(1) << 39});
  s.config.held = 60;
  Loader loader;
  Error e;
  CHECK(s.try_create(loader, &e) == FEEDLANE_E_MEMORY);
  CHECK(loader == nullptr);
  CHECK(std::string(e.argument) == "arena");
  CHECK(e.needed > 30 * (INT64_C(1) << 40));
  CHECK(e.found > 0);
  CHECK(e.found < e.needed);
  CHECK(e.says(std::to_string(e.needed)));
}

TEST_CASE("create without a configuration, or without a pointer for the loader, is refused") {
  Setup s(8);
  s.connect();
  auto* loader = reinterpret_cast<feedlane_loader*>(1);
  Error e;
  CHECK(feedlane_loader_create(nullptr, &loader, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "config");
  CHECK(loader == nullptr);
  CHECK(feedlane_loader_create(&s.config, nullptr, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "out");
}

TEST_CASE("values equal to the limits are accepted") {
  for (void (*change)(Setup&) : {
           +[](Setup& s) { s.config.held = 1000; },
           +[](Setup& s) { s.field_list[1].name = name_of_32_bytes + 1; },
           +[](Setup& s) {
             s.field_list[1] = field("x", uint8_type, {1, 1, 1, 1, 1, 1, 1});
           },
           +[](Setup& s) { s.field_list[1] = field("x", uint8_type, {0}); },
           +[](Setup& s) { s.field_list[1].dtype.lanes = 0; },
           +[](Setup& s) { s.field_list.resize(1); },
           +[](Setup& s) { s.config.batch_size = 100; },
           +[](Setup& s) { s.config.max_restarts = -1; },
           +[](Setup& s) { s.config.start_timeout_ns = FEEDLANE_FOREVER; },
       }) {
    Setup s(8);
    change(s);
    CHECK(s.create() != nullptr);
  }
  Setup s(8);
  s.field_list.clear();
  std::vector<std::string> names;
  for (int i = 0; i < FEEDLANE_MAX_TENSORS; i++) names.push_back("f" + std::to_string(i));
  for (const std::string& name : names) s.field_list.push_back(field(name.c_str(), uint8_type));
  CHECK_MESSAGE(s.create() != nullptr, "64 fields");
}

TEST_CASE("a refused loader leaves no descriptor open and no memory mapped") {
  const std::vector<int> before = open_descriptors();
  for (const Refusal& r : fields) check(r);
  Setup s(8);
  s.field_list[1] = field("x", uint8_type, {INT64_C(1) << 39});
  s.config.held = 60;
  Loader loader;
  CHECK(s.try_create(loader, nullptr) == FEEDLANE_E_MEMORY);
  CHECK(open_descriptors() == before);
  CHECK(mappings_of("feedlane-") == 0);
}
