// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages of the stand-in for NCCL, in memory that threads and processes share.
///
/// A message is its length and its bytes, moved piece by piece through the channel of two ranks whenever one of them looks.
#pragma once

#include <boost/lockfree/spsc_queue.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tree_attn::test {

/// Bytes from one rank to another, in their order. Memory of zeros is an empty queue, so none is constructed.
using Channel = boost::lockfree::spsc_queue<std::byte, boost::lockfree::capacity<(1 << 16)>>;

/// Shared memory of the ranks of a communicator, with the channels between them: a file.
class Mail {
 public:
  static constexpr int kMaxRanks = 64;
  struct alignas(64) Shared {
    std::atomic<int> n_joined, n_left;      ///< ranks that have joined, left
    std::atomic<int> n_windows[kMaxRanks];  ///< that each rank has registered
  };
  /// @param name of the file @param n_ranks the same for all
  Mail(const std::string& name, int n_ranks) : name_(name), n_ranks_(n_ranks) {
    const int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0) return;
    n_bytes_ = sizeof(Shared) + static_cast<std::size_t>(n_ranks * n_ranks) * sizeof(Channel);
    if (::ftruncate(file, static_cast<off_t>(n_bytes_)) == 0) {
      void* const memory = ::mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      shared_ = memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
    }
    ::close(file);
  }
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;
  ~Mail() {
    remove();
    if (shared_ != nullptr) ::munmap(shared_, n_bytes_);
  }

  bool is_there() const { return shared_ != nullptr; }
  Shared* operator->() const { return shared_; }
  const std::string& name() const { return name_; }
  int n_ranks() const { return n_ranks_; }
  /// Number of windows that all ranks have registered.
  int n_windows_of_all() const { return *std::min_element(shared_->n_windows, shared_->n_windows + n_ranks_); }
  Channel& channel(int from, int to) { return reinterpret_cast<Channel*>(shared_ + 1)[from * n_ranks_ + to]; }
  /// No further rank can join.
  void remove() { ::shm_unlink(name_.c_str()); }

 private:
  std::string name_;
  int n_ranks_;
  std::size_t n_bytes_ = 0;
  Shared* shared_ = nullptr;
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
      return sends ? channel.push(bytes, n) : channel.pop(bytes, n);
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
