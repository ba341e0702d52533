// SPDX-License-Identifier: Apache-2.0
// Bad input over all of feedlane.h: this file's table is of what needs no loader. And: no function is without rows.
#include "bad_input.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

using namespace feedlane::test;

std::map<std::string, int>& feedlane::test::rows_by_function() {
  static std::map<std::string, int> rows;
  return rows;
}

namespace {

struct F {
  feedlane_sampler* s() {
    if (sampler == nullptr) sampler = sequential(4);
    return sampler.get();
  }
  feedlane_sampler* ended() {
    (void)feedlane_sampler_next(s(), indices, 4, &got, nullptr);
    return s();
  }
  // No machine has the memory for its order.
  feedlane_sampler* endless() {
    sampler = shuffled(INT64_MAX, 0);
    return sampler.get();
  }
  feedlane_sampler_config* random(std::int64_t samples, std::size_t size = sizeof(feedlane_sampler_config)) {
    config.known.length = samples;
    config.known.size = size;
    return &config.known;
  }
  feedlane_sampler_config* set(std::int64_t num_samples, std::int32_t replacement, std::int32_t shuffle,
                               std::int64_t samples = 8) {
    config.known.num_samples = num_samples;
    config.known.replacement = replacement;
    config.known.shuffle = shuffle;
    return random(samples);
  }
  feedlane_sampler_config* of_kind(std::int32_t kind) {
    config.known.kind = kind;
    return &config.known;
  }
  // Of the kind 0, and so sequential and empty.
  feedlane_sampler_config* size_only() {
    (void)of_kind(FEEDLANE_SAMPLER_RANDOM);
    return random(1, 8);
  }
  ~F() { (void)feedlane_sampler_destroy(&empty); }
  feedlane_sampler* as_loader() {
    (void)random_sampler(set(0, 0, FEEDLANE_SHUFFLE_TORCH_LOADER), &handle, nullptr);
    sampler.reset(handle);
    return handle;
  }
  feedlane_sampler** copy() {
    handle = sampler.release();
    return &handle;
  }
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned(); }

  Sampler sampler;
  feedlane_sampler* handle = nullptr;
  feedlane_sampler* empty = nullptr;
  Out<feedlane_sampler> out;
  Later<feedlane_sampler_config> config{fresh<feedlane_sampler_config>()};
  std::int64_t indices[4] = {};
  std::int64_t length = 0;
  std::uint64_t got = 0;
};

const char* name(std::int32_t status) { return feedlane_status_name(status); }

bool initialises(void* object, std::size_t size) {
  feedlane_init(object, size);
  return true;
}

bool leaves_alone(std::size_t size) {
  unsigned char bytes[16];
  std::memset(bytes, 0xa5, sizeof bytes);
  feedlane_init(bytes, size);
  for (const unsigned char b : bytes)
    if (b != 0xa5) return false;
  return true;
}

// The environment of this program is as it was after.
std::int32_t fd_named(const char* text) {
  (void)::setenv("FEEDLANE_WORKER_FD", text, 1);
  const std::int32_t fd = feedlane_worker_fd();
  return std::getenv("FEEDLANE_WORKER_FD") == nullptr ? fd : -1000;
}

constexpr std::size_t config_bytes = sizeof(feedlane_sampler_config);

