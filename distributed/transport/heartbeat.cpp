// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shared memory, and the two reasons to end a job.
#include "distributed/transport/heartbeat.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>

namespace tree_attn {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "other processes see the words of atomics only");

void SharedText::set(std::string_view text) {
  std::array<std::uint64_t, 8> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), sizeof words - 1));
  for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
}

std::string SharedText::get() const {
  std::array<char, 64> text{};
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + 8 * i, &word, sizeof word);
  }
  text.back() = '\0';
  return text.data();
}

/// What belongs to no rank alone.
struct alignas(64) PulseBoard::Common {
  std::atomic<int> n_joined;
  std::atomic<std::int64_t> end;  ///< ticks of the steady clock, which the processes of a machine share; 0: the job runs
};

namespace {

constexpr std::array<int, 3> kEndings{SIGINT, SIGTERM, SIGHUP};
std::array<char, 128> path_to_remove{};

/// A rank that is told to end while the name exists removes it first.
void remove_and_end(int signal_number) {
  unlink(path_to_remove.data());
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

PulseBoard::PulseBoard(const Launch& launch)
    : n_expected_(launch.n_here), n_bytes_(sizeof(Common) + sizeof(Pulse) * static_cast<std::size_t>(launch.size)) {
  // The ranks that come first make it, all at once if need be: the memory begins as zeros, which is a valid state.
  void* memory = MAP_FAILED;
  if (!launch.key.empty()) {
    name_ = "/tree_attn-" + std::to_string(getuid()) + "-" + launch.key;
    ("/dev/shm" + name_).copy(path_to_remove.data(), path_to_remove.size() - 1);
    for (const int ending : kEndings) signal(ending, remove_and_end);
    const int file = shm_open(name_.c_str(), O_RDWR | O_CREAT, S_IRUSR | S_IWUSR);
    struct stat status {};
    // Not another user's, and with its pages allocated now: a full disk would end the process when it writes to them.
    if (file >= 0 && fstat(file, &status) == 0 && status.st_uid == getuid() &&
        posix_fallocate(file, 0, static_cast<off_t>(n_bytes_)) == 0) {
      memory = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (file >= 0) close(file);
  }
  if (memory == MAP_FAILED) memory = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  common_ = static_cast<Common*>(memory);
  pulses_ = {reinterpret_cast<Pulse*>(static_cast<std::byte*>(memory) + sizeof(Common)),
             static_cast<std::size_t>(launch.size)};
  if (++common_->n_joined == n_expected_) remove_name();
}

PulseBoard::~PulseBoard() { munmap(common_, n_bytes_); }

int PulseBoard::n_joined() const { return common_->n_joined; }

void PulseBoard::remove_name() const {
  if (name_.empty()) return;
  shm_unlink(name_.c_str());
  for (const int ending : kEndings) signal(ending, SIG_DFL);
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

namespace {

/// "rank 3", "ranks 1, 2", "ranks 0, 1, 2, 3 and 60 more".
std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 4;
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i) names += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) names += " and " + std::to_string(ranks.size() - kMost) + " more";
  return names;
}

/// A number of seconds, short.
std::string seconds(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

}  // namespace

PulseObserver::PulseObserver(const PulseBoard& board, int rank, double timeout)
    : board_(board), rank_(rank), timeout_(timeout), ages_(board.pulses().size()) {}

std::string PulseObserver::line(const std::string& what) const { return what + "; --timeout " + seconds(timeout_); }

double PulseObserver::limit(const Pulse& pulse) const {
  if (pulse.is_here()) return timeout_;
  return hears_computing ? timeout_ + kLate : std::numeric_limits<double>::infinity();
}

std::optional<std::string> PulseObserver::look(double elapsed) {
  constexpr double kStart = 30;

  // Bring the ages of all pulses up to date.
  std::uint64_t moves = 0;
  bool all_wait = true, all_beat = true, all_here = true, overdue = false;
  std::vector<int> silent_here, silent_elsewhere;
  int lowest = -1, lowest_here = -1;  // that answers
  for (std::size_t r = 0; r < ages_.size(); ++r) {
    const Pulse& pulse = board_.pulses()[r];
    const std::uint64_t beats = pulse.beats;
    moves += pulse.moves;
    if (beats == 0) continue;
    Age& age = ages_[r];
    age.silent = beats == age.beats ? age.silent + elapsed : 0;
    age.beats = beats;
    const bool here = pulse.is_here(), answers = age.silent < limit(pulse);
    if (answers && lowest < 0) lowest = static_cast<int>(r);
    if (answers && here && lowest_here < 0) lowest_here = static_cast<int>(r);
    all_here = all_here && here;
    // Ranks that have left stay, and beat, until all of their machine have.
    if (pulse.left) continue;
    if (age.silent >= timeout_) (here ? silent_here : silent_elsewhere).push_back(static_cast<int>(r));
    overdue = overdue || !answers;
    all_beat = all_beat && age.silent < (here ? timeout_ : timeout_ + kLate) / 2;
    all_wait = all_wait && pulse.waits();
  }
  still_ = moves == moves_ ? still_ + elapsed : 0;
  moves_ = moves;
  incomplete_ = !started && board_.n_joined() < board_.n_expected() ? incomplete_ + elapsed : 0;

  // A rank that stands still, or never came. The machine where it should be says so, if any of its ranks answers.
  // Pulses of another machine arrive together, but ranks that stopped together may have beaten last at different moments.
  if (!overdue) silent_elsewhere.clear();
  const std::vector<int>& silent = silent_here.empty() ? silent_elsewhere : silent_here;
  if (rank_ != (silent_here.empty() ? lowest : lowest_here)) return std::nullopt;
  const Pulse& own = board_.pulses()[static_cast<std::size_t>(rank_)];
  const std::string doing = own.doing.get();
  const std::string seen_from =
      " (rank " + std::to_string(rank_) +
      (own.waits() ? " waits " + own.waiting.get() : " computes" + (doing.empty() ? "" : " " + doing)) + ")";
  if (!silent.empty()) {
    const Pulse& pulse = board_.pulses()[static_cast<std::size_t>(silent[0])];
    const std::string where = pulse.doing.get();
    return line(names_of(silent) + (silent.size() == 1 ? " has" : " have") + " not answered for " + seconds(timeout_) +
                " s" + (where.empty() ? "" : " " + where) + (pulse.waits() ? ", waiting " + pulse.waiting.get() : "") +
                seen_from);
  }
  if (incomplete_ >= timeout_) {
    const bool one_machine = board_.n_expected() == static_cast<int>(ages_.size());
    const auto first = std::find_if(ages_.begin(), ages_.end(), [](const Age& age) { return age.beats == 0; });
    return line((one_machine ? "rank " + std::to_string(first - ages_.begin()) : std::string("a rank of this machine")) +
                " has not started for " + seconds(timeout_) + " s" + seen_from);
  }

  // All ranks wait, and nothing moves.
  const double patience = (started ? timeout_ : std::max(timeout_, kStart)) + (all_here ? 0 : kLate);
  if (!all_wait || !all_beat || still_ < patience) return std::nullopt;
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t r = 0; r < ages_.size(); ++r) {
    const Pulse& pulse = board_.pulses()[r];
    if (pulse.beats == 0 || pulse.left) continue;
    const std::string where = pulse.doing.get(), place = pulse.waiting.get() + (where.empty() ? "" : " " + where);
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) { return each.first == place; });
    if (group == groups.end())
      groups.push_back({place, {static_cast<int>(r)}});
    else
      group->second.push_back(static_cast<int>(r));
  }
  std::string all;
  for (const auto& [place, ranks] : groups) {
    all += (all.empty() ? "" : "; ") + names_of(ranks) + (ranks.size() == 1 ? " waits " : " wait ") + place;
  }
  return line("no rank has made progress for " + seconds(still_) + " s: " + all);
}

}  // namespace tree_attn
