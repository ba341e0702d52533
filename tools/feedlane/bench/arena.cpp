// SPDX-License-Identifier: Apache-2.0
// arena: gets of an entry that is there, and entries that members send to the owner, beside as many threads that copy.
#include "feedlane/arena.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "batches.hpp"
#include "bench.hpp"

namespace bench {

namespace {

constexpr std::uint64_t kib = 1024, mib = kib * kib;
constexpr std::size_t most_members = 4;
constexpr char read_key[] = "read";

std::string size_of(std::uint64_t bytes) {
  return bytes < mib ? fmt::format("{} KiB", bytes / kib) : fmt::format("{} MiB", bytes / mib);
}

double quantile(std::vector<std::int64_t>& times, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(times.size() - 1));
  std::nth_element(times.begin(), times.begin() + at, times.end());
  return static_cast<double>(times[static_cast<std::size_t>(at)]);
}

struct Quantiles {
  double p50 = 0, p99 = 0;
  static Quantiles of(std::vector<std::int64_t> times) { return {quantile(times, 0.5), quantile(times, 0.99)}; }
};

enum class Act : std::int64_t { send, send_one_by_one, get, end };
struct Order {
  Act act;
  std::int64_t count;
};

// What the owner and its members share beside the arena.
struct Board {
  // Entries of send_one_by_one that the owner has received. Release by the owner, acquire by the member.
  std::atomic<std::int64_t> received{0};
  Quantiles get_ns;
};

template <class T>
T sized() {
  T t;
  feedlane_init(&t, sizeof t);
  return t;
}

// An entry of one tensor: a copy of `source`, its first eight bytes `stamp` if that is not 0.
void put(feedlane::Arena& arena, const char* key, const std::vector<std::byte>& source, std::int64_t stamp) {
  const feedlane_field field = bytes_field(source.size());
  auto what = sized<feedlane_put>();
  what.key = key;
  what.key_bytes = key == nullptr ? 0 : std::strlen(key);
  what.fields = &field;
  what.field_count = 1;
  auto batch = sized<feedlane_batch>();
  auto error = sized<feedlane_error>();
  check("feedlane_arena_reserve", feedlane_arena_reserve(arena.c(), &what, INT64_MAX, &batch, &error), error);
  std::memcpy(batch.tensors[0].data, source.data(), source.size());
  if (stamp != 0) std::memcpy(batch.tensors[0].data, &stamp, sizeof stamp);
  check("feedlane_arena_publish", feedlane_arena_publish(arena.c(), batch.token, INT64_MAX, &error), error);
}

// A member in another process, which does what the owner orders.
class Member {
 public:
  Member(feedlane::Arena& owner, std::size_t processor, std::uint64_t bytes, Board& board)
      : bytes_(bytes), board_(board), offer_(owner.offer()) {
    if (::pipe(orders_) != 0) fail("cannot create a pipe");
    child_ = std::make_unique<Child>(processor, [this] { run(); });
    (void)::close(offer_);
    (void)::close(orders_[0]);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    order({Act::end, 0});
    child_.reset();
    (void)::close(orders_[1]);
  }
  void order(Order order) const {
    if (::write(orders_[1], &order, sizeof order) != sizeof order) fail("cannot write to a pipe");
  }

 private:
  void run() {
    feedlane::Arena arena = feedlane::Arena::join(offer_);
    const std::vector<std::byte> source(bytes_, std::byte{1});
    for (Order order{}; ::read(orders_[0], &order, sizeof order) == sizeof order && order.act != Act::end;) {
      switch (order.act) {
        case Act::send:
          for (std::int64_t i = 0; i < order.count; i++) put(arena, nullptr, source, 0);
          break;
        case Act::send_one_by_one:
          for (std::int64_t i = 0; i < order.count; i++) {
            while (board_.received.load(std::memory_order_acquire) < i) continue;
            put(arena, nullptr, source, now_ns());
          }
          break;
        default: board_.get_ns = get(arena, order.count); put(arena, nullptr, source, 0);
      }
    }
  }
  static Quantiles get(feedlane::Arena& arena, std::int64_t count) {
    auto batch = sized<feedlane_batch>();
    auto error = sized<feedlane_error>();
    std::vector<std::int64_t> times(static_cast<std::size_t>(count));
    for (std::int64_t& time : times) {
      const std::int64_t began = now_ns();
      check("feedlane_arena_get",
            feedlane_arena_get(arena.c(), read_key, sizeof read_key - 1, 0, INT64_MAX, &batch, &error), error);
      (void)feedlane_batch_release(arena.c(), batch.token);
      time = now_ns() - began;
    }
    return Quantiles::of(std::move(times));
  }