const Row<F> rows[] = {
    HOLDS(feedlane_abi_version, "takes nothing", feedlane_abi_version() == FEEDLANE_ABI),
    HOLDS(feedlane_version, "takes nothing", std::strchr(feedlane_version(), '.') != nullptr),
    HOLDS(feedlane_status_name, "below all", std::string(name(INT32_MIN)) == "UNKNOWN"),
    HOLDS(feedlane_status_name, "above all", std::string(name(INT32_MAX)) == "UNKNOWN"),
    HOLDS(feedlane_status_name, "one below the last", std::string(name(FEEDLANE_E_UNSUPPORTED - 1)) == "UNKNOWN"),
    HOLDS(feedlane_status_name, "one above the last", std::string(name(FEEDLANE_ABSENT + 1)) == "UNKNOWN"),
    HOLDS(feedlane_status_text, "below all", feedlane_status_text(INT32_MIN)[0] != '\0'),
    HOLDS(feedlane_status_text, "above all", feedlane_status_text(INT32_MAX)[0] != '\0'),
    HOLDS(feedlane_init, "NULL", initialises(nullptr, 64)),
    HOLDS(feedlane_init, "NULL, more than there can be", initialises(nullptr, SIZE_MAX)),
    HOLDS(feedlane_init, "size 0", leaves_alone(0)),
    HOLDS(feedlane_init, "size 7", leaves_alone(7)),
    HOLDS(feedlane_row_seed, "the least of all",
          feedlane_row_seed(0, INT64_MIN, INT64_MIN) == feedlane_row_seed(0, INT64_MIN, INT64_MIN)),
    HOLDS(feedlane_row_seed, "the largest of all, one position apart",
          feedlane_row_seed(UINT64_MAX, INT64_MAX, INT64_MAX) != feedlane_row_seed(UINT64_MAX, INT64_MAX, INT64_MIN)),
    HOLDS(feedlane_worker_fd, "no variable", feedlane_worker_fd() == -1),
    HOLDS(feedlane_worker_fd, "an empty one", fd_named("") == -1),
    HOLDS(feedlane_worker_fd, "words", fd_named("three") == -1),
    HOLDS(feedlane_worker_fd, "negative", fd_named("-1") == -1),
    HOLDS(feedlane_worker_fd, "beyond int32", fd_named("4294967298") == -1),
    HOLDS(feedlane_worker_fd, "beyond int64", fd_named("99999999999999999999") == -1),
    HOLDS(feedlane_worker_fd, "not open", fd_named("1000000") == -1),

    REFUSES(sequential_sampler, "length -1", FEEDLANE_E_ARGUMENT, "config.length", -1, 0, -1, f.out.place(), e),
    REFUSES(sequential_sampler, "the least length", FEEDLANE_E_ARGUMENT, "config.length", INT64_MIN, 0, INT64_MIN,
            f.out.place(), e),
    REFUSES(sequential_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, 1, nullptr, e),
    REFUSES(random_sampler, "config NULL", FEEDLANE_E_ARGUMENT, "config", 0, 1, nullptr, f.out.place(), e),
    REFUSES(random_sampler, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.random(1), nullptr, e),
    REFUSES(random_sampler, "length 0", FEEDLANE_E_ARGUMENT, "config.length", 0, 1, f.random(0), f.out.place(), e),
    REFUSES(random_sampler, "length -1", FEEDLANE_E_ARGUMENT, "config.length", -1, 1, f.random(-1), f.out.place(), e),
    REFUSES(random_sampler, "size 0", FEEDLANE_E_ABI, "config", 0, config_bytes, f.random(1, 0), f.out.place(), e),
    REFUSES(random_sampler, "size 7", FEEDLANE_E_ABI, "config", 7, config_bytes, f.random(1, 7), f.out.place(), e),
    REFUSES(feedlane_sampler_create, "kind -1", FEEDLANE_E_ARGUMENT, "config.kind", -1, 0, f.of_kind(-1), f.out.place(),
            e),
    REFUSES(feedlane_sampler_create, "an unknown kind", FEEDLANE_E_ARGUMENT, "config.kind", FEEDLANE_SAMPLER_CUSTOM + 1,
            FEEDLANE_SAMPLER_CUSTOM, f.of_kind(FEEDLANE_SAMPLER_CUSTOM + 1), f.out.place(), e),
    REFUSES(feedlane_sampler_create, "size only", FEEDLANE_OK, "", 0, 0, f.size_only(), &f.empty, e),
    REFUSES(random_sampler, "the largest size", FEEDLANE_E_ABI, "config", -1, config_bytes, f.random(1, SIZE_MAX),
            f.out.place(), e),
    REFUSES(random_sampler, "a tail that says something", FEEDLANE_E_ABI, "config", config_bytes + 8, config_bytes,
            f.random(1, config_bytes + 8), f.out.place(), e),
    REFUSES(random_sampler, "num_samples -1", FEEDLANE_E_ARGUMENT, "config.num_samples", -1, 0, f.set(-1, 0, 0),
            f.out.place(), e),
    REFUSES(random_sampler, "the least num_samples", FEEDLANE_E_ARGUMENT, "config.num_samples", INT64_MIN, 0,
            f.set(INT64_MIN, 0, 0), f.out.place(), e),
    REFUSES(random_sampler, "replacement -1", FEEDLANE_E_ARGUMENT, "config.replacement", -1, 0, f.set(0, -1, 0),
            f.out.place(), e),
    REFUSES(random_sampler, "replacement 2", FEEDLANE_E_ARGUMENT, "config.replacement", 2, 1, f.set(0, 2, 0),
            f.out.place(), e),
    REFUSES(random_sampler, "shuffle -1", FEEDLANE_E_ARGUMENT, "config.shuffle", -1, 0, f.set(0, 0, -1), f.out.place(),
            e),
    REFUSES(random_sampler, "shuffle 3", FEEDLANE_E_ARGUMENT, "config.shuffle", 3, 2, f.set(0, 0, 3), f.out.place(), e),
    REFUSES(random_sampler, "more than feistel permutes", FEEDLANE_E_ARGUMENT, "config.length", (INT64_C(1) << 62) + 1,
            INT64_C(1) << 62, f.set(0, 0, FEEDLANE_SHUFFLE_FEISTEL, (INT64_C(1) << 62) + 1), f.out.place(), e),
    REFUSES(feedlane_sampler_restart, "an epoch too far for torch's generator", FEEDLANE_E_LIMIT, "epoch", INT64_MAX,
            INT64_C(1) << 24, f.as_loader(), INT64_MAX, e),
    REFUSES(feedlane_sampler_restart, "s NULL", FEEDLANE_E_ARGUMENT, "s", 0, 1, nullptr, 0, e),
    REFUSES(feedlane_sampler_restart, "epoch -1", FEEDLANE_E_ARGUMENT, "epoch", -1, 0, f.s(), -1, e),
    REFUSES(feedlane_sampler_restart, "the least epoch", FEEDLANE_E_ARGUMENT, "epoch", INT64_MIN, 0, f.s(), INT64_MIN,
            e),
    REFUSES(feedlane_sampler_restart, "an order without end", FEEDLANE_E_MEMORY, "", 0, 0, f.endless(), 0, e),
    REFUSES(feedlane_sampler_next, "s NULL", FEEDLANE_E_ARGUMENT, "s", 0, 1, nullptr, f.indices, 4, &f.got, e),
    REFUSES(feedlane_sampler_next, "indices NULL", FEEDLANE_E_ARGUMENT, "indices", 0, 1, f.s(), nullptr, 4, &f.got, e),
    REFUSES(feedlane_sampler_next, "got NULL", FEEDLANE_E_ARGUMENT, "got", 0, 1, f.s(), f.indices, 4, nullptr, e),
    REFUSES(feedlane_sampler_next, "cap 0", FEEDLANE_E_ARGUMENT, "cap", 0, 1, f.s(), f.indices, 0, &f.got, e),
    REFUSES(feedlane_sampler_next, "after the end", FEEDLANE_END, "", 0, 0, f.ended(), f.indices, 4, &f.got, e),
    REFUSES(feedlane_sampler_next, "an order without end", FEEDLANE_E_MEMORY, "", 0, 0, f.endless(), f.indices, 4,
            &f.got, e),
    ANSWERS(feedlane_sampler_length, "s NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.length),
    ANSWERS(feedlane_sampler_length, "length NULL", FEEDLANE_E_ARGUMENT, f.s(), nullptr),
    ANSWERS(feedlane_sampler_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_sampler_destroy, "a NULL handle", FEEDLANE_OK, &f.handle),
    HOLDS(feedlane_sampler_destroy, "twice",
          f.s() != nullptr && feedlane_sampler_destroy(f.copy()) == FEEDLANE_OK && f.handle == nullptr &&
              feedlane_sampler_destroy(&f.handle) == 0),
};

const Row<F> forked_rows[] = {
    REFUSES(feedlane_sampler_restart, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.sampler.get(), 0, e),
    REFUSES(feedlane_sampler_next, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.sampler.get(), f.indices, 4, &f.got, e),
    ANSWERS(feedlane_sampler_length, "forked", FEEDLANE_E_FORKED, f.sampler.get(), &f.length),
    ANSWERS(feedlane_sampler_destroy, "forked", FEEDLANE_OK, f.copy()),
};

const Counted counted{rows}, counted_forked{forked_rows};

// The program's last argument.
std::string include_folder() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string all{std::istreambuf_iterator<char>(file), {}};
  if (!all.empty()) all.pop_back();
  return all.substr(all.rfind('\0') + 1);
}

