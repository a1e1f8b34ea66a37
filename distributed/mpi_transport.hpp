// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The transport over MPI, and everything else that the program asks of MPI. Nothing here waits without a deadline.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "distributed/transport.hpp"

namespace tree_attn {

/// MPI from its start to its end, and the few collective questions that ranks ask each other outside the decode step.
///
/// All waiting polls non-blocking operations, so a rank that never arrives costs `timeout` seconds and not for ever.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  /// Ends MPI, unless abandon() was called.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Seconds that any single wait may take.
  double timeout = 300;

  /// Waits until the requests are complete, polling. @throws TransportError naming `what` and the seconds waited
  void await(std::span<MPI_Request> requests, const std::string& what) const;

  /// Waits for all ranks.
  void barrier() const;
  /// Largest and smallest of a number over all ranks; NaN-free numbers only.
  double largest(double number) const;
  std::uint64_t largest(std::uint64_t number) const;
  std::uint64_t smallest(std::uint64_t number) const;
  /// The number that rank 0 has.
  std::uint64_t of_first(std::uint64_t number) const;
  /// Sum of a number over all ranks.
  std::int64_t sum(std::int64_t number) const;

  /// Asks all ranks whether they are well; if any is not, every rank throws InputError with the same line: that of the
  /// first such rank, with the rank in front unless all ranks say the same.
  void agree(const std::optional<std::string>& problem) const;

  /// Nodes found by shared memory, or pretended: every `ranks_per_node` consecutive ranks, 0 for found ones.
  Topology topology(int ranks_per_node) const;

  /// Ends every rank with `status`, from a rank that cannot reach the others any more.
  [[noreturn]] void abandon(int status) const;

 private:
  int rank_ = 0, size_ = 1;
};

/// Messages as MPI_Isend and MPI_Irecv; those over 1 GiB go in pieces, since counts are int.
class MpiTransport : public Transport {
 public:
  MpiTransport(const MpiSession& session, Topology topology);
  ~MpiTransport() override;
  void wait() override;
  void progress() override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;

 private:
  const MpiSession& session_;
  MPI_Comm comm_ = MPI_COMM_WORLD;
  std::vector<MPI_Request> requests_;
};

}  // namespace tree_attn
