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
  /// Cancels what a wait that gave up has left, so that nothing is received into memory that is gone. What was sent and is
  /// not received stays in MPI, and MPICH may hand it to a communicator that is made later.
  ~MpiTransport() override;
  std::string_view name() const override { return "mpi"; }
  void progress() override;
  double timeout() const override { return ranks_.deadline().seconds(); }
  double seconds() const override;
  Allocate allocate() const override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;
  void finish_messages() override;
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    ranks_.all_gather(mine, all, what);
  }
  /// Moves messages that do not go over MPI, if a derived transport has any. @returns whether all of them have arrived
  virtual bool advance() { return true; }
  const MpiRanks& ranks() const { return ranks_; }

 private:
  const MpiRanks& ranks_;
  std::vector<MPI_Request> requests_;
};

}  // namespace tree_attn
