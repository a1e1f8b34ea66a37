// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ranks on which the decoder tests run: threads in any number, or the processes started by mpirun.
///
/// test_decoders_*.cpp are written once against this interface and compiled into two programs: test_distributed
/// (thread_transport.hpp) and mpi_decoders (mpi_decoders.cpp). Every process receives the results of all ranks, so all ranks
/// make the same checks and agree.
#pragma once

#include "distributed/transport/transport.hpp"
#include "reference/decode/decode.hpp"

#include <functional>
#include <optional>
#include <vector>

namespace tree_attn::test {

/// The result of one rank.
struct RankResult {
  DecodeOutput output;
  Traffic traffic;
  std::optional<Traffic> over_mpi = {};  ///< what MPI was given to send, and what went through shared memory
};

/// A group of ranks that can run a function.
class RankGroup {
 public:
  explicit RankGroup(int size) : size_(size) {}
  virtual ~RankGroup() = default;
  int size() const { return size_; }
  /// Runs `body` on every rank. Returns, on every process, the results of all ranks in order, with their traffic filled in.
  virtual std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) = 0;
  /// Returns whether this process makes the checks that need the oracle. One process is enough.
  virtual bool has_oracle() const { return true; }

 private:
  int size_;
};

/// The groups to test: with threads one of each size, under mpirun the one that was started.
std::vector<RankGroup*> rank_groups(const std::vector<int>& sizes = {1, 2, 3, 4, 5, 7, 8, 16});

}  // namespace tree_attn::test
