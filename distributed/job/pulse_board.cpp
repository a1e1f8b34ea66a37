// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shared memory and its name.
#include "tree_attn/distributed/job/pulse_board.hpp"

#include "tree_attn/reference/state/require.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace tree_attn {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would be invisible to other processes");

void SharedText::set(std::string_view text) {
  std::array<std::uint64_t, kBytes / 8> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), sizeof words - 1));
  for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
}

std::string SharedText::get() const {
  std::array<char, kBytes> text{};
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + 8 * i, &word, sizeof word);
  }
  text.back() = '\0';
  return text.data();
}

/// What all ranks share.
struct alignas(64) PulseBoard::Common {
  std::atomic<int> n_joined;
  std::atomic<std::int64_t>
      end;  ///< ticks of the steady clock, which is common to the processes of a machine; 0: the job runs
};

namespace {

constexpr std::array<int, 3> kEndings{SIGINT, SIGTERM, SIGHUP};
std::array<char, 128> path_to_remove{};
std::array<struct sigaction, kEndings.size()> actions_before{};

/// Restores the handlers that the program had before install_handlers().
void restore_handlers() {
  for (std::size_t i = 0; i < kEndings.size(); ++i) sigaction(kEndings[i], &actions_before[i], nullptr);
}

/// Handler of signals that end a rank while the name exists: removes the name first.
void remove_and_end(int signal_number) {
  unlink(path_to_remove.data());
  restore_handlers();
  raise(signal_number);
}

void install_handlers() {
  for (std::size_t i = 0; i < kEndings.size(); ++i) {
    struct sigaction before {};
    sigaction(kEndings[i], nullptr, &before);
    if (before.sa_handler == remove_and_end) continue;
    actions_before[i] = before;
    // A signal that is ignored, as SIGHUP under nohup, ends no rank.
    if (before.sa_handler != SIG_IGN) signal(kEndings[i], remove_and_end);
  }
}

}  // namespace

PulseBoard::PulseBoard(const LaunchedJob& job)
    : n_expected_(job.n_here), n_bytes_(sizeof(Common) + sizeof(Pulse) * static_cast<std::size_t>(job.size)) {
  require<std::out_of_range>(job.rank >= 0 && job.rank < job.size, "PulseBoard: rank ", job.rank, " of ", job.size);
  // Any number of ranks may create the memory at the same time: it starts as zeros, which is a valid state.
  void* memory = MAP_FAILED;
  if (!job.key.empty()) {
    name_ = "/tree_attn-" + std::to_string(getuid()) + "-" + job.key;
    path_ = "/dev/shm" + name_;
    path_.copy(path_to_remove.data(), path_to_remove.size() - 1);
    install_handlers();
    const int file = shm_open(name_.c_str(), O_RDWR | O_CREAT, S_IRUSR | S_IWUSR);
    struct stat status {};
    // Refuse memory of another user. Allocate the pages now: on a full file system, writing to them later would end the
    // process.
    if (file >= 0 && fstat(file, &status) == 0 && status.st_uid == getuid() &&
        posix_fallocate(file, 0, static_cast<off_t>(n_bytes_)) == 0) {
      memory = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (file >= 0) close(file);
  }
  if (memory == MAP_FAILED) memory = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  common_ = static_cast<Common*>(memory);
  pulses_ = {reinterpret_cast<Pulse*>(static_cast<std::byte*>(memory) + sizeof(Common)), static_cast<std::size_t>(job.size)};
  // Announce this rank before it is counted: a rank that is stopped in between would be neither silent nor missing.
  Pulse& own = pulses_[static_cast<std::size_t>(job.rank)];
  own.process = getpid();
  own.beats = 1;
  if (++common_->n_joined == n_expected_) remove_name();
}

PulseBoard::~PulseBoard() { munmap(common_, n_bytes_); }

int PulseBoard::n_joined() const { return common_->n_joined; }

void PulseBoard::remove_name() const {
  if (name_.empty()) return;
  shm_unlink(name_.c_str());
  restore_handlers();
}

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

}  // namespace tree_attn
