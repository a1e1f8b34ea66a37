// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief FlashMLA's dense decode of latent rows, from its sources and CUTLASS: its plan, its kernel for compute capability
/// 9.0, and its combine, a dependent launch.
#include "tests/bench/on_a_card/peer.hpp"

#include <sm90/decode/dense/splitkv_mla.cuh>
#include <smxx/decode/combine/combine.cu>
#include <smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu>

#include <cmath>
#include <numeric>
#include <vector>

const char* const kPeer = "FlashMLA, compiled here";

namespace {

constexpr int kPage = 64, kMostPages = 1 << 14, kMostParts = 256;

/// The workspace.
struct Memory {
  DecodingSchedMeta parts[kMostParts];
  int length[4], n_splits[4], pages[kMostPages];
  float lse[128];
};

int n_parts(const PeerStep& step) {
  int id = 0, n = 0;
  cudaGetDevice(&id), cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id);
  return std::max(n / ((step.heads + 63) / 64), 1);
}
Memory* memory_of(const PeerStep& step) { return static_cast<Memory*>(step.workspace); }

}  // namespace

bool peer_takes(const PeerStep& step) {
  return step.key_dim == 576 && step.value_dim == 512 && step.kv_heads == 1 && step.heads <= 128 &&
         step.n_keys % kPage == 0 && step.n_keys / kPage <= kMostPages && n_parts(step) <= kMostParts;
}

int plan_peer(const PeerStep& step) {
  Memory& memory = *memory_of(step);
  std::vector<int> pages(static_cast<std::size_t>(step.n_keys / kPage));
  std::iota(pages.begin(), pages.end(), 0);
  cudaMemcpy(memory.length, &step.n_keys, sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpy(memory.pages, pages.data(), pages.size() * sizeof(int), cudaMemcpyHostToDevice);
  GetDecodeSchedMetaParams params{1,
                                  1,
                                  kPage,
                                  5,
                                  -1,
                                  -1,
                                  nullptr,
                                  nullptr,
                                  memory.length,
                                  memory.parts,
                                  memory.n_splits,
                                  n_parts(step),
                                  static_cast<cudaStream_t>(step.stream)};
  smxx::decode::run_get_decoding_sched_meta_kernel(params);
  return cudaGetLastError();
}

int queue_peer(const PeerStep& step) {
  Memory& memory = *memory_of(step);
  const int heads = step.heads, d = step.key_dim, d_v = step.value_dim, parts = n_parts(step);
  float* const states = reinterpret_cast<float*>(&memory + 1);
  float* const sums = states + 128 * (kMostParts + 1);
  DenseAttnDecodeParams params{};
  params.b = 1, params.s_q = 1, params.q_seq_per_hk = heads, params.d = d, params.d_v = d_v, params.h_q = heads;
  params.h_k = 1, params.num_blocks = step.n_keys / kPage, params.q_head_per_hk = heads, params.is_causal = false;
  params.scale_softmax = step.scale, params.scale_softmax_log2 = step.scale * static_cast<float>(M_LOG2E);
  params.q_ptr = const_cast<void*>(step.q), params.k_ptr = const_cast<void*>(step.k), params.o_ptr = step.out;
  params.softmax_lse_ptr = memory.lse;
  params.q_batch_stride = std::int64_t{heads} * d, params.q_row_stride = d, params.q_head_stride = d;
  params.k_batch_stride = std::int64_t{kPage} * d, params.k_row_stride = d, params.k_head_stride = d;
  params.o_batch_stride = std::int64_t{heads} * d_v, params.o_row_stride = d_v,
  params.o_head_stride = std::int64_t{heads} * d_v;
  params.block_table = memory.pages, params.block_table_batch_stride = kMostPages, params.page_block_size = kPage;
  params.seqlens_k_ptr = memory.length, params.tile_scheduler_metadata_ptr = memory.parts, params.num_sm_parts = parts;
  params.num_splits_ptr = memory.n_splits, params.total_num_splits = 1 + parts;
  params.softmax_lseaccum_ptr = states, params.oaccum_ptr = sums, params.stream = static_cast<cudaStream_t>(step.stream);
  sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(params);

  CombineParams combine{
      1,     1,       heads,        d_v,   memory.lse, step.out,    heads,       heads, heads * d_v,  heads * d_v,
      d_v,   states,  sums,         heads, heads,      heads * d_v, heads * d_v, d_v,   memory.parts, memory.n_splits,
      parts, nullptr, params.stream};
  smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(combine);
  return cudaGetLastError();
}
