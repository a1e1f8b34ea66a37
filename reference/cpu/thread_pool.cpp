// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A step is announced by one atomic word, and its items are taken from it.
#include "reference/cpu/thread_pool.hpp"

#include "reference/state/require.hpp"
#include "reference/tensor/float_environment.hpp"

#include <exception>
#include <stdexcept>

namespace tree_attn {
namespace {

constexpr std::uint64_t kStep = std::uint64_t{1} << 32;  // one step in the upper half of the word
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  require(n_threads >= 1, "ThreadPool: ", n_threads, " threads, at least 1 is needed");
  try {
    for (int thread = 1; thread < n_threads; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
  } catch (const std::exception& error) {
    stop();  // so that the threads that did start can be joined
    throw std::runtime_error(line_of("the system started ", size(), " of ", n_threads, " threads: ", error.what()));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stops_ = true;
  step_.fetch_add(kStep);
  step_.notify_all();
}

/// Takes an item of the step that `seen` belongs to, if there is one left.
bool ThreadPool::take(std::uint64_t& seen, std::int64_t& item) {
  const std::uint64_t step = seen / kStep;
  while (seen % kStep > 0 && seen / kStep == step) {
    // Acquire: the item is not done yet, so the step cannot end, and its description stays as it is.
    if (step_.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire)) {
      item = n_items_ - static_cast<std::int64_t>(seen % kStep);
      return true;
    }
  }
  return false;
}

void ThreadPool::serve(int thread) {
  const FloatEnvironment environment;  // not that of the thread which has made the pool
  for (std::uint64_t seen = step_.load(std::memory_order_acquire); !stops_;) {
    for (std::int64_t item = 0; take(seen, item); seen = step_.load(std::memory_order_relaxed)) {
      work_(context_, thread, item);
      n_done_.fetch_add(1, std::memory_order_release);
    }
    const std::uint64_t before = step_.load(std::memory_order_acquire);
    seen = before;
    for (int spin = 0; spin < kSpins && seen % kStep == 0 && seen == before; ++spin) {
      pause();
      seen = step_.load(std::memory_order_acquire);
    }
    if (seen % kStep == 0 && !stops_) {
      step_.wait(seen, std::memory_order_acquire);
      seen = step_.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::run(std::int64_t n_items, bool alone, Work work, void* context, const std::function<void()>& progress) {
  require<std::out_of_range>(n_items >= 0 && n_items < static_cast<std::int64_t>(kStep), "ThreadPool::run: ", n_items,
                             " items; 0 to 2^32 - 1 are possible");
  if (alone || threads_.empty() || n_items <= 1) {
    for (std::int64_t item = 0; item < n_items; ++item) {
      work(context, 0, item);
      if (progress) progress();
    }
    return;
  }
  std::exception_ptr error;
  work_ = work, context_ = context, n_items_ = n_items;
  n_done_.store(0, std::memory_order_relaxed);
  std::uint64_t seen = (step_.load(std::memory_order_relaxed) / kStep + 1) * kStep + static_cast<std::uint64_t>(n_items);
  step_.store(seen, std::memory_order_release);
  step_.notify_all();
  for (std::int64_t item = 0; take(seen, item); seen = step_.load(std::memory_order_relaxed)) {
    // After an error of progress, the items that are left are taken and not done, so that the other threads end.
    if (!error) work(context, 0, item);
    n_done_.fetch_add(1, std::memory_order_relaxed);
    try {
      if (progress && !error) progress();
    } catch (...) {
      error = std::current_exception();
    }
  }
  // The last items of the other threads.
  for (int spin = 0; n_done_.load(std::memory_order_acquire) < n_items; ++spin) {
    if (spin < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tree_attn
