// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts as messages between ranks, and as a table.
#include "distributed/program/facts.hpp"
#include "distributed/transport/ranks_text.hpp"

#include <doctest/doctest.h>

#include <exception>
#include <fstream>
#include <iterator>
#include <utility>

namespace tree_attn::test {
namespace {

/// Machines "node01", "node02", ... with as many GPUs as ranks, which all reach each other.
std::vector<RankFacts> healthy_cluster(int n_nodes, int ranks_per_node) {
  std::vector<RankFacts> facts;
  for (int rank = 0; rank < n_nodes * ranks_per_node; ++rank) {
    const int node = rank / ranks_per_node;
    const auto uuid = [&](int gpu) { return "GPU-5f0c" + std::to_string(node) + std::to_string(gpu); };
    RankFacts one;
    one.node = node, one.host = "node0" + std::to_string(node + 1), one.cores = "24";
    one.interface = "eth0 192.168.1." + std::to_string(node + 1);
    one.driver = "CUDA 13.0", one.nccl = "2.30.7";
    one.gpu = "NVIDIA H200", one.capability = "9.0", one.uuid = uuid(rank % ranks_per_node);
    for (int gpu = 0; gpu < ranks_per_node; ++gpu)
      if (uuid(gpu) != one.uuid) one.reaches.push_back(uuid(gpu));
    facts.push_back(one);
  }
  return facts;
}

void remove_gpu(RankFacts& one, const std::string& why) {
  one.gpu = one.uuid = one.capability = "", one.no_gpu = why, one.reaches.clear();
}

}  // namespace

TEST_CASE("facts: text and back, with nothing lost") {
  for (const RankFacts& one : healthy_cluster(2, 2)) {
    const std::string text = to_text(one);
    CHECK(text.find('\0') == std::string::npos);
    CHECK(to_text(facts_of_text(text)) == text);
  }
  RankFacts odd;
  odd.host = "no \xff UTF-8";
  CHECK(facts_of_text(to_text(odd)).host == "no \xef\xbf\xbd UTF-8");
  CHECK_THROWS_AS(facts_of_text("{}"), std::exception);
}

TEST_CASE("facts: the table has a line for equal ranks of a machine, and no empty columns, as the chapter shows") {
  std::ifstream chapter(TREE_ATTN_CHAPTER);
  const std::string text(std::istreambuf_iterator<char>(chapter), {});
  CHECK(text.find("```text\n" + table(healthy_cluster(2, 2)) + "```\n") != std::string::npos);
  // Ranks dealt to the machines in turn.
  std::vector<RankFacts> dealt = healthy_cluster(2, 2);
  std::swap(dealt[1], dealt[2]);
  CHECK(table(dealt).find("\n0     node01  2 ") < table(dealt).find("\n1     node02  1 "));
  for (RankFacts& one : dealt) remove_gpu(one, "");
  dealt[3].cores = "1", dealt[3].driver = "", dealt[3].nccl = "2.29.7";
  CHECK(table(dealt) ==
        "node  host    ranks  cores  interface         driver     NCCL    GPU\n"
        "0     node01  0, 2   24     eth0 192.168.1.1  CUDA 13.0  2.30.7  not here\n"
        "1     node02  1      24     eth0 192.168.1.2  CUDA 13.0  2.30.7  not here\n"
        "1     node02  3      1      eth0 192.168.1.2  not here   2.29.7  not here\n");
}

TEST_CASE("facts: a row for everything that ranks lack says why, on which ranks, and where the chapter has a remedy") {
  std::vector<RankFacts> facts = healthy_cluster(2, 2);
  for (RankFacts& one : facts) one.nccl = "", one.no_nccl = "libnccl.so.2 was not found";
  facts[1].driver = "", facts[1].no_driver = "libcuda.so.1: cannot open shared object file";
  for (const std::size_t rank : {2U, 3U}) remove_gpu(facts[rank], "the driver shows none");
  facts[0].no_kernel = "built for 80-real, the NVIDIA H200 needs 90a-real";
  facts[0].no_ipc = "cuIpcOpenMemHandle_v2: error 201", facts[1].no_memfd = "/proc/71/fd/5 of rank 2: Permission denied";
  const std::string all = table(facts), rows = all.substr(all.find("\n\n") + 2);
  CHECK(rows ==
        "driver         not here for rank 1: libcuda.so.1: cannot open shared object file; see "
        "docs/IV.7-many-gpus.md#no_driver\n"
        "GPU            not here for ranks 2, 3: the driver shows none; see docs/IV.7-many-gpus.md#no_gpu\n"
        "kernels        not here for rank 0: built for 80-real, the NVIDIA H200 needs 90a-real; see "
        "docs/IV.7-many-gpus.md#no_kernel\n"
        "NCCL           not here: libnccl.so.2 was not found; see docs/IV.7-many-gpus.md#no_nccl\n"
        "memfd          not here for rank 1: /proc/71/fd/5 of rank 2: Permission denied; see "
        "docs/IV.7-many-gpus.md#no_memfd\n"
        "CUDA IPC       not here for rank 0: cuIpcOpenMemHandle_v2: error 201; see docs/IV.7-many-gpus.md#no_ipc\n");
  std::vector<RankFacts> crowded = healthy_cluster(2, 2);
  crowded[3].uuid = crowded[2].uuid, crowded[0].cores = crowded[1].cores = "3", crowded[2].cores = "4";
  const std::string more = table(crowded), shared = more.substr(more.find("\n\n") + 2);
  CHECK(shared ==
        "GPU            one, GPU-5f0c10, for ranks 2, 3; see docs/IV.7-many-gpus.md#one_gpu\n"
        "cores          fewer than 4 for ranks 0, 1; see docs/IV.7-many-gpus.md#few_cores\n");
  // Every place is one of the chapter.
  std::ifstream chapter(TREE_ATTN_CHAPTER);
  const std::string text(std::istreambuf_iterator<char>(chapter), {});
  for (const std::string& said : {rows, shared})
    for (std::size_t at = 0; (at = said.find('#', at)) != std::string::npos; ++at)
      CHECK(text.find("<a id=\"" + said.substr(at + 1, said.find('\n', at) - at - 1) + "\">") != std::string::npos);
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