// feedlane.h and feedlane/*.h, one after the other.
std::string headers() {
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(include_folder())) {
    std::ifstream file(entry.path().extension() == ".h" ? entry.path() : std::filesystem::path());
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

std::set<std::string> declared_functions() {
  const std::string text = headers();
  std::set<std::string> names;
  const std::string mark = "\nFEEDLANE_API ";
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    // "FEEDLANE_API type feedlane_name(": the last word before the first parenthesis.
    const std::size_t end = text.find('(', at);
    const std::size_t begin = text.find_last_of(" *", end);
    names.insert(text.substr(begin + 1, end - begin - 1));
  }
  return names;
}

}  // namespace

TEST_CASE("every function of feedlane.h is covered by rows of bad input") {
  const std::set<std::string> declared = declared_functions();
  REQUIRE_MESSAGE(!declared.empty(), "the folder of feedlane.h is this program's last argument, found ",
                  include_folder());
  for (const std::string& function : declared) CHECK_MESSAGE(rows_by_function().count(function) == 1, function);
  for (const auto& row : rows_by_function()) {
    const std::string& function = row.first;  // clang 14 takes no structured binding into a lambda
    const int count = row.second;
    // Functions of make_sampler.hpp stand for feedlane_sampler_create, those with static inline are not exported.
    const bool is_inline = function == "feedlane_init" || function == "feedlane_row_seed";
    CHECK_MESSAGE((declared.count(function) == 1 || function.ends_with("_sampler") || is_inline), function);
    MESSAGE(function, ": ", count);
  }
}

TEST_CASE("bad input: statuses, structs, samplers") { check_rows(rows); }

TEST_CASE("bad input: a sampler in a forked child") {
  F f;
  (void)f.s();
  check_forked(f, forked_rows);
}
