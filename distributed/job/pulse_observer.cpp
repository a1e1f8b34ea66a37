// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two conditions that end a job.
#include "tree_attn/distributed/job/pulse_observer.hpp"

#include "tree_attn/distributed/transport/deadline.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <utility>

namespace tree_attn {
namespace {

/// "rank 3", "ranks 1, 2", "ranks 0, 1, 2, 3 and 60 more".
std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 4;
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i) names += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) names += " and " + std::to_string(ranks.size() - kMost) + " more";
  return names;
}

/// Seconds with up to six digits.
std::string seconds(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

}  // namespace

PulseObserver::PulseObserver(const PulseBoard& board, int rank, double timeout)
    : board_(board), rank_(rank), timeout_(timeout), ages_(board.pulses().size()) {
  require_timeout("PulseObserver", timeout);
}

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
  int lowest = -1, lowest_here = -1;  // of the ranks that answer
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
    // A rank that has left goes on beating until all ranks of its machine have left.
    if (pulse.left) continue;
    if (age.silent >= timeout_) (here ? silent_here : silent_elsewhere).push_back(static_cast<int>(r));
    overdue = overdue || !answers;
    all_beat = all_beat && age.silent < (here ? timeout_ : timeout_ + kLate) / 2;
    all_wait = all_wait && pulse.waits();
  }
  still_ = moves == moves_ ? still_ + elapsed : 0;
  moves_ = moves;
  incomplete_ = !started && board_.n_joined() < board_.n_expected() ? incomplete_ + elapsed : 0;

  // A rank is silent, or has never started. Its own machine reports it, if any rank of that machine answers. Ranks of
  // another machine that stopped together may have beaten last at different times: report them once one of them is overdue.
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

  // All ranks wait, and none makes progress.
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
