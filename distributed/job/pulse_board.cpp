// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shared memory of the pulses, and the condition that ends a job.
#include "tree_attn/distributed/job/pulse_board.hpp"

#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/distributed/transport/deadline.hpp"
#include "tree_attn/reference/state/require.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <system_error>

namespace tree_attn {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would be invisible to other processes");

/// What all ranks share.
struct alignas(64) PulseBoard::Common {
  std::uint64_t token;
  std::atomic<std::int64_t> end;  ///< ticks of the steady clock, common to the processes of a machine; 0: the job runs
};

namespace {

constexpr std::size_t kLine = 64;

std::size_t n_bytes(int size) { return kLine + sizeof(Pulse) * static_cast<std::size_t>(size); }

/// A file without a name, for as many pulses; -1 if there is none.
int make_file(int size) {
  const int file = memfd_create("tree_attn", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(n_bytes(size))) == 0) return file;
  close(file);
  return -1;
}

std::string path_of(const PulseBoard::Address& address) {
  return "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.file);
}

/// "/memfd:tree_attn (deleted)"
std::string link_of(const PulseBoard::Address& address) {
  std::error_code none;
  return std::filesystem::read_symlink(path_of(address), none);
}

}  // namespace

PulseBoard::PulseBoard(int rank, int size, int file) : rank_(static_cast<std::size_t>(rank)), file_(file) {
  static_assert(sizeof(Common) == kLine);
  require<std::out_of_range>(rank >= 0 && rank < size, "PulseBoard: rank ", rank, " of ", size);
  // Without a file the memory is that of this process alone.
  void* const memory =
      mmap(nullptr, n_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  common_ = static_cast<Common*>(memory);
  pulses_ = {reinterpret_cast<Pulse*>(common_ + 1), static_cast<std::size_t>(size)};
}

PulseBoard::PulseBoard(int rank, int size, bool is_shared) : PulseBoard(rank, size, is_shared ? make_file(size) : -1) {
  std::random_device draw;
  common_->token = std::uint64_t{draw()} << 32 | draw();
  join();
}

std::unique_ptr<PulseBoard> PulseBoard::open(const Address& other) const {
  // Open nothing but a board.
  if (link_of(other).empty() || link_of(other) != link_of(address())) return nullptr;
  const int file = ::open(path_of(other).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  std::unique_ptr<PulseBoard> board(new PulseBoard(rank(), static_cast<int>(pulses_.size()), file));
  if (board->common_->token != other.token) return nullptr;
  board->join();
  return board;
}

PulseBoard::~PulseBoard() {
  munmap(common_, n_bytes(static_cast<int>(pulses_.size())));
  if (file_ >= 0) close(file_);
}

void PulseBoard::join() {
  own().process = getpid();
  own().beats = 1;  // a rank that has joined can be silent
}

PulseBoard::Address PulseBoard::address() const { return {common_->token, getpid(), file_}; }

bool PulseBoard::claim_last_word() const {
  constexpr std::chrono::milliseconds kMoment{300};
  std::int64_t runs = 0;
  return common_->end.compare_exchange_strong(runs, (std::chrono::steady_clock::now() + kMoment).time_since_epoch().count());
}

std::optional<std::chrono::steady_clock::time_point> PulseBoard::end() const {
  using Clock = std::chrono::steady_clock;
  const std::int64_t end = common_->end;
  return end == 0 ? std::nullopt : std::optional(Clock::time_point(Clock::duration(end)));
}

std::uint64_t PulseBoard::moves_here() const {
  std::uint64_t moves = 0;
  for (const Pulse& pulse : pulses_) moves += pulse.process != 0 ? pulse.moves.load() : 0;
  return moves;
}

PulseObserver::PulseObserver(const PulseBoard& board, double timeout, double late)
    : board_(board), timeout_(timeout), late_(late), ages_(board.pulses().size()) {
  require_timeout("PulseObserver", timeout);
}

std::optional<std::string> PulseObserver::look(double elapsed, bool is_first) {
  constexpr double kLetOthersSpeak = 0.5;
  std::uint64_t moves = 0;
  std::vector<int> silent_here, silent_elsewhere;
  bool is_overdue = false;
  for (int rank = 0; Age & age : ages_) {
    const Pulse& pulse = board_.pulses()[static_cast<std::size_t>(rank)];
    const std::uint64_t beats = pulse.beats;
    const double limit = pulse.process != 0 ? timeout_ : timeout_ + late_;
    moves += pulse.moves;
    age.silent = beats == age.beats && beats != 0 ? age.silent + elapsed : 0;
    age.beats = beats;
    // Ranks that stop together may have beaten last at different times.
    if (age.silent >= limit / 2) (pulse.process != 0 ? silent_here : silent_elsewhere).push_back(rank);
    is_overdue = is_overdue || age.silent >= limit;
    ++rank;
  }
  still_ = moves == moves_ ? still_ + elapsed : 0;
  moves_ = moves;
  if (!is_overdue && still_ < timeout_ + late_ + (is_first ? 0 : kLetOthersSpeak)) return std::nullopt;
  // A silent rank may be the one that hears of the other machines.
  const std::vector<int>& silent = silent_here.empty() ? silent_elsewhere : silent_here;
  if (silent.empty()) return "no rank has made progress for " + seconds_text(timeout_ + late_);
  return ranks_text(silent) + (silent.size() == 1 ? " has" : " have") + " not answered for " + seconds_text(timeout_);
}

}  // namespace tree_attn
