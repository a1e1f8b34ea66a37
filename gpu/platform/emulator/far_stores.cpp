// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Far stores: a list for each cluster. A packet carries its step: every thread sees one access, and no race.
#include "tree_attn/gpu/platform/emulator/far_stores.hpp"

#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"
#include "tree_attn/gpu/platform/emulator/thread.hpp"

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
