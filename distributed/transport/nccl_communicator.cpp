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
  require_equal(ranks, "--transport nccl", "the NCCL version", std::array{Field{"NCCL", library_->version_text()}});

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

NcclWindow::NcclWindow(NcclCommunicator& communicator, std::size_t n_bytes) : communicator_(communicator) {
  const nccl::Functions& f = communicator.functions();
  try {
    communicator.check("ncclMemAlloc", f.ncclMemAlloc(&memory_, n_bytes));
    communicator.check("ncclCommWindowRegister",
                       f.ncclCommWindowRegister(communicator.get(), memory_, n_bytes, &window_, nccl::kSymmetricWindow));
    communicator.await("all ranks to register a window");
  } catch (...) {
    release();
    throw;
  }
}

NcclWindow::~NcclWindow() { release(); }

void NcclWindow::release() noexcept {
  const nccl::Functions& f = communicator_.functions();
  if (window_ != nullptr && communicator_.get() != nullptr) f.ncclCommWindowDeregister(communicator_.get(), window_);
  window_ = nullptr;
  if (memory_ != nullptr) f.ncclMemFree(std::exchange(memory_, nullptr));
}

}  // namespace tree_attn
