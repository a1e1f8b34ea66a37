// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Verdicts on clusters that do not exist: every fault has its line, and a healthy cluster has none.
#include "tree_attn/distributed/job/judge.hpp"
#include "tree_attn/tests/distributed/job/made_up_facts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

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

std::vector<RankFacts> broken(const Fault& fault) {
  std::vector<RankFacts> facts = healthy_cluster(fault.n_nodes, 2);
  fault.make(facts);
  return facts;
}

constexpr std::array kAllNeeds{Need::kNothing, Need::kGpu, Need::kNccl, Need::kPeerAccess};

}  // namespace

TEST_CASE("judge: a healthy cluster has one verdict per subject, and all are fine") {
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
  CHECK(table(judge(healthy_cluster(2, 8))) ==
        "ok       GPUs         16 x NVIDIA H200, compute capability 9.0, driver of CUDA 13.0\n"
        "ok       peer access  all GPUs of a machine reach each other\n"
        "ok       NCCL         2.30.7 found (/opt/nccl/libnccl.so.2)\n"
        "ok       interface    eth0 192.168.1.1 for NCCL's bootstrap; NCCL_SOCKET_IFNAME chooses another\n"
        "ok       one-shot     possible where the GPUs of a machine reach each other\n"
        "ok       windows      with --transport nccl registered by NCCL 2.30.7; else opened by CUDA IPC\n");
}

TEST_CASE("judge: every fault has its line, which names ranks and values and says what to do") {
  const auto words = [](const std::string& text) {
    std::istringstream stream(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  std::set<std::string> names;
  for (const Fault& fault : faults()) {
    CAPTURE(fault.name);
    CHECK(names.insert(fault.name).second);
    const std::vector<Verdict> verdicts = judge(broken(fault));
    const auto found = std::ranges::find(verdicts, fault.line, [](const Verdict& verdict) { return line(verdict); });
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
      if (need == fault.need && fault.severity == Severity::kFailure) CHECK(failure == fault.line);
      if (need != fault.need && failure) CHECK(*failure != fault.line);
    }
    CHECK(!first_failure(verdicts, {}));
    // The table is at most 140 columns wide, and nothing of a line is lost.
    std::string all;
    for (const Verdict& verdict : verdicts) {
      const std::array<const char*, 3> severities{"ok ", "warning ", "fails "};
      all += severities[static_cast<std::size_t>(verdict.severity)] + verdict.subject + " " + line(verdict) + "\n";
    }
    CHECK(words(table(verdicts)) == words(all));
    std::istringstream lines(table(verdicts));
    for (std::string one; std::getline(lines, one);) CHECK(one.size() <= 140);
  }
}

TEST_CASE("judge: one-shot needs a GPU for every rank and windows on them") {
  const auto line_of = [](const std::vector<RankFacts>& facts) { return line(judge(facts).back()); };
  std::vector<RankFacts> facts = healthy_cluster(1, 2);
  facts[0].reaches.clear();
  CHECK(line_of(facts) == "--algorithm one-shot: not with windows on the devices; use --windows host");
  facts[0].no_driver = "none";
  CHECK(line_of(facts) ==
        "--algorithm one-shot: not with --backend cuda, which needs a GPU for every rank; use --backend emulated");
}

TEST_CASE("judge: where windows will lie, and why") {
  const auto line_of = [](const std::vector<RankFacts>& facts) { return line(judge(facts).back()); };
  std::vector<RankFacts> facts = healthy_cluster(1, 2);
  for (RankFacts& one : facts) one.is_thread = true;
  CHECK(line_of(facts) == "with --transport nccl registered by NCCL 2.30.7; else in the memory of this process");
  for (RankFacts& one : facts) one.no_nccl_windows = "NCCL 2.28.9 is old";
  CHECK(line_of(facts) == "in the memory of this process, with --transport nccl too: NCCL 2.28.9 is old");
  for (RankFacts& one : facts) one.is_thread = false;
  CHECK(line_of(facts) == "opened by CUDA IPC, with --transport nccl too: NCCL 2.28.9 is old");
  for (RankFacts& one : facts) one.no_nccl = "not there";
  CHECK(line_of(facts) == "opened by CUDA IPC");
  for (RankFacts& one : facts) one.no_nccl_windows.clear();
  CHECK(line_of(facts) == "opened by CUDA IPC");
}

TEST_CASE("judge: the limit of eager messages, where MPI tells it") {
  std::vector<RankFacts> facts = healthy_cluster(1, 2);
  facts[0].eager_variable = "btl_vader_eager_limit", facts[0].eager_bytes = 4096;
  CHECK(
      line(judge(facts).back()) ==
      "a message of more than 4096 bytes inside a node waits for its receiver; --mca btl_vader_eager_limit 16384 sends the "
      "states of 16 heads of 128, 8320 bytes, at once");
  facts[0].eager_bytes = 16384;
  CHECK(judge(facts).back().subject == "windows");
}

TEST_CASE("judge: NCCL's buffers between machines matter where there are several") {
  std::vector<RankFacts> facts = healthy_cluster(1, 2);
  for (RankFacts& one : facts) one.nccl_low_latency = "";
  CHECK(faults_in(facts).empty());
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
}

TEST_CASE("judge: without an interface the line says so") {
  std::vector<RankFacts> facts = healthy_cluster(1, 1);
  facts[0].interface = "";
  CHECK(table(judge(facts)).find("interface    none for NCCL's bootstrap; ") != std::string::npos);
}

TEST_CASE("judge: the chapter on many GPUs has every fault with its line, and shows a cluster without faults") {
  std::ifstream file(TREE_ATTN_CHAPTER);
  const std::string chapter{std::istreambuf_iterator<char>(file), {}};
  std::ostringstream rows;
  rows << "| what is wrong | line of `info` |\n| --- | --- |\n";
  for (const Fault& fault : faults()) {
    const bool is_failure = fault.severity == Severity::kFailure;
    rows << "| " << fault.name << " | " << (is_failure ? "fails" : "warning") << " `" << fault.line << "` |\n";
  }
  const std::string begin = "<!-- faults: begin (tests/distributed/job/test_judge.cpp) -->\n";
  const std::size_t at = chapter.find(begin);
  REQUIRE(at != std::string::npos);
  const std::size_t first = at + begin.size();
  CHECK(chapter.substr(first, chapter.find("<!-- faults: end -->") - first) == rows.str());

  const std::vector<RankFacts> facts = healthy_cluster(2, 2);
  CHECK(chapter.find("```text\n" + table(facts) + "\n" + table(judge(facts)) + "```\n") != std::string::npos);
}
}  // namespace tree_attn::test
