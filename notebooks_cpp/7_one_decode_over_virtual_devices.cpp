// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 7

// %% [markdown]
// # Notebook 7: One decode over virtual devices {#notebook_decode}
//
// We compute eq. (7) for one query and twelve keys on four devices, one of which is empty. First we
// follow Alg. 3 of the paper line by line, with every intermediate result printed; it needs three
// AllReduces. Then we use states, which need one. Then we use subtrees, so that the bits do not
// depend on the devices. Last we run all decoders of `distributed/exchange/decoder.hpp` on eight
// ranks, which are threads of this process, and count every message.
//
// **What you need:** the chapter on @ref algorithms, @ref notebook_state and @ref notebook_tree.
// **What you get:** Alg. 3 with numbers, and the messages, bytes and memory of every algorithm.

// %%
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/exchange.hpp"
#include "distributed/program/predict.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/data/workload.hpp"
#include "reference/oracle/algorithms.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/oracle/cost_model.hpp"
#include "reference/state/forest.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace tree_attn;
using notebook::expect, notebook::figure, notebook::normal;

// %% [markdown]
// A state in double precision: shift, denominator, and two components of the numerator.

// %%
using State = std::vector<double>;

void print(const char* before, const State& state) {
  std::printf("%se = %4g   D = %7.4f   n = (%7.4f, %7.4f)", before, state[kShift], state[kSum], state[kValues],
              state[kValues + 1]);
}

