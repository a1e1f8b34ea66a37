// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Non-blocking messages of MPI, polled under a deadline.
#include "distributed/transport/mpi_transport.hpp"

#include "distributed/transport/mpi_check.hpp"

#include <algorithm>
#include <utility>

namespace tree_attn {
namespace {

/// Longest message that is sent in one call.
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 26;
constexpr int kTag = 7;

}  // namespace

MpiTransport::MpiTransport(const MpiRanks& ranks, Topology topology)
    : Transport(std::move(topology), ranks.rank()), ranks_(ranks) {}

MpiTransport::~MpiTransport() {
  for (MPI_Request& request : requests_) {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request), MPI_Request_free(&request);
  }
}

void MpiTransport::start_send(std::span<const std::byte> bytes, int to) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kMaxMessageBytes))) {
    const int count = static_cast<int>(std::min(bytes.size(), kMaxMessageBytes));
    check_mpi(MPI_Isend(bytes.data(), count, MPI_BYTE, to, kTag, ranks_.comm(), &requests_.emplace_back()), "MPI_Isend");
  }
}

void MpiTransport::start_receive(std::span<std::byte> bytes, int from) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kMaxMessageBytes))) {
    const int count = static_cast<int>(std::min(bytes.size(), kMaxMessageBytes));
    check_mpi(MPI_Irecv(bytes.data(), count, MPI_BYTE, from, kTag, ranks_.comm(), &requests_.emplace_back()), "MPI_Irecv");
  }
}

void MpiTransport::finish_messages() {
  ranks_.await(requests_, "a message", [this] { return advance(); });
  requests_.clear();
}

void MpiTransport::progress() {
  advance();
  if (requests_.empty()) return ranks_.deadline().poll();
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  ranks_.deadline().poll();
}

double MpiTransport::seconds() const { return MPI_Wtime(); }

#if defined(TREE_ATTN_SIMULATED)
Allocate MpiTransport::allocate() const {
  // All buffers of all ranks are the same few pages, and the simulator copies no message between two of them.
  return [](std::size_t n_bytes) -> Memory {
    return {static_cast<std::byte*>(SMPI_SHARED_MALLOC(n_bytes)), [](std::byte* bytes) { SMPI_SHARED_FREE(bytes); }};
  };
}
#else
Allocate MpiTransport::allocate() const { return Transport::allocate(); }
#endif

}  // namespace tree_attn
