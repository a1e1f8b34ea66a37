// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rules by which facts become verdicts, one function per subject.
#include "tree_attn/distributed/job/judge.hpp"

#include "tree_attn/distributed/transport/nccl_library.hpp"
#include "tree_attn/reference/state/require.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace tree_attn {
namespace {

/// Of /dev/shm: a segment of Open MPI, per rank; what NVIDIA's guide asks for where ranks use NCCL.
constexpr double kMpiBytesPerRank = 0x1p22, kNcclBytes = 0x1p30;
/// Columns of a terminal before a verdict and for it.
constexpr std::size_t kIndent = 24, kWidth = 140 - kIndent;
/// NCCL's versions: the first with several ranks per GPU.
constexpr int kSharedGpuNccl = 23003;

/// "rank 3", "ranks 0 and 1". @param numbers ascending
std::string ranks_text(std::span<const int> numbers) {
  return (numbers.size() == 1 ? "rank " : "ranks ") + numbers_text(numbers);
}

/// Breaks a text between words into lines of at most kWidth characters, where words allow it.
std::vector<std::string> broken(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > kWidth)
      lines.push_back(word);
    else
      lines.back().append(" ").append(word);
  }
  return lines;
}

/// The facts of all ranks, and who shares a machine.
class Judge {
 public:
  explicit Judge(std::span<const RankFacts> facts) : facts_(facts) {
    for (int rank = 0; rank < static_cast<int>(facts.size()); ++rank) nodes_[of(rank).node].push_back(rank);
  }

  std::vector<Verdict> verdicts() {
    backends();
    builds();
    cores();
    memory();
    const std::size_t n_before = verdicts_.size();
    const bool have_gpus = gpus();
    if (have_gpus) {
      if (!has_failed(n_before)) fine_gpus();
      sharing();
      peers();
    }
    nccl();
    interfaces();
    one_shot(have_gpus);
    return std::move(verdicts_);
  }

 private:
  const RankFacts& of(int rank) const { return facts_[static_cast<std::size_t>(rank)]; }
  /// The GPU of a rank that has one.
  const GpuFacts& gpu_of(int rank) const { return of(rank).gpus[static_cast<std::size_t>(of(rank).gpu)]; }
  int n_ranks() const { return static_cast<int>(facts_.size()); }

  void add(Severity severity, Need need, std::string subject, std::string text, std::string remedy = "") {
    verdicts_.push_back({severity, need, std::move(subject), std::move(text), std::move(remedy)});
  }
  bool has_failed(std::size_t from) const {
    return std::any_of(verdicts_.begin() + static_cast<std::ptrdiff_t>(from), verdicts_.end(),
                       [](const Verdict& verdict) { return verdict.severity == Severity::kFailure; });
  }

  /// Of one machine: ranks may be threads of one.
  std::size_t n_processes(std::span<const int> ranks) const {
    std::set<int> processes;
    for (const int rank : ranks) processes.insert(of(rank).process);
    return processes.size();
  }

  /// Ranks by a value, in the order of the lowest ranks. Ranks without a value are left out.
  template <class Value>
  std::vector<std::pair<std::string, std::vector<int>>> by(const Value& value) const {
    std::vector<std::pair<std::string, std::vector<int>>> groups;
    for (int rank = 0; rank < n_ranks(); ++rank) {
      const std::string key = value(of(rank));
      if (key.empty()) continue;
      const auto group = std::ranges::find(groups, key, [](const auto& one) { return one.first; });
      if (group == groups.end())
        groups.push_back({key, {rank}});
      else
        group->second.push_back(rank);
    }
    return groups;
  }
  /// "ranks 8-15 on node02", with the machine of the lowest.
  std::string where(std::span<const int> ranks) const {
    const bool one_node = std::ranges::all_of(ranks, [&](int rank) { return of(rank).node == of(ranks.front()).node; });
    return ranks_text(ranks) + (one_node ? " on " + of(ranks.front()).host : "");
  }
  /// A warning or failure if a value differs between ranks: "rank 3 has NCCL 2.27.7, rank 0 2.30.7".
  template <class Value>
  void same(Severity severity, Need need, const std::string& subject, const std::string& has, const Value& value,
            const std::string& remedy) {
    const auto groups = by(value);
    if (groups.size() > 1)
      add(severity, need, subject,
          ranks_text(groups[1].second) + " " + (groups[1].second.size() == 1 ? "has" : "have") + " " + has +
              groups[1].first + ", " + ranks_text(groups[0].second) + " " + groups[0].first,
          remedy);
  }

