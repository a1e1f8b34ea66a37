// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI under a watchdog, and the messages between machines.
#include "tree_attn/distributed/job/mpi_session.hpp"

#include "tree_attn/distributed/job/error_line.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

namespace tree_attn {
namespace {

constexpr int kTag = 11;
constexpr std::chrono::milliseconds kBetweenWords{500};
/// Seconds that a machine gives another beyond the deadline, and more for each machine before it.
constexpr double kLate = 2;

bool is_done(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv, double timeout) : launch_(find_launched_job()), watchdog_(launch_, timeout) {
  try {
    start(argc, argv);
  } catch (const std::exception& error) {
    // The destructor of the watchdog would wait for ranks that wait for this one.
    abandon(error);
  }
}

MpiSession::~MpiSession() {
  try {
    if (several_machines_) leave_machines();
  } catch (const std::exception& error) {
    abandon(error);
  }
  ranks_.reset();
  const Waiting waiting(watchdog_, "in MPI_Finalize");
  watchdog_.ends();
  MPI_Finalize();
}

void MpiSession::start(int* argc, char*** argv) {
  watchdog_.start();
  int level = MPI_THREAD_SINGLE;
  {
    const Waiting waiting(watchdog_, "in MPI_Init_thread");
    check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  ranks_.emplace(MPI_COMM_WORLD, watchdog_);
  if (watchdog_.is_limited()) join_machines(ranks_->all_min(std::uint64_t{level >= MPI_THREAD_SERIALIZED}) != 0);
}

void MpiSession::join_machines(bool any_thread) {
  const int self = ranks_->rank(), size = ranks_->size();
  auto board = std::make_unique<PulseBoard>(self, size, true);
  const std::vector<PulseBoard::Address> addresses = ranks_->all_gather(board->address(), "the boards of all ranks");
  int machine = self;
  for (int rank = 0; rank < self && machine == self; ++rank) {
    auto shared = board->open(addresses[static_cast<std::size_t>(rank)]);
    if (shared != nullptr) board = std::move(shared), machine = rank;
  }
  // Name a machine by its lowest rank.
  const std::vector<int> machines = ranks_->all_gather(machine, "the machines of all ranks");
  int n_before = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int lowest = machines[static_cast<std::size_t>(rank)];
    n_before += lowest == rank && lowest < machine ? 1 : 0;
    if (lowest == machine) continue;
    several_machines_ = true;
    if (any_thread && machine == self && lowest == rank) others_.push_back({.rank = rank});
  }
  const double late = !several_machines_ ? 0 : any_thread ? kLate * (1 + n_before) : std::numeric_limits<double>::infinity();
  watchdog_.move_to(std::move(board), late);
  if (!others_.empty()) watchdog_.exchange_by([this] { exchange(); });
}

void MpiSession::leave_machines() {
  // Ranks that still compute must hear from the others. After the barrier none computes, and only the main thread uses MPI.
  ranks_->barrier();
  watchdog_.exchange_by({});
  const Waiting waiting(watchdog_, "for the other machines to leave");
  const auto finish = [&] {
    for (Machine& other : others_) check_mpi(MPI_Wait(&other.sent, MPI_STATUS_IGNORE), "MPI_Wait");
  };
  finish();
  say(kLeaves);
  for (; !std::ranges::all_of(others_, &Machine::has_left); std::this_thread::yield()) hear();
  finish();
}

void MpiSession::exchange() {
  const auto now = std::chrono::steady_clock::now();
  const bool ends = watchdog_.board().end().has_value();
  if (now < next_ && !ends) return;
  next_ = now + kBetweenWords;
  hear();
  const std::uint64_t moves = watchdog_.board().moves_here();
  say(ends ? kEnds : moves == moves_ ? kWaits : kMoves);
  moves_ = moves;
}

void MpiSession::say(Word word) {
  for (Machine& other : others_) {
    // A machine is told once that the job ends.
    if (other.said == kEnds || !is_done(other.sent)) continue;
    other.said = word;
    check_mpi(MPI_Isend(&other.said, 1, MPI_BYTE, other.rank, kTag, MPI_COMM_WORLD, &other.sent), "MPI_Isend");
  }
}

void MpiSession::hear() {
  for (;;) {
    int is_there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &is_there, &status), "MPI_Iprobe");
    if (is_there == 0) return;
    Word word = kWaits;
    check_mpi(MPI_Recv(&word, 1, MPI_BYTE, status.MPI_SOURCE, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    Machine& other = *std::ranges::find(others_, status.MPI_SOURCE, &Machine::rank);
    other.has_left = word == kLeaves;
    Pulse& pulse = watchdog_.board().pulses()[static_cast<std::size_t>(other.rank)];
    pulse.moves += word == kMoves ? 1 : 0;
    pulse.beats = other.has_left ? 0 : pulse.beats + 1;
    // The other machine has written why the job ends.
    if (word == kEnds) watchdog_.board().claim_last_word();
  }
}

void MpiSession::abandon(const std::exception& error) const {
  const int size = ranks_ ? ranks_->size() : launch_.size, rank = ranks_ ? ranks_->rank() : launch_.rank;
  abandon(error_line(error, size > 1 ? "rank " + std::to_string(rank) : ""));
}

void MpiSession::abandon(const std::string& line) const {
  // With a single rank there may be no launcher that cleans up.
  if (ranks_ && ranks_->size() == 1) MPI_Finalize();
  watchdog_.end_job(line);
}

}  // namespace tree_attn
