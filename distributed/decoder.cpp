// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names of algorithms and backends; the first and the last thing that all decoders do.
#include "distributed/decoder.hpp"

#include "distributed/input_error.hpp"
#include "gpu/device_error.hpp"

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

Backend find_backend(std::string_view name) {
  if (name == "cpu") return {"cpu", nullptr, decode_shard};
  const auto of_kernels = [name](const KernelBackend& kernels) {
    try {
      kernels.device_name();
    } catch (const DeviceError& error) {
      throw InputError("--backend " + std::string(name) + ": " + error.what());
    }
    return Backend{std::string(name), &kernels, kernels.decode_shard};
  };
  if (name == "emulated") return of_kernels(emulated::kBackend);
#if defined(TREE_ATTN_HAS_CUDA)
  if (name == "cuda") return of_kernels(cuda::kBackend);
#else
  if (name == "cuda") throw InputError("--backend cuda: not built in (" TREE_ATTN_NO_CUDA "); it takes a build with nvcc 12 or later");
#endif
  throw InputError("--backend " + std::string(name) + ": unknown; there are cpu, emulated, cuda");
}

Forest<float> local_forest(Transport& transport, const Backend& backend, const DecodeStep& step) {
  return backend.decode(step.q, step.shard, step.lengths, step.scale, [&] { transport.progress(); });
}

/// Folds what is left to the root and finishes.
DecodeOutput finish_forest(Transport& transport, Forest<float>& forest, const DecodeStep& step) {
  const std::int64_t before = forest.n_merges();
  const std::span<const float> root = forest.fold();
  transport.traffic.merge_steps += forest.n_merges() - before;
  return finish_rows(root, step.n_rows(), step.d_v());
}

}  // namespace tree_attn
