// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Stores for other devices and launches that arrive late: after any others of the same cluster, until an order is
/// asked for.
///
/// A far store is on its way until the scheduler delivers it: after a random number of switches between fibers, which the
/// seed determines and no clock; at the latest when no thread of the cluster can run, or when the cluster ends. Before
/// store_release() stores its word, it delivers the stores that its thread made or that a barrier put before it, and no
/// others. So if a signal does not release, or no barrier precedes it, the receiver reads old data for some seed. Not
/// modelled: order that an mbarrier gives, and stores of 16 bytes that arrive in pieces.
#pragma once

#include <cstddef>
#include <vector>

namespace tree_attn::emulated::runtime {

struct Cluster;
struct Thread;

/// A store on its way.
struct FarStore {
  void* to;
  alignas(16) std::byte bytes[16];
  std::size_t n_bytes;      ///< 4 or 16
  std::vector<bool> known;  ///< to which threads of the cluster: it precedes whatever they do from now on
};

/// After a barrier all of its threads know what one of them knew.
void share_far_stores(Thread* const* threads, int n);
/// Delivers one store at random; those to one address arrive in their order. @returns false if there is none
bool deliver_far_store(Cluster& cluster);

}  // namespace tree_attn::emulated::runtime
