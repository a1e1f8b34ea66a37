// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Predicted times of schedules, of every message of small ones, and how cuts divide a sequence, as JSON for
/// docs/tools/network.py.
///
/// Run: schedules schedules.json
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/step_time.hpp"
#include "distributed/program/predict.hpp"
#include "reference/state/key_range.hpp"
#include "reference/state/owned_leaves.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace tree_attn {
namespace {

/// Two RTX 4090 without peer access, which exchange through host memory over PCIe 4.0 x16, as in
/// tests/bench/simulated/clusters.cpp.
constexpr Cluster kTwoCards{{{10, 25 * kGigabytePerSecond}, {10, 25 * kGigabytePerSecond}, 0}, 1008 * kGigabytePerSecond};

/// 16 heads of 128 in BF16 for each sequence of the batch, on the paper's cluster; or other heads on another one.
struct Schedule {
  const Algorithm& algorithm;
  int n_ranks, per_node;
  int radix = 0;  ///< 0: the default of this network
  std::int64_t batch = 1;
  double overhead_us = 0;
  std::int64_t n_keys = 0;  ///< 0: communication alone, one aligned subtree per rank
  LeafOrder order = LeafOrder::kContiguous;
  AttentionShape heads{.dtype = DType::BF16, .value_dtype = DType::BF16};
  Cluster machines = kPaperCluster;

  int radix_used() const {
    return algorithm.radix == nullptr ? 0 : algorithm.radix(topology(), ranges(), options().for_step(shape(), 1));
  }
  double step_us(std::vector<MessageTime>* messages = nullptr) const {
    const Topology all = topology();
    const std::vector<KeyRange> all_ranges = ranges();
    std::vector<RankCost> costs;
    for (int rank = 0; rank < n_ranks; ++rank) costs.push_back(algorithm.cost(all, rank, all_ranges, shape(), options()));
    return step_time(costs, all, cluster(), messages);
  }
  Topology topology() const { return Topology::pretend(n_ranks, per_node); }

 private:
  WorkloadShape shape() const {
    AttentionShape one = heads;
    one.batch = batch;
    return {one, n_keys > 0 ? n_keys : std::int64_t{32768} * n_ranks, {}, order};
  }
  std::vector<KeyRange> ranges() const {
    return order == LeafOrder::kDealt ? dealt_ranges(n_ranks) : coarse_ranges(shape().n_keys, n_ranks, kLeafKeys);
  }
  Cluster cluster() const {
    Cluster cluster = machines;
    if (n_keys == 0) cluster.memory_bytes_per_us = std::numeric_limits<double>::infinity();
    cluster.network.overhead_us = overhead_us;
    return cluster;
  }
  PlanOptions options() const { return {.radix = radix, .network = cluster().network}; }
};

/// One line of JSON per schedule: what it is, its time, and with `with_messages` every message.
void print(std::FILE* out, const Schedule& schedule, const char* table, bool with_messages, bool is_last) {
  std::vector<MessageTime> messages;
  const double time = schedule.step_us(with_messages ? &messages : nullptr);
  std::fprintf(out,
               "{\"table\": \"%s\", \"algorithm\": \"%s\", \"ranks\": %d, \"per_node\": %d, \"radix\": %d, \"asked\": %d, "
               "\"batch\": %td, \"overhead_us\": %g, \"keys\": %td, \"order\": \"%s\", \"us\": %.6g, \"messages\": [",
               table, std::string(schedule.algorithm.name).c_str(), schedule.n_ranks, schedule.per_node,
               schedule.radix_used(), schedule.radix, schedule.batch, schedule.overhead_us, schedule.n_keys,
               std::string(name_of(schedule.order)).c_str(), time);
  const Topology topology = schedule.topology();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const MessageTime& each = messages[i];
    std::fprintf(out, "%s[%d, %d, %.6g, %.6g, %d, %td]", i == 0 ? "" : ", ", each.from, each.to, each.leaves, each.arrives,
                 topology.node_of(each.from) == topology.node_of(each.to) ? 0 : 1, each.bytes);
  }
  std::fprintf(out, "]}%s\n", is_last ? "" : ",");
}

/// An exchange that others timed, as rounds of messages: one in which every rank sends to all others, or doublings.
struct Exchange {
  const char* name;
  int n_ranks;
  std::int64_t bytes;  ///< of a message
  bool doubles;
  bool between_nodes;
  Cluster machines;
};

/// The time of an exchange, with the constants that programs have for its transport.
double exchange_us(const Exchange& each) {
  const auto p = static_cast<std::size_t>(each.n_ranks);
  std::vector<RankCost> costs(p);
  for (int step = 1; step < each.n_ranks; step = each.doubles ? 2 * step : each.n_ranks) {
    for (int rank = 0; rank < each.n_ranks; ++rank) {
      RankCost::Round round;
      for (int peer = 0; peer < each.n_ranks; ++peer)
        if (each.doubles ? peer == (rank ^ step) : peer != rank) round.sends.push_back({peer, each.bytes});
      round.receives = round.sends;
      costs[static_cast<std::size_t>(rank)].rounds.push_back(round);
    }
  }
  return step_time(costs, Topology::pretend(each.n_ranks, each.between_nodes ? 1 : each.n_ranks), each.machines);
}

