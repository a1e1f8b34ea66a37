// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts as messages between ranks, and as a table.
#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/distributed/job/facts.hpp"
#include "tree_attn/tests/distributed/job/made_up_facts.hpp"

#include <doctest/doctest.h>

#include <exception>
#include <utility>

namespace tree_attn::test {

TEST_CASE("facts: text and back, with nothing lost") {
  for (const Fault& fault : faults()) {
    std::vector<RankFacts> sent;
    for (const RankFacts& one : fault.facts) {
      const std::string text = to_text(one);
      CHECK(text.find('\0') == std::string::npos);
      sent.push_back(facts_of_text(text));
      CHECK(to_text(sent.back()) == text);
    }
    // What judge() says is what it says of the facts that were sent.
    CHECK(table(judge(sent)) == table(judge(fault.facts)));
    CHECK(table(sent) == table(fault.facts));
  }
  RankFacts odd;
  odd.host = "no \xff UTF-8";
  CHECK(facts_of_text(to_text(odd)).host == "no \xef\xbf\xbd UTF-8");
  CHECK_THROWS_AS(facts_of_text("{}"), std::exception);
}

TEST_CASE("facts: the table has a line for equal ranks of a machine, and no empty columns") {
  std::vector<RankFacts> plain = healthy_cluster(2, 2);
  for (RankFacts& one : plain) one.gpu = one.uuid = one.capability = one.driver = one.nccl = "", one.reaches.clear();
  plain[3].cores = "1";
  // Ranks dealt to the machines in turn. The chapter on many GPUs has the table of a healthy cluster.
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
  struct Row {
    const char* architecture;
    std::vector<std::pair<int, int>> runs, runs_not;
  };
  // The driver compiles PTX for GPUs that are newer, but not that of one architecture alone.
  for (const auto& [architecture, runs, runs_not] : {Row{"80-real", {{8, 0}, {8, 9}}, {{9, 0}, {7, 5}}},
                                                     {"86-real", {}, {{8, 0}}},
                                                     {"90a-real", {{9, 0}}, {{9, 1}, {10, 0}}},
                                                     {"120-real", {{12, 1}}, {}},
                                                     {"80", {{8, 0}, {9, 0}, {10, 0}, {12, 0}}, {{7, 5}}},
                                                     {"86", {}, {{8, 0}}},
                                                     {"90a", {{9, 0}}, {{10, 0}}}}) {
    CAPTURE(architecture);
    for (const auto& [major, minor] : runs) CHECK(runs_on(architecture, major, minor));
    for (const auto& [major, minor] : runs_not) CHECK(!runs_on(architecture, major, minor));
  }
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
