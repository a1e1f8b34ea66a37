// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Joins ranks, polls, and ends a communicator.
#include "distributed/transport/nccl_communicator.hpp"

#include "reference/data/input_error.hpp"

#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tree_attn {

NcclCommunicator::NcclCommunicator(const Ranks& ranks, bool is_emulated, std::string_view interface)
    : ranks_(ranks), n_exceptions_(std::uncaught_exceptions()) {
  run_on_all(ranks, [&] {
    library_ = NcclLibrary::load();
    // A stream of one kind is no stream of the other.
    if (library_->is_emulated() && !is_emulated)
      throw InputError("--transport nccl: " + library_->path() +
                       " is a stand-in for emulated devices; use --backend emulated");
    if (is_emulated && !library_->is_emulated())
      throw InputError("--transport nccl: " + library_->path() + " is NCCL " + library_->version_text() +
                       ", which needs GPUs; use --backend cuda");
  });
  const nccl::Functions& f = functions();

  // Different versions speak different protocols, and may wait for each other forever.
  const std::vector<int> versions = ranks.all_gather(library_->version(), "the NCCL version");
  const auto other = std::find_if(versions.begin(), versions.end(), [&](int each) { return each != versions[0]; });
  if (other != versions.end()) {
    throw InputError("--transport nccl: rank " + std::to_string(other - versions.begin()) + " has NCCL " +
                     nccl_version_text(*other) + ", but rank 0 has " + nccl_version_text(versions[0]) +
                     "; all ranks need the same version");
  }

  // Rank 0 listens, so the others name its interface where they wait.
  struct Meeting {
    nccl::UniqueId id;
    char interface[64] = {};
  } meeting;
  interface.copy(meeting.interface, sizeof meeting.interface - 1);
  run_on_all(ranks, [&] {
    if (ranks.rank() != 0) return;
    const nccl::Status status = f.ncclGetUniqueId(&meeting.id);
    if (status != nccl::Status::kSuccess)
      throw InputError("--transport nccl: " + library_->describe("ncclGetUniqueId", status, nullptr));
  });
  ranks.broadcast(std::as_writable_bytes(std::span(&meeting, 1)), 0, "the unique id of NCCL");
  nccl::Config config;
  check("ncclCommInitRankConfig", f.ncclCommInitRankConfig(&comm_, ranks.size(), meeting.id, ranks.rank(), &config));
  const std::string at = meeting.interface[0] == '\0' ? "" : " on " + std::string(meeting.interface);
  await("all ranks to join NCCL (rank 0 listens" + at + "; NCCL_SOCKET_IFNAME chooses the interface)");
}

NcclCommunicator::NcclCommunicator(NcclCommunicator& whole, const Topology& topology)
    : ranks_(whole.ranks_), library_(whole.library_), n_exceptions_(std::uncaught_exceptions()) {
  const int node = topology.node_of(ranks_.rank()), local = topology.local_rank(ranks_.rank());
  // NCCL sets the pointer when the split is done, which the state of the whole tells.
  whole.check("ncclCommSplit", functions().ncclCommSplit(whole.comm_, node, local, &comm_, nullptr));
  whole.await("all ranks to divide NCCL's communicator by nodes");
  await("the ranks of its node to join NCCL");
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  // If this rank has failed, the others need not come here.
  if (std::uncaught_exceptions() > n_exceptions_) {
    abort();
    return;
  }
  try {
    check("ncclCommFinalize", functions().ncclCommFinalize(comm_));
    await("all ranks to leave NCCL");
    functions().ncclCommDestroy(std::exchange(comm_, nullptr));
  } catch (const std::exception&) {
    abort();
  }
}

void NcclCommunicator::await(std::string_view what) {
  const auto is_accepted = [&] {
    nccl::Status status = nccl::Status::kInProgress;
    check("ncclCommGetAsyncError", functions().ncclCommGetAsyncError(comm_, &status));
    check(what, status);
    return status == nccl::Status::kSuccess;
  };
  wait_until(is_accepted, what);
}

void NcclCommunicator::wait_until(const std::function<bool()>& is_done, std::string_view what) {
  if (is_done()) return;
  Deadline& deadline = ranks_.deadline();
  const Waiting waiting(deadline, "for " + std::string(what));
  for (; !is_done(); std::this_thread::yield()) {
    poll();
    try {
      deadline.poll();
    } catch (...) {
      abort();
      throw;
    }
  }
}

void NcclCommunicator::poll() {
  nccl::Status status = nccl::Status::kSuccess;
  check("ncclCommGetAsyncError", functions().ncclCommGetAsyncError(comm_, &status));
  check("an asynchronous error", status);
}

void NcclCommunicator::check(std::string_view call, nccl::Status status) {
  if (status != nccl::Status::kSuccess && status != nccl::Status::kInProgress) fail(call, status);
}

void NcclCommunicator::fail(std::string_view call, nccl::Status status) {
  const std::string& activity = ranks_.deadline().activity();
  const std::string line = "rank " + std::to_string(ranks_.rank()) + ": NCCL " + library_->version_text() + ": " +
                           library_->describe(call, status, comm_) + (activity.empty() ? "" : " (" + activity + ")");
  abort();
  throw TransportError(TransportError::Kind::kLibrary, line, ranks_.rank(), -1, static_cast<int>(status));
}

void NcclCommunicator::abort() noexcept {
  nccl::Comm* const comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  if (std::exchange(is_group_open_, false)) functions().ncclGroupEnd();
  if (before_abort_) before_abort_();
  functions().ncclCommAbort(comm);
}

NcclWindow::NcclWindow(NcclCommunicator& node, const Topology& topology, std::size_t n_bytes)
    : node_(node), topology_(topology), at_(topology.node(topology.node_of(node.ranks().rank())).size()) {
  const nccl::Functions& f = node.functions();
  try {
    node.check("ncclMemAlloc", f.ncclMemAlloc(&memory_, n_bytes));
    node.check("ncclCommWindowRegister",
               f.ncclCommWindowRegister(node.get(), memory_, n_bytes, &window_, nccl::kSymmetricWindow));
    node.await("the ranks of its node to register a window");
  } catch (...) {
    release();
    throw;
  }
  at_[static_cast<std::size_t>(topology.local_rank(node.ranks().rank()))] = memory_;
}

void NcclWindow::find_others() {
  const nccl::Functions& f = node_.functions();
  for (std::size_t i = 0; window_ != nullptr && i < at_.size(); ++i)
    node_.check("ncclGetPeerDevicePointer", f.ncclGetPeerDevicePointer(window_, 0, static_cast<int>(i), &at_[i]));
  run_on_all(node_.ranks(), [&] {
    if (window_ == nullptr || std::ranges::count(at_, nullptr) > 0)
      throw InputError(
          "NCCL registered no window: the devices of the node do not all reach each other's memory (nvidia-smi topo -p2p r "
          "says which do), or NCCL_CUMEM_ENABLE or NCCL_WIN_ENABLE is 0; use two-level");
  });
}

NcclWindow::~NcclWindow() { release(); }

void NcclWindow::release() noexcept {
  const nccl::Functions& f = node_.functions();
  if (window_ != nullptr && node_.get() != nullptr) f.ncclCommWindowDeregister(node_.get(), window_);
  window_ = nullptr;
  if (memory_ != nullptr) f.ncclMemFree(std::exchange(memory_, nullptr));
}

}  // namespace tree_attn
