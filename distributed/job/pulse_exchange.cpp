// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between the lowest ranks of the machines.
#include "tree_attn/distributed/job/pulse_exchange.hpp"

#include "tree_attn/distributed/transport/mpi_check.hpp"

#include <algorithm>

namespace tree_attn {
namespace {

constexpr int kTag = 11;
constexpr std::chrono::milliseconds kBetweenMessages{50};

bool is_done(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

PulseExchange::PulseExchange(const PulseBoard& board, MPI_Comm comm, const std::vector<int>& machine_of_rank,
                             bool any_thread)
    : board_(board), any_thread_(any_thread) {
  check_mpi(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int self = 0;
  check_mpi(MPI_Comm_rank(comm_, &self), "MPI_Comm_rank");
  const int machine = machine_of_rank[static_cast<std::size_t>(self)];
  if (machine != self) return;

  // Ranks are visited in ascending order, so the lowest rank of a machine comes first.
  for (int rank = 0; rank < static_cast<int>(machine_of_rank.size()); ++rank) {
    const int lowest = machine_of_rank[static_cast<std::size_t>(rank)];
    if (lowest == machine) {
      ranks_.push_back(rank);
      continue;
    }
    if (lowest == rank) peers_.push_back({.rank = rank});
    std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.rank == lowest; })->ranks.push_back(rank);
    // Mark the rank as started, so that its silence is noticed.
    board_.pulses()[static_cast<std::size_t>(rank)].beats = 1;
  }
  for (Peer& peer : peers_) {
    peer.arriving.resize(peer.ranks.size());
    peer.leaving.resize(ranks_.size());
    start_receive(peer);
  }
}

PulseExchange::~PulseExchange() { MPI_Comm_free(&comm_); }

void PulseExchange::step() {
  if (!any_thread_ && std::this_thread::get_id() != thread_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_ && !finishing_) return;
  next_ = now + kBetweenMessages;
  for (Peer& peer : peers_) {
    while (!peer.has_left && is_done(peer.receive)) {
      take(peer);
      if (!peer.has_left) start_receive(peer);
    }
    if (!peer.knows_that_we_leave && is_done(peer.send)) start_send(peer);
  }
}

bool PulseExchange::finished() {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](Peer& peer) { return peer.has_left && peer.knows_that_we_leave && is_done(peer.send); });
}

void PulseExchange::start_receive(Peer& peer) {
  const int n_bytes = static_cast<int>(peer.arriving.size() * sizeof(Snapshot));
  check_mpi(MPI_Irecv(peer.arriving.data(), n_bytes, MPI_BYTE, peer.rank, kTag, comm_, &peer.receive), "MPI_Irecv");
}

void PulseExchange::start_send(Peer& peer) {
  const News news = finishing_ ? kLeaves : board_.end() ? kEnds : kRuns;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Pulse& pulse = board_.pulses()[static_cast<std::size_t>(ranks_[i])];
    Snapshot& snapshot =
        peer.leaving[i] = {.news = news, .beats = pulse.beats, .moves = pulse.moves, .doing = {}, .waiting = {}};
    pulse.doing.get().copy(snapshot.doing.data(), snapshot.doing.size() - 1);
    pulse.waiting.get().copy(snapshot.waiting.data(), snapshot.waiting.size() - 1);
  }
  const int n_bytes = static_cast<int>(peer.leaving.size() * sizeof(Snapshot));
  check_mpi(MPI_Isend(peer.leaving.data(), n_bytes, MPI_BYTE, peer.rank, kTag, comm_, &peer.send), "MPI_Isend");
  peer.knows_that_we_leave = news == kLeaves;
}

void PulseExchange::take(Peer& peer) {
  const std::uint64_t news = peer.arriving.front().news;
  for (std::size_t i = 0; i < peer.ranks.size(); ++i) {
    Pulse& pulse = board_.pulses()[static_cast<std::size_t>(peer.ranks[i])];
    const Snapshot& snapshot = peer.arriving[i];
    pulse.doing.set(snapshot.doing.data());
    pulse.waiting.set(snapshot.waiting.data());
    pulse.moves = snapshot.moves;
    pulse.beats = snapshot.beats;
    pulse.left = news == kLeaves;
  }
  peer.has_left = news == kLeaves;
  // The other machine has already written why the job ends.
  if (news == kEnds) board_.claim_last_word();
}

}  // namespace tree_attn