  void backends() {
    for (const auto& [backend, ranks] :
         by([](const RankFacts& rank) { return rank.missing.empty() ? "" : rank.missing[0]; })) {
      static_cast<void>(backend);
      for (const std::string& line : of(ranks.front()).missing) add(Severity::kFailure, Need::kNothing, "backends", line);
    }
  }

  void builds() {
    same(
        Severity::kWarning, Need::kNothing, "ranks", "tree_attn ", [](const RankFacts& rank) { return rank.program; },
        "install one build on all machines");
    same(
        Severity::kWarning, Need::kNothing, "ranks", "", [](const RankFacts& rank) { return rank.mpi; },
        "load the same MPI on all machines");
  }

  void cores() {
    bool all_have_enough = true;
    for (const auto& [node, ranks] : nodes_) {
      std::set<int> cores;
      double limit = 0;
      for (const int rank : ranks) {
        cores.insert(of(rank).cores.begin(), of(rank).cores.end());
        limit = std::max(limit, of(rank).container_cores);
      }
      const double n = limit > 0 ? std::min(limit, static_cast<double>(cores.size())) : static_cast<double>(cores.size());
      if (static_cast<double>(ranks.size()) <= n) continue;
      all_have_enough = false;
      const std::string n_cores = std::to_string(static_cast<int>(n)) + (n < 2 ? " core" : " cores");
      add(Severity::kWarning, Need::kNothing, "cores",
          ranks_text(ranks) + " share " + n_cores + " of " + of(ranks.front()).host +
              ": they take turns, and times are those of the cores",
          "start one rank per core, or allow the ranks more cores: mpirun --bind-to none, srun --cpus-per-task");
    }
    if (all_have_enough) add(Severity::kFine, Need::kNothing, "cores", "a core or more for every rank");
  }

  void memory() {
    const std::size_t n_before = verdicts_.size();
    for (const auto& [node, ranks] : nodes_) {
      const RankFacts& first = of(ranks.front());
      const double n = static_cast<double>(n_processes(ranks)), mpi_bytes = n * kMpiBytesPerRank;
      const bool uses_nccl = first.gpu >= 0 && first.nccl.found > 0;
      const double needed = uses_nccl ? std::max(mpi_bytes, kNcclBytes) : mpi_bytes;
      if (n > 1 && first.shared_memory < needed)
        add(Severity::kWarning, Need::kNothing, "shared memory",
            "/dev/shm of " + first.host + " has " + bytes_text(first.shared_memory) + " left for " +
                std::to_string(n_processes(ranks)) + " ranks; " +
                (uses_nccl && needed > mpi_bytes ? "NCCL asks for " : "MPI takes about ") + bytes_text(needed),
            "remove what earlier jobs left there, or enlarge it: mount -o remount,size=2g /dev/shm, docker run "
            "--shm-size=2g");
      const bool is_bounded = first.locked_memory >= 0 && first.locked_memory < 0x1p30;
      if (first.has_infiniband && is_bounded)
        add(Severity::kWarning, Need::kNothing, "shared memory",
            "processes of " + first.host + " may lock " + bytes_text(first.locked_memory) +
                " of memory, too little for its InfiniBand",
            "ulimit -l unlimited before the launcher, docker run --ulimit memlock=-1");
    }
    if (verdicts_.size() > n_before) return;
    add(Severity::kFine, Need::kNothing, "shared memory", bytes_text(facts_[0].shared_memory) + " of /dev/shm are free");
  }

