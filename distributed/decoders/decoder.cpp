// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names of algorithms; the first and the last thing that all decoders do.
#include "distributed/decoders/decoder.hpp"

#include "reference/data/input_error.hpp"

namespace tree_attn {

std::span<const Algorithm> algorithms() {
  static constexpr Algorithm kAlgorithms[] = {
      {"paper", "three AllReduces, Alg. 3 to the letter", false, decode_paper},
      {"packed", "two AllReduces, numerator and denominator together", false, decode_packed},
      {"fused", "one AllReduce whose operator is the merge", false, decode_fused},
      {"gather", "one AllGather, merge in canonical order", true, decode_gather},
      {"two-level", "node, then network, in canonical order", true, decode_two_level},
      {"ring", "the baseline: keys and values travel", true, decode_ring},
      {"ring-state", "the second baseline: states hop around the ring", true, decode_ring_state},
  };
  return kAlgorithms;
}

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == name) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw InputError("--algorithm " + std::string(name) + ": unknown; there are " + known);
}

Forest<float> local_forest(Transport& transport, const Backend& backend, const DecodeStep& step) {
  return backend.decode(step.q, step.shard, step.lengths, step.scale, [&] { transport.progress(); }, step.lift);
}

/// Folds what is left to the root and finishes.
DecodeOutput finish_forest(Transport& transport, Forest<float>& forest, const DecodeStep& step) {
  const std::int64_t before = forest.n_merges();
  const std::span<const float> root = forest.fold();
  transport.traffic.merge_steps += forest.n_merges() - before;
  return finish_rows(root, step.n_rows(), step.d_v());
}

}  // namespace tree_attn
