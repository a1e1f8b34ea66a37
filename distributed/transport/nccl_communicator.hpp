// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A communicator of NCCL whose calls do not block: every wait polls, and has a deadline.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/nccl_library.hpp"
#include "distributed/transport/ranks.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

namespace tree_attn {

/// All ranks, as NCCL knows them. Each has its own device, which is current when the communicator is made.
///
/// Where a function below throws, it has called ncclCommAbort() before: from then on no stream waits for messages, and
/// nothing else can be done with the communicator.
class NcclCommunicator {
 public:
  /// Loads the library and joins all ranks. Collective; `ranks` outlives this object.
  /// @param is_emulated whether the devices are emulated, which takes another library than GPUs do
  /// @param interface on which the ranks meet if this is rank 0, "eth0 192.168.1.4"; "" if that is not known
  /// @throws InputError on all ranks if one of them has no usable library, or not the version of rank 0
  /// @throws TransportError if the ranks do not all join before the deadline
  NcclCommunicator(const Ranks& ranks, bool is_emulated, std::string_view interface = {});
  /// Ends the communicator together with the other ranks; aborts it if an exception is in flight.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const NcclLibrary& library() const { return *library_; }
  /// Functions of the library; all but those of groups take get().
  const nccl::Functions& functions() const { return library_->functions(); }
  const Ranks& ranks() const { return ranks_; }

  /// Queues messages and collectives as one group. @param queue makes the calls, and check() their status
  /// @throws TransportError
  template <class Queue>
  void group(const Queue& queue) {
    check("ncclGroupStart", functions().ncclGroupStart());
    // A group that is open when the communicator is aborted would take in the abort as well.
    is_group_open_ = true;
    queue();
    is_group_open_ = false;
    check("ncclGroupEnd", functions().ncclGroupEnd());
    await("NCCL to queue messages");
  }

  /// Waits until the last call has been accepted. @throws TransportError with what NCCL reports, or after the deadline
  void await(std::string_view what);
  /// Polls until a function returns true. @throws as await()
  void wait_until(const std::function<bool()>& is_done, std::string_view what);
  /// @throws TransportError if an asynchronous error has occurred
  void poll();
  /// @throws TransportError if a call has failed
  void check(std::string_view call, nccl::Status status);
  /// ncclCommAbort(). The second call does nothing.
  void abort() noexcept;
  /// Sets the function that abort() calls first. ncclCommAbort() ends kernels that wait for messages, then waits until all
  /// graphs with calls on this communicator have been dropped (NCCL 2.30.7, commDestroySync() in src/init.cc).
  void before_abort(std::function<void()> drop_graphs) { before_abort_ = std::move(drop_graphs); }

  nccl::Comm* get() const { return comm_; }

 private:
  [[noreturn]] void fail(std::string_view call, nccl::Status status);

  const Ranks& ranks_;
  std::shared_ptr<const NcclLibrary> library_;
  nccl::Comm* comm_ = nullptr;
  bool is_group_open_ = false;
  std::function<void()> before_abort_;
  int n_exceptions_;  ///< in flight when it was made
};

/// Memory of this device that is registered with all ranks, of equal size on each: where they are on one node, the library
/// gathers from it in its fastest way.
class NcclWindow {
 public:
  /// Collective over the ranks of the communicator. NCCL registers nothing, and returns success, where a rank cannot reach
  /// the memory of another: then this is memory for its collectives, as any other is.
  /// @param communicator of a library with windows; outlives the window
  NcclWindow(NcclCommunicator& communicator, std::size_t n_bytes);
  ~NcclWindow();
  NcclWindow(const NcclWindow&) = delete;
  NcclWindow& operator=(const NcclWindow&) = delete;

  void* data() const { return memory_; }

 private:
  void release() noexcept;

  NcclCommunicator& communicator_;
  void* memory_ = nullptr;
  nccl::Window* window_ = nullptr;
};

}  // namespace tree_attn
