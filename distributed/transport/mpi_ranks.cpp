// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Non-blocking collectives of MPI, polled under a deadline.
#include "distributed/transport/mpi_ranks.hpp"

#include "distributed/transport/mpi_check.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "distributed/transport/shared_transport.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

namespace tree_attn {
namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

/// A count of MPI, an int. @throws TransportError
int count_of(std::size_t n_bytes, const std::string& call) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (n_bytes > static_cast<std::size_t>(kMost))
    throw TransportError(call + ": " + std::to_string(n_bytes) + " bytes per rank are more than " + std::to_string(kMost));
  return static_cast<int>(n_bytes);
}

}  // namespace

MpiRanks::MpiRanks(MPI_Comm comm, double timeout) : MpiRanks(comm, std::make_unique<TimeLimit>(rank_in(comm), timeout)) {}

MpiRanks::MpiRanks(MPI_Comm comm, std::unique_ptr<Deadline> own) : MpiRanks(comm, *own) { own_deadline_ = std::move(own); }

MpiRanks::MpiRanks(MPI_Comm comm, Deadline& deadline) : Ranks(rank_in(comm), size_of(comm)), deadline_(deadline) {
  const Waiting waiting(deadline_, "in MPI_Comm_dup");
  check_mpi(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiRanks::~MpiRanks() {
  const Waiting waiting(deadline_, "in MPI_Comm_free");
  MPI_Comm_free(&comm_);
}

void MpiRanks::await(std::span<MPI_Request> requests, std::string_view what, const std::function<bool()>& advance) const {
  constexpr int kPolls = 32;
  constexpr std::chrono::milliseconds kBetweenChecks{100};
  const int n = static_cast<int>(requests.size());
  if (!deadline_.is_limited()) return check_mpi(MPI_Waitall(n, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  const auto are_done = [&] {
    bool done = false;
    for (int poll = 0; poll < kPolls && !done; ++poll) {
      int requests_are_done = 1;
      if (n > 0) check_mpi(MPI_Testall(n, requests.data(), &requests_are_done, MPI_STATUSES_IGNORE), "MPI_Testall");
      done = advance() && requests_are_done != 0;
    }
    return done;
  };
  if (are_done()) return;
  const Waiting waiting(deadline_, "for " + std::string(what));
  for (auto last = std::chrono::steady_clock::now(); !are_done();) {
    // Ranks may outnumber cores: yield to the rank that this one waits for.
    std::this_thread::yield();
    deadline_.poll();
    // In a long wait, every completed request counts as progress.
    if (const auto now = std::chrono::steady_clock::now(); now - last > kBetweenChecks) {
      last = now;
      bool any_arrived = false;
      for (MPI_Request& request : requests) {
        int has_arrived = 0;
        if (request != MPI_REQUEST_NULL) check_mpi(MPI_Test(&request, &has_arrived, MPI_STATUS_IGNORE), "MPI_Test");
        any_arrived = any_arrived || has_arrived != 0;
      }
      if (any_arrived) waiting.progress();
    }
  }
}

void MpiRanks::barrier() const {
  if (!deadline_.is_limited()) return check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  await({&request, 1}, "all ranks to arrive");
}

void MpiRanks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  const int n_bytes = count_of(mine.size(), "MPI_Allgather");
  if (!deadline_.is_limited()) {
    check_mpi(MPI_Allgather(mine.data(), n_bytes, MPI_BYTE, all.data(), n_bytes, MPI_BYTE, comm_), "MPI_Allgather");
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(mine.data(), n_bytes, MPI_BYTE, all.data(), n_bytes, MPI_BYTE, comm_, &request),
            "MPI_Iallgather");
  await({&request, 1}, what);
}

void MpiRanks::broadcast(std::span<std::byte> bytes, int root, std::string_view what) const {
  // MPI counts in int. All ranks have as many bytes, and therefore the same parts.
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  do {
    const std::span<std::byte> part = bytes.first(std::min(bytes.size(), kMostBytes));
    bytes = bytes.subspan(part.size());
    const int n_bytes = static_cast<int>(part.size());
    if (!deadline_.is_limited()) {
      check_mpi(MPI_Bcast(part.data(), n_bytes, MPI_BYTE, root, comm_), "MPI_Bcast");
      continue;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(part.data(), n_bytes, MPI_BYTE, root, comm_, &request), "MPI_Ibcast");
    await({&request, 1}, what);
  } while (!bytes.empty());
}

std::unique_ptr<Transport> MpiRanks::open_transport(Topology topology) const {
  return std::make_unique<MpiTransport>(*this, std::move(topology));
}

std::unique_ptr<Transport> MpiRanks::open_shared_transport(Topology topology) const {
  return std::make_unique<SharedTransport>(*this, std::move(topology));
}

std::vector<int> MpiRanks::find_nodes() const {
  MPI_Comm node = MPI_COMM_NULL;
  {
    const Waiting waiting(deadline_, "in MPI_Comm_split_type");
    check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  }
  int leader = rank();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(&leader, 1, MPI_INT, 0, node, &request), "MPI_Ibcast");
  await({&request, 1}, "the leader of the node");
  {
    const Waiting waiting(deadline_, "in MPI_Comm_free");
    check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  }
  return all_gather(std::span<const int>(&leader, 1), "the nodes of all ranks");
}

}  // namespace tree_attn
