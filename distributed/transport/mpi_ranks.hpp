// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks over an MPI communicator.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/ranks.hpp"

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

/// @throws TransportError, which names the call, unless the status is MPI_SUCCESS
void check_mpi(int status, const char* call);

/// The ranks of a communicator. The program initializes MPI before it creates this object, and finalizes MPI after it has
/// destroyed it. An object that is left then does nothing more.
///
/// Every wait polls, so that it can have a deadline, and yields, so that more ranks than cores share the cores. A rank that
/// computes for longer than the deadline counts as silent, so the others give up. MPI_Comm_split_type has no form that
/// polls: the ranks meet under the deadline before it, and a rank that ends inside it is not noticed but by a Deadline that
/// can end the process.
///
/// Errors: ranks that call different functions may send messages of other lengths to each other, and then Open MPI hands the
/// error of a nonblocking collective to the handler of MPI_COMM_WORLD, which by default ends the job.
///
/// Threads: one thread at a time uses an MpiRanks and what was opened with it, which is allowed from MPI_THREAD_SERIALIZED
/// on. Two threads that use two of them at the same time need MPI_THREAD_MULTIPLE.
///
/// Recovery: a wait that gives up throws TransportError, and from then on these ranks refuse all further work. To go on, all
/// ranks destroy the decoder, the transport and this object, meet by means of the program, for instance in a barrier of its
/// communicator, and begin again with a new MpiRanks on the same communicator. Caches and sessions may be kept. No message
/// of before is received then: duplicates are freed only if no rank has given up, so their contexts are not used again, and
/// messages have another tag. What each recovery leaves is never freed: two duplicates (MPICH has about 2000 communicators)
/// and the memory of messages in flight. A constructor is a collective on `comm`, also if it gives
/// up: all ranks call it equally often.
class MpiRanks : public Ranks {
 public:
  /// Called with the index of a request that is complete, and its status, in which MPI_ERROR is set.
  using Completed = std::function<void(std::size_t i, const MPI_Status& status)>;
  /// Moves messages that do not go over MPI. @returns whether all of them have arrived
  using Advance = std::function<bool()>;

  /// Duplicates the communicator, for messages and for the end: collective over it.
  /// @param timeout seconds that one wait may take without progress, may be infinite
  /// @throws std::invalid_argument for MPI_COMM_NULL, an inter-communicator, or if MPI is not running; TransportError
  MpiRanks(MPI_Comm comm, double timeout);
  /// Duplicates the communicator, with the caller's deadline, which outlives this object. @param polls false on a simulator
  /// of MPI, where polling takes time: waits are left to MPI, and end with the first error or never
  MpiRanks(MPI_Comm comm, Deadline& deadline, bool polls = true);
  /// Frees the duplicates if all ranks can_meet(): collective, but a rank that cannot does not wait.
  ~MpiRanks() override;

  /// Tests whether MPI has been initialized and not finalized.
  static bool is_running();
  /// The duplicate. Its error handler is MPI_ERRORS_RETURN.
  MPI_Comm comm() const { return comm_; }
  Deadline& deadline() const override { return deadline_; }
  /// Polls until the requests are complete. @param what for the message of a missed deadline @param completed checks each of
  /// them; by default for errors @param advance called meanwhile, and until it returns true
  /// @param find see Deadline::poll() @throws TransportError
  void await(std::span<MPI_Request> requests, std::string_view what, const Completed& completed = {},
             const Advance& advance = {}, const Deadline::FindPending& find = {}) const;
  /// Polls once. @returns whether all has arrived @throws TransportError
  bool poll(std::span<MPI_Request> requests, const Completed& completed, const Advance& advance) const;
  /// Tests whether the others can be expected in a collective: no wait has given up, no exception has ended the scope of
  /// this object, and MPI is running.
  bool can_meet() const;
  /// @throws TransportError if a wait has given up before; std::logic_error if MPI is not running
  void check() const override;
  /// The tag of all messages, which rank 0 has drawn.
  int tag() const { return tag_; }

  using Ranks::all_gather;
  void barrier() const override;
  /// @throws TransportError also for 2^31 bytes per rank or more, which MPI does not count
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override;
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override;
  void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const override;
  std::unique_ptr<Transport> open_transport(Topology topology) const override;
  std::unique_ptr<Transport> open_shared_transport(Topology topology) const override;

 protected:
  void all_reduce(std::span<std::uint64_t> numbers, Reduction reduction, std::string_view what) const override;
  /// Labels a node by its lowest rank.
  std::vector<int> find_nodes() const override;

 private:
  MpiRanks(MPI_Comm comm, std::unique_ptr<Deadline> own);
  MPI_Comm duplicate(MPI_Comm comm) const;
  template <class Memory>
  void await_collective(MPI_Request request, std::string_view what, Memory& memory) const;
  /// Takes what is complete; waits for a request before, if asked to. @returns whether none is left
  bool test(std::span<MPI_Request> requests, const Completed& completed, bool waits) const;

  std::unique_ptr<Deadline> own_deadline_;
  Deadline& deadline_;
  bool polls_;
  MPI_Comm comm_ = MPI_COMM_NULL, for_the_end_ = MPI_COMM_NULL;
  int n_exceptions_;  ///< in flight when this object was made
  /// Counts of ranks that cannot meet the others at the end: this rank (0 or 1), and all.
  struct Ended {
    int here = 0, in_all = 0;
  };
  std::unique_ptr<Ended> ended_ = std::make_unique<Ended>();
  int tag_ = 0;
  mutable std::vector<int> indices_;          ///< of complete requests
  mutable std::vector<MPI_Status> statuses_;  ///< theirs
};

}  // namespace tree_attn
