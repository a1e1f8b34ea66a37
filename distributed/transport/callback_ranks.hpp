// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks whose messages are carried by functions of the program: a process group of PyTorch, another MPI.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/ranks.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Functions that start messages of one rank and wait for them. They are called one at a time, on the thread that has called
/// the library. Memory stays until a message is complete, for ever if it never is.
///
/// Messages from one rank to another arrive in the order in which they were started, and apart from other messages of the
/// program. All ranks start gathers in the same order; messages may be under way meanwhile.
class Callbacks {
 public:
  /// A message that was started. kComplete: one that is complete.
  using Request = std::int64_t;
  static constexpr Request kComplete = 0;

  virtual ~Callbacks() = default;
  /// Starts to concatenate the bytes of all ranks, by rank. @param[out] all size times as many bytes as `mine`, at least one
  virtual Request start_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Starts a send of at least one byte.
  virtual Request start_send(std::span<const std::byte> bytes, int to) = 0;
  /// Starts to receive as many bytes as are sent.
  virtual Request start_receive(std::span<std::byte> bytes, int from) = 0;
  /// Waits until all requests are complete, or until none has become so for a number of seconds, which may be infinite.
  /// @param[in,out] requests those that are complete become kComplete
  virtual void wait(std::span<Request> requests, double seconds) = 0;
};

/// Ranks over Callbacks.
///
/// An exception of a callback leaves as a TransportError of kCallback, nested in it. After that, and after a wait that has
/// given up, these ranks refuse all further work, and their group is not used again: some of its messages were never
/// received. To go on, all ranks open a new group and a new object.
class CallbackRanks : public Ranks {
 public:
  /// @param timeout seconds that one wait may take without progress, may be infinite
  /// @throws std::out_of_range as Ranks; std::invalid_argument as require_timeout()
  CallbackRanks(std::unique_ptr<Callbacks> callbacks, int rank, int size, double timeout);

  using Ranks::all_gather;
  Deadline& deadline() const override { return deadline_; }
  void barrier() const override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override;
  /// Gathers the bytes of all ranks and drops those of others: for lines and numbers.
  void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const override;
  std::unique_ptr<Transport> open_transport(Topology topology) const override;
  std::unique_ptr<Transport> open_shared_transport(Topology topology) const override;

  /// Starts a message by a callback. @param start_message called with the Callbacks @throws TransportError
  template <class Start>
  Callbacks::Request start(const Start& start_message) const {
    check();
    Callbacks::Request request = Callbacks::kComplete;
    guard([&] { request = start_message(*callbacks_); });
    return request;
  }
  /// Waits for all requests. @param what "a message" @param find the ranks that a missed deadline names @throws
  /// TransportError
  void await(std::span<Callbacks::Request> requests, std::string_view what, const Deadline::FindPending& find = {}) const;

 protected:
  /// Labels a node by its lowest rank: ranks of one host name and one start of its system form a node.
  std::vector<int> find_nodes() const override;

 private:
  template <class Call>
  void guard(const Call& call) const;
  [[noreturn]] void fail(const char* why) const;

  std::unique_ptr<Callbacks> callbacks_;
  mutable Deadline deadline_;
};

/// Gives up, and throws what a callback throws nested in a TransportError.
template <class Call>
void CallbackRanks::guard(const Call& call) const {
  try {
    call();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of an unknown type");
  }
}

}  // namespace tree_attn