  std::uint64_t bytes_;
  Board& board_;
  int offer_;
  int orders_[2] = {-1, -1};
  std::unique_ptr<Child> child_;
};

// An arena of entries of one size, its owner in this process, and its members.
class Entries {
 public:
  Entries(std::uint64_t bytes, std::size_t members, std::uint64_t in_flight)
      : bytes_(bytes),
        arena_({.bytes = std::max((in_flight * members + 3) * (bytes + 4 * kib), mib),
                .members = most_members,
                .entries = 4096,
                .when_full = feedlane::Full::wait}) {
    put(arena_, read_key, std::vector<std::byte>(bytes, std::byte{1}), 0);
    for (std::size_t i = 0; i < members; i++)
      members_.push_back(std::make_unique<Member>(arena_, 1 + i, bytes, *board_));
    (void)send(64);  // all memory was there once
  }

  // Entries a second from all members, from the first one on; a byte of every page is read.
  double send(std::int64_t count) {
    const auto members = static_cast<std::int64_t>(members_.size());
    for (const auto& member : members_) member->order({Act::send, count / members});
    std::int64_t began = 0;
    for (std::int64_t i = 0; i < count / members * members; i++) {
      receive();
      if (i == 0) began = now_ns();
    }
    return static_cast<double>(count / members * members - 1) * 1e9 / static_cast<double>(now_ns() - began);
  }
  // From the start of a put to the entry in the owner's hands, its copy included, one entry after the other.
  Quantiles send_one_by_one(std::int64_t count) {
    board_->received.store(0, std::memory_order_relaxed);  // nobody looks at it
    members_[0]->order({Act::send_one_by_one, count});
    std::vector<std::int64_t> times;
    for (std::int64_t i = 0; i < count; i++) {
      times.push_back(receive());
      board_->received.store(i + 1, std::memory_order_release);
    }
    return Quantiles::of(std::move(times));
  }
  // By a member; both clock readings included.
  Quantiles get(std::int64_t count) {
    members_[0]->order({Act::get, count});
    receive();
    return board_->get_ns;
  }
  // Where entries have been.
  [[nodiscard]] std::size_t places() const { return places_.size(); }

 private:
  std::int64_t receive() {
    auto batch = sized<feedlane_batch>();
    auto error = sized<feedlane_error>();
    check("feedlane_arena_receive", feedlane_arena_receive(arena_.c(), INT64_MAX, &batch, &error), error);
    const std::int64_t now = now_ns();
    std::int64_t began = 0;
    std::memcpy(&began, batch.tensors[0].data, sizeof began);
    touch(batch.tensors[0].data, bytes_);
    if (places_.size() < 4096) places_.insert(batch.tensors[0].data);
    (void)feedlane_batch_release(arena_.c(), batch.token);
    return now - began;
  }

  std::uint64_t bytes_;
  Board* board_ = make_shared_object<Board>();
  feedlane::Arena arena_;
  std::vector<std::unique_ptr<Member>> members_;
  std::set<void*> places_;
};

// One size with one number of senders, and what is measured of it.
class Case {
 public:
  Case(std::uint64_t bytes, std::size_t senders, const Options& options)
      : bytes_(bytes), senders_(static_cast<std::int32_t>(senders)), all_(bytes, senders, bytes < mib ? 32 : 4) {
    const double usual = std::clamp(2'000.0 * mib / static_cast<double>(bytes), 12.0, 100'000.0);
    count_ = options.count(static_cast<std::int64_t>(usual), static_cast<std::int64_t>(usual / 4), 12);
    auto* const memory = static_cast<std::byte*>(shared_memory(all_.places() * bytes));
    for (std::size_t i = 0; i < all_.places(); i++) places_.push_back(memory + i * bytes);
  }