/// Prints times that others measured. No constant is fitted: those of NCCL are of its own model, bandwidths are nominal.
void print_others(std::FILE* out) {
  const auto over_nccl = [](double inside_gb) {  // GB/s of NVLink, one direction
    Cluster cluster{.network = kNcclNetwork, .memory_bytes_per_us = std::numeric_limits<double>::infinity()};
    cluster.network.inside.bytes_per_us = inside_gb * kGigabytePerSecond;
    return cluster;
  };
  const Cluster b200 = over_nccl(900), h100 = over_nccl(450), h800 = over_nccl(200);
  // Four machines with one link of 200 Gb/s each: over NCCL, and by stores of one side, a latency of 3 us.
  Cluster sparks = over_nccl(450), stores = kPaperCluster;
  sparks.network.between.bytes_per_us = stores.network.between.bytes_per_us = 25 * kGigabytePerSecond;
  // DeepSeek-V3 on 8 ranks, batch 32: a rank has 16 heads, of which those of its group are gathered; queries have 576
  // elements in BF16, log-sum-exps are F32, outputs have 512 elements in BF16.
  constexpr std::int64_t kBatch = 32, kHeads = 16;
  for (const Exchange& each :
       {Exchange{"lse 2", 2, kBatch * kHeads * 2 * 4, false, false, b200},
        Exchange{"lse 8", 8, kBatch * kHeads * 8 * 4, false, false, b200},
        Exchange{"q 8", 8, kBatch * kHeads * 576 * 2, false, false, b200},
        Exchange{"out 8", 8, kBatch * kHeads * 512 * 2, false, false, b200},
        Exchange{"send h100", 2, 1000, false, false, h100}, Exchange{"send h800", 2, 1024, false, false, h800},
        Exchange{"reduce h100", 8, 1 << 16, true, false, h100}, Exchange{"reduce sparks", 4, 48 * 1024, true, true, sparks},
        Exchange{"stores sparks", 4, 48 * 1024, false, true, stores}}) {
    std::fprintf(out, "{\"table\": \"others\", \"name\": \"%s\", \"ranks\": %d, \"bytes\": %td, \"us\": %.6g},\n", each.name,
                 each.n_ranks, each.bytes, exchange_us(each));
  }
}

/// Keys of the longest shard when a sequence has n.
std::int64_t longest_shard(const std::vector<KeyRange>& ranges, LeafOrder order, std::int64_t n) {
  std::int64_t longest = 0;
  for (const KeyRange& range : ranges) longest = std::max(longest, OwnedLeaves(range, order).n_keys(n));
  return longest;
}

/// One line of JSON: how many subtrees a rank sends the states of, and how many times the mean the longest shard is.
void print_cut(std::FILE* out, const char* cut, const std::vector<KeyRange>& ranges, LeafOrder order, std::int64_t n_keys) {
  const auto p = static_cast<double>(ranges.size());
  int all = 0, most = 0;
  for (const KeyRange& range : ranges) {
    const int n = n_subtrees(range.begin, range.end);
    all += n, most = std::max(most, n);
  }
  std::fprintf(out,
               "{\"table\": \"cuts\", \"cut\": \"%s\", \"ranks\": %zu, \"keys\": %td, \"subtrees\": %.6g, \"most\": %d, "
               "\"longest\": %.6g},\n",
               cut, ranges.size(), n_keys, all / p, most,
               static_cast<double>(longest_shard(ranges, order, n_keys)) * p / n_keys);
}

/// One line of JSON: how many times the mean the longest shard is at the start and at the end of a sequence that grows by
/// single keys, and by how many leaves it exceeds the mean at most.
void print_growth(std::FILE* out, const char* cut, const std::vector<KeyRange>& ranges, LeafOrder order, std::int64_t start,
                  std::int64_t end) {
  const auto p = static_cast<double>(ranges.size());
  double most = 0;
  for (std::int64_t n = start; n <= end; ++n)
    most = std::max(most, static_cast<double>(longest_shard(ranges, order, n)) - static_cast<double>(n) / p);
  std::fprintf(
      out, "{\"table\": \"growth\", \"cut\": \"%s\", \"ranks\": %zu, \"start\": %.6g, \"end\": %.6g, \"leaves\": %.6g},\n",
      cut, ranges.size(), static_cast<double>(longest_shard(ranges, order, start)) * p / start,
      static_cast<double>(longest_shard(ranges, order, end)) * p / end, most / kLeafKeys);
}

