// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Covariance and entropy beside the output of any decoder: `decode --moments 2` (section C.1).
///
/// The reduction is not touched: values are made longer (reference/oracle/moment_state.hpp), so every algorithm carries the
/// second moments, and z and lse keep their bits on the CPU. Kernels take keys and values of one type, so 16-bit keys become
/// F32 with them: z and lse are then as exact, with the bits of F32 storage.
#pragma once

#include "reference/data/workload.hpp"
#include "reference/oracle/moment_state.hpp"

#include <memory>
#include <vector>

namespace tree_attn {

/// The components of an enlarged value: v, the squares of its components, and the key, which brings home the mean score.
MomentLayout moment_layout(const AttentionShape& shape);

/// The same problem with every value followed by its squares and its key, in F32; `inner` must outlive it.
std::unique_ptr<Workload> with_moments(Workload& inner);

/// What the second moments say.
struct Moments {
  std::vector<float> variance;  ///< diagonal of the covariance of the values [b, n_h, l, d_v]; 0 where there was no key
  std::vector<float> entropy;   ///< of the attention, in nats [b, n_h, l]; 0 where there was no key
};

/// Takes the moments out of an output over enlarged values, and leaves z [b, n_h, l, d_v] in it.
/// @param[in] layout the components
/// @param[in,out] output means of the enlarged values [b, n_h, l, layout.size()], and lse
/// @param[in] q the queries [b, n_h, l, d_h]
/// @param scale multiplies q.k
Moments take_moments(const MomentLayout& layout, DecodeOutput& output, const TensorView& q, double scale);

}  // namespace tree_attn