  /// @returns whether every rank has a GPU
  bool gpus() {
    for (const auto& [missing, ranks] : by([](const RankFacts& rank) { return rank.driver.missing; }))
      add(Severity::kFailure, Need::kGpu, "GPUs", "no driver for " + where(ranks) + ": " + missing,
          "install NVIDIA's driver, or start the container with --gpus all; --backend emulated runs the same kernels on the "
          "CPU");
    const auto without = by([](const RankFacts& rank) {
      if (rank.gpu >= 0 || !rank.driver.missing.empty()) return std::string();
      if (!rank.gpus.empty()) return "its machine has " + std::to_string(rank.gpus.size());
      return "the driver shows none (CUDA_VISIBLE_DEVICES is \"" + rank.visible_devices + "\")";
    });
    for (const auto& [why, ranks] : without)
      add(Severity::kFailure, Need::kGpu, "GPUs", "no GPU for " + where(ranks) + ": " + why,
          of(ranks.front()).gpus.empty()
              ? "start ranks where the GPUs are: mpirun --map-by ppr:8:node, srun --gpus-per-node=8"
              : "list devices that are there, 0-" + std::to_string(of(ranks.front()).gpus.size() - 1));
    driver_age();
    kernels();
    return std::ranges::all_of(facts_, [](const RankFacts& rank) { return rank.gpu >= 0; });
  }

  /// A driver runs programs of its own major version of CUDA and of older ones.
  void driver_age() {
    const auto age = [](const RankFacts& rank, bool major) {
      if (!rank.driver.missing.empty() || rank.driver.cuda >= rank.built_cuda) return std::string();
      if ((rank.driver.cuda / 1000 < rank.built_cuda / 1000) != major) return std::string();
      const std::string release = rank.driver.release.empty() ? "the driver" : "driver " + rank.driver.release;
      return release + " knows CUDA " + cuda_text(rank.driver.cuda) + ", the program was built with " +
             cuda_text(rank.built_cuda);
    };
    for (const auto& [text, ranks] : by([&](const RankFacts& rank) { return age(rank, true); })) {
      const int cuda = of(ranks.front()).built_cuda;
      const int release = cuda >= 13000 ? 580 : cuda >= 12000 ? 525 : 450;
      add(Severity::kFailure, Need::kGpu, "GPUs", where(ranks) + ": " + text,
          "install driver " + std::to_string(release) + " or later, or build with CUDA " +
              cuda_text(of(ranks.front()).driver.cuda));
    }
    for (const auto& [text, ranks] : by([&](const RankFacts& rank) { return age(rank, false); }))
      add(Severity::kWarning, Need::kGpu, "GPUs", where(ranks) + ": " + text,
          "update the driver if a call of CUDA asks for it: kernels run, newer features do not");
  }

  /// An architecture "80" runs on 8.0 and later of 8, "90a" on 9.0 alone, "80+PTX" on 8.0 and all later ones.
  static bool runs_on(const std::string& architecture, const GpuFacts& gpu) {
    int number = 0;
    std::size_t i = 0;
    for (; i < architecture.size() && std::isdigit(static_cast<unsigned char>(architecture[i])); ++i)
      number = 10 * number + (architecture[i] - '0');
    if (architecture.substr(i) == "+PTX") return number <= 10 * gpu.major + gpu.minor;
    const bool is_exact = i < architecture.size();
    return number / 10 == gpu.major && (is_exact ? number % 10 == gpu.minor : number % 10 <= gpu.minor);
  }

  void kernels() {
    const auto unsupported = [](const RankFacts& rank) {
      if (rank.built_cuda == 0 || rank.gpu < 0) return std::string();
      const GpuFacts& gpu = rank.gpus[static_cast<std::size_t>(rank.gpu)];
      std::string built;
      for (const std::string& architecture : rank.built_for) {
        if (runs_on(architecture, gpu)) return std::string();
        built += (built.empty() ? "sm_" : ", sm_") + architecture;
      }
      return "built for " + built + "; the " + gpu.name + " of ? is sm_" + std::to_string(gpu.major) +
             std::to_string(gpu.minor);
    };
    for (auto& [text, ranks] : by(unsupported)) {
      std::string named = text;
      named.replace(named.rfind('?'), 1, where(ranks));
      const GpuFacts& gpu = gpu_of(ranks.front());
      const std::string architecture = std::to_string(gpu.major) + std::to_string(gpu.minor);
      add(Severity::kFailure, Need::kGpu, "GPUs", named,
          gpu.major >= 8 ? "build with -DCMAKE_CUDA_ARCHITECTURES=" + architecture + (gpu.major == 9 ? "a-real" : "-real")
                         : "use GPUs of compute capability 8.0 or later, for which there are kernels");
    }
    same(
        Severity::kWarning, Need::kGpu, "GPUs", "",
        [](const RankFacts& rank) {
          return rank.gpu < 0 ? std::string() : rank.gpus[static_cast<std::size_t>(rank.gpu)].name;
        },
        "give the slower GPUs shorter shards, --shards: the slowest rank decides the time of a step");
  }

