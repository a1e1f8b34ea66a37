// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages of the stand-in for NCCL, in memory that threads and processes share.
///
/// A channel per pair of ranks is a ring of bytes. A message is its length and its bytes, moved piece by piece whenever one
/// of the two ranks looks.
#pragma once

#include "tree_attn/gpu/platform/window_handle.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tree_attn::test {

/// Bytes from one rank to another, in their order.
struct Channel {
  static constexpr std::uint64_t kBytes = 1 << 16;
  alignas(64) std::atomic<std::uint64_t> n_written;
  alignas(64) std::atomic<std::uint64_t> n_read;
  std::byte bytes[kBytes];

  /// Moves up to n bytes. @returns how many
  std::uint64_t write(const std::byte* from, std::uint64_t n) {
    const std::uint64_t written = n_written.load(std::memory_order_relaxed);
    n = std::min(n, kBytes - (written - n_read.load(std::memory_order_acquire)));
    for (std::uint64_t i = 0; i < n; ++i) bytes[(written + i) % kBytes] = from[i];
    n_written.store(written + n, std::memory_order_release);
    return n;
  }
  std::uint64_t read(std::byte* to, std::uint64_t n) {
    const std::uint64_t read = n_read.load(std::memory_order_relaxed);
    n = std::min(n, n_written.load(std::memory_order_acquire) - read);
    for (std::uint64_t i = 0; i < n; ++i) to[i] = bytes[(read + i) % kBytes];
    n_read.store(read + n, std::memory_order_release);
    return n;
  }
};

/// The channels of all ranks of a communicator: a file in shared memory.
class Mail {
 public:
  static constexpr int kMaxRanks = 64, kMaxWindows = 64;
  /// @param name of the file @param n_ranks the same for all
  Mail(const std::string& name, int n_ranks) : name_(name), n_ranks_(n_ranks) {
    const int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0) return;
    n_bytes_ = sizeof(Head) + static_cast<std::size_t>(n_ranks * n_ranks) * sizeof(Channel);
    if (::ftruncate(file, static_cast<off_t>(n_bytes_)) == 0) {
      void* const memory = ::mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      head_ = memory == MAP_FAILED ? nullptr : static_cast<Head*>(memory);
    }
    ::close(file);
  }
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;
  ~Mail() {
    remove();
    if (head_ != nullptr) ::munmap(head_, n_bytes_);
  }

  bool is_there() const { return head_ != nullptr; }
  int n_ranks() const { return n_ranks_; }
  /// How many ranks have joined, and left.
  std::atomic<int>& n_joined() { return head_->n_joined; }
  std::atomic<int>& n_left() { return head_->n_left; }
  /// The part that each rank chooses in a split, and its place there; and how many ranks have chosen.
  struct Choice {
    int color, key;
  };
  void choose(int rank, Choice choice) {
    head_->choices[rank] = choice;
    ++head_->n_chosen;
  }
  /// Where the memory lies that a rank registers as its next window; and how many windows all have registered.
  void register_window(int rank, const WindowHandle& memory) {
    std::atomic<int>& n = head_->n_windows[rank];
    head_->windows[n][rank] = memory;
    ++n;
  }
  int n_windows(int rank) const { return head_->n_windows[rank]; }
  int n_windows_of_all() const { return *std::min_element(head_->n_windows, head_->n_windows + n_ranks_); }
  const WindowHandle& window(int number, int rank) const { return head_->windows[number][rank]; }
  bool have_all_chosen() const { return head_->n_chosen == n_ranks_; }
  Choice choice_of(int rank) const { return head_->choices[rank]; }
  const std::string& name() const { return name_; }
  Channel& channel(int from, int to) { return reinterpret_cast<Channel*>(head_ + 1)[from * n_ranks_ + to]; }
  /// No further rank can join.
  void remove() { ::shm_unlink(name_.c_str()); }

 private:
  struct alignas(64) Head {
    std::atomic<int> n_joined, n_left, n_chosen;
    Choice choices[kMaxRanks];
    std::atomic<int> n_windows[kMaxRanks];
    WindowHandle windows[kMaxWindows][kMaxRanks];
  };
  std::string name_;
  int n_ranks_;
  std::size_t n_bytes_ = 0;
  Head* head_ = nullptr;
};

/// A message on its way.
struct Message {
  bool sends = false;
  std::byte* at = nullptr;
  std::uint64_t n_bytes = 0;
  int peer = 0;
  bool is_inside = false;  ///< between the memories of a collective
  bool is_in_graph = false;
  std::uint64_t n_moved = 0;  ///< with the head that comes first
  std::uint64_t head = 0;     ///< as it arrives: the length, and whether a graph sends it

  static constexpr std::uint64_t kHead = sizeof(std::uint64_t), kInGraph = std::uint64_t{1} << 63;
  bool is_done() const { return n_moved == kHead + n_bytes; }
  std::uint64_t own_head() const { return n_bytes | (is_in_graph ? kInGraph : 0); }
  /// Moves what can be moved. @returns false if sender and receiver differ in the length, or one of them alone is a graph
  bool advance(Channel& channel) {
    const auto move = [&](std::byte* bytes, std::uint64_t n) {
      return sends ? channel.write(bytes, n) : channel.read(bytes, n);
    };
    if (sends) head = own_head();
    if (n_moved < kHead) n_moved += move(reinterpret_cast<std::byte*>(&head) + n_moved, kHead - n_moved);
    if (n_moved < kHead) return true;
    if (head != own_head()) return false;
    n_moved += move(at + (n_moved - kHead), kHead + n_bytes - n_moved);
    return true;
  }
};

}  // namespace tree_attn::test