  // One round; `counts` not the first time.
  void measure(bool counts) {
    const double sent = all_.send(count_) * static_cast<double>(bytes_);
    const double copied = copy_rate(places_, bytes_, count_, senders_);
    if (counts) sent_.add(sent), copied_.add(copied);
    if (senders_ != 1) return;
    const double read = read_copy_rate(places_, bytes_, count_, senders_);
    const std::int64_t few = std::min<std::int64_t>(count_, 1000);
    const Quantiles hand_over = all_.send_one_by_one(few), get = all_.get(20 * few);
    if (!counts) return;
    read_.add(read);
    hand_over_p50_.add(hand_over.p50 / 1e3), hand_over_p99_.add(hand_over.p99 / 1e3);
    get_p50_.add(get.p50 / 1e3), get_p99_.add(get.p99 / 1e3);
  }

  void tell(const Options& options, Report& report) const {
    const Figure over_copiers = sent_.over(copied_), over_read = sent_.over(read_);
    const auto median = [](const Figure& f) { return f.empty() ? "-" : fmt::format("{:.2f}", f.median()); };
    if (!options.json)
      fmt::print("{:>8} {:>7} {:>12.1f} {:>8.2f} {:>26} {:>26} {:>9} {:>9} {:>8} {:>8}\n", size_of(bytes_), senders_,
                 sent_.median() / static_cast<double>(bytes_), sent_.median() / 1e9, cell(over_copiers),
                 cell(over_read), median(hand_over_p50_), median(hand_over_p99_), median(get_p50_), median(get_p99_));
    const std::string name = fmt::format("arena.{}.{}", bytes_, senders_);
    report.ratio(name + ".over_copiers", over_copiers);
    if (senders_ == 1) report.ratio(name + ".over_read_copiers", over_read);
    report.rows.push_back({{"bytes", bytes_},
                           {"senders", senders_},
                           {"entries_s", rounded(sent_.median() / static_cast<double>(bytes_))},
                           {"gb_s", rounded(sent_.median() / 1e9)},
                           {"copiers_gb_s", rounded(copied_.median() / 1e9)},
                           {"ratio", spread(over_copiers)},
                           {"over_read_copiers", spread(over_read)},
                           {"put_to_receive_p50_us", spread(hand_over_p50_)},
                           {"put_to_receive_p99_us", spread(hand_over_p99_)},
                           {"get_p50_us", spread(get_p50_)},
                           {"get_p99_us", spread(get_p99_)}});
  }

 private:
  std::uint64_t bytes_;
  std::int32_t senders_;
  Entries all_;
  std::int64_t count_ = 0;
  std::vector<void*> places_;  // for the copiers, as many as the entries have
  Figure sent_, copied_, read_;
  Figure hand_over_p50_, hand_over_p99_, get_p50_, get_p99_;
};

}  // namespace

Report arena(const Options& options) {
  pin(0);
  std::vector<std::uint64_t> sizes{4 * kib, 256 * kib, mib, 16 * mib};
  if (!options.bytes.empty()) sizes = options.bytes;
  Report report;
  arena_end(options, report);  // first: processes that end have no other memory to give back
  if (!options.json)
    fmt::print("\n{:>8} {:>7} {:>12} {:>8} {:>26} {:>26} {:>9} {:>9} {:>8} {:>8}\n", "entry", "senders", "entries/s",
               "GB/s", "over as many copiers", "over them with a reader", "p50, us", "p99, us", "get, us", "p99, us");
  for (const std::uint64_t bytes : sizes) {
    Case one(bytes, 1, options), more(bytes, most_members, options);
    alternate(2, options, [&](std::size_t i, bool counts) { (i == 0 ? one : more).measure(counts); });
    one.tell(options, report);
    more.tell(options, report);
  }
  return report;
}

}  // namespace bench