  void fine_gpus() {
    const RankFacts& first = of(0);
    const GpuFacts& gpu = gpu_of(0);
    const auto groups = by([](const RankFacts& rank) { return rank.gpus[static_cast<std::size_t>(rank.gpu)].uuid; });
    add(Severity::kFine, Need::kGpu, "GPUs",
        std::to_string(groups.size()) + " x " + gpu.name + ", driver " +
            (first.driver.release.empty() ? "" : first.driver.release + " ") + "(CUDA " + cuda_text(first.driver.cuda) +
            "), compute capability " + std::to_string(gpu.major) + "." + std::to_string(gpu.minor),
        first.built_cuda == 0 ? "" : "use --backend cuda");
  }

  /// Two ranks with one GPU: NCCL refuses them, and kernels of one process that wait for each other may not run at the same
  /// time. Those of several processes take turns.
  void sharing() {
    for (const auto& [uuid, ranks] :
         by([](const RankFacts& rank) { return rank.gpus[static_cast<std::size_t>(rank.gpu)].uuid; })) {
      if (ranks.size() < 2) continue;
      const RankFacts& first = of(ranks.front());
      const bool nccl_can = std::ranges::all_of(
          ranks, [&](int rank) { return of(rank).nccl.found >= kSharedGpuNccl && of(rank).gpus_may_be_shared; });
      const std::string text = where(ranks) + " share " + uuid;
      const std::string found = first.nccl.found == 0 ? "" : " (found " + nccl_version_text(first.nccl.found) + ")";
      if (!nccl_can)
        add(Severity::kFailure, Need::kNccl, "GPUs", text,
            "start one rank per GPU, or use NCCL 2.30.3 or later with NCCL_MULTI_RANK_GPU_ENABLE=1" + found);
      if (n_processes(ranks) == ranks.size())
        add(Severity::kWarning, Need::kOneShot, "GPUs", text + ", whose kernels wait for each other and take turns",
            "start one rank per GPU: the times of one-shot are those of the turns");
      else
        add(Severity::kFailure, Need::kOneShot, "GPUs", text + ", whose kernels would wait for each other",
            "start one rank per GPU");
    }
  }

  /// Index of the GPU of `other` among those that `rank` sees; -1 if it does not see it.
  int index_in(int rank, int other) const {
    const std::string& uuid = gpu_of(other).uuid;
    const auto& gpus = of(rank).gpus;
    const auto found = std::ranges::find(gpus, uuid, &GpuFacts::uuid);
    return found == gpus.end() ? -1 : static_cast<int>(found - gpus.begin());
  }

  void peers() {
    std::string apart;
    int n_apart = 0, n_pairs = 0;
    std::set<int> alone;
    for (const auto& [node, ranks] : nodes_) {
      for (const int a : ranks) {
        for (const int b : ranks) {
          if (a == b || gpu_of(a).uuid == gpu_of(b).uuid) continue;
          ++n_pairs;
          const int index = index_in(a, b);
          if (index < 0) {
            alone.insert(a);
          } else if (std::ranges::count(gpu_of(a).reaches, index) == 0 && n_apart++ == 0) {
            apart = "the GPU of rank " + std::to_string(a) + " cannot reach that of rank " + std::to_string(b) + " on " +
                    of(a).host;
          }
        }
      }
    }
    if (n_apart > 0)
      add(Severity::kFailure, Need::kPeerAccess, "peer access",
          apart + (n_apart > 1 ? ", and " + std::to_string(n_apart) + " pairs in all are apart" : ""),
          "use --windows host, --algorithm two-level or gather, or GPUs that share NVLink or a PCIe switch");
    if (!alone.empty()) {
      const std::vector<int> ranks(alone.begin(), alone.end());
      add(Severity::kWarning, Need::kPeerAccess, "peer access",
          ranks_text(ranks) +
              " do not see the GPUs of the other ranks on their machine, so it is not known whether they "
              "reach each other",
          "let every rank see all GPUs of its machine: srun --gpus-per-node=8, without --gpus-per-task and --gpu-bind");
    }
    if (n_apart == 0 && alone.empty())
      add(Severity::kFine, Need::kNothing, "peer access",
          n_pairs == 0 ? "none needed: no machine has two GPUs in use" : "all GPUs of a machine reach each other");
  }

