// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Non-blocking collectives of MPI, polled under a deadline.
#include "distributed/transport/mpi_ranks.hpp"

#include "distributed/transport/mpi_transport.hpp"
#include "distributed/transport/shared_transport.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>

namespace tree_attn {
namespace {

/// The error handler of the caller's communicator may end the job, so nothing is asked that would call it.
/// @throws std::invalid_argument
int rank_in(MPI_Comm comm) {
  if (!MpiRanks::is_running()) throw std::invalid_argument("MpiRanks: MPI is not running");
  if (comm == MPI_COMM_NULL) throw std::invalid_argument("MpiRanks: the communicator is MPI_COMM_NULL");
  int is_inter = 0, rank = 0;
  check_mpi(MPI_Comm_test_inter(comm, &is_inter), "MPI_Comm_test_inter");
  if (is_inter != 0) throw std::invalid_argument("MpiRanks: the communicator is an inter-communicator");
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

std::size_t n_left(std::span<const MPI_Request> requests) {
  return requests.size() - static_cast<std::size_t>(std::ranges::count(requests, MPI_REQUEST_NULL));
}

/// A count of MPI, an int. @throws TransportError
int count_of(std::size_t n_bytes, const std::string& call) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (n_bytes > static_cast<std::size_t>(kMost))
    throw TransportError(TransportError::Kind::kLibrary,
                         call + ": " + std::to_string(n_bytes) + " bytes per rank are more than " + std::to_string(kMost));
  return static_cast<int>(n_bytes);
}

}  // namespace

void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw TransportError(TransportError::Kind::kLibrary,
                       std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)), -1, -1,
                       status);
}

MpiRanks::MpiRanks(MPI_Comm comm, double timeout) : MpiRanks(comm, std::make_unique<Deadline>(rank_in(comm), timeout)) {}

MpiRanks::MpiRanks(MPI_Comm comm, std::unique_ptr<Deadline> own) : MpiRanks(comm, *own) { own_deadline_ = std::move(own); }

MpiRanks::MpiRanks(MPI_Comm comm, Deadline& deadline, bool polls)
    : Ranks(rank_in(comm), size_of(comm), "; make new MpiRanks"),
      deadline_(deadline),
      polls_(polls),
      n_exceptions_(std::uncaught_exceptions()) {
  comm_ = duplicate(comm);
  for_the_end_ = duplicate(comm_);
  constexpr unsigned kTags = 32768;  // that every MPI has
  tag_ = static_cast<int>(broadcast_from_root(rank() == 0 ? std::random_device{}() % kTags : 0));
}

MpiRanks::~MpiRanks() {
  if (!is_running()) return;
  // A communicator is freed on all ranks or on none: a message to one that is freed may reach a later one with its context,
  // the caller's too, or end the process. Others may have collectives on comm_ that this rank has not, so it says here how
  // it has ended.
  ended_->here = can_meet() ? 0 : 1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(&ended_->here, &ended_->in_all, 1, MPI_INT, MPI_SUM, for_the_end_, &request);
  if (ended_->here != 0) {
    static_cast<void>(ended_.release());
    return;
  }
  try {
    await_collective(request, "all ranks to end", ended_);
  } catch (const TransportError&) {
    return;
  }
  if (ended_->in_all != 0) return;
  const BlockingCall call(deadline_, "MPI_Comm_free");
  MPI_Comm_free(&comm_);
  MPI_Comm_free(&for_the_end_);
}

