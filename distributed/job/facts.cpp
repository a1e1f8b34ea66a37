// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts as messages between ranks and as a table.
#include "tree_attn/distributed/job/facts.hpp"

#include "tree_attn/distributed/transport/nccl_library.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <map>

namespace tree_attn {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, name, uuid, major, minor, reaches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DriverFacts, missing, release, cuda)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NcclFacts, missing, path, found)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InterfaceFacts, name, address)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, host, node, process, program, mpi, missing, cores, container_cores,
                                   shared_memory, locked_memory, has_infiniband, built_cuda, built_for, driver, gpus, gpu,
                                   nccl, gpus_may_be_shared, visible_devices, socket_ifname, interfaces)

namespace {

using Rows = std::vector<std::vector<std::string>>;

/// Lines of cells, aligned to the left. A column without an entry is left out.
std::string columns(const Rows& rows) {
  std::string text;
  std::vector<std::size_t> width(rows[0].size());
  for (std::size_t i = 0; i < width.size(); ++i) {
    const bool has_entries = std::any_of(rows.begin() + 1, rows.end(), [i](const auto& row) { return !row[i].empty(); });
    for (const auto& row : rows) width[i] = has_entries ? std::max(width[i], row[i].size()) : 0;
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (width[i] > 0) line += row[i] + std::string(width[i] - row[i].size() + 2, ' ');
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

/// Different values of the ranks of a machine, with a comma between them.
template <class Value>
std::string values_of(const std::vector<const RankFacts*>& ranks, const Value& value) {
  std::vector<std::string> values;
  for (const RankFacts* rank : ranks) {
    if (const std::string text = value(*rank); !text.empty() && std::ranges::count(values, text) == 0)
      values.push_back(text);
  }
  std::string all;
  for (const std::string& text : values) all += (all.empty() ? "" : ", ") + text;
  return all;
}

std::string capability_text(const GpuFacts& gpu) {
  std::string text = std::to_string(gpu.major);
  return text.append(".").append(std::to_string(gpu.minor));
}

std::string driver_text(const DriverFacts& driver) {
  if (!driver.missing.empty()) return "";
  return (driver.release.empty() ? "" : driver.release + " ") + "(CUDA " + cuda_text(driver.cuda) + ")";
}

/// The first interfaces, without lo if there are others.
std::string interfaces_text(const RankFacts& rank) {
  constexpr std::size_t kMost = 2;
  std::string all;
  std::size_t n = 0, n_shown = 0;
  for (const InterfaceFacts& one : rank.interfaces) {
    if (one.name == "lo" && rank.interfaces.size() > 1) continue;
    if (++n > kMost) continue;
    all += (all.empty() ? "" : ", ") + one.name + " " + one.address;
    ++n_shown;
  }
  return n == n_shown ? all : all + " and " + std::to_string(n - n_shown) + " more";
}

}  // namespace

std::string to_text(const RankFacts& facts) {
  // Names of hosts and variables may hold any bytes.
  return nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
RankFacts facts_of_text(const std::string& text) { return nlohmann::json::parse(text).get<RankFacts>(); }

std::string cuda_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string bytes_text(double n_bytes) {
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (n_bytes < 1024) break;
    n_bytes /= 1024;
    unit = larger;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), n_bytes < 99.5 && *unit != 'B' ? "%.1f %s" : "%.0f %s", n_bytes, unit);
  return text.data();
}

std::string numbers_text(std::span<const int> numbers) {
  constexpr std::size_t kMost = 6;
  std::vector<std::string> parts;
  std::size_t i = 0;
  for (std::size_t end = 0; i < numbers.size() && parts.size() < kMost; i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    if (end - i < 3) end = i + 1;
    parts.push_back(std::to_string(numbers[i]));
    if (end - i > 1) parts.back().append("-").append(std::to_string(numbers[end - 1]));
  }
  const std::size_t n_left = numbers.size() - i;
  if (n_left > 0) parts.push_back(std::to_string(n_left) + " more");
  std::string text;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const bool is_last = part > 0 && part + 1 == parts.size();
    text += (part == 0 ? "" : is_last ? " and " : ", ") + parts[part];
  }
  return text;
}

std::string table(std::span<const RankFacts> facts) {
  std::map<int, std::vector<const RankFacts*>> nodes;
  std::map<int, std::vector<int>> numbers;
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    nodes[facts[rank].node].push_back(&facts[rank]);
    numbers[facts[rank].node].push_back(static_cast<int>(rank));
  }
  Rows rows{{"node", "host", "ranks", "cores", "/dev/shm", "interfaces", "driver", "NCCL"}};
  for (const auto& [node, ranks] : nodes) {
    rows.push_back({std::to_string(node), values_of(ranks, [](const RankFacts& rank) { return rank.host; }),
                    numbers_text(numbers[node]),
                    values_of(ranks, [](const RankFacts& rank) { return std::to_string(rank.cores.size()); }),
                    bytes_text(ranks[0]->shared_memory), values_of(ranks, interfaces_text),
                    values_of(ranks, [](const RankFacts& rank) { return driver_text(rank.driver); }),
                    values_of(ranks, [](const RankFacts& rank) {
                      return rank.nccl.found == 0 ? "" : nccl_version_text(rank.nccl.found);
                    })});
  }
  std::string text = columns(rows);

  Rows gpus{{"rank", "GPU", "name", "compute capability", "identity", "reaches"}};
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].gpu < 0) continue;
    const GpuFacts& gpu = facts[rank].gpus[static_cast<std::size_t>(facts[rank].gpu)];
    gpus.push_back({std::to_string(rank), std::to_string(facts[rank].gpu), gpu.name, capability_text(gpu), gpu.uuid,
                    numbers_text(gpu.reaches)});
  }
  if (gpus.size() > 1) text.append("\n").append(columns(gpus));
  return text;
}

}  // namespace tree_attn
