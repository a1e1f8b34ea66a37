// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Verdicts on clusters that do not exist: every fault has its line, and a healthy cluster has none.
#include "tree_attn/distributed/job/judge.hpp"
#include "tree_attn/tests/distributed/job/made_up_facts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

namespace tree_attn::test {
namespace {

/// Verdicts that are not fine, as lines.
std::vector<std::string> faults_in(const std::vector<RankFacts>& facts) {
  std::vector<std::string> lines;
  for (const Verdict& verdict : judge(facts)) {
    if (verdict.severity != Severity::kFine) lines.push_back(line(verdict));
  }
  return lines;
}

std::string chapter() {
  std::ifstream file(TREE_ATTN_CHAPTER);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The chapter's table of faults: the line of `info` after its severity, by what is wrong.
std::map<std::string, std::string> lines_of_chapter() {
  const std::string text = chapter();
  const std::size_t begin = text.find("\n| --- | --- |\n", text.find("<!-- faults: begin"));
  std::istringstream rows(text.substr(begin, text.find("<!-- faults: end", begin) - begin));
  std::map<std::string, std::string> lines;
  for (std::string row; std::getline(rows, row);) {
    const std::size_t middle = row.find(" | ");
    if (row.starts_with("| ") && !row.starts_with("| ---"))
      lines[row.substr(2, middle - 2)] = row.substr(middle + 3, row.size() - middle - 5);
  }
  return lines;
}

constexpr std::array kAllNeeds{Need::kNothing, Need::kGpu, Need::kNccl, Need::kPeerAccess};

}  // namespace

TEST_CASE("judge: a healthy cluster has one verdict per subject, and all are fine, as the chapter shows") {
  for (const auto& [n_nodes, ranks_per_node] : {std::pair{1, 1}, {1, 2}, {1, 8}, {2, 8}, {3, 1}}) {
    CAPTURE(n_nodes);
    CAPTURE(ranks_per_node);
    const std::vector<RankFacts> facts = healthy_cluster(n_nodes, ranks_per_node);
    CHECK(faults_in(facts).empty());
    CHECK(!first_failure(judge(facts), kAllNeeds));
    std::vector<std::string> subjects;
    for (const Verdict& verdict : judge(facts)) subjects.push_back(verdict.subject);
    CHECK(subjects == std::vector<std::string>{"GPUs", "peer access", "NCCL", "interface", "one-shot", "windows"});
  }
  const std::vector<RankFacts> facts = healthy_cluster(2, 2);
  CHECK(chapter().find("```text\n" + table(facts) + "\n" + table(judge(facts)) + "```\n") != std::string::npos);
}

TEST_CASE("judge: every fault has its line, which names ranks and values and says what to do, and the chapter has all") {
  const auto words = [](const std::string& text) {
    std::istringstream stream(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  std::map<std::string, std::string> lines = lines_of_chapter();
  for (const Fault& fault : faults()) {
    CAPTURE(fault.name);
    const std::vector<Verdict> verdicts = judge(fault.facts);
    const auto as_in_chapter = [](const Verdict& verdict) {
      return (verdict.severity == Severity::kFailure ? "fails `" : "warning `") + line(verdict) + "`";
    };
    const auto found = std::ranges::find(verdicts, std::exchange(lines[fault.name], ""), as_in_chapter);
    INFO(table(verdicts));
    REQUIRE(found != verdicts.end());
    CHECK(found->severity == fault.severity);
    CHECK(found->need == fault.need);
    for (const Verdict& verdict : verdicts) {
      CHECK(line(verdict).size() < 400);
      CHECK(line(verdict).find('\n') == std::string::npos);
      if (verdict.severity != Severity::kFine) CHECK(verdict.text.find("; ") != std::string::npos);
      // What does not work is not said to work as well.
      if (verdict.severity == Severity::kFine && verdict.subject != "interface")
        CHECK(!first_failure(verdicts, std::array{verdict.need}));
    }
    // A decode fails with the first line of what it needs, and warnings do not end it.
    for (const Need need : kAllNeeds) {
      const std::optional<std::string> failure = first_failure(verdicts, std::array{need});
      if (need == fault.need && fault.severity == Severity::kFailure) CHECK(failure == line(*found));
      if (need != fault.need && failure) CHECK(*failure != line(*found));
    }
    CHECK(!first_failure(verdicts, {}));
    // The table is at most 140 columns wide, and nothing of a line is lost.
    std::string all;
    for (const Verdict& verdict : verdicts) {
      const std::array<const char*, 3> severities{"ok ", "warning ", "fails "};
      all += severities[static_cast<std::size_t>(verdict.severity)] + verdict.subject + " " + line(verdict) + "\n";
    }
    CHECK(words(table(verdicts)) == words(all));
    std::istringstream rows(table(verdicts));
    for (std::string row; std::getline(rows, row);) CHECK(row.size() <= 140);
  }
  for (const auto& [name, left] : lines) CHECK_MESSAGE(left == "", name);
}

TEST_CASE("judge: the last line is of windows or of one-shot without them, or of eager messages where MPI limits them") {
  const std::string with_nccl = "with --transport nccl registered by NCCL 2.30.7; else ", ipc = "opened by CUDA IPC";
  const auto old = [](RankFacts& one) { one.no_nccl_windows = "NCCL 2.28.9 is old"; };
  const auto eager = [](std::int64_t n_bytes) {
    return [n_bytes](RankFacts& one) { one.eager_variable = "btl_vader_eager_limit", one.eager_bytes = n_bytes; };
  };
  const std::vector<std::pair<std::function<void(RankFacts&)>, std::string>> all{
      {[](RankFacts& one) { one.is_thread = true; }, with_nccl + "in the memory of this process"},
      {[&](RankFacts& one) { old(one), one.is_thread = true; },
       "in the memory of this process, with --transport nccl too: NCCL 2.28.9 is old"},
      {old, ipc + ", with --transport nccl too: NCCL 2.28.9 is old"},
      {[&](RankFacts& one) { old(one), one.no_nccl = "not there"; }, ipc},
      {[](RankFacts& one) { one.no_nccl = "not there"; }, ipc},
      {[](RankFacts& one) { one.reaches.clear(); },
       "--algorithm one-shot: not with windows on the devices; use --windows host"},
      {[](RankFacts& one) { one.reaches.clear(), one.no_driver = "none"; },
       "--algorithm one-shot: not with --backend cuda, which needs a GPU for every rank; use --backend emulated"},
      {eager(4096),
       "a message of more than 4096 bytes inside a node waits for its receiver; --mca btl_vader_eager_limit 16384 sends "
       "the states of 16 heads of 128, 8320 bytes, at once"},
      {eager(16384), with_nccl + ipc}};
  for (const auto& [change, last] : all) {
    std::vector<RankFacts> facts = healthy_cluster(1, 2);
    for (RankFacts& one : facts) change(one);
    CHECK(line(judge(facts).back()) == last);
  }
}

TEST_CASE("judge: the order of ranks on machines does not matter, and only what is compared has to be equal") {
  // Ranks dealt to two machines in turn.
  std::vector<RankFacts> facts = healthy_cluster(2, 2);
  std::swap(facts[1], facts[2]);
  CHECK(faults_in(facts).empty());
  // One that it does not see.
  facts[3].sees = {facts[3].uuid}, facts[3].reaches.clear();
  REQUIRE(faults_in(facts).size() == 1);
  CHECK(faults_in(facts)[0].starts_with("not known: other GPUs of the machine are hidden from rank 3; "));
  // Two ranks on one GPU reach it.
  facts[3] = facts[1];
  CHECK(faults_in(facts).empty());
  // A machine is named where it is one.
  for (RankFacts& one : facts) one.no_driver = "none";
  CHECK(faults_in(facts)[0].starts_with("--backend cuda: no driver for ranks 0-3: none; "));
  for (const std::size_t rank : {0U, 2U}) facts[rank].no_driver = "";
  CHECK(faults_in(facts)[0].starts_with("--backend cuda: no driver for ranks 1, 3 on node02: none; "));
  // NCCL's buffers between machines matter where there are several. An interface may be missing.
  facts = healthy_cluster(1, 2);
  for (RankFacts& one : facts) one.nccl_low_latency = one.interface = "";
  CHECK(faults_in(facts).empty());
  CHECK(table(judge(facts)).find("interface    none for NCCL's bootstrap; ") != std::string::npos);
}

}  // namespace tree_attn::test
