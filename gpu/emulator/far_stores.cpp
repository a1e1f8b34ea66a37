// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Packets for other devices and launches that arrive late: after any others of the same cluster.
///
/// A far store is on its way until the scheduler delivers it: after a random number of switches between fibers, which the
/// seed determines and no clock; at the latest when no thread of the cluster can run, or when the cluster ends. So a
/// receiver that does not wait for the step of a packet reads old data for some seed. A packet carries its step: every
/// thread sees one access, and no race. Not modelled: stores of 16 bytes that arrive in pieces.
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/thread.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <bit>

namespace tree_attn::emulated::runtime {

void store_late(Packet* to, const Packet& packet) {
  const Unwatched unwatched;
  running->block->cluster->far_stores.push_back({to, packet});
}

/// One access on every processor that has AVX, as below.
Packet load_whole(const Packet* from) {
  __m128i x;
  asm volatile("movdqa %1, %0" : "=x"(x) : "m"(*from) : "memory");
  return std::bit_cast<Packet>(x);
}

bool deliver_far_store(Cluster& cluster) {
  std::vector<FarStore>& stores = cluster.far_stores;
  if (stores.empty()) return false;
  auto which = stores.begin();
  if (cluster.grid.settings.seed != 0) which += cluster.random.below(static_cast<std::uint32_t>(stores.size()));
  which = std::find_if(stores.begin(), which, [&](const FarStore& store) { return store.to == which->to; });
  const __m128i x = _mm_load_si128(reinterpret_cast<const __m128i*>(&which->packet));
  asm volatile("movdqa %1, %0" : "=m"(*which->to) : "x"(x) : "memory");
  stores.erase(which);
  return true;
}

}  // namespace tree_attn::emulated::runtime
