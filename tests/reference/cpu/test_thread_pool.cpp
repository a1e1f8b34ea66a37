// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Items of a step are done once each, by all threads.
#include "reference/cpu/thread_pool.hpp"
#include "reference/decode/backend.hpp"
#include "tests/support/few_threads.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tree_attn::test {
namespace {

struct Tally {
  std::vector<std::atomic<int>> times;
  std::vector<std::int64_t> of_thread;  ///< items done by each
  std::chrono::microseconds pause;      ///< before an item counts as done
  explicit Tally(std::size_t n_items, int n_threads, std::chrono::microseconds duration)
      : times(n_items), of_thread(static_cast<std::size_t>(n_threads)), pause(duration) {}
  static void count(void* self, int thread, std::int64_t item) {
    auto& tally = *static_cast<Tally*>(self);
    if (tally.pause.count() > 0) std::this_thread::sleep_for(tally.pause);
    ++tally.times[static_cast<std::size_t>(item)];
    ++tally.of_thread[static_cast<std::size_t>(thread)];
  }
};

/// Waits until the system says that all other threads of this process sleep, however loaded it is.
void let_others_sleep() {
  const std::string own = std::to_string(::gettid());
  const auto sleeps = [&own](const std::filesystem::directory_entry& thread) {
    std::string stat;
    std::getline(std::ifstream(thread.path() / "stat"), stat);
    const std::size_t name_ends = stat.rfind(')');
    return thread.path().filename() == own || name_ends == std::string::npos || stat[name_ends + 2] == 'S';
  };
  namespace fs = std::filesystem;
  while (!std::all_of(fs::directory_iterator("/proc/self/task"), fs::directory_iterator(), sleeps))
    std::this_thread::yield();
}

}  // namespace

TEST_CASE("thread pool: each item of each step is done once, when run() returns") {
  for (const int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    REQUIRE(pool.size() == n_threads);
    std::int64_t n_progress = 0, n_of_caller = 0;
    const std::function<void()> progress = [&n_progress] { ++n_progress; };
    for (int step = 0; step < 400; ++step) {
      const auto n_items = static_cast<std::size_t>(step % 23);
      // Some items take so long that other threads take part, and are not done when the caller has no more to do.
      Tally tally(n_items, n_threads, std::chrono::microseconds(step % 7 < 2 ? 50 : 0));
      pool.run(static_cast<std::int64_t>(n_items), step % 7 == 0, Tally::count, &tally, progress);
      n_of_caller += tally.of_thread[0];
      std::int64_t n_done = 0;
      for (const std::int64_t n : tally.of_thread) n_done += n;
      REQUIRE(n_done == static_cast<std::int64_t>(n_items));
      REQUIRE(std::all_of(tally.times.begin(), tally.times.end(), [](const std::atomic<int>& n) { return n == 1; }));
      if (step % 7 == 0) REQUIRE(tally.of_thread[0] == static_cast<std::int64_t>(n_items));
      // Now and then long enough that threads sleep.
      if (step % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    CHECK(n_progress == n_of_caller);
  }
  CHECK_THROWS_WITH(ThreadPool(0), "ThreadPool: 0 threads, at least 1 is needed");
  CHECK_THROWS_WITH(cpu_backend(0), "cpu_backend: 0 threads, at least 1 is needed");
}

TEST_CASE("thread pool: other threads take items while the caller is busy with one") {
  ThreadPool pool(3);
  struct Meeting {
    std::atomic<int> n_arrived{0};
    std::array<std::atomic<bool>, 3> present{};
  };
  for (int step = 0; step < 3; ++step) {
    // Threads that have just begun, that spin, and that sleep.
    if (step == 2) let_others_sleep();
    Meeting meeting;
    int n_progress = 0;
    // Three items that all wait for each other: one thread alone would never end.
    pool.run(
        3, false,
        [](void* context, int thread, std::int64_t) {
          auto& m = *static_cast<Meeting*>(context);
          m.present[static_cast<std::size_t>(thread)] = true;
          ++m.n_arrived;
          while (m.n_arrived < 3) std::this_thread::yield();
        },
        &meeting, [&n_progress] { ++n_progress; });
    CHECK(n_progress == 1);  // the caller had one item
    for (const std::atomic<bool>& present : meeting.present) CHECK(present);
  }
}

TEST_CASE("thread pool: when progress throws, run() throws once no thread works on an item any more") {
  ThreadPool pool(3);
  for (const bool alone : {false, true}) {
    constexpr std::size_t kItems = 600;
    Tally tally(kItems, 3, std::chrono::microseconds(500));
    const auto n_done = [&tally] { return std::count(tally.times.begin(), tally.times.end(), 1); };
    CHECK_THROWS_WITH(pool.run(kItems, alone, Tally::count, &tally, [] { throw std::runtime_error("another rank failed"); }),
                      "another rank failed");
    const auto at_once = n_done();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(n_done() == at_once);
    CHECK(tally.of_thread[0] == 1);  // the caller begins no other
    // The pool is as before.
    Tally next(kItems, 3, {});
    pool.run(kItems, false, Tally::count, &next, {});
    CHECK(std::all_of(next.times.begin(), next.times.end(), [](const std::atomic<int>& n) { return n == 1; }));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow memory is over any limit
TEST_CASE("thread pool: where the system starts too few threads, those that did start end") {
  const std::string why = message<std::runtime_error>([] {
    const FewThreads few;
    ThreadPool pool(1000);
  });
  CHECK(why.starts_with("the system started "));
  CHECK(why.find(" of 1000 threads: ") != std::string::npos);
}
#endif

}  // namespace tree_attn::test
