// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rules by which facts become verdicts.
#include "tree_attn/distributed/job/judge.hpp"

#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/reference/state/require.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>

namespace tree_attn {
namespace {

/// The facts of all ranks, and what is said of them.
class Judge {
 public:
  explicit Judge(std::span<const RankFacts> facts) : facts_(facts) {}

  std::vector<Verdict> verdicts() {
    // Each of these is missing on its own rank.
    for (const std::string& line : facts_[0].no_backend) add(Severity::kFailure, Need::kNothing, "backends", line);
    missing(Need::kGpu, "GPUs", "driver", &RankFacts::no_driver,
            "install NVIDIA's driver; --backend emulated runs the same kernels on the CPU");
    missing(Need::kGpu, "GPUs", "GPU", &RankFacts::no_gpu, "start ranks where the GPUs are, or list devices that are there");
    missing(Need::kGpu, "GPUs", "kernel", &RankFacts::no_kernel,
            "build with -DCMAKE_CUDA_ARCHITECTURES for it; there are kernels for 8.0 and later");
    if (!has_failed(Need::kGpu)) gpus();
    missing(Need::kNccl, "NCCL", "NCCL", &RankFacts::no_nccl,
            "pip install nvidia-nccl-cu13 (or -cu12), and add the folder of libnccl.so.2 to LD_LIBRARY_PATH");
    if (!has_failed(Need::kNccl)) nccl();
    const std::string& interface = facts_[0].interface;
    add(Severity::kFine, Need::kNccl, "interface",
        (interface.empty() ? "none" : interface) + " for NCCL's bootstrap; NCCL_SOCKET_IFNAME chooses another");
    one_shot();
    eager();
    return std::move(verdicts_);
  }

 private:
  using Groups = std::vector<std::pair<std::string, std::vector<int>>>;

  void add(Severity severity, Need need, std::string subject, std::string text) {
    verdicts_.push_back({severity, need, std::move(subject), std::move(text)});
  }
  bool has_failed(Need need) const { return first_failure(verdicts_, {&need, 1}).has_value(); }

  /// Ranks by a value, in the order of the lowest ranks. Ranks without a value are left out.
  Groups by(std::string RankFacts::*value) const {
    Groups groups;
    for (int rank = 0; const RankFacts& one : facts_) {
      const auto group = std::ranges::find(groups, one.*value, &Groups::value_type::first);
      if (group != groups.end())
        group->second.push_back(rank);
      else if (!(one.*value).empty())
        groups.push_back({one.*value, {rank}});
      ++rank;
    }
    return groups;
  }
  /// "ranks 8-15 on node02"
  std::string where(std::span<const int> ranks) const {
    const auto host = [&](int rank) { return facts_[static_cast<std::size_t>(rank)].host; };
    const bool one_host = std::ranges::all_of(ranks, [&](int rank) { return host(rank) == host(ranks[0]); });
    return ranks_text(ranks) + (one_host ? " on " + host(ranks[0]) : "");
  }
  void missing(Need need, const std::string& subject, const std::string& what, std::string RankFacts::*why,
               const std::string& remedy) {
    for (const auto& [text, ranks] : by(why))
      add(Severity::kFailure, need, subject, "no " + what + " for " + where(ranks) + ": " + text + "; " + remedy);
  }

  void gpus() {
    std::string names;
    for (const auto& [name, ranks] : by(&RankFacts::gpu)) names += (names.empty() ? "" : ", ") + name;
    add(Severity::kFine, Need::kGpu, "GPUs",
        std::to_string(by(&RankFacts::uuid).size()) + " x " + names + ", compute capability " + facts_[0].capability +
            ", driver of " + facts_[0].driver);
    std::vector<int> alone;
    for (int rank = 0; const RankFacts& one : facts_) {
      for (const RankFacts& other : facts_) {
        if (other.node != one.node || other.uuid == one.uuid || std::ranges::count(one.reaches, other.uuid) > 0) continue;
        if (std::ranges::count(one.sees, other.uuid) > 0)
          return add(Severity::kFailure, Need::kPeerAccess, "peer access",
                     "the GPU of " + where({&rank, 1}) + " cannot reach that of rank " +
                         std::to_string(&other - facts_.data()) +
                         "; use --windows host, another algorithm, or GPUs that share NVLink or a PCIe switch");
        if (alone.empty() || alone.back() != rank) alone.push_back(rank);
      }
      ++rank;
    }
    if (alone.empty())
      return add(Severity::kFine, Need::kPeerAccess, "peer access", "all GPUs of a machine reach each other");
    add(Severity::kWarning, Need::kPeerAccess, "peer access",
        "not known: other GPUs of the machine are hidden from " + ranks_text(alone) +
            "; use srun --gpus-per-node, without --gpus-per-task and --gpu-bind");
  }

