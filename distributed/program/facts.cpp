// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts as messages between ranks and as a table.
#include "distributed/program/facts.hpp"

#include "distributed/transport/ranks_text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>

namespace tree_attn {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, node, host, cores, interface, no_driver, driver, no_gpu, gpu, capability, uuid,
                                   no_kernel, kernels, reaches, no_nccl, nccl, nccl_path, no_memfd, no_ipc)

namespace {

using Row = std::vector<std::string>;

/// Lines of cells, aligned to the left. A column without an entry is left out.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::string> lines(rows.size());
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    if (std::all_of(rows.begin() + 1, rows.end(), [i](const Row& row) { return row[i].empty(); })) continue;
    std::size_t end = 0;
    for (const std::string& line : lines) end = std::max(end, line.size());
    for (std::size_t r = 0; r < rows.size(); ++r)
      lines[r] += std::string(end == 0 ? 0 : end + 2 - lines[r].size(), ' ') + rows[r][i];
  }
  std::string text;
  for (const std::string& line : lines) text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  return text;
}

/// One reason why something is not there, with its column, the ranks that give it and the anchor of its remedy in the book.
struct Absence {
  std::string_view subject;
  std::string RankFacts::*why;
  std::string_view anchor;
};
constexpr Absence kAbsences[] = {
    {"driver", &RankFacts::no_driver, "no_driver"},  {"GPU", &RankFacts::no_gpu, "no_gpu"},
    {"kernels", &RankFacts::no_kernel, "no_kernel"}, {"NCCL", &RankFacts::no_nccl, "no_nccl"},
    {"memfd", &RankFacts::no_memfd, "no_memfd"},     {"CUDA IPC", &RankFacts::no_ipc, "no_ipc"}};

/// A row for each reason for which ranks lack something.
std::string absences(std::span<const RankFacts> facts) {
  constexpr std::size_t kIndent = 15;
  std::string text;
  for (const auto& [subject, why, anchor] : kAbsences) {
    std::map<std::string, std::vector<int>> ranks;
    for (int rank = 0; const RankFacts& one : facts) ranks[one.*why].push_back(rank++);
    ranks.erase("");
    for (const auto& [reason, those] : ranks) {
      const std::string where = those.size() == facts.size() ? "" : " for " + ranks_text(those);
      text.append(subject).append(kIndent - subject.size(), ' ').append("not here" + where + ": " + reason);
      text.append("; see docs/IV.7-many-gpus.md#").append(anchor).append("\n");
    }
  }
  return text;
}

/// Rows for what ranks have, and share with too many: a GPU, by its identity, and the cores of a rank that uses NCCL.
std::string shared(std::span<const RankFacts> facts) {
  constexpr int kLeastCores = 4;  // a host thread that polls, one that watches it, and NCCL's
  std::vector<std::string> uuids;
  std::vector<int> few;
  for (int rank = 0; const RankFacts& one : facts) {
    uuids.push_back(one.uuid);
    int cores = kLeastCores;
    std::from_chars(one.cores.data(), one.cores.data() + one.cores.size(), cores);
    if (!one.uuid.empty() && !one.nccl.empty() && cores < kLeastCores) few.push_back(rank);
    ++rank;
  }
  std::string text;
  for (const std::string& gpu : shared_gpus(uuids))
    text += "GPU            one, " + gpu + "; see docs/IV.7-many-gpus.md#one_gpu\n";
  if (!few.empty())
    text += "cores          fewer than 4 for " + ranks_text(few) + "; see docs/IV.7-many-gpus.md#few_cores\n";
  return text;
}

}  // namespace

std::string to_text(const RankFacts& facts) {
  // Names of hosts and variables may hold any bytes.
  return nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
RankFacts facts_of_text(const std::string& text) { return nlohmann::json::parse(text).get<RankFacts>(); }

std::string table(std::span<const RankFacts> facts) {
  std::vector<Row> rows{
      {"node", "host", "ranks", "cores", "interface", "driver", "NCCL", "GPU", "capability", "identity", "reaches"}};
  std::vector<std::vector<int>> ranks(1);
  for (int rank = 0; const RankFacts& one : facts) {
    std::vector<int> reached;
    for (int other = 0; const RankFacts& peer : facts) {
      if (peer.node == one.node && std::ranges::count(one.reaches, peer.uuid) > 0) reached.push_back(other);
      ++other;
    }
    Row row{std::to_string(one.node),
            one.host,
            "",
            one.cores,
            one.interface,
            one.driver.empty() ? "not here" : one.driver,
            one.nccl.empty() ? "not here" : one.nccl,
            one.gpu.empty() ? "not here" : one.gpu,
            one.capability,
            one.uuid,
            numbers_text(reached)};
    const std::size_t at = static_cast<std::size_t>(std::ranges::find(rows, row) - rows.begin());
    if (at == rows.size()) rows.push_back(row), ranks.emplace_back();
    ranks[at].push_back(rank++);
  }
  for (std::size_t r = 1; r < rows.size(); ++r) rows[r][2] = numbers_text(ranks[r]);
  std::ranges::stable_sort(rows.begin() + 1, rows.end(), {}, [](const Row& row) { return std::stoi(row[0]); });
  const std::string missing = absences(facts) + shared(facts);
  return aligned(rows) + (missing.empty() ? "" : "\n") + missing;
}

std::vector<std::string> shared_gpus(std::span<const std::string> uuids) {
  std::map<std::string, std::vector<int>> by_gpu;
  for (int rank = 0; const std::string& uuid : uuids) by_gpu[uuid].push_back(rank++);
  by_gpu.erase("");
  std::vector<std::string> shared;
  for (const auto& [uuid, those] : by_gpu)
    if (those.size() > 1) shared.push_back(uuid + ", for " + ranks_text(those));
  return shared;
}

bool runs_on(std::string_view architecture, int major, int minor) {
  int number = 0;
  const char* const end = architecture.data() + architecture.size();
  const std::string_view kind(std::from_chars(architecture.data(), end, number).ptr, end);
  if (kind.empty()) return number <= 10 * major + minor;
  const bool is_exact = kind[0] != '-';
  return number / 10 == major && (is_exact ? number % 10 == minor : number % 10 <= minor);
}

}  // namespace tree_attn
