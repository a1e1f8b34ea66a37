// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Threads that share the items of a step and wait for the next one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tree_attn {

/// n threads, including the caller of run(). Between steps the others spin for a few tens of microseconds, since the next
/// step may follow at once, and then sleep.
class ThreadPool {
 public:
  /// Computes item i; thread is 0 for the caller, else less than size().
  using Work = void (*)(void* context, int thread, std::int64_t item);

  /// @throws std::invalid_argument if n_threads < 1; std::runtime_error if the system starts fewer
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls work for the items 0 .. n_items - 1, each once, on any thread and in any order, and returns when all are done.
  /// Allocates nothing.
  /// @param alone on the caller's thread: for steps that end before another thread has woken
  /// @param progress called by the caller's thread after each of its items; may be empty
  /// @throws std::out_of_range unless 0 <= n_items < 2^32; what progress throws: then some items are not done, but no thread
  ///   works on one any more
  /// @pre one caller at a time; work does not throw
  void run(std::int64_t n_items, bool alone, Work work, void* context, const std::function<void()>& progress);

 private:
  bool take(std::uint64_t& seen, std::int64_t& item);
  void serve(int thread);
  void stop();

  // The step, written before it is announced and read only by threads that hold one of its items.
  Work work_ = nullptr;
  void* context_ = nullptr;
  std::int64_t n_items_ = 0;

  /// The number of the step in the upper half, the number of its items not yet taken in the lower. A thread that wakes after
  /// the step finds no item, or those of a later step.
  std::atomic<std::uint64_t> step_{0};
  std::atomic<std::int64_t> n_done_{0};
  std::atomic<bool> stops_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace tree_attn
