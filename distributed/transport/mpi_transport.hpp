// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages over MPI.
#pragma once

#include "distributed/transport/mpi_ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <vector>

namespace tree_attn {

/// Messages as MPI_Isend and MPI_Irecv; long ones go in parts of 64 MiB, since counts are int and each part that arrives is
/// progress.
class MpiTransport : public Transport {
 public:
  /// Uses the communicator of `ranks`, which outlives this object. All ranks use their transports in the same order.
  MpiTransport(const MpiRanks& ranks, Topology topology);
  void wait() override;
  void progress() override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;

 private:
  const MpiRanks& ranks_;
  std::vector<MPI_Request> requests_;
};

}  // namespace tree_attn
