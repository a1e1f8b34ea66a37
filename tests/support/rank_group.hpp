// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the tests of the decoders run: over threads with any number of ranks, or under mpirun with those at hand.
///
/// test_decoders_*.cpp are written once against this and compiled twice, into test_distributed (thread_transport.hpp) and
/// into mpi_decoders (mpi_decoders.cpp). Every process sees what all ranks saw, so all ranks make the same checks and agree.
#pragma once

#include "distributed/transport/transport.hpp"
#include "reference/decode/decode.hpp"

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

namespace tree_attn::test {

/// What one rank ended with.
struct RankResult {
  DecodeOutput output;
  Traffic traffic;
};

/// Some ranks that can be told to run something.
class RankGroup {
 public:
  explicit RankGroup(int size) : size_(size) {}
  virtual ~RankGroup() = default;
  int size() const { return size_; }
  /// Runs `body` on every rank; what every rank returned, by rank, on every process. The traffic is filled in here.
  virtual std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) = 0;
  /// Whether this process makes the checks that need the oracle: one is enough.
  virtual bool has_oracle() const = 0;

 private:
  int size_;
};

/// Worlds to test in: over threads one for each of the sizes, under mpirun the one that was started.
std::vector<RankGroup*> rank_groups(std::span<const int> sizes);
inline std::vector<RankGroup*> rank_groups(std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 7, 8, 16}) {
  return rank_groups(std::span<const int>(sizes.begin(), sizes.size()));
}

}  // namespace tree_attn::test
