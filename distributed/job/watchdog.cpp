// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The thread of the watchdog.
#include "tree_attn/distributed/job/watchdog.hpp"

#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/distributed/transport/transport.hpp"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace tree_attn {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kStatus = 2;
/// Seconds that the start and the end may take at least: a library may be looking up a host name. Of several ranks the
/// lowest speaks.
constexpr double kStart = 30, kBetweenRanks = 2;
/// Time limits that the start may take: thousands of ranks may be reading libraries from a cold file system.
constexpr double kLimitsOfStart = 5;

}  // namespace

Watchdog::Watchdog(const LaunchedJob& job, double timeout)
    : timeout_(timeout), job_(job), board_(std::make_unique<PulseBoard>(job.rank, job.size, false)) {
  require_timeout("Watchdog", timeout);
}

void Watchdog::start() {
  if (!is_limited()) return;
  observer_.emplace(*board_, timeout_, std::max(kStart, kLimitsOfStart * timeout_) - timeout_ + kBetweenRanks * job_.rank);
  // Signals are handled by the main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  } catch (const std::exception&) {
    // Reported below, when signals are no longer blocked.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread_.joinable())
    throw TransportError(TransportError::Kind::kLibrary, "the system started no thread for the watchdog");
}

Watchdog::~Watchdog() {
  thread_ = {};
  board_->own().beats = 0;
}

void Watchdog::doing(std::string_view phrase) {
  const std::lock_guard lock(text_mutex_);
  Deadline::doing(phrase);
}

void Watchdog::begin_wait(std::string_view phrase) {
  const std::lock_guard lock(text_mutex_);
  waiting_ = phrase;
  progress();
}

void Watchdog::end_wait() {
  const std::lock_guard lock(text_mutex_);
  waiting_.clear();
  progress();
  if (board_->end()) end_job("");
}

void Watchdog::poll() {
  if (const auto lock = use_mpi(); lock) exchange_();
}

std::unique_lock<std::recursive_mutex> Watchdog::use_mpi() {
  return exchange_ ? std::unique_lock(mpi_mutex_) : std::unique_lock<std::recursive_mutex>();
}

void Watchdog::move_to(std::unique_ptr<PulseBoard> board, double late) {
  const std::lock_guard lock(mutex_);
  board_ = std::move(board);
  observer_.emplace(*board_, timeout_, late);
}

void Watchdog::ends() {
  const std::lock_guard lock(mutex_);
  observer_.emplace(*board_, timeout_, std::max(kStart - timeout_, 0.0));
}

void Watchdog::exchange_by(std::function<void()> exchange) {
  const std::lock_guard lock(mpi_mutex_);
  exchange_ = std::move(exchange);
}

void Watchdog::end_job(const std::string& line) const {
  const bool has_last_word = board_->claim_last_word();
  if (has_last_word) {
    // In one call, and without an allocation, since the line may say that memory is used up.
    const auto part = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
    const std::array parts{part("tree_attn: "), part(line), part("\n")};
    [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size()));
    // Continue stopped processes, so that their own watchdogs end them.
    for (const Pulse& pulse : board_->pulses()) {
      if (pulse.process != 0) kill(pulse.process, SIGCONT);
    }
  }
  // All ranks exit at the same time: MPICH's mpiexec kills the ranks that remain after the first exit, and returns that as
  // its status. Until then, tell the other machines.
  constexpr std::chrono::milliseconds kPause{10};
  for (auto now = Clock::now(); now < *board_->end(); now = Clock::now()) {
    try {
      if (const std::unique_lock lock(mpi_mutex_, std::try_to_lock); lock && exchange_) exchange_();
    } catch (const std::exception&) {
      // The job ends anyway.
    }
    std::this_thread::sleep_until(std::min(now + kPause, *board_->end()));
  }
  // Open MPI's mpirun returns the status of the first exit and ends the other ranks itself; it may hang if several exit in
  // MPI_Finalize.
  if (job_.one_exit_ends_job && !has_last_word) std::this_thread::sleep_for(std::chrono::seconds(3));
  _exit(kStatus);
}

void Watchdog::watch(const std::stop_token& stop) try {
  const double tick = std::clamp(timeout_ / 20, 1e-3, 0.1);  // seconds
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!wake_.wait_for(lock, stop, std::chrono::duration<double>(tick), [] { return false; }) && !stop.stop_requested()) {
    ++board_->own().beats;
    if (const std::unique_lock mpi(mpi_mutex_, std::try_to_lock); mpi && exchange_) exchange_();
    if (board_->end()) end_job("");
    // Do not count a pause of this process itself (stopped job, suspended machine) as silence of the others.
    const auto now = Clock::now();
    const double elapsed = std::min(std::chrono::duration<double>(now - last).count(), 5 * tick);
    last = now;
    const std::lock_guard text(text_mutex_);
    if (waiting_.empty()) progress();  // computing is answering
    if (const auto why = observer_->look(elapsed, waiting_.find("all ranks") == std::string::npos))
      end_job(*why + " (" + name() + " waits " + waiting_ + (activity().empty() ? "" : " " + activity()) + "); --timeout " +
              seconds_text(timeout_));
  }
} catch (const std::exception& error) {
  end_job(error_line(error, board_->pulses().size() > 1 ? name() : ""));
}

}  // namespace tree_attn
