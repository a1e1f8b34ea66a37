// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief XQA's decode of BF16 with four query heads per key/value head, from its sources in FlashInfer: one launch, whose
/// last blocks join the parts.
#include "tests/bench/on_a_card/peer.hpp"

// What its build defines.
#define BEAM_WIDTH 1
#define USE_INPUT_KV 0
#define USE_CUSTOM_BARRIER 1
#define INPUT_FP16 0
#define DTYPE __nv_bfloat16
#define CACHE_ELEM_ENUM 0
#define TOKENS_PER_PAGE 64
#define HEAD_ELEMS 128
#define HEAD_GRP_SIZE 4
#define SLIDING_WINDOW 0
#define LOW_PREC_OUTPUT 0
#define SPEC_DEC 0
#define MLA_WRAPPER 0
#include <mha.cu>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

const char* const kPeer = "XQA, compiled here";

namespace {

constexpr int kMostPages = 1 << 14, kMostHeads = 256;

/// The workspace; what follows it is for the states of parts.
struct Memory {
  std::uint32_t length, semaphores[kMostHeads];
  std::int32_t pages[kMostPages];
  alignas(256) unsigned char states[1];
};
Memory* memory_of(const PeerStep& step) { return static_cast<Memory*>(step.workspace); }

}  // namespace

bool peer_takes(const PeerStep& step) {
  return step.key_dim == HEAD_ELEMS && step.value_dim == HEAD_ELEMS && step.heads == HEAD_GRP_SIZE * step.kv_heads &&
         step.kv_heads <= kMostHeads && step.n_keys % TOKENS_PER_PAGE == 0 && step.n_keys / TOKENS_PER_PAGE <= kMostPages;
}

int plan_peer(const PeerStep& step) {
  Memory& memory = *memory_of(step);
  std::vector<std::int32_t> pages(static_cast<std::size_t>(step.n_keys / TOKENS_PER_PAGE));
  std::iota(pages.begin(), pages.end(), 0);
  const auto length = static_cast<std::uint32_t>(step.n_keys);
  cudaMemcpy(&memory.length, &length, sizeof length, cudaMemcpyHostToDevice);
  cudaMemcpy(memory.pages, pages.data(), pages.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice);
  return cudaMemset(memory.semaphores, 0, sizeof memory.semaphores);
}

int queue_peer(const PeerStep& step) {
  Memory& memory = *memory_of(step);
  const auto heads = [](const void* pointer) { return static_cast<GMemCacheHead*>(const_cast<void*>(pointer)); };
  static const int n_multiprocessors = [] {
    int id = 0, n = 0;
    cudaGetDevice(&id), cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id);
    return n;
  }();
  // It divides by the root of the length of a row itself. A page is so many positions of every head.
  launchMHAFlashInfer(static_cast<std::uint32_t>(n_multiprocessors), static_cast<std::uint32_t>(step.kv_heads), 0,
                      step.scale * std::sqrt(static_cast<float>(HEAD_ELEMS)), nullptr, static_cast<OutputHead*>(step.out),
                      static_cast<const InputHead*>(step.q), nullptr, heads(step.k), heads(step.v), memory.pages,
                      static_cast<std::uint32_t>(step.n_keys), &memory.length, 1, 1, nullptr, memory.semaphores,
                      memory.states, false, TOKENS_PER_PAGE * HEAD_ELEMS, HEAD_ELEMS,
                      static_cast<std::uint64_t>(step.n_keys) * HEAD_ELEMS, static_cast<cudaStream_t>(step.stream));
  return cudaGetLastError();
}
