// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Callbacks between threads of one process, in the place of a process group.
#pragma once

#include "distributed/transport/callback_ranks.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace tree_attn::test {

/// Letters between ranks. A message of a gather has another box than others.
struct MailOffice {
  using Box = std::tuple<int, int, bool>;  // from, to, of a gather
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Box, std::deque<std::vector<std::byte>>> boxes;
  std::atomic<int> n_calls{0};       ///< of all functions of all ranks
  std::atomic<int> n_calls_of_0{0};  ///< of rank 0, counted while it may fail
  std::atomic<int> fails_after{-1};  ///< so many calls of rank 0, a call fails; -1: none
  std::atomic<int> n_too_late{0};    ///< calls of rank 0 after one that failed
};

/// The functions of one rank.
class MailCallbacks : public Callbacks {
 public:
  MailCallbacks(MailOffice& office, int rank, int size) : office_(office), rank_(rank), size_(size) {}

  Request start_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    called(), ++n_gathers_;
    std::vector<Letter> letters;
    for (int each = 0; each < size_; ++each) {
      put(mine, each, true);
      letters.push_back({each, all.subspan(static_cast<std::size_t>(each) * mine.size(), mine.size()), true});
    }
    return add(std::move(letters));
  }
  Request start_send(std::span<const std::byte> bytes, int to) override {
    called(), ++n_sends_;
    put(bytes, to, false);
    return kComplete;
  }
  Request start_receive(std::span<std::byte> bytes, int from) override {
    called();
    return add({{from, bytes, false}});
  }
  void wait(std::span<Request> requests, double seconds) override {
    called();
    for (Request& request : requests) {
      if (request == kComplete) continue;
      std::vector<Letter>& letters = pending_.at(request);
      while (!letters.empty() && take(letters.front(), seconds)) letters.erase(letters.begin());
      if (!letters.empty()) return;
      pending_.erase(request);
      request = kComplete;
    }
  }
  int n_gathers() const { return n_gathers_; }
  int n_sends() const { return n_sends_; }

 private:
  struct Letter {
    int from;
    std::span<std::byte> bytes;
    bool is_gather;
  };
  /// Callbacks are called on the thread that made this object, and fail when the office says so.
  void called() {
    if (std::this_thread::get_id() != thread_) throw std::logic_error("called on another thread");
    ++office_.n_calls;
    if (rank_ != 0 || office_.fails_after < 0) return;
    if (has_failed_) ++office_.n_too_late;
    if (office_.n_calls_of_0++ != office_.fails_after) return;
    has_failed_ = true;
    throw std::domain_error("the cable is cut");
  }
  void put(std::span<const std::byte> bytes, int to, bool is_gather) {
    const std::lock_guard lock(office_.mutex);
    office_.boxes[{rank_, to, is_gather}].emplace_back(bytes.begin(), bytes.end());
    office_.changed.notify_all();
  }
  bool take(const Letter& letter, double seconds) {
    std::unique_lock lock(office_.mutex);
    auto& box = office_.boxes[{letter.from, rank_, letter.is_gather}];
    const std::chrono::duration<double> limit(std::min(seconds, 1e6));
    if (!office_.changed.wait_for(lock, limit, [&] { return !box.empty(); })) return false;
    if (box.front().size() != letter.bytes.size()) throw std::length_error("a letter of another length");
    std::ranges::copy(box.front(), letter.bytes.begin());
    box.pop_front();
    return true;
  }
  Request add(std::vector<Letter> letters) {
    pending_[++last_] = std::move(letters);
    return last_;
  }

  MailOffice& office_;
  int rank_, size_, n_gathers_ = 0, n_sends_ = 0;
  bool has_failed_ = false;
  Request last_ = 0;
  std::map<Request, std::vector<Letter>> pending_;
  std::thread::id thread_ = std::this_thread::get_id();
};

/// Runs a function on a thread for every rank, and throws what the first of them threw.
template <class Body>
void run_mail_threads(int size, const Body& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& each : threads) each.join();
  for (const std::exception_ptr& each : errors)
    if (each) std::rethrow_exception(each);
}

}  // namespace tree_attn::test
