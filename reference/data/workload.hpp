// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The input of `decode`: queries, keys and values from a file or synthetic, with which a cache is filled.
#pragma once

#include "reference/data/safetensors.hpp"
#include "reference/decode/decode.hpp"
#include "reference/decode/step.hpp"
#include "reference/state/key_range.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// The shape of a workload: the axes, and the numbers of queries and keys of a step.
struct WorkloadShape : AttentionShape {
  std::int64_t n_keys = 0;            ///< N, after the last step
  std::vector<std::int64_t> lengths;  ///< keys in use per batch entry [b]; empty: n_keys in every entry
  LeafOrder order = LeafOrder::kContiguous;
  SeenRule rule{};             ///< which keys a query sees
  std::vector<float> sink{};   ///< learned natural logits of the heads [n_h]; empty: none
  Mask mask{};                 ///< of all steps; l is that of all of them
  double softcap = 0;          ///< of the scores; 0: none
  KvScales scales{};           ///< of F8_E4M3
  std::int64_t n_queries = 1;  ///< l of every step

  std::int64_t n_rows() const { return AttentionShape::n_rows(n_queries); }  ///< of the output of a step
  /// Keys of the longest batch entry; 0 without entries.
  std::int64_t longest() const {
    if (batch == 0) return 0;
    return lengths.empty() ? n_keys : *std::max_element(lengths.begin(), lengths.end());
  }
};

/// Throws std::invalid_argument as require_shape(), if the number of keys is not in 0 .. 2^62, or the lengths are not b
/// numbers from 0 to N.
/// @param function that has the shape as an argument
inline void require_workload(const char* function, const WorkloadShape& shape) {
  require_shape(function, shape);
  require(shape.n_queries >= 0, function, ": l = ", shape.n_queries, "; an axis is negative");
  require(shape.n_keys >= 0 && shape.n_keys <= kOpenEnd, function, ": N = ", shape.n_keys, "; 0 to 2^62 keys are possible");
  require(shape.lengths.empty() || std::ssize(shape.lengths) == shape.batch, function, ": ", shape.lengths.size(),
          " lengths for a batch of ", shape.batch);
  for (std::size_t i = 0; i < shape.lengths.size(); ++i)
    require(shape.lengths[i] >= 0 && shape.lengths[i] <= shape.n_keys, function, ": length ", shape.lengths[i],
            " of batch entry ", i, " is not in [0, ", shape.n_keys, "]");
}

/// A source of queries, keys and values. Every rank has one and reads only its own positions from it; the decoder appends
/// them to a cache, see fill().
///
/// Step t of `steps` has a new query, and all keys except the last steps - t - 1 of every batch entry. The last step is
/// therefore the same for every value of `steps`.
class Workload {
 public:
  virtual ~Workload() = default;
  const WorkloadShape& shape() const { return shape_; }
  int steps() const { return steps_; }
  /// Sets the arithmetic of the caches to come: AttentionShape::portable.
  void set_portable(bool portable) { shape_.portable = portable; }

  /// Keys in use per batch entry in step t: one fewer for every later step, at least 0.
  /// @throws std::out_of_range unless 0 <= t < steps(), as query() does
  std::vector<std::int64_t> lengths(int step) const;
  /// Keys in the cache before the first step: all keys for a single step, otherwise one fewer than in the first step.
  std::vector<std::int64_t> lengths_at_start() const;
  /// Upper bound for the keys of a batch entry before the first step.
  std::int64_t n_keys_at_start() const { return std::max<std::int64_t>(0, shape_.n_keys - (steps_ > 1 ? steps_ : 0)); }
  /// Keys of the longest batch entry before the first step; 0 without entries.
  std::int64_t longest_at_start() const;
  /// The queries of step t, [b, n_h, l, d_h]. Valid until the next call.
  virtual TensorView query(int step) = 0;
  /// Step t, which refers to its queries, to the workload, and to the lengths of that step.
  Step step(int t, std::span<const std::int64_t> lengths) {
    return {query(t), lengths, shape_.rule, shape_.sink, mask(t), shape_.softcap};
  }
  /// The mask of step t.
  Mask mask(int step) const { return steps_ == 1 ? shape_.mask : shape_.mask.query(step); }
  /// Keys [1, n_kv, n, d_h] and values [1, n_kv, n, d_v] of a range of positions of one batch entry. Valid until the next
  /// call.
  virtual Shard keys_and_values(std::int64_t entry, KeyRange positions) = 0;
  /// Keys and values of a range of positions of all batch entries, in host memory that may be borrowed during the lifetime
  /// of the workload. Empty if they are generated on demand.
  virtual std::optional<Shard> in_place(KeyRange) { return std::nullopt; }
  /// All keys and values [b, n_kv, N, d], for the oracle.
  virtual Shard whole() = 0;

 protected:
  /// @throws std::invalid_argument as require_workload(), or if there are no steps
  Workload(WorkloadShape shape, int steps);
  void require_step(int step) const;
  WorkloadShape shape_;
  int steps_;
};

/// Appends keys and values to a cache until every batch entry i holds the positions of its capacity below lengths[i].
/// @param lengths keys in use per batch entry [b], counted over the whole sequence
/// @throws std::invalid_argument for another number of lengths; as KvCache::append()
void fill(KvCache& cache, Workload& workload, std::span<const std::int64_t> lengths);
/// Fills an empty cache in this way; it borrows keys and values that are in host memory in the order of its rows.
void fill_at_start(KvCache& cache, Workload& workload, std::span<const std::int64_t> lengths);

/// Queries, keys and values of a safetensors file, mapped and read in place.
///
/// With steps > 1 the file must have l = steps query positions: step t uses position t alone.
/// @param value_dim as in read_tensors()
/// @throws InputError in one line that names the file, the tensor and the values
std::unique_ptr<Workload> open_workload(const SafetensorsFile& file, int steps, LeafOrder order = LeafOrder::kContiguous,
                                        const SeenRule& rule = {}, double softcap = 0, std::int64_t value_dim = 0);

/// The checked q, k and v of a file, for `oracle` and `decode`.
struct FileTensors {
  TensorView q, k, v;
  WorkloadShape shape;  ///< also of the tensors "lengths", "sink" or "sinks", "mask", "k_scale" and "v_scale"
};
/// @param value_dim 0: the file has a tensor "v"; else it has none, and values are a view of the keys, their first value_dim
/// components, as in multi-head latent attention
/// @throws InputError in one line that names the file, the tensor and the values; also for a tensor whose name asks for
/// another attention, such as a bias
FileTensors read_tensors(const SafetensorsFile& file, std::int64_t value_dim = 0);
/// The names of the other tensors, "expected, weights", in the order of the file and truncated to a readable length; empty
/// if there are none. zeta counts as read.
/// @param expected a tensor that the caller reads; may be empty
std::string ignored_tensors(const SafetensorsFile& file, std::string_view expected = {});

/// Synthetic queries, keys and values with an approximately standard normal distribution. Every element is a function of the
/// seed and of its indices, and so is the same for every number of ranks. Of F8_E4M3 the queries are BF16, and keys and
/// values the nearest multiples of scales of 1/128 to 3/256, which differ between heads, unless the shape has scales.
/// @throws std::invalid_argument as require_workload(), or if there are no steps; InputError for more than 2^24 scales
std::unique_ptr<Workload> make_workload(const WorkloadShape& shape, std::uint64_t seed, int steps);

}  // namespace tree_attn