/// The cuts of a sequence between ranks, and what becomes of them when it grows.
void print_cuts(std::FILE* out) {
  for (const std::int64_t n_keys : {80'000, 640'000, 5'120'000, 1'000'000}) {
    for (const int p : {8, 64, 100, 128}) {
      print_cut(out, "even", even_ranges(n_keys, p, kLeafKeys), LeafOrder::kContiguous, n_keys);
      print_cut(out, "coarse", coarse_ranges(n_keys, p, kLeafKeys), LeafOrder::kContiguous, n_keys);
      print_cut(out, "dealt", dealt_ranges(p), LeafOrder::kDealt, n_keys);
    }
  }
  constexpr std::int64_t kStart = 65536, kEnd = kStart + 10'000;
  for (const int p : {2, 3, 6, 8, 16}) {
    print_growth(out, "end known", even_ranges(kEnd, p, kLeafKeys), LeafOrder::kContiguous, kStart, kEnd);
    std::vector<KeyRange> open = even_ranges(kStart, p, kLeafKeys);
    open.back().end = kOpenEnd;
    print_growth(out, "contiguous", open, LeafOrder::kContiguous, kStart, kEnd);
    print_growth(out, "dealt", dealt_ranges(p), LeafOrder::kDealt, kStart, kEnd);
  }
}

int write(const char* path) {
  std::FILE* const out = std::fopen(path, "w");
  if (out == nullptr) return std::perror(path), 1;
  const Algorithm &two_level = find_algorithm("two-level"), &leaders = find_algorithm("leaders"),
                  &fused = find_algorithm("fused"), &gather = find_algorithm("gather"), &ring = find_algorithm("ring"),
                  &ring_state = find_algorithm("ring-state"), &paper = find_algorithm("paper");
  std::fprintf(out, "[\n");
  // Four nodes of two ranks, message by message.
  for (const Schedule& each : {Schedule{leaders, 8, 2}, Schedule{two_level, 8, 2, 2}, Schedule{two_level, 8, 2, 4}})
    print(out, each, "clock", true, false);
  // The problem of ./run demo, message by message.
  for (const Algorithm* algorithm : {&ring, &two_level, &ring_state, &paper})
    print(out, {*algorithm, 8, 4, 0, 1, 0, 65536}, "race", true, false);
  // The radix, for a device that drives the network at no cost, and for a processor that spends 0.3 us on a message.
  for (const double overhead : {0.0, 0.3}) {
    for (const int p : {64, 128, 1024, 4096}) {
      for (const int radix : {2, 4, 8, 16, 0}) print(out, {two_level, p, 8, radix, 1, overhead}, "radix", false, false);
    }
  }
  // The other schedules, for both.
  for (const double overhead : {0.0, 0.3}) {
    for (const int p : {8, 64, 128, 1024, 4096}) {
      for (const Algorithm* algorithm : {&leaders, &paper, &fused})
        print(out, {*algorithm, p, 8, 0, 1, overhead}, "one_state", false, false);
      for (const int radix : {4, 16, 0}) print(out, {two_level, p, 8, radix, 1, overhead}, "one_state", false, false);
    }
  }
  // Longer messages.
  for (const std::int64_t batch : {1, 8, 64}) {
    for (const Algorithm* algorithm : {&two_level, &leaders, &fused})
      print(out, {*algorithm, 128, 8, 0, batch}, "batch", false, false);
  }
  print_others(out);
  print_cuts(out);
  // The lengths of Fig. 3 on 1 to 16 nodes.
  for (const int p : {8, 16, 32, 64, 128}) {
    for (std::int64_t n_keys = 80'000; n_keys <= 5'120'000; n_keys *= 2) {
      for (const Algorithm& algorithm : algorithms())
        print(out, {algorithm, p, 8, 0, 1, 0, n_keys}, "lengths", false, false);
      print(out, {two_level, p, 8, 0, 1, 0, n_keys, LeafOrder::kDealt}, "lengths", false, false);
    }
  }
  // A layer of Llama 3.1 8B on eight H100, and of Llama 3.2 1B on two RTX 4090: the paper's tables of whole models.
  const AttentionShape layer_8b{.dtype = DType::BF16, .value_dtype = DType::BF16, .heads = 32, .kv_heads = 8};
  AttentionShape layer_1b = layer_8b;
  layer_1b.head_dim = layer_1b.value_dim = 64;
  for (const char* const name : {"paper", "two-level", "ring"}) {
    const Algorithm& algorithm = find_algorithm(name);
    for (const std::int64_t n_keys : {32'000, 64'000, 128'000, 256'000})
      print(out, {algorithm, 8, 8, 0, 1, 0, n_keys, LeafOrder::kContiguous, layer_8b}, "table_1", false, false);
    for (const std::int64_t n_keys : {8'000, 16'000, 20'000, 32'000})
      print(out, {algorithm, 2, 2, 0, 1, 0, n_keys, LeafOrder::kContiguous, layer_1b, kTwoCards}, "table_2", false, false);
  }
  // A tree, a flat round and a gather inside one node.
  for (const int p : {2, 4, 8, 16, 32, 64}) {
    for (const Algorithm* algorithm : {&leaders, &fused, &gather, &two_level})
      print(out, {*algorithm, p, p, 0, 1, 0.3}, "flat", false, p == 64 && algorithm == &two_level);
  }
  std::fprintf(out, "]\n");
  return std::fclose(out) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tree_attn

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: schedules FILE.json\n"), 2;
  return tree_attn::write(argv[1]);
}
