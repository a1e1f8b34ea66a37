// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI under the eyes of the watchdog.
#include "distributed/transport/mpi_transport.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "reference/data/input_error.hpp"
#include "distributed/transport/mpi_check.hpp"

namespace tree_attn {
namespace {

/// Longest piece of a message.
constexpr std::size_t kPiece = std::size_t{1} << 26;
/// Longest line that a rank can report to the others.
constexpr int kLineLength = 1024;
constexpr int kTag = 7;

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv, double timeout) : launch_(find_launch()), watchdog_(launch_, timeout) {
  int level = MPI_THREAD_SINGLE;
  {
    const auto guard = waiting("in MPI_Init_thread");
    const bool one_machine = launch_.size <= std::max(launch_.n_here, 1);
    check_mpi(MPI_Init_thread(argc, argv, one_machine ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &level),
              "MPI_Init_thread");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  barrier();
  watchdog_.mpi_has_started();
  join_machines(level);
}

MpiSession::~MpiSession() {
  try {
    leave_machines();
  } catch (const TransportError& error) {
    abandon(error.what());
  }
  const auto guard = waiting("in MPI_Finalize");
  MPI_Finalize();
}

void MpiSession::join_machines(int thread_level) {
  if (size_ == 1) return;
  // A machine is known by its lowest rank, the first on its board.
  const std::span<Pulse> pulses = watchdog_.board().pulses();
  const auto first = std::find_if(pulses.begin(), pulses.end(), [](const Pulse& pulse) { return pulse.beats != 0; });
  const int machine = watchdog_.watches() ? static_cast<int>(first - pulses.begin()) : 0;
  std::vector<int> machine_of_rank(static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(&machine, 1, MPI_INT, machine_of_rank.data(), 1, MPI_INT, MPI_COMM_WORLD, &request),
            "MPI_Iallgather");
  await({&request, 1}, "the machines of all ranks");
  if (std::count(machine_of_rank.begin(), machine_of_rank.end(), 0) == size_) return;

  const bool any_thread = smallest(static_cast<std::uint64_t>(thread_level)) == MPI_THREAD_MULTIPLE;
  {
    const auto guard = waiting("in MPI_Comm_dup");
    exchange_ = std::make_unique<PulseExchange>(watchdog_.board(), MPI_COMM_WORLD, machine_of_rank, any_thread);
  }
  watchdog_.exchange_by([this] { exchange_->step(); }, any_thread);
}

void MpiSession::leave_machines() {
  if (!exchange_) return;
  // Ranks that still compute must hear from the others. After this none does, and the main thread alone calls MPI.
  barrier();
  watchdog_.exchange_by({}, exchange_->any_thread());
  {
    const auto guard = waiting("for the other machines to leave");
    for (exchange_->finish(); !exchange_->finished(); std::this_thread::yield()) exchange_->step();
  }
  const auto guard = waiting("in MPI_Comm_free");
  exchange_.reset();
}

void MpiSession::await(std::span<MPI_Request> requests, const std::string& what) const {
  constexpr int kPolls = 32;
  constexpr std::chrono::milliseconds kBetweenSigns{100};
  const int n = static_cast<int>(requests.size());
  const auto are_done = [&] {
    int done = 0;
    for (int poll = 0; poll < kPolls && !done; ++poll) {
      check_mpi(MPI_Testall(n, requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    }
    return done != 0;
  };
  if (are_done()) return;
  const auto guard = waiting("for " + what);
  for (auto last = std::chrono::steady_clock::now(); !are_done();) {
    // Ranks often outnumber cores: give the processor to the one we are waiting for.
    std::this_thread::yield();
    exchange_pulses();
    // In a long wait, pieces that arrive are a sign that it goes on.
    if (const auto now = std::chrono::steady_clock::now(); now - last > kBetweenSigns) {
      last = now;
      int n_arrived = 0;
      std::vector<int> which(requests.size());
      check_mpi(MPI_Testsome(n, requests.data(), &n_arrived, which.data(), MPI_STATUSES_IGNORE), "MPI_Testsome");
      if (n_arrived != MPI_UNDEFINED && n_arrived > 0) guard.progress();
    }
  }
}

void MpiSession::barrier() const {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
  await({&request, 1}, "all ranks to arrive");
}

namespace {

/// One number, reduced over all ranks.
template <class Number>
Number reduce(const MpiSession& session, Number number, MPI_Datatype type, MPI_Op op) {
  Number result{};
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(&number, &result, 1, type, op, MPI_COMM_WORLD, &request), "MPI_Iallreduce");
  session.await({&request, 1}, "all ranks to agree");
  return result;
}

}  // namespace

double MpiSession::largest(double number) const { return reduce(*this, number, MPI_DOUBLE, MPI_MAX); }
std::uint64_t MpiSession::largest(std::uint64_t number) const { return reduce(*this, number, MPI_UINT64_T, MPI_MAX); }
std::uint64_t MpiSession::smallest(std::uint64_t number) const { return reduce(*this, number, MPI_UINT64_T, MPI_MIN); }
std::int64_t MpiSession::sum(std::int64_t number) const { return reduce(*this, number, MPI_INT64_T, MPI_SUM); }

std::uint64_t MpiSession::of_first(std::uint64_t number) const {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(&number, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD, &request), "MPI_Ibcast");
  await({&request, 1}, "rank 0");
  return number;
}

void MpiSession::agree(const std::optional<std::string>& problem) const {
  const int first = reduce(*this, problem ? rank_ : size_, MPI_INT, MPI_MIN);
  if (first == size_) return;

  // The first rank in trouble tells its line to all.
  char line[kLineLength] = {};
  if (rank_ == first) problem->copy(line, kLineLength - 1);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(line, kLineLength, MPI_CHAR, first, MPI_COMM_WORLD, &request), "MPI_Ibcast");
  await({&request, 1}, "the line of rank " + std::to_string(first));

  // Name the rank unless all say the same.
  const int same = problem && problem->substr(0, kLineLength - 1) == line;
  const bool all_the_same = reduce(*this, same, MPI_INT, MPI_MIN) != 0;
  throw InputError(all_the_same ? std::string(line) : "rank " + std::to_string(first) + ": " + line);
}

Topology MpiSession::topology(int ranks_per_node) const {
  if (ranks_per_node > 0) return Topology::pretend(size_, ranks_per_node);

  MPI_Comm node = MPI_COMM_NULL;
  {
    const auto guard = waiting("in MPI_Comm_split_type");
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  }
  int leader = rank_;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(&leader, 1, MPI_INT, 0, node, &request), "MPI_Ibcast");
  await({&request, 1}, "the leader of the node");
  {
    const auto guard = waiting("in MPI_Comm_free");
    check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  }