  void nccl() {
    const std::size_t n_before = verdicts_.size();
    const int cuda = facts_[0].built_cuda > 0 ? facts_[0].built_cuda : facts_[0].driver.cuda;
    for (const auto& [missing, ranks] : by([](const RankFacts& rank) { return rank.nccl.missing; }))
      add(Severity::kFailure, Need::kNccl, "NCCL", where(ranks) + " cannot load NCCL: " + missing,
          std::string("pip install nvidia-nccl-cu") + (cuda > 0 && cuda < 13000 ? "12" : "13") +
              ", and add the folder of libnccl.so.2 to LD_LIBRARY_PATH");
    const auto old = [](const RankFacts& rank) {
      const bool is_old = rank.nccl.found > 0 && rank.nccl.found < nccl::kOldestNccl;
      return is_old ? rank.nccl.path + " is NCCL " + nccl_version_text(rank.nccl.found) : "";
    };
    const std::string oldest = nccl_version_text(nccl::kOldestNccl);
    for (const auto& [text, ranks] : by(old))
      add(Severity::kFailure, Need::kNccl, "NCCL",
          where(ranks) + ": " + text + ", older than " + oldest + ", the first with communicators that do not block",
          "install NCCL " + oldest + " or later there");
    same(
        Severity::kFailure, Need::kNccl, "NCCL", "NCCL ",
        [](const RankFacts& rank) { return rank.nccl.found == 0 ? "" : nccl_version_text(rank.nccl.found); },
        "install one version on all machines");
    if (has_failed(n_before)) return;
    const NcclFacts& found = facts_[0].nccl;
    add(Severity::kFine, Need::kNccl, "NCCL", nccl_version_text(found.found) + " found (" + found.path + ")");
  }

  void interfaces() {
    const std::size_t n_before = verdicts_.size();
    const bool on_several = nodes_.size() > 1;
    for (const auto& [node, ranks] : nodes_) {
      const RankFacts& rank = of(ranks.front());
      const InterfaceFacts* chosen = bootstrap_interface(rank);
      const bool is_lo = chosen != nullptr && chosen->name == "lo";
      if (chosen == nullptr && !rank.socket_ifname.empty()) {
        std::string names;
        for (const InterfaceFacts& one : rank.interfaces) names += (names.empty() ? "" : ", ") + one.name;
        add(Severity::kFailure, Need::kNccl, "interface",
            "NCCL_SOCKET_IFNAME is \"" + rank.socket_ifname + "\", but " + rank.host + " has " +
                (names.empty() ? "no interface" : names),
            "set it to a prefix of an interface that all machines have: mpirun -x NCCL_SOCKET_IFNAME=...");
      } else if (on_several && (chosen == nullptr || is_lo)) {
        add(Severity::kFailure, Need::kNccl, "interface",
            rank.host + " has no network interface but lo for NCCL's bootstrap, and the ranks are on " +
                std::to_string(nodes_.size()) + " machines",
            is_lo && !rank.socket_ifname.empty()
                ? "unset NCCL_SOCKET_IFNAME, or name the interface of the network"
                : "give it an address in the network of the others (docker run --network=host)");
      }
    }
    if (has_failed(n_before)) return;

    // Bridges of containers have the same address everywhere.
    std::map<std::string, std::vector<int>> addresses;
    std::set<std::string> names;
    for (const auto& [node, ranks] : nodes_) {
      if (const InterfaceFacts* chosen = bootstrap_interface(of(ranks.front()))) {
        addresses[chosen->address].push_back(ranks.front());
        names.insert(chosen->name);
      }
    }
    for (const auto& [address, ranks] : addresses) {
      if (ranks.size() < 2) continue;
      add(Severity::kFailure, Need::kNccl, "interface",
          of(ranks[0]).host + " and " + of(ranks[1]).host + " both have the address " + address + " on " +
              bootstrap_interface(of(ranks[0]))->name + ", which NCCL's bootstrap would use",
          "name the interface of the network: mpirun -x NCCL_SOCKET_IFNAME=eth0");
    }
    if (has_failed(n_before)) return;
    const InterfaceFacts* chosen = bootstrap_interface(facts_[0]);
    const std::string set = facts_[0].socket_ifname.empty() ? "NCCL_SOCKET_IFNAME is not set"
                                                            : "NCCL_SOCKET_IFNAME is \"" + facts_[0].socket_ifname + '"';
    if (names.size() > 1) {
      std::string all;
      for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
      add(Severity::kWarning, Need::kNccl, "interface",
          "NCCL's bootstrap would use different interfaces on different machines: " + all + " (" + set + ")",
          "name the one that reaches all machines: mpirun -x NCCL_SOCKET_IFNAME=" + *names.begin());
    } else if (chosen != nullptr) {
      add(Severity::kFine, Need::kNccl, "interface",
          chosen->name + " " + chosen->address + " for NCCL's bootstrap (" + set + ")");
    }
  }

