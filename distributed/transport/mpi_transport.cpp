// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Non-blocking messages of MPI, polled under a deadline.
#include "distributed/transport/mpi_transport.hpp"

#include <algorithm>
#include <utility>

namespace tree_attn {

MpiTransport::MpiTransport(const MpiRanks& ranks, Topology topology)
    : Transport(std::move(topology), ranks.rank()),
      ranks_(ranks),
      completed_([this](std::size_t i, const MPI_Status& status) { completed(parts_[i], status); }),
      find_pending_([this] {
        std::vector<int> senders = pending(true);
        const bool have_sent = senders.empty();
        return Deadline::Pending{have_sent ? pending(false) : std::move(senders), have_sent};
      }) {
  ranks_.check();
}

MpiTransport::~MpiTransport() {
  if (!has_messages_in_flight()) return;
  ranks_.give_up();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    // Libraries cancel no sends.
    if (parts_[i].is_received) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

template <class Byte, class Start>
void MpiTransport::start(std::span<Byte> bytes, int peer, bool is_received, const Start& start_part) {
  ranks_.check();
  const std::size_t n = bytes.size(), n_further = n / (kMaxMessageBytes + 1);
  for (std::size_t i = 0; i <= n_further; ++i) {
    const std::span<Byte> part = bytes.first(std::min(bytes.size(), kMaxMessageBytes + (i == 0 ? n_further : 0)));
    bytes = bytes.subspan(part.size());
    parts_.push_back({peer, part.size(), n, is_received});
    start_part(part.data(), static_cast<int>(part.size()), ranks_.tag(), &requests_.emplace_back(MPI_REQUEST_NULL));
  }
}

void MpiTransport::start_send(std::span<const std::byte> bytes, int to) {
  start(bytes, to, false, [&](const std::byte* data, int count, int tag, MPI_Request* request) {
    check_mpi(MPI_Isend(data, count, MPI_BYTE, to, tag, ranks_.comm(), request), "MPI_Isend");
  });
}

void MpiTransport::start_receive(std::span<std::byte> bytes, int from) {
  start(bytes, from, true, [&](std::byte* data, int count, int tag, MPI_Request* request) {
    check_mpi(MPI_Irecv(data, count, MPI_BYTE, from, tag, ranks_.comm(), request), "MPI_Irecv");
  });
}

void MpiTransport::completed(const Part& part, const MPI_Status& status) const {
  int error_class = MPI_SUCCESS, n_bytes = 0;
  if (status.MPI_ERROR != MPI_SUCCESS) MPI_Error_class(status.MPI_ERROR, &error_class);
  const bool has_no_room = error_class == MPI_ERR_TRUNCATE;
  if (!has_no_room) check_mpi(status.MPI_ERROR, part.is_received ? "MPI_Irecv" : "MPI_Isend");
  if (!part.is_received) return;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &n_bytes), "MPI_Get_count");
  const std::size_t got = static_cast<std::size_t>(n_bytes);
  if (!has_no_room && got == part.n_bytes) return;
  throw TransportError(TransportError::Kind::kLength,
                       "rank " + std::to_string(rank()) + " expected " + std::to_string(part.n_bytes) + " bytes" +
                           (part.n_bytes == part.of ? "" : ", a part of " + std::to_string(part.of) + ",") + " from rank " +
                           std::to_string(part.peer) + " and got " +
                           (got > part.n_bytes || !has_no_room ? std::to_string(got) : "more"),
                       rank(), part.peer);
}

bool MpiTransport::has_messages_in_flight() const {
  return std::ranges::any_of(requests_, [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
}

void MpiTransport::finish_messages() {
  ranks_.await(requests_, "a message", completed_, advance_, find_pending_);
  requests_.clear();
  parts_.clear();
}

bool MpiTransport::have_arrived() { return ranks_.poll(requests_, completed_, advance_); }

std::vector<int> MpiTransport::pending(bool is_received) const {
  std::vector<int> peers;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (parts_[i].is_received == is_received && requests_[i] != MPI_REQUEST_NULL) peers.push_back(parts_[i].peer);
  return peers;
}

}  // namespace tree_attn
