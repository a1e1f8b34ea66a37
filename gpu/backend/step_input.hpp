// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a decode step reads from the host: one block of memory, and one copy (section 5.3, Alg. 3).
///
/// For a few kilobytes the time of a copy is that of starting it, so a step has one copy for all that it reads.
#pragma once

#include "tree_attn/gpu/engine/launch.hpp"
#include "tree_attn/gpu/engine/listed_params.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/reference/tensor/shape.hpp"

#include <algorithm>
#include <cstdint>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The arrays of a step, on the host or on the device.
struct StepArrays {
  unsigned char* q = nullptr;         ///< [b, n_h, l, d_h], as keys are multiplied
  unsigned char* appended = nullptr;  ///< [b] keys [n_kv, d_h], then values [n_kv, d_v], as stored: one position each
  std::int64_t* lengths = nullptr;    ///< [b]
  std::int64_t* rows = nullptr;       ///< [b], where the appended position goes in the cache; negative: none is appended
  LeafList* lists = nullptr;          ///< [b], if leaves are listed
};

/// The arrays, one after the other in pinned memory of the host, and in the same places in memory of the device. Both
/// addresses stay, as a graph records them.
///
/// There is one block and not two by turns, which would take two graphs. So the host waits for the step before it writes the
/// next one. It loses no time: a query follows from the output of the step before.
class StepInput {
 public:
  /// Where arrays begin: at multiples of so many bytes, of which a thread may read as many at once.
  static constexpr std::int64_t kAlignment = sizeof(Bytes16);

  /// @param shape as stored @throws DeviceError
  explicit StepInput(const AttentionShape& shape) : at_(shape), host_(at_.end), device_(at_.end, MemoryUse::Input) {
    // No byte is uploaded that was never written, and lists begin empty.
    std::ranges::fill(host_.to_write(), static_cast<unsigned char>(0));
  }

  /// What the next upload takes; all elements keep their values until they are written. @pre the host has waited for the
  /// last
  StepArrays on_host() { return arrays(host_.to_write().data()); }
  /// For kernels, to be read.
  StepArrays on_device() const { return arrays(device_.data()); }
  /// Queues the copy. @param has_lists whether it includes the lists
  /// @param from_lengths whether it leaves out the queries and what was appended, which are on the device
  void queue_upload(Stream stream, bool has_lists, bool from_lengths = false) {
    const std::int64_t begin = from_lengths ? at_.lengths : 0;
    device_.queue_upload(stream,
                         host_.elements()
                             .first(static_cast<std::size_t>(has_lists ? at_.end : at_.lists))
                             .subspan(static_cast<std::size_t>(begin)),
                         begin);
  }

 private:
  /// First byte of each array but the queries, which begin the block and so are aligned as an allocation is.
  struct Places {
    std::int64_t appended, lengths, rows, lists, end;

    explicit Places(const AttentionShape& shape)
        : appended(aligned(shape.n_rows() * shape.head_dim * static_cast<std::int64_t>(bytes_of(multiplied(shape.dtype))))),
          lengths(appended + aligned(shape.bytes_per_position())),
          rows(lengths + aligned(shape.batch * static_cast<std::int64_t>(sizeof(std::int64_t)))),
          lists(rows + aligned(shape.batch * static_cast<std::int64_t>(sizeof(std::int64_t)))),
          end(lists + shape.batch * static_cast<std::int64_t>(sizeof(LeafList))) {}
  };
  static std::int64_t aligned(std::int64_t n_bytes) { return (n_bytes + kAlignment - 1) / kAlignment * kAlignment; }

  StepArrays arrays(unsigned char* block) const {
    return {block, block + at_.appended, reinterpret_cast<std::int64_t*>(block + at_.lengths),
            reinterpret_cast<std::int64_t*>(block + at_.rows), reinterpret_cast<LeafList*>(block + at_.lists)};
  }

  Places at_;
  HostBuffer<unsigned char> host_;
  DeviceBuffer<unsigned char> device_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
