// SPDX-License-Identifier: Apache-2.0
// What a feeder reads of a consumer that writes its words and sends messages as it likes, at any time: the calls answer with a status,
// a consumer beside it gets its batches each once, in order, whole, and once the other has ended every slot is free.
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>
#include <vector>

#include "feedlane.h"
#include "greeting/share.hpp"
#include "input.hpp"
#include "messages.hpp"
#include "shm/share_layout.hpp"
#include "support/api.hpp"

using namespace feedlane;

namespace {

constexpr std::int64_t batches = 12;
constexpr std::int64_t rows = 2;

template <class T>
T fresh() {
  T value;
  feedlane_init(&value, sizeof value);
  return value;
}

// ---- a consumer that keeps to nothing ----

class Rogue {
 public:
  explicit Rogue(os::Fd socket) : socket_(std::move(socket)) {
    sharing::Welcome welcome{};
    os::Received received;
    Error error;
    PROMISE(os::receive_message(socket_.get(), std::as_writable_bytes(std::span(&welcome, 1)), received, error) ==
            FEEDLANE_OK);
    const int fd = received.fds[sharing::welcome_returns].get();
    struct stat status {};
    PROMISE(::fstat(fd, &status) == 0);
    bytes_ = static_cast<std::size_t>(status.st_size);
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    PROMISE(at != MAP_FAILED);
    memory_ = static_cast<std::byte*>(at);
    shm::SharePlan plan;
    PROMISE(shm::make_share_plan({1, 1}, plan, error) == FEEDLANE_OK);  // where the row is doesn't depend on it
    row_ = reinterpret_cast<shm::ConsumerRow*>(memory_ + plan.row);
    returned_ = reinterpret_cast<shm::Word64*>(memory_ + plan.returned);
    slots_ = static_cast<std::uint32_t>((bytes_ - plan.returned) / sizeof(shm::Word64));
  }
  Rogue(const Rogue&) = delete;
  Rogue& operator=(const Rogue&) = delete;
  ~Rogue() { (void)::munmap(memory_, bytes_); }

  void say(std::uint64_t magic) {
    const greeting::Word word{magic};
    Error error;
    (void)os::send_message(socket_.get(), std::as_bytes(std::span(&word, 1)), {}, error);
  }
  void step(fuzz::Input& in) {
    switch (in.pick(8)) {
      case 0: return set(in, row_->position);
      case 1: return set(in, row_->skip_before);
      case 2: return set(in, row_->newest);
      case 3: return give_back(in);
      case 4: return fuzz::edit(in, memory_, bytes_);
      case 5: return send(in);
      default: return set(in, row_->taken);
    }
  }

 private:
  // Near what is there, or anything.
  static void set(fuzz::Input& in, shm::Word64& word) {
    const std::uint64_t near = word.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(in.number());
    word.store(in.pick(4) == 3 ? in.u64() : near, std::memory_order_relaxed);
  }
  void give_back(fuzz::Input& in) {
    const std::uint32_t slot = in.u8() % slots_;
    const std::uint64_t round = row_->taken.load(std::memory_order_relaxed) - in.pick(4);
    returned_[slot].store(in.flag() ? round : round | shm::returned_unread, std::memory_order_release);
    row_->returns.fetch_add(1, std::memory_order_release);
  }
  void send(fuzz::Input& in) {
    constexpr std::uint64_t magics[] = {sharing::attached_magic, sharing::request_magic, sharing::leaving_magic,
                                        sharing::left_magic,     sharing::asking_magic,  0};
    fuzz::Descriptors fds;
    const sharing::Request request{magics[in.pick(6)], row_->taken.load(std::memory_order_relaxed) - in.pick(3)};
    fuzz::send(in, socket_.get(), request, fds);
  }

  os::Fd socket_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  shm::ConsumerRow* row_ = nullptr;
  shm::Word64* returned_ = nullptr;
  std::uint32_t slots_ = 0;
};

// ---- one that does as it should ----

class Honest {
 public:
  // Share deal: of what its place's last consumer claims not to have read, the successor gets what comes late out of order.
  struct Expects {
    std::int64_t first = 0, stride = 1;
    bool in_order = true;
  };
  Honest(std::int32_t fd, Expects expects) : expects_(expects) {
    PROMISE(feedlane_loader_join(fd, nullptr, nullptr, 0, &l_, nullptr) == FEEDLANE_OK);
    begin();
  }
  Honest(const Honest&) = delete;
  Honest& operator=(const Honest&) = delete;
  ~Honest() { PROMISE(feedlane_loader_destroy(&l_) == FEEDLANE_OK); }

