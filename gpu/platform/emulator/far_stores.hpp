// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Stores for other devices and launches that arrive late: after any others of the same cluster, until an order is
/// asked for.
///
/// A far store is on its way until the scheduler delivers it: by the dice of the seed, counted in switches between fibers
/// and never by the clock; at the latest when no thread of the cluster can run, and when the cluster ends. store_release()
/// delivers what its thread did or knows by a barrier, and nothing else, before the word that it stores may arrive. So a
/// signal that does not release, or that a barrier does not precede, lets old data be read for some seed. Not modelled:
/// order that an mbarrier gives, and stores of 16 bytes that arrive in pieces.
#pragma once

#include "gpu/platform/emulator/coordinates.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tree_attn::emulated::runtime {

struct Cluster;
struct Thread;

/// A store on its way.
struct FarStore {
  void* to;
  alignas(16) std::byte bytes[16];
  std::size_t n_bytes;      ///< 4 or 16
  std::vector<bool> known;  ///< by threads of the cluster: it precedes whatever they do from now on
};

/// After a barrier all of its threads know what one of them knew.
void share_far_stores(Thread* const* threads, int n);
/// Lets one store arrive: any, but those to one address in their order. @returns false if there is none
bool deliver_far_store(Cluster& cluster);

}  // namespace tree_attn::emulated::runtime
