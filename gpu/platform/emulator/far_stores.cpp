// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Far stores: a list for each cluster, and which thread knows of which.
#include "tree_attn/gpu/platform/emulator/far_stores.hpp"

#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"
#include "tree_attn/gpu/platform/emulator/thread.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace tree_attn::emulated::runtime {
namespace {

/// One access on every processor that has AVX.
void copy_16(void* to, const void* from) {
  __m128i x = _mm_load_si128(static_cast<const __m128i*>(from));
  asm volatile("movdqa %1, %0" : "=m"(*static_cast<__m128i*>(to)) : "x"(x) : "memory");
}

void arrive(const FarStore& store) {
  if (store.n_bytes == 16) {
    copy_16(store.to, store.bytes);
  } else {
    std::uint32_t word = 0;
    std::memcpy(&word, store.bytes, sizeof word);
    __atomic_store_n(static_cast<std::uint32_t*>(store.to), word, __ATOMIC_RELEASE);
  }
}

/// Lets those arrive, oldest first, that a predicate picks.
template <class Picks>
void arrive_if(std::vector<FarStore>& stores, const Picks& picks) {
  std::erase_if(stores, [&](const FarStore& store) {
    const bool now = picks(store);
    if (now) arrive(store);
    return now;
  });
}

bool knows(const Thread& thread, const FarStore& store) { return store.known[static_cast<std::size_t>(thread.number)]; }

/// Sends a store of the running thread on its way.
void store_late(void* to, const void* from, std::size_t n_bytes) {
  Cluster& cluster = *running->block->cluster;
  FarStore& store = cluster.far_stores.emplace_back();
  store.to = to, store.n_bytes = n_bytes;
  std::memcpy(store.bytes, from, n_bytes);
  store.known.resize(cluster.threads.size());
  store.known[static_cast<std::size_t>(running->number)] = true;
}

}  // namespace

/// A packet carries its step: every thread sees one access, and no race.
void store_far_16(void* to, const void* from) {
  const Unwatched unwatched;
  store_late(to, from, 16);
}

void store_word(unsigned* to, unsigned value) {
  const Unwatched unwatched;
  arrive_if(running->block->cluster->far_stores, [](const FarStore& store) { return knows(*running, store); });
  release(to);
  store_late(to, &value, sizeof value);
}

unsigned load_word(const unsigned* from) {
  const Unwatched unwatched;
  arrive_if(running->block->cluster->far_stores,
            [from](const FarStore& store) { return store.to == from && knows(*running, store); });
  const unsigned value = __atomic_load_n(from, __ATOMIC_ACQUIRE);
  acquire(from);
  return value;
}

void load_far_16(void* to, const void* from) {
  const Unwatched unwatched;
  __m128i x;
  asm volatile("movdqa %1, %0" : "=x"(x) : "m"(*static_cast<const __m128i*>(from)) : "memory");
  _mm_storeu_si128(static_cast<__m128i*>(to), x);
}

void share_far_stores(Thread* const* threads, int n) {
  for (FarStore& store : threads[0]->block->cluster->far_stores) {
    if (!std::any_of(threads, threads + n, [&](const Thread* thread) { return knows(*thread, store); })) continue;
    for (int i = 0; i < n; ++i) store.known[static_cast<std::size_t>(threads[i]->number)] = true;
  }
}

bool deliver_far_store(Cluster& cluster) {
  std::vector<FarStore>& stores = cluster.far_stores;
  if (stores.empty()) return false;
  auto which = stores.begin();
  if (cluster.grid.settings.seed != 0) which += cluster.random.below(static_cast<std::uint32_t>(stores.size()));
  which = std::find_if(stores.begin(), which, [&](const FarStore& store) { return store.to == which->to; });
  arrive(*which);
  stores.erase(which);
  return true;
}

}  // namespace tree_attn::emulated::runtime
