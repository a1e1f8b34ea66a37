// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A decode of another library, between its sources, which lie outside the repository, and time_peer.cu. Each
/// peer_*.cu defines these words; a program has one of them.
#pragma once

#include <cstddef>

/// One decode of BF16: q [heads, key_dim], k [kv_heads, n_keys, key_dim], v likewise with value_dim, out [heads, value_dim].
/// Where the lengths of rows differ, values are the first components of the keys.
struct PeerStep {
  const void *q, *k, *v;
  void* out;
  int n_keys, heads, kv_heads, key_dim, value_dim;
  float scale;  ///< of natural scores
  void* workspace;
  void* stream;
};
inline constexpr std::size_t kPeerWorkspace = std::size_t{96} << 20;

extern const char* const kPeer;  ///< the library, as a table names it
bool peer_takes(const PeerStep& step);
/// Computes, once for all steps of the same lengths, what the library keeps in the workspace. @returns a cudaError_t
int plan_peer(const PeerStep& step);
/// Queues a step. @returns a cudaError_t
int queue_peer(const PeerStep& step);
