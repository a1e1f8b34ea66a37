// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages over MPI.
#pragma once

#include "distributed/transport/mpi_ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <vector>

namespace tree_attn {

/// Messages by MPI_Isend and MPI_Irecv. Long messages are sent in parts of 64 MiB, since counts are int and since each part
/// that arrives counts as progress.
class MpiTransport : public Transport {
 public:
  /// Uses the communicator of `ranks`, which outlives this object. If there are several transports, all ranks use them in
  /// the same order.
  MpiTransport(const MpiRanks& ranks, Topology topology);
  void wait() override;
  void progress() override;
  double seconds() const override;
  Allocate allocate() const override;
  /// Lets every message take this long at its sender, and again at its receiver: a model of a processor that drives MPI.
  void set_message_seconds(double seconds) { message_seconds_ = seconds; }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;

 private:
  const MpiRanks& ranks_;
  std::vector<MPI_Request> requests_;
  double message_seconds_ = 0;
  int n_receives_ = 0;  ///< messages that wait() receives
};

}  // namespace tree_attn
