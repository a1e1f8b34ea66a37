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
#include <map>
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

constexpr std::array kAllNeeds{Need::kNothing, Need::kGpu, Need::kNccl, Need::kOneShot, Need::kPeerAccess};

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
    CHECK(subjects ==
          std::vector<std::string>{"cores", "shared memory", "GPUs", "peer access", "NCCL", "interface", "one-shot"});
  }
  CHECK(
      table(judge(healthy_cluster(2, 8))) ==
      "ok       cores          a core or more for every rank\n"
      "ok       shared memory  512 GiB of /dev/shm are free\n"
      "ok       GPUs           16 x NVIDIA H200, driver 580.65.06 (CUDA 13.0), compute capability 9.0; use --backend cuda\n"
      "ok       peer access    all GPUs of a machine reach each other\n"
      "ok       NCCL           2.30.7 found (/opt/nccl/libnccl.so.2)\n"
      "ok       interface      eth0 192.168.1.1 for NCCL's bootstrap (NCCL_SOCKET_IFNAME is not set)\n"
      "ok       one-shot       possible: every rank has its own GPU and reaches those of its machine\n");
  CHECK(line(judge(healthy_cluster(1, 2)).back()) ==
        "possible: every rank has its own GPU and reaches those of its machine");
}

TEST_CASE("judge: every fault has its line, which names ranks and values and says what to do") {
  std::set<std::string> names;
  for (const Fault& fault : faults()) {
    CAPTURE(fault.name);
    CHECK(names.insert(fault.name).second);
    const std::vector<Verdict> verdicts = judge(broken(fault));
    const auto found = std::ranges::find(verdicts, fault.line, [](const Verdict& verdict) { return line(verdict); });
    std::string all;
    for (const Verdict& verdict : verdicts) all += line(verdict) + "\n";
    INFO(all);
    REQUIRE(found != verdicts.end());
    CHECK(found->severity == fault.severity);
    CHECK(found->need == fault.need);
    for (const Verdict& verdict : verdicts) {
      CHECK(line(verdict).size() < 400);
      CHECK(line(verdict).find('\n') == std::string::npos);
      // A line of a backend says itself what to do.
      if (verdict.severity != Severity::kFine && verdict.subject != "backends") CHECK(verdict.remedy != "");
      // What does not work is not said to work as well.
      if (verdict.severity != Severity::kFine || (verdict.need != Need::kGpu && verdict.need != Need::kOneShot)) continue;
      CHECK(!first_failure(verdicts, std::array{verdict.need}));
    }
  }
}