  // A node is known by its leader's rank.
  std::vector<int> node_of_rank(static_cast<std::size_t>(size_));
  check_mpi(MPI_Iallgather(&leader, 1, MPI_INT, node_of_rank.data(), 1, MPI_INT, MPI_COMM_WORLD, &request),
            "MPI_Iallgather");
  await({&request, 1}, "the nodes of all ranks");
  return Topology(node_of_rank);
}

void MpiSession::abandon(const std::string& line) const {
  // Alone, no launcher cleans up.
  if (size_ == 1) MPI_Finalize();
  watchdog_.end_job(line);
}

MpiTransport::MpiTransport(const MpiSession& session, Topology topology)
    : Transport(std::move(topology), session.rank()), session_(session) {
  const auto guard = session.waiting("in MPI_Comm_dup");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiTransport::~MpiTransport() {
  const auto guard = session_.waiting("in MPI_Comm_free");
  MPI_Comm_free(&comm_);
}

void MpiTransport::start_send(std::span<const std::byte> bytes, int to) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kPiece))) {
    const int count = static_cast<int>(std::min(bytes.size(), kPiece));
    check_mpi(MPI_Isend(bytes.data(), count, MPI_BYTE, to, kTag, comm_, &requests_.emplace_back()), "MPI_Isend");
  }
}

void MpiTransport::start_receive(std::span<std::byte> bytes, int from) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kPiece))) {
    const int count = static_cast<int>(std::min(bytes.size(), kPiece));
    check_mpi(MPI_Irecv(bytes.data(), count, MPI_BYTE, from, kTag, comm_, &requests_.emplace_back()), "MPI_Irecv");
  }
}

void MpiTransport::wait() {
  session_.await(requests_, "a message");
  requests_.clear();
}

void MpiTransport::progress() {
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  session_.exchange_pulses();
}

}  // namespace tree_attn
