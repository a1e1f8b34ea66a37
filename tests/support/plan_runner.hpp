// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A runner of one plan, with memory for that plan.
#pragma once

#include "distributed/exchange/runner.hpp"

#include <memory>

namespace tree_attn::test {

/// Opens a runner. @param make_blocks as RunnerMemory
inline Runner runner_of(Transport& transport, const Plan& plan, std::int64_t n_rows, std::int64_t d_v,
                        MakeBlocks make_blocks = nullptr) {
  const RunnerSize size(plan, n_rows, d_v);
  return Runner(transport, plan, n_rows, d_v, std::make_shared<RunnerMemory>(transport, size, d_v, make_blocks));
}

}  // namespace tree_attn::test
