// SPDX-License-Identifier: Apache-2.0
// Takes batches in a coroutine, which a loop of epoll resumes when its loader has something to do. Prints 332833500.
#include <sys/epoll.h>

#include <coroutine>
#include <cstdio>
#include <feedlane/feedlane.hpp>
#include <future>
#include <memory>

struct Readable : std::suspend_always {  // waits for a descriptor; a coroutine that is destroyed leaves the loop
  int epoll, fd;
  void await_suspend(std::coroutine_handle<> coroutine) const {
    epoll_event event{EPOLLIN, {.ptr = coroutine.address()}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  }
  ~Readable() { ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr); }
};

template <class T>
struct Task {  // runs up to its first wait at once; its end resumes the coroutine that awaits it
  struct promise_type : std::promise<T> {
    struct Resume : std::suspend_always {
      auto await_suspend(std::coroutine_handle<promise_type> ended) noexcept { return ended.promise().awaiter; }
    };
    std::coroutine_handle<> awaiter = std::noop_coroutine();
    std::coroutine_handle<promise_type> handle() { return std::coroutine_handle<promise_type>::from_promise(*this); }
    Task get_return_object() { return {{this, {}}, this->get_future()}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    Resume final_suspend() noexcept { return {}; }
    void return_value(T value) { this->set_value(std::move(value)); }
    void unhandled_exception() { this->set_exception(std::current_exception()); }
  };
  struct Destroy {
    void operator()(promise_type* ended) const { ended->handle().destroy(); }
  };
  std::unique_ptr<promise_type, Destroy> promise;
  std::future<T> result;
  bool await_ready() const { return promise->handle().done(); }
  void await_suspend(std::coroutine_handle<> awaiter) const { promise->awaiter = awaiter; }
  T await_resume() { return result.get(); }
};

struct Squares {  // the data set
  void get(const feedlane::Row& row) const { row.field<std::int64_t>(0)[0] = row.index() * row.index(); }
};

Task<std::int64_t> sum(feedlane::Loader& loader, int epoll) {
  std::int64_t total = 0;
  const auto readable = [epoll](int fd) { return Readable{{}, epoll, fd}; };
  while (const auto batch = co_await feedlane::async_next<Task<std::optional<feedlane::Batch>>>(loader, readable))
    for (const std::int64_t square : (*batch)[0].as<std::int64_t>()) total += square;
  co_return total;
}

int main() {
  Squares squares;
  const feedlane_dataset dataset = feedlane::dataset_of(squares);
  const feedlane::Sampler order = feedlane::Sampler::random(1000, 1);
  const std::vector fields{feedlane::field<std::int64_t>("square")};
  feedlane::Loader loader(
      {.sampler = &order, .fields = fields, .dataset = &dataset, .workers = 2, .start = feedlane::Start::fork});
  loader.start_epoch(0);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  Task<std::int64_t> total = sum(loader, epoll);
  for (epoll_event event; !total.await_ready();)
    if (::epoll_wait(epoll, &event, 1, -1) == 1) std::coroutine_handle<>::from_address(event.data.ptr).resume();
  std::printf("%td\n", total.await_resume());
}