  void take() {
    auto batch = fresh<feedlane_batch>();
    auto e = fresh<feedlane_error>();
    const std::int32_t s = feedlane_loader_next(l_, 0, &batch, &e);
    if (s == FEEDLANE_END || s == FEEDLANE_E_STATE) return begin();  // E_STATE: the feeder has stopped the epoch
    PROMISE(s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT || s == FEEDLANE_SLOTS_HELD);
    if (s != FEEDLANE_OK) return;
    PROMISE(batch.batch >= 0 && batch.batch < batches && batch.batch % expects_.stride == expects_.first);
    const std::uint32_t bit = std::uint32_t{1} << batch.batch;
    PROMISE((seen_ & bit) == 0);
    seen_ |= bit;
    if (expects_.in_order) PROMISE(last_ < 0 || batch.batch == last_ + expects_.stride);
    last_ = batch.batch;
    for (std::int64_t i = 0; i < rows; i++) {
      PROMISE(batch.indices[i] == batch.batch * rows + i);
      PROMISE(static_cast<const std::int64_t*>(batch.tensors[0].data)[i] == ~batch.indices[i]);
    }
    PROMISE(feedlane_batch_release(l_, batch.token) == FEEDLANE_OK);
  }

 private:
  void begin() {
    std::int64_t epoch = 0;
    PROMISE(test::next_epoch_of(l_, &epoch) == FEEDLANE_OK);
    PROMISE(feedlane_loader_begin(l_, epoch, nullptr) == FEEDLANE_OK);
    last_ = -1;
    seen_ = 0;
  }
  feedlane_loader* l_ = nullptr;
  Expects expects_;
  std::int64_t last_ = -1;  // batch of this epoch
  std::uint32_t seen_ = 0;  // a bit a batch
};

// ---- the feeder, with its only worker in the same thread; it lives as long as the process ----

class Bench {
 public:
  explicit Bench(bool deals) : deals_(deals) {
    feedlane_sampler* sampler = nullptr;
    PROMISE(test::sequential_sampler(batches * rows, &sampler, nullptr) == FEEDLANE_OK);
    auto field = fresh<feedlane_field>();
    field.name = "index";
    field.dtype = {0, 64, 1};
    auto c = fresh<feedlane_loader_config>();
    c.sampler = sampler;
    c.fields = &field;
    c.field_count = 1;
    c.batch_size = rows;
    c.workers = 1;
    c.start = FEEDLANE_START_THREAD;
    c.prefetch_factor = 3;
    c.share = deals ? FEEDLANE_SHARE_DEAL : FEEDLANE_SHARE_EVERY;
    c.consumers = 2;
    PROMISE(feedlane_loader_create(&c, &feeder_, nullptr) == FEEDLANE_OK);
    (void)feedlane_sampler_destroy(&sampler);
    PROMISE(feedlane_worker_attach(-1, feeder_, FEEDLANE_FOREVER, &worker_, nullptr) == FEEDLANE_OK);
    PROMISE(feedlane_worker_ready(worker_, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void start() {
    while (!is_free(0)) PROMISE(serve() >= 0);
    honest_ = std::make_unique<Honest>(open(0, FEEDLANE_LAG_BLOCK, 0), Honest::Expects{0, deals_ ? 2 : 1});
    begin();
  }
  void step(fuzz::Input& in) {
    switch (in.pick(8)) {
      case 0: return come(in);
      case 1: return look();
      case 2:
        if (in.pick(8) == 7) stop();
        return;
      case 3: return honest_->take();
      case 4: return work();
      default:
        if (rogue_ != nullptr) rogue_->step(in);
        serve();
    }
  }

  // Whatever was done, its end is one: then another one at its place and the one beside it get an epoch, and every slot is free in the
  // end, but for those of batches that wait for a place's next consumer.
  void finish() {
    rogue_.reset();
    stop();
    std::unique_ptr<Honest> second;
    for (int i = 0; i < 100 && second == nullptr; i++) {  // what its place was left is this one's
      serve();
      const Honest::Expects expects{deals_ ? 1 : 0, deals_ ? 2 : 1, !deals_};
      if (is_free(1)) second = std::make_unique<Honest>(open(1, FEEDLANE_LAG_BLOCK, 0), expects);
    }
    PROMISE(second != nullptr);
    begin();
    for (int looks = 0; is_in_epoch_; looks++) {
      PROMISE(looks < 1000);
      work();
      serve();
      honest_->take();
      second->take();
    }
    second.reset();
    honest_.reset();
    for (int looks = 0; serve() != FEEDLANE_END; looks++) PROMISE(looks < 100);
    auto stats = fresh<feedlane_stats>();
    PROMISE(test::observe(feeder_, feedlane_monitor_get_stats, &stats) == FEEDLANE_OK);
    std::uint64_t waiting = 0;
    auto c = fresh<feedlane_consumer_stats>();
    for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder_, n, &c) == FEEDLANE_OK; n++) waiting += c.waiting;
    PROMISE(stats.slots_free + waiting == stats.slots);
  }

 private:
  std::int32_t open(std::int32_t place, std::int32_t lag, std::int64_t evict_after_ns) {
    auto c = fresh<feedlane_consumer_config>();
    c.id = place;
    c.lag = lag;
    c.evict_after_ns = evict_after_ns;
    std::int32_t id = -1, fd = -1;
    PROMISE(feedlane_loader_open_consumer(feeder_, &c, &id, &fd, nullptr) == FEEDLANE_OK && id == place);
    return fd;
  }
  [[nodiscard]] bool is_free(std::int32_t place) const {
    auto c = fresh<feedlane_consumer_stats>();
    bool found = false;
    for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder_, n, &c) == FEEDLANE_OK; n++)
      found = found || (c.id == place && c.state != FEEDLANE_CONSUMER_NONE);
    return !found;
  }
  void come(fuzz::Input& in) {
    rogue_.reset();
    serve();
    if (!is_free(1)) return;
    const auto lag = static_cast<std::int32_t>(in.pick(deals_ ? 2 : 3));
    rogue_ = std::make_unique<Rogue>(os::Fd(open(1, lag, lag == FEEDLANE_LAG_EVICT ? 1 : 0)));
    if (in.pick(8) != 7) rogue_->say(sharing::attached_magic);
  }
  void begin() {
    PROMISE(feedlane_loader_begin(feeder_, epoch_++, nullptr) == FEEDLANE_OK);
    is_in_epoch_ = true;
  }
  void stop() {
    PROMISE(feedlane_loader_begin(feeder_, epoch_++, nullptr) == FEEDLANE_OK);  // stops the one in progress
    is_in_epoch_ = true;
  }
  void work() {
    const feedlane_task* task = nullptr;
    if (feedlane_worker_next(worker_, 0, &task, nullptr) != FEEDLANE_OK) return;
    for (std::uint64_t i = 0; i < task->count; i++)
      static_cast<std::int64_t*>(task->tensors[0].data)[i] = ~task->indices[i];
    PROMISE(feedlane_task_commit(task, task->count, nullptr) == FEEDLANE_OK);
  }
  std::int32_t serve() {
    auto e = fresh<feedlane_error>();
    const std::int32_t s = feedlane_loader_serve(feeder_, 0, &e);
    PROMISE(s >= 0 || s == FEEDLANE_E_PEER_DEAD || s == FEEDLANE_E_HUNG);
    if (s == FEEDLANE_END) is_in_epoch_ = false;
    auto event = fresh<feedlane_event>();
    while (feedlane_loader_event(feeder_, &event) == FEEDLANE_OK) PROMISE(event.kind >= FEEDLANE_EVENT_WARNING);
    return s;
  }
  void look() {
    PROMISE(feedlane_loader_arm(feeder_, nullptr) >= FEEDLANE_OK);
    (void)is_free(1);
    const std::int32_t s = feedlane_loader_poll(feeder_, nullptr);
    PROMISE(s >= 0 || s == FEEDLANE_E_PEER_DEAD || s == FEEDLANE_E_HUNG);
    if (!is_in_epoch_) begin();
  }

  bool deals_;
  feedlane_loader* feeder_ = nullptr;
  feedlane_worker* worker_ = nullptr;
  std::unique_ptr<Honest> honest_;
  std::unique_ptr<Rogue> rogue_;
  std::int64_t epoch_ = 0;
  bool is_in_epoch_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  static Bench every(false), deal(true);
  Bench& bench = in.flag() ? deal : every;
  bench.start();
  for (int i = 0; i < 200 && in.any(); i++) bench.step(in);
  bench.finish();
  return 0;
}