MPI_Comm MpiRanks::duplicate(MPI_Comm comm) const {
  auto duplicate = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const BlockingCall call(deadline_, "MPI_Comm_idup");
    check_mpi(MPI_Comm_idup(comm, duplicate.get(), &request), "MPI_Comm_idup");
  }
  await_collective(request, "all ranks to duplicate the communicator", duplicate);
  check_mpi(MPI_Comm_set_errhandler(*duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return *duplicate;
}

bool MpiRanks::is_running() {
  int has_begun = 0, has_ended = 0;
  MPI_Initialized(&has_begun);
  MPI_Finalized(&has_ended);
  return has_begun != 0 && has_ended == 0;
}

bool MpiRanks::can_meet() const { return !has_given_up() && std::uncaught_exceptions() <= n_exceptions_ && is_running(); }

void MpiRanks::check() const {
  if (!is_running()) throw std::logic_error("MpiRanks: MPI is not running");
  Ranks::check();
}

void MpiRanks::await(std::span<MPI_Request> requests, std::string_view what, const Completed& completed,
                     const Advance& advance, const Deadline::FindPending& find) const {
  const auto is_over = [&] {
    const bool has_advanced = !advance || advance();
    return test(requests, completed, !polls_) && has_advanced;
  };
  or_give_up([&] {
    wait_until(
        deadline_, what, is_over, [&] { return n_left(requests); }, find);
  });
}

bool MpiRanks::poll(std::span<MPI_Request> requests, const Completed& completed, const Advance& advance) const {
  return or_give_up([&] {
    const bool has_advanced = !advance || advance();
    return test(requests, completed, false) && has_advanced;
  });
}

bool MpiRanks::test(std::span<MPI_Request> requests, const Completed& completed, bool waits) const {
  if (requests.empty()) return true;
  statuses_.resize(std::max(statuses_.size(), requests.size()));
  indices_.resize(statuses_.size());
  int n = 0, error_class = MPI_SUCCESS;
  const char* const call = waits ? "MPI_Waitsome" : "MPI_Testsome";
  const int status = (waits ? MPI_Waitsome : MPI_Testsome)(static_cast<int>(requests.size()), requests.data(), &n,
                                                           indices_.data(), statuses_.data());
  if (status != MPI_SUCCESS) MPI_Error_class(status, &error_class);
  if (error_class != MPI_ERR_IN_STATUS) check_mpi(status, call);
  for (std::size_t k = 0; n != MPI_UNDEFINED && k < static_cast<std::size_t>(n); ++k) {
    if (status == MPI_SUCCESS) statuses_[k].MPI_ERROR = MPI_SUCCESS;
    if (!completed) check_mpi(statuses_[k].MPI_ERROR, call);
    if (completed) completed(static_cast<std::size_t>(indices_[k]), statuses_[k]);
  }
  return n_left(requests) == 0;
}

/// A collective cannot be cancelled: after a wait that gave up MPI may still use the memory, so it is never freed.
template <class Memory>
void MpiRanks::await_collective(MPI_Request request, std::string_view what, Memory& memory) const {
  try {
    await({&request, 1}, what);
  } catch (...) {
    static_cast<void>(memory.release());
    throw;
  }
}

void MpiRanks::barrier() const {
  check();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  await({&request, 1}, "all ranks to arrive");
}

void MpiRanks::all_reduce(std::span<std::uint64_t> numbers, Reduction reduction, std::string_view what) const {
  check();
  auto memory = std::make_unique_for_overwrite<std::uint64_t[]>(2 * numbers.size());
  std::uint64_t* const reduced = memory.get() + numbers.size();
  std::ranges::copy(numbers, memory.get());
  const MPI_Op op = reduction == Reduction::kMax ? MPI_MAX : reduction == Reduction::kMin ? MPI_MIN : MPI_SUM;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(memory.get(), reduced, static_cast<int>(numbers.size()), MPI_UINT64_T, op, comm_, &request),
            "MPI_Iallreduce");
  await_collective(request, what, memory);
  std::copy_n(reduced, numbers.size(), numbers.begin());
}

/// By rank 0: in the usual MPI_Iallgather every rank sends to all others.
void MpiRanks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  gather(mine, all, what);
  broadcast(all, 0, what);
}

void MpiRanks::gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  check();
  const int n_bytes = count_of(mine.size(), "MPI_Gather");
  const std::size_t n_gathered = rank() == 0 ? mine.size() * static_cast<std::size_t>(size()) : 0;
  auto memory = std::make_unique_for_overwrite<std::byte[]>(mine.size() + n_gathered);
  std::byte* const gathered = memory.get() + mine.size();
  std::ranges::copy(mine, memory.get());
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Igather(memory.get(), n_bytes, MPI_BYTE, gathered, n_bytes, MPI_BYTE, 0, comm_, &request), "MPI_Igather");
  await_collective(request, what, memory);
  std::copy_n(gathered, n_gathered, all.data());
}

void MpiRanks::broadcast(std::span<std::byte> bytes, int root, std::string_view what) const {
  check();
  // MPI counts in int. All ranks have as many bytes, and therefore the same parts.
  constexpr std::size_t kMostBytes = std::size_t{1} << 24;
  auto memory = std::make_unique_for_overwrite<std::byte[]>(std::min(bytes.size(), kMostBytes));
  do {
    const std::span<std::byte> part = bytes.first(std::min(bytes.size(), kMostBytes));
    bytes = bytes.subspan(part.size());
    const int n_bytes = static_cast<int>(part.size());
    if (rank() == root) std::ranges::copy(part, memory.get());
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(memory.get(), n_bytes, MPI_BYTE, root, comm_, &request), "MPI_Ibcast");
    await_collective(request, what, memory);
    if (rank() != root) std::copy_n(memory.get(), part.size(), part.data());
  } while (!bytes.empty());
}

std::unique_ptr<Transport> MpiRanks::open_transport(Topology topology) const {
  return std::make_unique<MpiTransport>(*this, std::move(topology));
}

std::unique_ptr<Transport> MpiRanks::open_shared_transport(Topology topology) const {
  return std::make_unique<SharedTransport>(*this, std::move(topology));
}

std::vector<int> MpiRanks::find_nodes() const {
  // The split blocks until all ranks have called it.
  barrier();
  MPI_Comm node = MPI_COMM_NULL;
  {
    const BlockingCall call(deadline_, "MPI_Comm_split_type");
    check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  }
  const int first = 0;
  int leader = 0;
  MPI_Group group = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(node, &group), "MPI_Comm_group");
  check_mpi(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_translate_ranks(group, 1, &first, all, &leader), "MPI_Group_translate_ranks");
  check_mpi(MPI_Group_free(&group), "MPI_Group_free");
  check_mpi(MPI_Group_free(&all), "MPI_Group_free");
  {
    const BlockingCall call(deadline_, "MPI_Comm_free");
    check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  }
  return all_gather(leader, "the nodes of all ranks");
}

}  // namespace tree_attn