  void one_shot(bool have_gpus) {
    const auto fails = [](const Verdict& verdict) {
      return (verdict.need == Need::kOneShot || verdict.need == Need::kPeerAccess) && verdict.severity != Severity::kFine;
    };
    if (std::ranges::any_of(verdicts_, fails)) return;
    if (have_gpus)
      add(Severity::kFine, Need::kOneShot, "one-shot",
          "possible: every rank has its own GPU and reaches those of its machine");
    else
      add(Severity::kFailure, Need::kOneShot, "one-shot", "not with --backend cuda: it needs a GPU for every rank",
          "use --backend emulated, which runs the same kernels on the CPU");
  }

  std::span<const RankFacts> facts_;
  std::map<int, std::vector<int>> nodes_;  ///< ranks of each machine
  std::vector<Verdict> verdicts_;
};

}  // namespace

std::string line(const Verdict& verdict) {
  constexpr std::array<std::string_view, 5> kOptions{
      "", "--backend cuda: ", "--transport nccl: ", "--algorithm one-shot: ", "--algorithm one-shot: "};
  const std::string option(verdict.severity == Severity::kFailure ? kOptions[static_cast<std::size_t>(verdict.need)] : "");
  return option + verdict.text + (verdict.remedy.empty() ? "" : "; " + verdict.remedy);
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
  constexpr std::array<std::string_view, 3> kWords{"ok", "warning", "fails"};
  std::string text;
  for (const Verdict& verdict : verdicts) {
    std::string row(kWords[static_cast<std::size_t>(verdict.severity)]);
    row.resize(9, ' ');
    row += verdict.subject;
    row.resize(kIndent, ' ');
    // What to do stands on a line of its own, if one line has no room for both.
    const std::string whole = line(verdict);
    const std::size_t n_text = whole.size() - (verdict.remedy.empty() ? 0 : verdict.remedy.size());
    std::vector<std::string> lines = broken(whole.size() <= kWidth ? whole : whole.substr(0, n_text));
    if (whole.size() > kWidth) std::ranges::copy(broken(verdict.remedy), std::back_inserter(lines));
    for (const std::string& part : lines) {
      text += row + part + "\n";
      row.assign(kIndent, ' ');
    }
  }
  return text;
}

bool is_chosen(const std::string& socket_ifname, const std::string& interface) {
  std::string_view list = socket_ifname;
  const auto take = [&](char mark) {
    const bool is_there = list.starts_with(mark);
    if (is_there) list.remove_prefix(1);
    return is_there;
  };
  const bool is_excluded = take('^'), is_exact = take('=');
  bool is_named = false;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), name.size() + 1));
    if (!name.empty()) is_named |= is_exact ? interface == name : interface.starts_with(name);
  }
  return is_named != is_excluded;
}

const InterfaceFacts* bootstrap_interface(const RankFacts& rank) {
  const auto first = [&](const std::string& names) -> const InterfaceFacts* {
    const auto found =
        std::ranges::find_if(rank.interfaces, [&](const InterfaceFacts& one) { return is_chosen(names, one.name); });
    return found == rank.interfaces.end() ? nullptr : &*found;
  };
  if (!rank.socket_ifname.empty()) return first(rank.socket_ifname);
  for (const char* names : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    if (const InterfaceFacts* found = first(names)) return found;
  }
  return nullptr;
}

}  // namespace tree_attn
