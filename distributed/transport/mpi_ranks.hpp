// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks over an MPI communicator.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/ranks.hpp"

#include <mpi.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// The ranks of a communicator. The program initializes MPI before it creates this object, and finalizes MPI after it has
/// destroyed it.
///
/// Every wait polls, so that it can have a deadline, and yields, so that more ranks than cores share the cores. Without a
/// deadline, waits and collectives block in MPI: a simulator of MPI needs this, since polling takes time there. After a
/// TransportError messages may still be in flight: end the job, for instance with MPI_Abort.
class MpiRanks : public Ranks {
 public:
  /// Duplicates the communicator: collective over it.
  /// @param timeout seconds that one wait may take without progress, may be infinite @throws TransportError
  MpiRanks(MPI_Comm comm, double timeout);
  /// The same with the caller's deadline, which outlives this object.
  MpiRanks(MPI_Comm comm, Deadline& deadline);
  /// Frees the duplicate: collective.
  ~MpiRanks() override;

  /// The duplicate. Its error handler is MPI_ERRORS_RETURN.
  MPI_Comm comm() const { return comm_; }
  Deadline& deadline() const override { return deadline_; }
  /// Polls until the requests are complete, or blocks if there is no deadline. @param what for the message of a missed
  /// deadline @param advance moves other messages, and returns whether all of them have arrived
  /// @throws TransportError
  void await(
      std::span<MPI_Request> requests, std::string_view what,
      const std::function<bool()>& advance = [] { return true; }) const;

  using Ranks::all_gather;
  void barrier() const override;
  /// @throws TransportError also for 2^31 bytes per rank or more, which MPI does not count
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override;
  void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const override;
  std::unique_ptr<Transport> open_transport(Topology topology) const override;
  std::unique_ptr<Transport> open_shared_transport(Topology topology) const override;

 protected:
  /// Labels a node by its lowest rank.
  std::vector<int> find_nodes() const override;
  void announce(std::string_view phrase) const override { deadline_.doing(phrase); }

 private:
  MpiRanks(MPI_Comm comm, std::unique_ptr<Deadline> own);

  std::unique_ptr<Deadline> own_deadline_;
  Deadline& deadline_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace tree_attn