TEST_CASE("judge: the table is at most 140 columns wide, and nothing of a line is lost") {
  const auto words = [](const std::string& text) {
    std::istringstream stream(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  for (const Fault& fault : faults()) {
    const std::vector<Verdict> verdicts = judge(broken(fault));
    std::string all;
    for (const Verdict& verdict : verdicts) {
      const std::array<const char*, 3> severities{"ok ", "warning ", "fails "};
      all += severities[static_cast<std::size_t>(verdict.severity)] + verdict.subject + " " + line(verdict) + "\n";
    }
    CHECK(words(table(verdicts)) == words(all));
    std::istringstream lines(table(verdicts));
    for (std::string one; std::getline(lines, one);) {
      CHECK(one.size() <= 140);
      CHECK((one.starts_with("ok       ") || one.starts_with("warning  ") || one.starts_with("fails    ") ||
             one.starts_with(std::string(24, ' '))));
    }
  }
}

TEST_CASE("judge: one fault is one line, also on many ranks") {
  // These two follow from others: no rank has a GPU, two ranks have the same.
  const std::map<std::string, std::size_t> more{{"no driver", 2},
                                                {"a rank without a GPU", 2},
                                                {"a device that is not there", 2},
                                                {"one-shot without GPUs", 2},
                                                {"two ranks on one GPU", 2},
                                                {"two processes on one GPU, in one kernel", 2},
                                                {"two threads on one GPU, in one kernel", 2},
                                                {"/dev/shm too small for MPI", 3}};
  for (const Fault& fault : faults()) {
    CAPTURE(fault.name);
    const auto expected = more.find(fault.name);
    CHECK(faults_in(broken(fault)).size() == (expected == more.end() ? 1 : expected->second));
  }
}

TEST_CASE("judge: a decode fails with the first line of what it needs, and warnings do not end it") {
  for (const Fault& fault : faults()) {
    CAPTURE(fault.name);
    const std::vector<Verdict> verdicts = judge(broken(fault));
    for (const Need need : kAllNeeds) {
      const std::optional<std::string> failure = first_failure(verdicts, std::array{need});
      if (need == fault.need && fault.severity == Severity::kFailure) {
        REQUIRE(failure);
        CHECK(*failure == fault.line);
      }
      if (need != fault.need && failure) CHECK(*failure != fault.line);
    }
    CHECK(!first_failure(verdicts, {}));
  }
}

TEST_CASE("judge: the order of ranks on machines does not matter, and only what is compared has to be equal") {
  // Ranks dealt to two machines in turn.
  std::vector<RankFacts> facts = healthy_cluster(2, 2);
  std::swap(facts[1], facts[2]);
  CHECK(faults_in(facts).empty());
  // Slurm may show every rank a GPU 0 of its own: the identity decides.
  for (RankFacts& one : facts) one.gpus = {one.gpus[static_cast<std::size_t>(one.gpu)]}, one.gpu = 0;
  REQUIRE(faults_in(facts).size() == 1);
  CHECK(faults_in(facts)[0].starts_with("ranks 0-3 do not see the GPUs of the other ranks"));
  // A machine is named where it is one.
  for (RankFacts& one : facts) one.driver.missing = "none";
  CHECK(faults_in(facts)[0].starts_with("--backend cuda: no driver for ranks 0-3: none; "));
  for (const std::size_t rank : {0U, 2U}) facts[rank].driver.missing = "";
  CHECK(faults_in(facts)[0].starts_with("--backend cuda: no driver for ranks 1 and 3 on node02: none; "));
}

TEST_CASE("judge: a GPU may be shared where NCCL allows it, on every rank that shares it") {
  std::vector<RankFacts> facts = healthy_cluster(1, 2);
  facts[1].gpu = 0;
  const auto nccl_fails = [&] { return first_failure(judge(facts), std::array{Need::kNccl}).has_value(); };
  CHECK(nccl_fails());
  facts[0].gpus_may_be_shared = true;
  CHECK(nccl_fails());
  facts[1].gpus_may_be_shared = true;
  CHECK(!nccl_fails());
  // Kernels of both ranks that wait for each other need two GPUs, or two processes.
  CHECK(!first_failure(judge(facts), std::array{Need::kOneShot}));
  facts[1].process = facts[0].process;
  CHECK(first_failure(judge(facts), std::array{Need::kOneShot}));
  for (RankFacts& one : facts) one.nccl.found = 23002;
  CHECK(nccl_fails());
  // Without a library that is the line, and no version.
  for (RankFacts& one : facts) one.nccl = {.missing = "none", .path = "", .found = 0};
  CHECK(first_failure(judge(facts), std::array{Need::kNccl})->find("(found") == std::string::npos);
}

TEST_CASE("judge: which driver and which GPU run a kernel") {
  const auto fails = [](int built, int driver) {
    std::vector<RankFacts> facts = healthy_cluster(1, 1);
    facts[0].built_cuda = built, facts[0].driver.cuda = driver;
    return first_failure(judge(facts), std::array{Need::kGpu}).value_or("");
  };
  CHECK(fails(12040, 12000) == "");
  CHECK(fails(12040, 12080) == "");
  CHECK(fails(12040, 13000) == "");
  CHECK(fails(13000, 12090).find("driver 580 or later") != std::string::npos);
  CHECK(fails(12000, 11080).find("driver 525 or later") != std::string::npos);
  // A program without kernels for GPUs has no such need.
  CHECK(fails(0, 11000) == "");

  const auto runs = [](const std::string& architecture, int major, int minor) {
    std::vector<RankFacts> facts = healthy_cluster(1, 1);
    facts[0].built_for = {architecture};
    facts[0].gpus[0].major = major, facts[0].gpus[0].minor = minor;
    return !first_failure(judge(facts), std::array{Need::kGpu});
  };
  CHECK(runs("80", 8, 0));
  CHECK(runs("80", 8, 9));
  CHECK(!runs("86", 8, 0));
  CHECK(!runs("80", 9, 0));
  CHECK(!runs("80", 7, 5));
  CHECK(runs("90a", 9, 0));
  CHECK(!runs("90a", 9, 1));
  CHECK(!runs("90a", 10, 0));
  CHECK(runs("120", 12, 1));
  // The driver compiles PTX for GPUs that are newer, but not that of one architecture alone.
  for (const int major : {8, 9, 10, 12}) CHECK(runs("80+PTX", major, 0));
  CHECK(!runs("80+PTX", 7, 5));
  CHECK(!runs("86+PTX", 8, 0));
  CHECK(runs("90a+PTX", 9, 0));
  CHECK(!runs("90a+PTX", 10, 0));

  // What to build for.
  const auto advice = [](int major, int minor) {
    std::vector<RankFacts> facts = healthy_cluster(1, 1);
    facts[0].gpus[0].major = major, facts[0].gpus[0].minor = minor;
    const std::string fault = faults_in(facts).at(0);
    return fault.substr(fault.rfind("; ") + 2);
  };
  CHECK(advice(10, 3) == "build with -DCMAKE_CUDA_ARCHITECTURES=103-real");
  CHECK(advice(12, 0) == "build with -DCMAKE_CUDA_ARCHITECTURES=120-real");
  CHECK(advice(7, 5) == "use GPUs of compute capability 8.0 or later, for which there are kernels");
}

TEST_CASE("judge: cores are those of the machine, within the limit of a container, and threads are ranks too") {
  std::vector<RankFacts> facts = healthy_cluster(1, 4);
  const auto warns = [&] { return faults_in(facts).size() == 1 && faults_in(facts)[0].find(" core") != std::string::npos; };
  // The launcher binds every rank to a core of its own.
  for (int rank = 0; rank < 4; ++rank) facts[static_cast<std::size_t>(rank)].cores = {rank};
  CHECK(!warns());
  facts[3].cores = {2};
  CHECK(warns());
  facts = healthy_cluster(1, 4);
  for (RankFacts& one : facts) one.container_cores = 3.5;
  CHECK(warns());
  for (RankFacts& one : facts) one.container_cores = 4;
  CHECK(!warns());
}

TEST_CASE("judge: processes share /dev/shm, threads and a single process need none of it") {
  std::vector<RankFacts> facts = healthy_cluster(1, 4);
  for (RankFacts& one : facts) one.shared_memory = 0;
  CHECK(faults_in(facts).size() == 1);
  for (RankFacts& one : facts) one.process = 7;
  CHECK(faults_in(facts).empty());
  // 4 MiB for each rank of a machine.
  facts = healthy_cluster(1, 4);
  for (RankFacts& one : facts) one.gpu = -1, one.gpus.clear(), one.shared_memory = 0x1p24;
  const auto warns = [&] {
    return std::ranges::any_of(faults_in(facts), [](const std::string& one) { return one.starts_with("/dev/shm"); });
  };
  CHECK(!warns());
  for (RankFacts& one : facts) one.shared_memory -= 1;
  CHECK(warns());
}

TEST_CASE("judge: locked memory matters where there is InfiniBand and a limit") {
  std::vector<RankFacts> facts = healthy_cluster(1, 1);
  facts[0].locked_memory = 65536;
  CHECK(faults_in(facts).empty());
  facts[0].has_infiniband = true;
  CHECK(faults_in(facts).size() == 1);
  facts[0].locked_memory = 0x1p30;
  CHECK(faults_in(facts).empty());
  facts[0].locked_memory = -1;
  CHECK(faults_in(facts).empty());
}

TEST_CASE("judge: pairs of GPUs that cannot reach each other are counted, in both directions") {
  std::vector<RankFacts> facts = healthy_cluster(1, 4);
  const auto failure = [&] { return first_failure(judge(facts), std::array{Need::kPeerAccess}).value_or(""); };
  facts[3].gpus[3].reaches = {0, 1};
  CHECK(failure().starts_with("--algorithm one-shot: the GPU of rank 3 cannot reach that of rank 2 on node01; use"));
  facts[2].gpus[2].reaches = {0, 1};
  CHECK(failure().starts_with(
      "--algorithm one-shot: the GPU of rank 2 cannot reach that of rank 3 on node01, and 2 pairs in all are apart; use"));
  // Windows on the host need no peer access.
  CHECK(!first_failure(judge(facts), std::array{Need::kGpu, Need::kOneShot}));
}

TEST_CASE("judge: the interface of NCCL's bootstrap") {
  CHECK(is_chosen("eth", "eth0"));
  CHECK(is_chosen("ib,eth", "eth0"));
  CHECK(!is_chosen("ib,eth", "lo"));
  CHECK(!is_chosen("^docker,lo", "lo"));
  CHECK(is_chosen("^docker,lo", "eth0"));
  CHECK(is_chosen("=eth0", "eth0"));
  CHECK(!is_chosen("=eth0", "eth01"));
  CHECK(is_chosen("eth0", "eth01"));
  CHECK(!is_chosen("^=eth0,lo", "eth0"));
  CHECK(is_chosen("^=eth0,lo", "eth01"));

  RankFacts rank = healthy_cluster(1, 1)[0];
  const auto chosen = [&] {
    const InterfaceFacts* const found = bootstrap_interface(rank);
    return found == nullptr ? "" : found->name;
  };
  rank.interfaces = {{"lo", ""}, {"virbr0", ""}, {"docker0", ""}, {"eth0", ""}, {"ib0", ""}};
  for (const char* expected : {"ib0", "eth0", "docker0", "lo", "virbr0"}) {
    CHECK(chosen() == expected);
    std::erase_if(rank.interfaces, [&](const InterfaceFacts& one) { return one.name == expected; });
  }
  CHECK(chosen() == "");
  rank.interfaces = {{"lo", ""}, {"eth0", ""}, {"eth1", ""}};
  rank.socket_ifname = "eth1,eth0";
  CHECK(chosen() == "eth0");
  rank.socket_ifname = "=eth1";
  CHECK(chosen() == "eth1");

  // On one machine the bootstrap may use lo, on several it may not, even if it is told to.
  std::vector<RankFacts> facts = healthy_cluster(1, 2);
  for (RankFacts& one : facts) one.interfaces = {{"lo", "127.0.0.1"}};
  CHECK(faults_in(facts).empty());
  facts = healthy_cluster(2, 1);
  for (RankFacts& one : facts) one.socket_ifname = "lo";
  CHECK(first_failure(judge(facts), std::array{Need::kNccl})->find("unset NCCL_SOCKET_IFNAME") != std::string::npos);
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
