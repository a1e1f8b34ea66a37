// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decodes from the test suites of other projects (tests/data/cases.json): their parameters and inputs.
#pragma once

#include "tests/support/tensor_workload.hpp"

#include <memory>
#include <string>
#include <vector>

namespace tree_attn::test {

/// One case of the file. The fields are explained in its `meta`.
struct Case {
  unsigned seed = 0;  ///< seed of the elements, which are not stored: the index of the case in the file
  std::string name, input, tier;
  DType dtype = DType::F32;
  std::int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::vector<std::int64_t> lengths;
  std::vector<int> ranks, splits;

  /// Tests whether scores overflow in F32 and not in the oracle's double: NaN in every number is right, and so is the
  /// oracle.
  bool overflows() const { return input.find("overflow fp32") != std::string::npos; }
};

/// The decodes of one tier.
std::vector<Case> cases_of(const std::string& tier);

/// The input of a case over p ranks that hold consecutive ranges of nearly equal length.
///
/// Elements are standard normal unless `input` says otherwise. Positions from the length of a batch entry on are NaN.
/// @throws std::invalid_argument if the kind of input is unknown, so that no case is skipped silently
std::unique_ptr<TensorWorkload> input_of(const Case& c, int p);

/// The ranges of a case's keys over p ranks.
std::vector<KeyRange> ranges_of(const Case& c, int p);

}  // namespace tree_attn::test
