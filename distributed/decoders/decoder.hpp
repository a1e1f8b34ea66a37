// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One step of decoding with sharded keys and values: what every algorithm is given and returns (sections 5 and 6).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/transport/collectives.hpp"
#include "distributed/transport/transport.hpp"
#include "gpu/backend/decode.hpp"
#include "reference/decode/decode.hpp"

namespace tree_attn {

/// What computes the states of a shard: decode_shard() on the CPU, kernels elsewhere.
struct Backend {
  std::string name;
  const KernelBackend* kernels = nullptr;  ///< null on the CPU
  std::function<Forest<float>(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                              const std::function<void()>& progress, int lift)>
      decode;
};

/// The backend of that name. @throws InputError if it is unknown, or not built in: with what is missing
Backend find_backend(std::string_view name);

/// The input of one step, as one rank sees it.
struct DecodeStep {
  TensorView q;                           ///< queries [b, n_h, l, d_h], the same on every rank
  Shard shard;                            ///< keys and values of this rank
  std::span<const std::int64_t> lengths;  ///< keys in use per batch entry [b]
  double scale = 1;                       ///< multiplies q.k
  std::span<const Run> runs;  ///< positions held by every place of the row, this rank's among them; neighbours touch, some may be empty
  int lift = 0;               ///< the same on every rank: kLift to decode once more where needs_lift() says so

  std::int64_t n_rows() const { return q.shape[0] * q.shape[1] * q.shape[2]; }
  std::int64_t d_v() const { return shard.v.shape[3]; }
};

/// A way of combining shards; every rank ends with the same output, so all agree on needs_lift().
struct Algorithm {
  std::string_view name;
  std::string_view brief;
  bool keeps_bits;  ///< whether the output bits are the same for every number of ranks, shards, nodes and batch
  DecodeOutput (*run)(Transport&, const Backend&, const DecodeStep&);
};

/// All algorithms, in the order of the docs.
std::span<const Algorithm> algorithms();
/// The algorithm of that name. @throws InputError if it is unknown, naming those there are
const Algorithm& find_algorithm(std::string_view name);

/// The states of this rank's own shard, messages in flight advancing meanwhile.
Forest<float> local_forest(Transport& transport, const Backend& backend, const DecodeStep& step);
/// Folds a forest that covers the whole sequence to the root, counts the steps, and finishes.
DecodeOutput finish_forest(Transport& transport, Forest<float>& forest, const DecodeStep& step);

/// Alg. 3 to the letter: AllReduce(max) of lse, AllReduce(sum) of the numerators, AllReduce(sum) of the denominators.
///
/// Gives up two things for being the paper's: a weight exp(lse - m) carries the rounding of lse, and the bits depend on the
/// number of ranks. The max keeps NaN, an empty shard has weight 0, all-empty gives z = 0 and lse = -inf.
/// @paper{alg_3, Alg. 3}
DecodeOutput decode_paper(Transport& transport, const Backend& backend, const DecodeStep& step);

/// The same with numerator and denominator in one message: two AllReduces.
DecodeOutput decode_packed(Transport& transport, const Backend& backend, const DecodeStep& step);

/// One AllReduce whose operator is the merge of states. The bits depend on the number of ranks.
DecodeOutput decode_fused(Transport& transport, const Backend& backend, const DecodeStep& step);

/// One AllGather of the ranks' subtrees and the canonical merge on every rank.
DecodeOutput decode_gather(Transport& transport, const Backend& backend, const DecodeStep& step);

/// Node, then network: subtrees climb a binomial tree to the leader of each node, leaders exchange by recursive doubling,
/// and the finished output comes down again. Section 5.3, in canonical order.
DecodeOutput decode_two_level(Transport& transport, const Backend& backend, const DecodeStep& step);

/// Ring attention, the baseline: keys and values travel p - 1 hops, the next shard in flight while this one is computed;
/// states are kept by source and merged in row order.
DecodeOutput decode_ring(Transport& transport, const Backend& backend, const DecodeStep& step);

/// The second baseline: only the states hop around the ring, p - 1 steps in a row.
DecodeOutput decode_ring_state(Transport& transport, const Backend& backend, const DecodeStep& step);

}  // namespace tree_attn
