// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief FlashInfer's decode of one sequence, from its headers: compiled as its own build compiles it.
#include "tests/bench/on_a_card/peer.hpp"

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variants.cuh>

const char* const kPeer = "FlashInfer, one sequence, compiled here";

bool peer_takes(const PeerStep& step) { return step.key_dim == 128 && step.value_dim == 128; }

int plan_peer(const PeerStep&) { return cudaSuccess; }

int queue_peer(const PeerStep& step) {
  using namespace flashinfer;
  using Element = __nv_bfloat16;
  const auto elements = [](const void* pointer) { return static_cast<Element*>(const_cast<void*>(pointer)); };
  SingleDecodeParams<Element, Element, Element> params(
      elements(step.q), elements(step.k), elements(step.v), elements(step.out), nullptr,
      static_cast<std::uint32_t>(step.n_keys), static_cast<std::uint32_t>(step.heads),
      static_cast<std::uint32_t>(step.kv_heads), QKVLayout::kHND, 128, -1, 0, step.scale, 1, 1e4);
  return SingleDecodeWithKVCacheDispatched<128, PosEncodingMode::kNone, DefaultAttention<false, false, false, false>>(
      params, elements(step.workspace), static_cast<cudaStream_t>(step.stream));
}
