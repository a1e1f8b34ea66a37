// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What ranks ask each other outside a decode step: do all agree, who was slowest, who shares a node.
#pragma once

#include "distributed/transport/topology.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// A fixed set of ranks that call the functions below together, in the same order. Every wait has a deadline.
///
/// MpiRanks implements it over a communicator, ThreadRanks over threads of one process. What a decode step sends goes
/// through a Transport instead, where it is counted.
class Ranks {
 public:
  Ranks(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Says what this rank does from now on, for the line that reports a missed deadline: "in two-level, step 3".
  virtual void doing(std::string_view phrase) const = 0;
  /// Waits for all ranks.
  virtual void barrier() const = 0;
  /// Concatenates the bytes of all ranks, by rank.
  /// @param[in] mine the same number of bytes on every rank
  /// @param[out] all size() times as many
  /// @param what for the line that reports a missed deadline: "all ranks to agree"
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const = 0;
  /// Copies the bytes of one rank to all. @param[in,out] bytes the same number on every rank
  virtual void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const = 0;

  /// The same number of elements of a trivial type from every rank, by rank.
  template <class T>
  std::vector<T> all_gather(std::span<const T> mine, std::string_view what) const {
    std::vector<T> all(mine.size() * static_cast<std::size_t>(size_));
    all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), what);
    return all;
  }

  /// Largest and smallest of a number over all ranks; no NaN.
  double all_max(double x) const;
  std::uint64_t all_max(std::uint64_t x) const;
  std::uint64_t all_min(std::uint64_t x) const;
  /// Sum of a number over all ranks.
  std::int64_t all_sum(std::int64_t x) const;
  /// The number that rank 0 has.
  std::uint64_t broadcast_from_root(std::uint64_t x) const;

  /// Unless `error` is empty on every rank, every rank throws InputError with the same line: that of the first rank that has
  /// one, preceded by its rank unless all ranks have that line. Lines are cut after 1023 bytes.
  void throw_if_any_failed(const std::optional<std::string>& error) const;

  /// Nodes found by shared memory, or pretended: every `ranks_per_node` consecutive ranks, 0 for found ones.
  Topology topology(int ranks_per_node) const;

 protected:
  /// A label of the node of every rank. Collective.
  virtual std::vector<int> find_nodes() const = 0;

 private:
  int rank_, size_;
};

}  // namespace tree_attn
