// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages over MPI.
#pragma once

#include "distributed/transport/mpi_ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// Messages by MPI_Isend and MPI_Irecv, which keep their order between two ranks. Long messages are sent in parts, since
/// counts are int and since each part that arrives counts as progress.
class MpiTransport : public Transport {
 public:
  /// Longest part of a message, but for the first of several: that one is longer by the number of further parts, so that
  /// messages of different lengths have a part of different lengths.
  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 26;

  /// Uses the communicator of `ranks`, which outlives this object. If there are several transports, all ranks use them in
  /// the same order. @throws as MpiRanks::check()
  MpiTransport(const MpiRanks& ranks, Topology topology);
  /// Cancels the receives that a wait has left when it gave up, and gives up the ranks if any message is in flight.
  ~MpiTransport() override;
  const MpiRanks& ranks() const override { return ranks_; }
  std::string_view name() const override { return "mpi"; }
  void progress() override { have_arrived(); }
  bool have_arrived() override;
  bool has_messages_in_flight() const override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;
  void finish_messages() override;

  /// Peers of the messages that are received, or sent, and are not complete; one may be named twice.
  virtual std::vector<int> pending(bool is_received) const;

  MpiRanks::Advance advance_;  ///< of a derived transport whose messages do not all go over MPI

 private:
  /// A part of a message that was started.
  struct Part {
    int peer;
    std::size_t n_bytes, of;
    bool is_received;
  };
  template <class Byte, class Start>
  void start(std::span<Byte> bytes, int peer, bool is_received, const Start& start_part);
  void completed(const Part& part, const MPI_Status& status) const;

  const MpiRanks& ranks_;
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;  ///< of the requests
  MpiRanks::Completed completed_;
  Deadline::FindPending find_pending_;
};

}  // namespace tree_attn
