// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ladder of kernels, each one file that is read from top to bottom (sections 5 and 6).
///
/// Every rung decodes a few queries over many keys, finishes the rows, and repeats what it needs. Rung 4 has the bits of
/// plain.hpp, and rung 6 defines those of tensor cores; the library kernels have both, share no code with them but the merge
/// and the tree, and can leave states. A rung says in its first lines what it changed; its *floor*, the time of the bytes
/// that it requests at the rate of a kernel that only reads; what was predicted; and what was measured, if it was.
#pragma once

#include "gpu/engine/launch.hpp"

#include <limits>
#include <span>
#include <string>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// All that is asked about a kernel, by the program or by a test. The problem holds pointers into device memory.
struct DecodeKernel {
  const char* name;
  /// Most blocks that may share the keys of a kv head; 1: there are no splits.
  int max_splits = std::numeric_limits<int>::max();
  bool is_canonical = true;   ///< whether it adds in the order of the canonical tree: then no bit depends on splits
  bool is_fused = false;      ///< whether it adds a leaf by fused multiply-adds, in a chain: these have bits of their own
  bool keeps_states = false;  ///< whether it can leave states instead of finished rows
  /// Longest chain of additions that a weight passes through, for the error bound: n_a of ErrorModel.
  double (*n_additions)(const DecodeParams& params, DType dtype);
  /// Why it cannot take such a problem, in a few words; empty if it can.
  std::string (*refusal)(const DecodeParams& params, DType dtype);
  /// Plans its launch. @pre refusal() is empty
  LaunchPlan (*plan)(const DecodeParams& params, DType dtype, const LaunchOptions& options) = nullptr;
  /// Launches. @pre plan() is of the same shapes
  void (*run)(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
              const Workspace& workspace, Stream stream) = nullptr;
};

/// A rung, in the words of any kernel that decodes.
using LadderStep = DecodeKernel;

/// Part `part` of a range cut into `n_parts` at multiples of kLeafKeys, as even as they allow: the first parts are the
/// longer ones, and parts are empty where there are fewer leaves than parts. @pre it begins with a leaf
TREE_ATTN_HOST_DEVICE inline KeyRange split_range(KeyRange whole, int part, int n_parts) {
  const std::int64_t first = leaf_at(whole.begin);
  const Count n = Count(leaves_of(whole)), each = n / Count(n_parts), rest = n - each * Count(n_parts);
  const Count index = Count(part), longer = index < rest ? index : rest;
  const std::int64_t from = first + each * index + longer, to = from + each + (index < rest ? 1 : 0);
  const std::int64_t begin = from * kLeafKeys, end = to * kLeafKeys;
  return {begin < whole.end ? begin : whole.end, end < whole.end ? end : whole.end};
}

/// Calls f as with_type() does, for rungs, which have no kernels for F8_E4M3.
template <class F>
void with_step_type(DType dtype, const F& f) {
  with_type(dtype, [&]<class T>(T element) {
    if constexpr (!std::is_same_v<T, Float8>) f(element);
  });
}

/// Refuses as accepts_any_grid(), and F8_E4M3, and more rows than the second axis of a grid can count.
std::string accepts_any_rows(const DecodeParams& params, DType dtype);
/// Refuses as accepts_any_rows(), and types that tensor cores multiply, and rows that are not aligned or not a multiple of
/// 16 bytes long.
std::string accepts_aligned_rows(const DecodeParams& params, DType dtype);
/// Refuses as accepts_any_rows(), and types that tensor cores do not multiply, and rows that are not aligned.
std::string accepts_tensor_rows(const DecodeParams& params, DType dtype);

/// Additions of a rung that adds key after key; and of a chain of fused multiply-adds inside a leaf and the tree above.
double chain_additions(const DecodeParams& params, DType dtype);
double leaf_additions(const DecodeParams& params, DType dtype);

/// All rungs, in order; and after them the kernel of the library, equal runs of units (gpu/engine/equal_runs.cuh).
std::span<const LadderStep* const> ladder();
std::span<const DecodeKernel* const> all_kernels();
extern const DecodeKernel kEqualRuns;
extern const LadderStep kNaive, kFused, kVectors, kSplit, kCopies, kTensor, kUnits;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
