// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Input that a decode step reads from the host: one buffer, and one copy (section 5.3, Alg. 3).
///
/// For a few kilobytes the time of a copy is that of starting it, so a step has one copy for all that it reads.
#pragma once

#include "gpu/engine/launch.hpp"
#include "gpu/engine/listed_params.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/tensor/shape.hpp"

#include <algorithm>
#include <cstdint>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The arrays of a step, on the host or on the device.
struct StepArrays {
  LeafList* lists = nullptr;          ///< [b], if leaves are listed
  std::int64_t* lengths = nullptr;    ///< [b]
  std::int64_t* rows = nullptr;       ///< [b], where the appended position goes in the cache; negative: none is appended
  unsigned char* appended = nullptr;  ///< [b] keys [n_kv, d_h], then values [n_kv, d_v], as stored: one position each
  unsigned char* q = nullptr;         ///< [b, n_h, l, d_h], of query_type()
};

/// The arrays, one after the other in pinned memory of the host, and at the same offsets in memory of the device. Both
/// addresses stay, as a graph records them.
///
/// There is one buffer and not two by turns, which would take two graphs. So the host waits for the step before it writes
/// the next one. It loses no time: a query follows from the output of the step before.
class StepInput {
 public:
  /// Alignment of the arrays in bytes: the most that a thread reads at once.
  static constexpr std::int64_t kAlignment = sizeof(Bytes16);

  /// @param shape as stored @param n_queries that there is room for @throws DeviceError
  StepInput(const AttentionShape& shape, std::int64_t n_queries)
      : at_(shape),
        n_queries_(n_queries),
        end_(at_.q + n_queries * at_.query),
        host_(end_),
        device_(end_, MemoryUse::Input) {
    // No byte is uploaded that was never written, and lists begin empty.
    std::ranges::fill(host_.to_write(), static_cast<unsigned char>(0));
  }

  /// Arrays of the next upload; all elements keep their values until they are written. @pre the host has waited for the last
  StepArrays on_host() { return arrays(host_.to_write().data()); }
  /// For kernels, to be read.
  StepArrays on_device() const { return arrays(device_.data()); }
  /// Query positions that there is room for.
  std::int64_t n_queries() const { return n_queries_; }
  /// Queues the copy for a step of l queries. @param has_lists whether it includes the lists
  /// @param on_device whether it leaves out the queries and what was appended, which are on the device
  void queue_upload(Stream stream, std::int64_t l, bool has_lists, bool on_device = false) {
    const std::int64_t begin = has_lists ? 0 : at_.lengths, end = on_device ? at_.appended : at_.q + l * at_.query;
    device_.queue_upload(
        stream, host_.elements().first(static_cast<std::size_t>(end)).subspan(static_cast<std::size_t>(begin)), begin);
  }

 private:
  /// First byte of each array but the lists, which begin the buffer; the queries, whose number changes, end it.
  struct Offsets {
    std::int64_t lengths, rows, appended, q;
    std::int64_t query;  ///< bytes of a query position

    explicit Offsets(const AttentionShape& shape)
        : lengths(aligned(shape.batch * static_cast<std::int64_t>(sizeof(LeafList)))),
          rows(lengths + aligned(shape.batch * static_cast<std::int64_t>(sizeof(std::int64_t)))),
          appended(rows + aligned(shape.batch * static_cast<std::int64_t>(sizeof(std::int64_t)))),
          q(appended + aligned(shape.bytes_per_position())),
          query(shape.n_rows(1) * shape.head_dim *
                static_cast<std::int64_t>(bytes_of(query_type(params_of(shape, 1, {}), shape.dtype)))) {}
  };
  static std::int64_t aligned(std::int64_t n_bytes) { return (n_bytes + kAlignment - 1) / kAlignment * kAlignment; }

  StepArrays arrays(unsigned char* block) const {
    return {reinterpret_cast<LeafList*>(block), reinterpret_cast<std::int64_t*>(block + at_.lengths),
            reinterpret_cast<std::int64_t*>(block + at_.rows), block + at_.appended, block + at_.q};
  }

  Offsets at_;
  std::int64_t n_queries_, end_;
  HostBuffer<unsigned char> host_;
  DeviceBuffer<unsigned char> device_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
