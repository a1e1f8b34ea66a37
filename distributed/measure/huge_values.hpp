// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Averages of values whose sum is beyond F32 (eq. (7)).
///
/// n = sum_a w_a v_a overflows where values exceed 3e38 / N, although z = n / D, their average, is a float. Such a step is
/// decoded once more over v' = 2^-64 v, in F32. Sums of 2^40 of them are finite, and 2^64 z' is the average. The kernels,
/// the states and the exchange know nothing of it.
#pragma once

#include "tree_attn/distributed/measure/measure.hpp"

namespace tree_attn {

/// Whether a sum of finite values is not finite: some z_j is not, although lse is, and so are the components j of all values
/// that the query sees. Reads the values of such rows only.
/// @param[in] output of the last step of the workload
bool has_overflowed(Workload& workload, const DecodeOutput& output);

/// Decodes the last step again over 2^-64 v, and takes every z_j that is finite there and not in `output`. What was finite
/// keeps its bits. Collective over the ranks of the transport. It holds the keys and values of this rank a second time.
/// @param shard the cache of this rank
/// @param[in,out] output of the last step, the same on every rank
void decode_huge_values(Transport& transport, const Backend& backend, Workload& workload, const OpenShard& shard,
                        const Algorithm& algorithm, std::span<const KeyRange> ranges, const PlanOptions& options,
                        DecodeOutput& output);

}  // namespace tree_attn