int main() {
  // %% [markdown]
  // ## Twelve keys on four devices
  //
  // Device 2 holds no keys. This happens in practice when a sequence is too short for the number of
  // devices.

  // %%
  std::mt19937 random(7);
  const Eigen::Index N = 12, d_h = 4, d_v = 2;
  const Vector q = normal(random, d_h, 1);
  const Matrix K = normal(random, N, d_h), V = normal(random, N, d_v);
  const std::vector<std::int64_t> lengths = {4, 3, 0, 5};
  const std::vector<VirtualDevice> devices = scatter(K, V, lengths);
  const std::size_t p = devices.size();

  for (std::size_t i = 0; i < p; ++i) {
    std::printf("device %zu, scores:", i);
    const Vector s = devices[i].K * q;
    for (Eigen::Index a = 0; a < s.size(); ++a) std::printf(" %7.3f", s(a));
    std::printf("\n");
  }

  // %% [markdown]
  // ## Alg. 3, line by line
  //
  // **Lines 1 and 2.** The keys are already divided, and every device has the query. Each device
  // computes the attention $o$ over its own keys and their log-sum-exp. Nothing is sent.

  // %%
  std::vector<Vector> o;
  std::vector<double> lse;
  for (std::size_t i = 0; i < p; ++i) {
    o.push_back(attention_mean(q, devices[i].K, devices[i].V));
    lse.push_back(energy(q, devices[i].K, devices[i].V, Vector()));
    std::printf("device %zu:  o = (%7.4f, %7.4f)   lse = %7.4f\n", i, o[i](0), o[i](1), lse[i]);
  }
  expect(lse[2] == -std::numeric_limits<double>::infinity(), "an empty device has no weight");

  // %% [markdown]
  // **Line 3: the first AllReduce.** It computes the maximum $m$ of the log-sum-exps. Every device
  // must receive $m$ before it can continue, because the following sums are relative to it.

  // %%
  const double m = tree_reduce_devices(lse, max_of);
  std::printf("m = AllReduce(max, lse) = %.4f\n", m);

  // %% [markdown]
  // **Line 4.** Each device computes $D = \mathrm e^{\mathrm{lse} - m}$ and
  // $n = o\, \mathrm e^{\mathrm{lse} - m}$. These are the denominator and the numerator of its
  // keys, relative to $m$.
  //
  // **Predict:** what are $n$ and $D$ on the empty device, and on the device with the largest lse?

  // %%
  std::vector<Vector> n;
  std::vector<double> D;
  for (std::size_t i = 0; i < p; ++i) {
    D.push_back(safe_weight(lse[i], m));
    n.push_back(D[i] * o[i]);
    std::printf("device %zu:  n = (%7.4f, %7.4f)   D = %6.4f\n", i, n[i](0), n[i](1), D[i]);
  }

  // %% [markdown]
  // **Line 5: two more AllReduces. Line 6:** the division.

  // %%
  const auto add_vectors = [](const Vector& a, const Vector& b) -> Vector { return a + b; };
  const Vector n_sum = tree_reduce_devices(n, add_vectors);
  const double D_sum = tree_reduce_devices(D, std::plus<double>());
  const Vector z = n_sum / D_sum;
  std::printf("n = AllReduce(sum, n) = (%7.4f, %7.4f)\n", n_sum(0), n_sum(1));
  std::printf("D = AllReduce(sum, D) =  %7.4f\n", D_sum);
  std::printf("z = n / D             = (%7.4f, %7.4f)\n", z(0), z(1));

  const TreeDecode library = tree_decode_paper(q, devices);
  expect((z - library.z).norm() < 1e-15 && library.n_all_reduces == 3, "the output is that of tree_decode_paper()");
  expect((z - attention_mean(q, K, V)).norm() < 1e-15, "the output is attention over all twelve keys");

  // %% [markdown]
  // ## The same with states
  //
  // A state contains its own shift, so no device has to wait for a maximum: two states are brought
  // to a common shift when they are merged. Each device merges its keys and does not divide.

  // %%
  const auto state_of = [&](Eigen::Index begin, Eigen::Index end) {
    State state(kValues + d_v), key(kValues + d_v);
    set_empty(state.data(), d_v);
    for (Eigen::Index a = begin; a < end; ++a) {
      const Vector v = V.row(a).transpose();
      set_key(key.data(), kLog2E * K.row(a).dot(q), v.data(), d_v);
      merge(state.data(), key.data(), d_v);
    }
    return state;
  };
  std::vector<State> states;
  Eigen::Index begin = 0;
  for (std::size_t i = 0; i < p; begin += lengths[i++]) {
    states.push_back(state_of(begin, begin + lengths[i]));
    print(("device " + std::to_string(i) + ":  ").c_str(), states[i]);
    std::printf("\n");
  }

  // %% [markdown]
  // **One AllReduce** is left, and its operator is `merge()`. For four devices the butterfly takes
  // two rounds. In each round a device exchanges its state with a peer, and both compute the same
  // merge.
  //
  // **Predict:** what happens to the state of device 3 when it meets the empty device 2?

  // %%
  for (std::size_t round = 0; round < butterfly(int(p), 0).size(); ++round) {
    const std::vector<State> before = states;
    for (int me = 0; me < int(p); ++me) {
      const ExchangeStep step = butterfly(int(p), me)[round];
      State left = before[std::size_t(step.peer_is_left(me) ? step.peer : me)];
      const State& right = before[std::size_t(step.peer_is_left(me) ? me : step.peer)];
      merge(left.data(), right.data(), d_v);
      states[std::size_t(me)] = left;
      std::printf("round %zu, device %d with %d:  ", round + 1, me, step.peer);
      print("", left);
      std::printf("\n");
    }
  }
  for (const State& state : states) expect(state == states[0], "all devices hold the same bits");
  Vector z_state(d_v);
  finish(states[0].data(), z_state.data(), d_v);
  std::printf("z = n / D = (%7.4f, %7.4f)\n", z_state(0), z_state(1));
  expect((z_state - z).norm() < 1e-14, "it is the same attention");

  // %% [markdown]
  // The state of device 3 does not change: the empty state has $n = -0$, which is neutral in
  // addition. $D$ differs from the $D$ of Alg. 3 because the weights here are relative to a power
  // of two. No exponential was computed after the keys.
  //
  // ## The same with subtrees
  //
  // All devices agree, but another division of the keys gives other bits, because the brackets
  // follow the devices. In the canonical tree they follow the positions. A device sends its maximal
  // subtrees, and only siblings are merged.

  // %%
  const auto forest_of = [&](Eigen::Index first, Eigen::Index last) {
    Forest<double> forest(1, d_v);
    for (Eigen::Index a = first; a < last; ++a) {
      const Vector v = V.row(a).transpose();
      set_key(forest.next(), kLog2E * K.row(a).dot(q), v.data(), d_v);
      forest.push({0, a});
    }
    return forest;
  };
  Forest<double> joined(1, d_v);
  begin = 0;
  for (std::size_t i = 0; i < p; begin += lengths[i++]) {
    const Forest<double> forest = forest_of(begin, begin + lengths[i]);
    std::printf("device %zu holds [%td, %td)\n", i, begin, begin + lengths[i]);
    for (std::size_t k = 0; k < forest.subtrees().size(); ++k) {
      const Subtree& subtree = forest.subtrees()[k];
      std::printf("    [%2td, %2td)  ", subtree.begin(), subtree.end());
      const auto first = forest.states().begin() + std::ptrdiff_t(k * std::size_t(forest.block_size()));
      print("", State(first, first + forest.block_size()));
      std::printf("\n");
    }
    joined.append(forest.subtrees(), forest.states().data());
  }
  std::printf("joined:");
  for (const Subtree& subtree : joined.subtrees()) {
    std::printf("  [%td, %td)", subtree.begin(), subtree.end());
  }
  const std::span<const double> folded = joined.fold();
  const State root(folded.begin(), folded.end());
  print("\nroot:         ", root);
  std::printf("\n");

  // %% [markdown]
  // Is the root the same for every division? Twelve keys can be divided into four ranges in 455
  // ways, if empty ranges are allowed. For each of them we compute the root of the tree, and the
  // result of the AllReduce of states above.
  //
  // **Predict:** how many different results has each of the two?

  // %%
  std::set<State> roots, reduced;
  int n_cuts = 0;
  for (Eigen::Index a = 0; a <= N; ++a) {
    for (Eigen::Index b = a; b <= N; ++b) {
      for (Eigen::Index c = b; c <= N; ++c, ++n_cuts) {
        const std::vector<std::pair<Eigen::Index, Eigen::Index>> ranges = {{0, a}, {a, b}, {b, c}, {c, N}};
        Forest<double> forest(1, d_v);
        std::vector<State> each;
        for (const auto& [first, last] : ranges) {
          const Forest<double> run = forest_of(first, last);
          forest.append(run.subtrees(), run.states().data());
          each.push_back(state_of(first, last));
        }
        const std::span<const double> whole = forest.fold();
        roots.insert(State(whole.begin(), whole.end()));
        reduced.insert(tree_reduce_devices(each, [](State left, const State& right) {
          merge(left.data(), right.data(), d_v);
          return left;
        }));
      }
    }
  }
  std::printf("%d cuts: %zu root, %zu results of an AllReduce of states\n", n_cuts, roots.size(), reduced.size());
  expect(n_cuts == 455, "15 choose 3");
  expect(roots.size() == 1 && *roots.begin() == root, "one root, in bits");
  expect(reduced.size() > 1, "an AllReduce of states depends on the cut");

  // %% [markdown]
  // ## The decoders
  //
  // Now a larger problem, in float: 512 keys, and four query heads that share two key/value heads.
  // Every rank fills a cache with its range of keys and runs one of the decoders of `algorithms()`
  // over a transport. On a cluster the transport is MPI. Here ranks are threads, and a message is
  // one copy in memory.

  // %%
  const WorkloadShape shape{{.heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16}, 512, {512}};
  const auto decode_on = [&shape](Transport& rank, const Algorithm& algorithm) {
    const std::vector<KeyRange> ranges = even_ranges(shape.n_keys, rank.size(), kLeafKeys);
    const std::unique_ptr<Workload> workload = make_workload(shape, 7, 1);
    OpenShard shard = open_shard(cpu_backend(), shape, ranges[std::size_t(rank.rank())], 0.25);
    fill(*shard.cache, *workload, shape.lengths);
    return algorithm.open(rank, shard, ranges)->step({workload->query(0), shape.lengths}).copy();
  };

  // %% [markdown]
  // The ranks form nodes of four. After the step we add up their counters.

  // %%
  struct Counted {
    DecodeOutput output;
    Traffic total;
  };
  const auto run = [&decode_on](const Algorithm& algorithm, int n_ranks) {
    std::vector<DecodeOutput> outputs(std::size_t(n_ranks), DecodeOutput{});
    std::vector<Traffic> traffic(outputs.size());
    constexpr double kTimeout = 60;
    run_threads(Topology::pretend(n_ranks, 4), kTimeout, [&](ThreadTransport& rank) {
      outputs[std::size_t(rank.rank())] = decode_on(rank, algorithm);
      traffic[std::size_t(rank.rank())] = rank.traffic();
    });

    Counted result{outputs[0], {}};
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      result.total.messages += traffic[i].messages;
      result.total.bytes += traffic[i].bytes;
      result.total.bytes_between_nodes += traffic[i].bytes_between_nodes;
      result.total.buffer_kv_bytes = std::max(result.total.buffer_kv_bytes, traffic[i].buffer_kv_bytes);
      expect(outputs[i].out == outputs[0].out, "all ranks end with the same output");
    }
    return result;
  };

  // %% [markdown]
  // We run eight ranks on two nodes of four. The counted messages and bytes must equal what
  // `predict()` computes in advance, to the byte. The last columns show the largest error against
  // the oracle, in units of $2^{-24}$, and how many different outputs there are on 1 to 8 ranks.
  //
  // **Predict:** which algorithm sends the most bytes, and which the fewest messages?

  // %%
  const std::unique_ptr<Workload> workload = make_workload(shape, 7, 1);
  const Shard whole = workload->whole();
  const AttentionResult exact = attention(workload->query(0), whole.k, whole.v, {.scale = 0.25});
  std::printf("              messages     bytes   between   kv held   error   outputs\n");
  for (const Algorithm& algorithm : algorithms()) {
    const Counted got = run(algorithm, 8);
    double error = 0;
    for (std::size_t i = 0; i < exact.out.size(); ++i) {
      error = std::max(error, std::abs(double(got.output.out[i]) - exact.out[i]) / 0x1p-24);
    }
    std::set<std::vector<float>> outputs;
    for (int n_ranks = 1; n_ranks <= 8; ++n_ranks) {
      outputs.insert(run(algorithm, n_ranks).output.out);
    }
    std::printf("  %-10s  %8td  %8td  %8td  %8td   %5.1f   %7zu\n", algorithm.name.data(), got.total.messages,
                got.total.bytes, got.total.bytes_between_nodes, got.total.buffer_kv_bytes, error, outputs.size());

    const Prediction predicted = predict(algorithm, shape, Topology::pretend(8, 4), even_ranges(shape.n_keys, 8, kLeafKeys));
    expect(got.total.messages == predicted.messages, "messages as predicted");
    expect(got.total.bytes == predicted.bytes, "bytes as predicted");
    expect(got.total.bytes_between_nodes == predicted.bytes_between_nodes, "between nodes too");
    expect(error < 16, "every algorithm computes attention");
    expect(!algorithm.keeps_bits || outputs.size() == 1, "canonical order: one output for any number of ranks");
  }

  // %% [markdown]
  // Algorithms that keep the canonical order have one output for any number of ranks. The ring
  // sends the whole cache around and holds keys and values of other ranks while it computes. All
  // others send states and hold no keys of others.
  //
  // ## Two levels
  //
  // The messages of a step follow from the positions that the ranks hold, so they are planned
  // before anything is computed: an algorithm is a *plan* for every rank. We print every message of
  // the plans of `leaders` and `two-level` with its bytes, `->` inside a node and `=>` between nodes.
  // A state of one head has 18 elements, so four heads take 288 bytes. An output with its lse has 17
  // elements per head, 272 bytes for four.

  // %%
  const Topology two_nodes = Topology::pretend(8, 4);
  const std::vector<KeyRange> eighths = even_ranges(shape.n_keys, 8, kLeafKeys);
  const Algorithm &leaders = find_algorithm("leaders"), &two_level = find_algorithm("two-level");
  for (const Algorithm* algorithm : {&leaders, &two_level}) {
    std::printf("%s\n", algorithm->name.data());
    for (int rank = 0; rank < 8; ++rank) {
      std::printf("  rank %d (node %d):", rank, two_nodes.node_of(rank));
      for (const RankCost::Round& round : algorithm->cost(two_nodes, rank, eighths, shape).rounds) {
        for (const auto& [peer, bytes] : round.sends) {
          const bool near = two_nodes.node_of(peer) == two_nodes.node_of(rank);
          std::printf("  %s %d: %td", near ? "->" : "=>", peer, bytes);
        }
      }
      std::printf("\n");
    }
  }
  expect(run(leaders, 8).total.bytes_between_nodes == 2 * 288, "one state each way between the leaders");
  expect(run(two_level, 8).total.bytes_between_nodes == 8 * 288, "one state from every rank to that of its index");

  // %% [markdown]
  // In `leaders`, the schedule of the paper, states are sent up to the leaders 0 and 4. The leaders
  // exchange their states and send the output down. Two messages cross the network, however many
  // ranks a node has, and five messages follow each other. In `two-level` all ranks of a node
  // exchange their states, then rank $i$ of one node exchanges with rank $i$ of the other: eight
  // messages cross the network at the same time, and two messages follow each other.
  //
  // ## Bytes against ranks
  //
  // Now a million keys, 16 heads of 128 components in BF16, and nodes of eight. The figure shows
  // the bytes that all ranks together send in one step, as computed by `predict()`. The curve
  // `paper` is our butterfly. The broad grey line is the volume of eq. (14), an AllReduce that
  // minimises bytes rather than rounds.
  //
  // **Predict:** by which factor do the ring and `two-level` differ on 128 ranks?

  // %%
  const WorkloadShape large{{.dtype = DType::BF16, .value_dtype = DType::BF16}, 1 << 20, {1 << 20}};
  std::string curves;
  for (int n_ranks = 2; n_ranks <= 128; n_ranks *= 2) {
    const Topology topology = Topology::pretend(n_ranks, 8);
    const std::vector<KeyRange> shards = even_ranges(large.n_keys, n_ranks, kLeafKeys);
    curves += std::to_string(n_ranks);
    for (const char* name : {"ring", "ring-state", "gather", "paper", "leaders"}) {
      const Prediction step = predict(find_algorithm(name), large, topology, shards);
      curves += " " + std::to_string(step.bytes) + " " + std::to_string(step.bytes_between_nodes);
    }
    const CostShape paper{.b = large.batch, .d = large.heads * large.value_dim, .n_h = large.heads, .p = n_ranks};
    curves += " " + std::to_string(n_ranks * to_bytes(tree_volume(paper), sizeof(float))) + "\n";
  }
  const Topology nodes = Topology::pretend(128, 8);
  const std::vector<KeyRange> shards = even_ranges(large.n_keys, 128, kLeafKeys);
  const Prediction ring = predict(find_algorithm("ring"), large, nodes, shards);
  const Prediction tree = predict(two_level, large, nodes, shards);
  std::printf("128 ranks:  ring %.2e bytes, two-level %.2e: %.0f times less\n", double(ring.bytes), double(tree.bytes),
              double(ring.bytes) / double(tree.bytes));
  std::printf("between nodes:   %.2e       %.2e: %.0f times less\n", double(ring.bytes_between_nodes),
              double(tree.bytes_between_nodes), double(ring.bytes_between_nodes) / double(tree.bytes_between_nodes));
  expect(ring.bytes > 50000 * tree.bytes, "states are small, caches are not");

  // %% Drawing
  figure("notebook_bytes", "$bytes << EOD\n" + curves + R"(EOD
set multiplot
set logscale x 2
set logscale y 10
set format y '10^{%L}'
set xrange [1.8:142]
set lmargin 9
set rmargin 14
set key off
set size 1,0.53
set origin 0,0.47
set yrange [1e3:1e13]
set format x ''
set ylabel 'bytes of all ranks'
set label 1 'ring' at 140,1e12 left tc rgb '#d9730d'
set label 2 'gather,' at 140,4e8 left tc rgb '#8a4fbf'
set label 3 'ring-state' at 140,7e7 left tc rgb '#8a4fbf'
set label 4 'paper' at 140,1e7 left tc rgb '#1982d2'
set label 5 'leaders' at 140,1.5e6 left tc rgb '#2d9d5a'
set label 6 'eq. (14)' at 140,2e5 left tc rgb '#999999'
plot $bytes using 1:12 with lines lw 7 lc rgb '#dddddd', \
     $bytes using 1:2 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#d9730d', \
     $bytes using 1:6 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#8a4fbf', \
     $bytes using 1:8 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1982d2', \
     $bytes using 1:10 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#2d9d5a'
set size 1,0.53
set origin 0,0
set format x '%g'
set xlabel 'ranks'
set label 1 at 140,1.4e11
set label 2 'gather' at 140,1.5e8
set label 3 at 140,1.7e7
set label 4 at 140,3.5e6
set label 5 at 140,5e5
unset label 6
set ylabel 'bytes between nodes'
plot $bytes using 1:3 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#d9730d', \
     $bytes using 1:7 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#8a4fbf', \
     $bytes using 1:5 with linespoints pt 6 ps 0.5 lw 1 lc rgb '#8a4fbf', \
     $bytes using 1:9 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1982d2', \
     $bytes using 1:11 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#2d9d5a'
unset multiplot)",
         640, 640);
}

