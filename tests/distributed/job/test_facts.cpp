// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts as messages between ranks, and as a table.
#include "tree_attn/distributed/job/facts.hpp"
#include "tree_attn/tests/distributed/job/made_up_facts.hpp"

#include <doctest/doctest.h>

#include <exception>

namespace tree_attn::test {

TEST_CASE("facts: text and back, with nothing lost") {
  for (const Fault& fault : faults()) {
    std::vector<RankFacts> facts = healthy_cluster(fault.n_nodes, 2);
    fault.make(facts);
    for (const RankFacts& one : facts) {
      const std::string text = to_text(one);
      CHECK(text.find('\0') == std::string::npos);
      CHECK(to_text(facts_of_text(text)) == text);
    }
    // What judge() says is what it says of the facts that were sent.
    std::vector<RankFacts> sent;
    for (const RankFacts& one : facts) sent.push_back(facts_of_text(to_text(one)));
    CHECK(table(judge(sent)) == table(judge(facts)));
    CHECK(table(sent) == table(facts));
  }
  RankFacts odd;
  odd.host = "no \xff UTF-8";
  CHECK(facts_of_text(to_text(odd)).host == "no \xef\xbf\xbd UTF-8");
  CHECK_THROWS_AS(facts_of_text("{}"), std::exception);
}

TEST_CASE("facts: the table has a line per machine and one per GPU, and no empty columns") {
  CHECK(table(healthy_cluster(2, 2)) ==
        "node  host    ranks    cores  /dev/shm  interfaces        driver                 NCCL\n"
        "0     node01  0 and 1  24     512 GiB   eth0 192.168.1.1  580.65.06 (CUDA 13.0)  2.30.7\n"
        "1     node02  2 and 3  24     512 GiB   eth0 192.168.1.2  580.65.06 (CUDA 13.0)  2.30.7\n"
        "\n"
        "rank  GPU  name         compute capability  identity    reaches\n"
        "0     0    NVIDIA H200  9.0                 GPU-5f0c00  1\n"
        "1     1    NVIDIA H200  9.0                 GPU-5f0c01  0\n"
        "2     0    NVIDIA H200  9.0                 GPU-5f0c10  1\n"
        "3     1    NVIDIA H200  9.0                 GPU-5f0c11  0\n");
  std::vector<RankFacts> plain = healthy_cluster(1, 2);
  for (RankFacts& one : plain) one.gpus.clear(), one.gpu = -1, one.driver.missing = "none", one.nccl = {};
  plain[1].cores = {0};
  CHECK(table(plain) ==
        "node  host    ranks    cores  /dev/shm  interfaces\n"
        "0     node01  0 and 1  24, 1  512 GiB   eth0 192.168.1.1\n");
}

TEST_CASE("facts: two interfaces are shown, and lo where it is the only one") {
  std::vector<RankFacts> facts = healthy_cluster(1, 1);
  const auto shows = [&](const std::string& text) { return table(facts).find("  " + text + "  ") != std::string::npos; };
  for (const char* name : {"eth1", "eth2", "eth3"}) facts[0].interfaces.push_back({name, "10.0.0.1"});
  CHECK(shows("eth0 192.168.1.1, eth1 10.0.0.1 and 2 more"));
  facts[0].interfaces = {{"lo", "127.0.0.1"}};
  CHECK(shows("lo 127.0.0.1"));
}

TEST_CASE("facts: versions, bytes and lists of ranks as text") {
  CHECK(cuda_text(13000) == "13.0");
  CHECK(cuda_text(12080) == "12.8");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(65536) == "64.0 KiB");
  CHECK(bytes_text(0x1p39) == "512 GiB");
  const auto numbers = [](const std::vector<int>& list) { return numbers_text(list); };
  CHECK(numbers({}) == "");
  CHECK(numbers({4}) == "4");
  CHECK(numbers({4, 5}) == "4 and 5");
  CHECK(numbers({4, 5, 6}) == "4-6");
  CHECK(numbers({0, 1, 3}) == "0, 1 and 3");
  CHECK(numbers({0, 2, 3, 4, 9}) == "0, 2-4 and 9");
  CHECK(numbers({0, 2, 4, 6, 8, 10, 12, 14}) == "0, 2, 4, 6, 8, 10 and 2 more");
}
}  // namespace tree_attn::test
