// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The thread of the watchdog.
#include "tree_attn/distributed/job/watchdog.hpp"

#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/distributed/job/launcher_guard.hpp"
#include "tree_attn/distributed/transport/transport.hpp"
#include "tree_attn/reference/data/temporary_files.hpp"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

namespace tree_attn {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kStatus = 2;
/// Time in which the launcher ends the other ranks and itself. It takes a few seconds.
constexpr double kLauncherSeconds = 20;

}  // namespace

Watchdog::Watchdog(const LaunchedJob& job, double timeout)
    : timeout_(timeout),
      board_(job),
      own_(board_.pulses()[static_cast<std::size_t>(job.rank)]),
      observer_(board_, job.rank, timeout),
      one_exit_ends_job_(job.one_exit_ends_job),
      launcher_(job.process),
      tick_(std::clamp(timeout / 20, 1e-3, 0.1)),
      name_(job.size > 1 ? "rank " + std::to_string(job.rank) : "") {
  require_timeout("Watchdog", timeout);
}

void Watchdog::start() {
  if (std::isinf(timeout_)) return;
  if (board_.end()) end_job("");  // a rank that starts late
  // Signals are handled by the main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { watch_or_end(stop); });
  } catch (const std::exception&) {
    // Reported below, when signals are no longer blocked.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread_.joinable()) throw TransportError("the system started no thread for the watchdog");
}

Watchdog::~Watchdog() {
  own_.left = true;
  const Waiting waiting(*this, "for all ranks to leave MPI");
  const auto is_there = [](const Pulse& pulse) { return pulse.beats != 0 && !pulse.left; };
  while (thread_.joinable() && std::any_of(board_.pulses().begin(), board_.pulses().end(), is_there)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Watchdog::begin_wait(std::string_view phrase) {
  own_.waiting.set(phrase);
  ++own_.moves;
}

void Watchdog::end_wait() {
  ++own_.moves;
  if (board_.end()) end_job("");
}

void Watchdog::mpi_has_started() {
  board_.remove_name();
  observer_.started = true;
}

void Watchdog::exchange_by(std::function<void()> step, bool while_computing) {
  const std::lock_guard lock(exchange_mutex_);
  exchange_ = std::move(step);
  observer_.hears_computing = while_computing;
}

void Watchdog::exchange() const {
  std::string failure;
  if (std::unique_lock lock(exchange_mutex_, std::try_to_lock); lock && exchange_) {
    try {
      exchange_();
      return;
    } catch (const std::exception& error) {
      exchange_ = {};
      failure = error_line(error, name_);
    }
  }
  if (!failure.empty()) end_job(failure);
}

void Watchdog::end_job(const std::string& line) const {
  const bool has_last_word = board_.claim_last_word();
  // Open MPI's mpirun continues a rank that was stopped before it started, a second before it ends it. That rank must find
  // the board and its end: without them it would create the name anew. So the name stays as long as the launcher.
  bool name_is_guarded = one_exit_ends_job_;
  if (has_last_word) {
    // In one call, and without an allocation, since the line may say that memory is used up.
    const auto part = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
    const std::array parts{part("tree_attn: "), part(line), part("\n")};
    [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size()));
    // Continue stopped processes, so that their own watchdogs end them.
    for (const Pulse& pulse : board_.pulses()) {
      if (!one_exit_ends_job_ && pulse.process != 0) kill(pulse.process, SIGCONT);
    }
    name_is_guarded =
        one_exit_ends_job_ && launcher_ != 0 && guard_launcher(launcher_, kLauncherSeconds, board_.path().c_str());
  }
  // All ranks exit at the same time: MPICH's mpiexec kills the ranks that remain after the first exit, and returns that as
  // its status. Until then, notify the other machines.
  constexpr std::chrono::milliseconds kPause{10};
  for (auto now = Clock::now(); now < *board_.end(); now = Clock::now()) {
    exchange();
    std::this_thread::sleep_until(std::min(now + kPause, *board_.end()));
  }
  if (!name_is_guarded) board_.remove_name();
  remove_temporary_files();
  // Open MPI's mpirun returns the status of the first exit and ends the other ranks itself; it may hang if several exit in
  // MPI_Finalize.
  if (one_exit_ends_job_ && !has_last_word) std::this_thread::sleep_for(std::chrono::seconds(3));
  _exit(kStatus);
}

void Watchdog::watch_or_end(const std::stop_token& stop) {
  try {
    watch(stop);
  } catch (const std::exception& error) {
    end_job(error_line(error, name_));
  }
}

void Watchdog::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!wake_.wait_for(lock, stop, std::chrono::duration<double>(tick_), [] { return false; }) && !stop.stop_requested()) {
    ++own_.beats;
    exchange();
    if (board_.end()) end_job("");
    // Do not count a pause of this process itself (stopped job, suspended machine) as silence of the others.
    const auto now = Clock::now();
    const double elapsed = std::min(std::chrono::duration<double>(now - last).count(), 5 * tick_);
    last = now;
    if (const auto line = observer_.look(elapsed)) end_job(*line);
  }
}

}  // namespace tree_attn
