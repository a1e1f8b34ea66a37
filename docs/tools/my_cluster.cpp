// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times of a step by all algorithms that take it, for many problems and clusters: facts for docs/my_cluster.js, as
/// JSON.
///
/// Run: my_cluster FILE
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/step_time.hpp"
#include "reference/state/key_range.hpp"
#include "reference/state/slots.hpp"
#include "reference/state/subtree.hpp"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

namespace tree_attn {
namespace {

/// A problem on a cluster, as the page has it.
struct Case {
  WorkloadShape shape;
  int ranks, per_node, radix;
  Cluster cluster;
};

std::vector<KeyRange> ranges_of(const Case& each) {
  return each.shape.order == LeafOrder::kDealt ? dealt_ranges(each.ranks)
                                               : coarse_ranges(each.shape.n_keys, each.ranks, kLeafKeys);
}

double step_us(const Algorithm& algorithm, const Topology& topology, const Case& each) {
  const std::vector<KeyRange> ranges = ranges_of(each);
  std::vector<RankCost> costs;
  for (int rank = 0; rank < each.ranks; ++rank) {
    costs.push_back(
        algorithm.cost(topology, rank, ranges, each.shape, {.radix = each.radix, .network = each.cluster.network}));
  }
  return step_time(costs, topology, each.cluster);
}

void print(std::FILE* out, const Case& each, bool is_last) {
  const WorkloadShape& shape = each.shape;
  const Cluster& cluster = each.cluster;
  std::fprintf(
      out,
      "    {\"problem\": {\"keys\": %td, \"heads\": %td, \"kvHeads\": %td, \"headDim\": %td, \"elementBytes\": %zu, "
      "\"batch\": %td, \"ranks\": %d, \"perNode\": %d, \"radix\": %d, \"dealt\": %s},\n",
      shape.n_keys, shape.heads, shape.kv_heads, shape.head_dim, bytes_of(shape.dtype), shape.batch, each.ranks,
      each.per_node, each.radix, shape.order == LeafOrder::kDealt ? "true" : "false");
  const auto link = [](const Link& l) {
    char text[96];
    std::snprintf(text, sizeof text, "{\"latency\": %.9g, \"bytesPerUs\": %.9g}", l.latency_us, l.bytes_per_us);
    return std::string(text);
  };
  std::fprintf(out,
               "     \"cluster\": {\"inside\": %s, \"between\": %s, \"overhead\": %.9g, \"memoryBytesPerUs\": %.9g, "
               "\"mergeUs\": %.9g, \"storeUs\": %.9g},\n     \"us\": {",
               link(cluster.network.inside).c_str(), link(cluster.network.between).c_str(), cluster.network.overhead_us,
               cluster.memory_bytes_per_us, cluster.merge_us, cluster.store_us);
  const Topology topology = Topology::pretend(each.ranks, each.per_node);
  bool first = true;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.refusal != nullptr && !algorithm.refusal(topology, nullptr, ranges_of(each), shape).empty()) continue;
    if (shape.order == LeafOrder::kDealt && !algorithm.takes_dealt) continue;
    std::fprintf(out, "%s\"%s\": %.12g", first ? "" : ", ", std::string(algorithm.name).c_str(),
                 step_us(algorithm, topology, each));
    first = false;
  }
  std::fprintf(out, "}}%s\n", is_last ? "" : ",");
}

/// The paper's cluster, then random ones: any number of ranks, whole and cut-off nodes, both orders, grouped heads.
std::vector<Case> cases() {
  std::vector<Case> all;
  const auto paper_shape = [](std::int64_t n_keys, LeafOrder order) {
    return WorkloadShape{{.dtype = DType::BF16, .value_dtype = DType::BF16}, n_keys, {}, order};
  };
  for (const int p : {8, 64, 128}) {
    for (const std::int64_t n_keys : {80'000, 640'000, 5'120'000}) {
      for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt})
        all.push_back({paper_shape(n_keys, order), p, 8, 0, kPaperCluster});
    }
  }
  // Multiples of simple fractions, drawn without a distribution of the library: the same everywhere.
  std::mt19937 random(14);
  const auto pick = [&random](auto... values) {
    const std::initializer_list<double> list{static_cast<double>(values)...};
    return *(list.begin() + random() % list.size());
  };
  const auto whole = [&](auto... values) { return static_cast<std::int64_t>(pick(values...)); };
  for (int i = 0; i < 182; ++i) {
    const int p =
        static_cast<int>(i % 3 == 0 ? whole(1, 2, 4, 8, 16, 32, 64) : static_cast<std::int64_t>(1 + random() % 40));
    const int per_node = std::min(p, static_cast<int>(whole(1, 2, 3, 4, 8, 16, 18)));
    AttentionShape one;
    one.dtype = one.value_dtype = i % 2 == 0 ? DType::BF16 : DType::F32;
    one.batch = whole(1, 1, 2, 8);
    one.kv_heads = whole(1, 2, 8, 16);
    one.heads = one.kv_heads * whole(1, 4);
    one.head_dim = one.value_dim = whole(64, 128, 40);
    const std::int64_t n_keys =
        i % 4 == 0 ? whole(1, 63, 64, 1000, 32768) : static_cast<std::int64_t>(random() % 4'000'000) + 1;
    const Cluster cluster{{{pick(0, 0.5, 1.5, 5), pick(10, 50, 450) * kGigabytePerSecond},
                           {pick(1, 3, 20), pick(1, 12.5, 50) * kGigabytePerSecond},
                           pick(0, 0, 0.3, 1)},
                          pick(50, 1000, 3000) * kGigabytePerSecond,
                          pick(0, 0, 0.25),
                          false,
                          pick(0.6, 2)};
    all.push_back({{one, n_keys, {}, random() % 2 == 0 ? LeafOrder::kContiguous : LeafOrder::kDealt},
                   p,
                   per_node,
                   static_cast<int>(whole(0, 0, 2, 3, 4)),
                   cluster});
  }
  return all;
}

int write(const char* path) {
  std::FILE* const out = std::fopen(path, "w");
  if (out == nullptr) return std::perror(path), 1;
  const std::vector<Case> all = cases();
  std::fprintf(out, "{\n  \"cases\": [\n");
  for (const Case& each : all) print(out, each, &each == &all.back());
  std::fprintf(out, "  ]\n}\n");
  return std::fclose(out) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tree_attn

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: my_cluster FILE.json\n"), 2;
  return tree_attn::write(argv[1]);
}