// %% [markdown]
// ![Bytes that all ranks together send in one decode step over a million keys, in all and between nodes of eight ranks](notebook_bytes.svg)
//
// ## What to take home
//
// 1. Alg. 3 needs three AllReduces because its sums are relative to a common maximum. States
//    contain their shift and need one.
// 2. With subtrees of the canonical tree the output has the same bits for every division of the
//    keys.
// 3. The ring sends keys and values, and the others send states: on 128 ranks and a million keys
//    this is a factor of more than $50\,000$ in bytes.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 7.1`: lines 3 to 6 of Alg. 3;
// * `./run exercise 7.2`: the causal edge on a shard;
// * `./run exercise 7.3`: the leaves that a window reads.
//
// ## Questions
//
// 1. (Medium.) Device 2 was empty. Which lines of Alg. 3 produce a NaN if *all* devices are empty,
//    and what does `tree_decode_paper()` do there?
//
//    <details><summary>Answer</summary>
//
//    Line 4: lse and $m$ are both $-\infty$, and $-\infty - (-\infty)$ is NaN. Without it, line 6
//    would be $0 / 0$. The function takes the weight 0 in line 4 (`safe_weight()`) and returns
//    $z = 0$ with lse $= -\infty$.
//
//    </details>
//
// 2. (Easy.) `paper`, `packed` and `fused` send the same bytes in 72, 48 and 24 messages. When does
//    that make no difference?
//
//    <details><summary>Answer</summary>
//
//    When the messages are so large that bandwidth and not latency determines their time, for
//    example with many sequences in a batch, or when computing takes much longer than all messages.
//
//    </details>
//
// 3. (Medium.) Between nodes the curves of `leaders` and `paper` differ by a factor of eight.
//    Where does the factor come from, and what is it with nodes of 64?
//
//    <details><summary>Answer</summary>
//
//    In a round of the butterfly that crosses nodes, each of the eight ranks of a node sends its
//    partial sums. With `leaders` one rank alone sends, and a state has as many elements as
//    $n$, $D$ and the maximum together. With nodes of 64 the factor is 64: for 128 ranks
//    `predict()` gives 1064960 bytes against 16640.
//
//    </details>
//
// 4. (Medium.) In which of the eight algorithms can a rank compute while keys or states are under
//    way?
//
//    <details><summary>Answer</summary>
//
//    In the ring: it can compute on one block of keys and values while the next one arrives. In the
//    others a rank sends its state when it has finished its own keys, and then only merges are
//    left.
//
//    </details>
