// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Queries of layers that are sharded by heads: each rank has those of its own heads, and its keys need all
/// (section 5.3).
#pragma once

#include "distributed/transport/buffer.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/tensor/view.hpp"

#include <cstddef>
#include <cstdint>

namespace tree_attn {

/// Gathers the queries of all heads: one message from each rank to each other.
class QueriesByHeads {
 public:
  /// Gathers what ranks pass for their heads, those of rank 0 first. Collective.
  /// @param mine [b, n_h / p, l, d_h], on the host, on every rank with the same axes and type
  /// @returns [b, n_h, l, d_h] of all ranks, valid until the next call @throws TransportError, after which the transport is
  /// abandoned
  TensorView gather(Transport& transport, const TensorView& mine);
  /// Takes the memory of gather() on p ranks, so that one without can tell the others before.
  void reserve(const TensorView& mine, int p) {
    memory_.first<std::byte>(static_cast<std::size_t>(bytes(mine, 2) + bytes(mine, p)));  // its own, and those of others
  }
  /// Bytes that each of p ranks sends: its heads to each other rank.
  static std::int64_t bytes(const TensorView& mine, int p) {
    const auto& [b, n, l, d] = mine.shape;
    return (p - 1) * b * n * l * d * static_cast<std::int64_t>(bytes_of(mine.dtype));
  }

 private:
  Buffer memory_;  ///< [n_h][b][l][d_h]: the heads of a rank are one message
};

}  // namespace tree_attn
