// SPDX-License-Identifier: Apache-2.0
// The table of distinct errors.
#include "monitor/errors.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "os/clock.hpp"

namespace feedlane::monitor {
namespace {

constexpr std::size_t text_bytes = shm::error_text_words * sizeof(std::uint64_t);
static_assert(text_bytes == sizeof feedlane_error_record::text);

// Equal for errors that differ only in numbers: FNV-1a of kind, code and text, with every run of digits as one
// character.
std::uint64_t key_of(std::int32_t kind, const Error& what) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  mix(static_cast<std::uint32_t>(kind));
  mix(static_cast<std::uint32_t>(what.code));
  bool was_digit = false;
  for (const char* c = what.text; *c != '\0'; c++) {
    const bool is_digit = *c >= '0' && *c <= '9';
    if (!is_digit || !was_digit) mix(is_digit ? '0' : static_cast<unsigned char>(*c));
    was_digit = is_digit;
  }
  return hash;
}

std::uint64_t read(const shm::Word64& word) { return word.load(std::memory_order_relaxed); }
void write(shm::Word64& word, std::uint64_t value) { word.store(value, std::memory_order_relaxed); }

struct Copy {
  std::uint64_t order;
  feedlane_error_record record;
};

// A consistent copy of a row. If the row keeps changing, the last try is returned. `tries` counts for all rows
// together, so a table that keeps changing takes no longer.
Copy copy_of(const shm::ErrorRow& row, int& tries) {
  Copy copy{};
  for (;;) {
    // Acquire: pairs with the release store at the end of ErrorTable::note.
    const std::uint64_t before = row.changes.load(std::memory_order_acquire);
    feedlane_error_record& r = copy.record;
    r.size = sizeof r;
    copy.order = read(row.order);
    const std::uint64_t what = read(row.what);
    r.kind = static_cast<std::int32_t>(what >> 32);
    r.code = static_cast<std::int32_t>(what);
    r.worker = static_cast<std::int32_t>(read(row.worker));
    r.batch = static_cast<std::int64_t>(read(row.batch));
    r.sample = static_cast<std::int64_t>(read(row.sample));
    r.count = read(row.count);
    r.first_ns = read(row.first_ns);
    r.last_ns = read(row.last_ns);
    for (std::size_t w = 0; w < shm::error_text_words; w++) {
      const std::uint64_t word = read(row.text[w]);
      std::memcpy(r.text + w * sizeof word, &word, sizeof word);
    }
    r.text[sizeof r.text - 1] = '\0';
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the release fence in ErrorTable::note
    if ((before % 2 == 0 && read(row.changes) == before) || --tries <= 0) break;
    std::this_thread::yield();
  }
  return copy;
}

}  // namespace

// The row with this key, or an empty one, or the one that has not occurred for the longest time.
shm::ErrorRow& ErrorTable::row_for(std::uint64_t key) {
  shm::ErrorRow* oldest = rows_;
  for (std::size_t i = 0; i < shm::error_rows; i++) {
    shm::ErrorRow& row = rows_[i];
    if (read(row.order) == 0 || read(row.key) == key) return row;
    if (read(row.last_ns) < read(oldest->last_ns)) oldest = &row;
  }
  return *oldest;
}

void ErrorTable::note(std::int32_t kind, const Error& what) {
  if (rows_ == nullptr) return;  // a consumer: its feeder has the table
  const std::uint64_t key = key_of(kind, what);
  const auto now = static_cast<std::uint64_t>(os::now_ns());
  shm::ErrorRow& row = row_for(key);
  const bool is_new = read(row.order) == 0 || read(row.key) != key;
  const std::uint64_t changes = read(row.changes);
  write(row.changes, changes + 1);
  std::atomic_thread_fence(std::memory_order_release);  // pairs with the acquire fence in copy_of
  if (is_new) {
    write(row.order, next_order_++);
    write(row.key, key);
    write(row.count, 0);
    write(row.first_ns, now);
  }
  write(row.what,
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(kind)) << 32 | static_cast<std::uint32_t>(what.code));
  write(row.worker, static_cast<std::uint64_t>(static_cast<std::int64_t>(what.worker)));
  write(row.batch, static_cast<std::uint64_t>(what.batch));
  write(row.sample, static_cast<std::uint64_t>(what.sample));
  write(row.count, read(row.count) + 1);
  write(row.last_ns, now);
  char text[text_bytes] = {};
  copy_text(text, sizeof text, what.text);
  for (std::size_t w = 0; w < shm::error_text_words; w++) {
    std::uint64_t word = 0;
    std::memcpy(&word, text + w * sizeof word, sizeof word);
    write(row.text[w], word);
  }
  row.changes.store(changes + 2, std::memory_order_release);  // pairs with the acquire in copy_of
}

Status read_error(const shm::Segments& segments, std::int32_t index, feedlane_error_record& out) {
  if (index < 0) return FEEDLANE_E_ARGUMENT;
  std::array<Copy, shm::error_rows> copies;
  std::size_t count = 0;
  int tries = 100;
  for (std::size_t i = 0; i < shm::error_rows; i++) {
    copies[count] = copy_of(segments.error_rows()[i], tries);
    if (copies[count].order != 0) count++;
  }
  if (static_cast<std::size_t>(index) >= count) return FEEDLANE_END;
  const auto nth = copies.begin() + index;
  std::nth_element(copies.begin(), nth, copies.begin() + static_cast<std::ptrdiff_t>(count),
                   [](const Copy& a, const Copy& b) { return a.order < b.order; });
  out = nth->record;
  return FEEDLANE_OK;
}

}  // namespace feedlane::monitor
