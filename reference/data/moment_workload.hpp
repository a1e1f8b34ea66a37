// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Covariance and entropy from any decoder, in addition to its output: `decode --moments 2` (section C.1).
///
/// The reduction is unchanged. Values are enlarged (reference/oracle/moment_state.hpp), so every algorithm carries the
/// second moments, and z and lse keep their bits on the CPU. The kernels require keys and values of one type, so there
/// 16-bit keys are converted to F32: z and lse would have the bits of F32 storage, so they are those of an ordinary decode,
/// and the moments those of a second one.
#pragma once

#include "tree_attn/reference/data/workload.hpp"
#include "tree_attn/reference/oracle/moment_state.hpp"

#include <memory>
#include <vector>

namespace tree_attn {

/// The components of an enlarged value: v, the squares of its components, and the key, whose mean gives the mean score.
MomentLayout moment_layout(const AttentionShape& shape);

/// The same workload with every value followed by its squares and its key, in F32. `inner` must outlive it.
std::unique_ptr<Workload> with_moments(Workload& inner);

/// Statistics of the attention distribution of every query row.
struct Moments {
  std::vector<float> variance;  ///< diagonal of the covariance of the values [b, n_h, l, d_v]; 0 for rows without keys
  std::vector<float> entropy;   ///< in nats [b, n_h, l]; 0 for rows without keys
};

/// Extracts the moments from an output over enlarged values, and leaves z [b, n_h, l, d_v] in it.
/// @param[in] layout components of an enlarged value
/// @param[in,out] output means of the enlarged values [b, n_h, l, layout.size()], and lse
/// @param[in] q the queries [b, n_h, l, d_h]
/// @param scale multiplies q.k
/// @throws std::invalid_argument if the sizes of output, layout and q do not agree, or q has no data
Moments take_moments(const MomentLayout& layout, DecodeOutput& output, const TensorView& q, double scale);

}  // namespace tree_attn
