// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts as messages between ranks, and as a table.
#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/distributed/job/facts.hpp"
#include "tree_attn/tests/distributed/job/made_up_facts.hpp"

#include <doctest/doctest.h>

#include <exception>

namespace tree_attn::test {

TEST_CASE("facts: text and back, with nothing lost") {
  for (const Fault& fault : faults()) {
    std::vector<RankFacts> facts = healthy_cluster(fault.n_nodes, 2);
    fault.make(facts);
    std::vector<RankFacts> sent;
    for (const RankFacts& one : facts) {
      const std::string text = to_text(one);
      CHECK(text.find('\0') == std::string::npos);
      sent.push_back(facts_of_text(text));
      CHECK(to_text(sent.back()) == text);
    }
    // What judge() says is what it says of the facts that were sent.
    CHECK(table(judge(sent)) == table(judge(facts)));
    CHECK(table(sent) == table(facts));
  }
  RankFacts odd;
  odd.host = "no \xff UTF-8";
  CHECK(facts_of_text(to_text(odd)).host == "no \xef\xbf\xbd UTF-8");
  CHECK_THROWS_AS(facts_of_text("{}"), std::exception);
}

TEST_CASE("facts: the table has a line for equal ranks of a machine, and no empty columns") {
  CHECK(table(healthy_cluster(2, 2)) ==
        "node  host    ranks  cores  interface         driver     NCCL    GPU          capability  identity    reaches\n"
        "0     node01  0      24     eth0 192.168.1.1  CUDA 13.0  2.30.7  NVIDIA H200  9.0         GPU-5f0c00  1\n"
        "0     node01  1      24     eth0 192.168.1.1  CUDA 13.0  2.30.7  NVIDIA H200  9.0         GPU-5f0c01  0\n"
        "1     node02  2      24     eth0 192.168.1.2  CUDA 13.0  2.30.7  NVIDIA H200  9.0         GPU-5f0c10  3\n"
        "1     node02  3      24     eth0 192.168.1.2  CUDA 13.0  2.30.7  NVIDIA H200  9.0         GPU-5f0c11  2\n");
  std::vector<RankFacts> plain = healthy_cluster(2, 2);
  for (RankFacts& one : plain) one.gpu = one.uuid = one.capability = one.driver = one.nccl = "", one.reaches.clear();
  plain[3].cores = "1";
  // Ranks dealt to the machines in turn.
  std::vector<RankFacts> dealt = healthy_cluster(2, 2);
  std::swap(dealt[1], dealt[2]), std::swap(plain[1], plain[2]);
  CHECK(table(dealt).find("\n0     node01  2 ") < table(dealt).find("\n1     node02  1 "));
  CHECK(table(plain) ==
        "node  host    ranks  cores  interface\n"
        "0     node01  0, 2   24     eth0 192.168.1.1\n"
        "1     node02  1      24     eth0 192.168.1.2\n"
        "1     node02  3      1      eth0 192.168.1.2\n");
}

TEST_CASE("facts: which GPU runs a kernel") {
  CHECK(runs_on("80-real", 8, 0));
  CHECK(runs_on("80-real", 8, 9));
  CHECK(!runs_on("86-real", 8, 0));
  CHECK(!runs_on("80-real", 9, 0));
  CHECK(!runs_on("80-real", 7, 5));
  CHECK(runs_on("90a-real", 9, 0));
  CHECK(!runs_on("90a-real", 9, 1));
  CHECK(!runs_on("90a-real", 10, 0));
  CHECK(runs_on("120-real", 12, 1));
  // The driver compiles PTX for GPUs that are newer, but not that of one architecture alone.
  for (const int major : {8, 9, 10, 12}) CHECK(runs_on("80", major, 0));
  CHECK(!runs_on("80", 7, 5));
  CHECK(!runs_on("86", 8, 0));
  CHECK(runs_on("90a", 9, 0));
  CHECK(!runs_on("90a", 10, 0));
}

TEST_CASE("facts: lists of ranks as text") {
  const auto numbers = [](const std::vector<int>& list) { return numbers_text(list); };
  CHECK(numbers({}) == "");
  CHECK(numbers({4}) == "4");
  CHECK(numbers({4, 5}) == "4, 5");
  CHECK(numbers({4, 5, 6}) == "4-6");
  CHECK(numbers({0, 2, 3, 4, 9}) == "0, 2-4, 9");
  CHECK(numbers({0, 2, 4, 6, 8, 10, 12, 14}) == "0, 2, 4, 6, 8, 10 and 2 more");
  CHECK(ranks_text(std::vector<int>{4}) == "rank 4");
  CHECK(ranks_text(std::vector<int>{4, 5}) == "ranks 4, 5");
}
}  // namespace tree_attn::test