  void nccl() {
    const Groups versions = by(&RankFacts::nccl);
    if (versions.size() > 1)
      add(Severity::kFailure, Need::kNccl, "NCCL",
          versions[1].first + " on " + ranks_text(versions[1].second) + ", " + versions[0].first + " on " +
              ranks_text(versions[0].second) + "; install one version on all machines");
    else
      add(Severity::kFine, Need::kNccl, "NCCL", facts_[0].nccl + " found (" + facts_[0].nccl_path + ")");
    between_machines();
  }

  /// Sends and receives between machines, see kNcclNetwork.
  void between_machines() {
    std::vector<int> without;
    for (int rank = 0; rank < static_cast<int>(facts_.size()); ++rank)
      if (facts_[static_cast<std::size_t>(rank)].nccl_low_latency != "1") without.push_back(rank);
    if (without.empty() || std::ranges::all_of(facts_, [&](const RankFacts& one) { return one.node == facts_[0].node; }))
      return;
    add(Severity::kWarning, Need::kNccl, "NCCL",
        "a message between machines takes 22.4 us by NCCL's model, and 9.3 us with more buffers; set "
        "NCCL_ALLOC_P2P_NET_LL_BUFFERS=1 for " +
            where(without));
  }

  /// Where the windows of one-shot will lie. @pre the GPUs of a machine reach each other
  void windows() {
    const bool has_nccl = !has_failed(Need::kNccl) && facts_[0].no_nccl_windows.empty();
    const std::string own = facts_[0].is_thread ? "in the memory of this process" : "opened by CUDA IPC";
    add(Severity::kFine, Need::kPeerAccess, "windows",
        has_nccl                  ? "with --transport nccl registered by NCCL " + facts_[0].nccl + "; else " + own
        : has_failed(Need::kNccl) ? own
                                  : own + ", with --transport nccl too: " + facts_[0].no_nccl_windows);
  }

  /// Whether MPI sends states inside a node at once.
  void eager() {
    const auto& [variable, n_bytes] = std::pair{facts_[0].eager_variable, facts_[0].eager_bytes};
    if (variable.empty() || n_bytes >= 16384) return;
    add(Severity::kFine, Need::kNothing, "MPI",
        "a message of more than " + std::to_string(n_bytes) + " bytes inside a node waits for its receiver; --mca " +
            variable + " 16384 sends the states of 16 heads of 128, 8320 bytes, at once");
  }

  void one_shot() {
    const bool has_gpus = !has_failed(Need::kGpu), has_peers = !has_failed(Need::kPeerAccess);
    add(has_gpus && has_peers ? Severity::kFine : Severity::kFailure, Need::kPeerAccess, "one-shot",
        !has_gpus    ? "not with --backend cuda, which needs a GPU for every rank; use --backend emulated"
        : !has_peers ? "not with windows on the devices; use --windows host"
                     : "possible where the GPUs of a machine reach each other");
    if (has_gpus && has_peers) windows();
  }

  std::span<const RankFacts> facts_;
  std::vector<Verdict> verdicts_;
};

}  // namespace

std::string line(const Verdict& verdict) {
  constexpr std::array<std::string_view, 4> kOptions{"", "--backend cuda: ", "--transport nccl: ", "--algorithm one-shot: "};
  const bool fails = verdict.severity == Severity::kFailure;
  return std::string(fails ? kOptions[static_cast<std::size_t>(verdict.need)] : "") + verdict.text;
}

std::vector<Verdict> judge(std::span<const RankFacts> facts) {
  require(!facts.empty(), "judge: no ranks");
  return Judge(facts).verdicts();
}

std::optional<std::string> first_failure(std::span<const Verdict> verdicts, std::span<const Need> needs) {
  for (const Verdict& verdict : verdicts) {
    if (verdict.severity == Severity::kFailure && std::ranges::count(needs, verdict.need) > 0) return line(verdict);
  }
  return std::nullopt;
}

std::string table(std::span<const Verdict> verdicts) {
  constexpr std::array<std::string_view, 3> kWords{"ok       ", "warning  ", "fails    "};
  constexpr std::size_t kIndent = 22, kWidth = 140;
  std::string text;
  for (const Verdict& verdict : verdicts) {
    std::string row = std::string(kWords[static_cast<std::size_t>(verdict.severity)]) + verdict.subject;
    row.resize(kIndent - 1, ' ');
    // Break lines between words.
    std::istringstream words(line(verdict));
    for (std::string word; words >> word; row += " " + word) {
      if (row.size() + 1 + word.size() <= kWidth) continue;
      text += row + '\n';
      row.assign(kIndent - 1, ' ');
    }
    text += row + '\n';
  }
  return text;
}

}  // namespace tree_attn
