// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What `decode` works on: queries, keys and values, from a file or made up, for a cache to be filled with.
#pragma once

#include "reference/data/safetensors.hpp"
#include "reference/decode/decode.hpp"
#include "reference/state/key_range.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tree_attn {

/// The shape of a workload: that of a step, and how many keys there are.
struct WorkloadShape : AttentionShape {
  std::int64_t n_keys = 0;            ///< N, after the last step
  std::vector<std::int64_t> lengths;  ///< keys in use per batch entry [b]; empty: n_keys in all of them

  /// Keys of the longest batch entry.
  std::int64_t longest() const { return lengths.empty() ? n_keys : *std::max_element(lengths.begin(), lengths.end()); }
};

/// A source of queries, keys and values. Every rank has one, and asks it for its own positions only; whoever decodes appends
/// them to a cache, see fill().
///
/// Tokens are decoded in `steps` steps: in step t of steps there are all keys but the last steps - t - 1 of every batch
/// entry, and a new query. So the last step is the same whatever `steps` is.
class Workload {
 public:
  virtual ~Workload() = default;
  const WorkloadShape& shape() const { return shape_; }
  int steps() const { return steps_; }

  /// Keys in use per batch entry in step t: a key less for every step still to come, never less than 0.
  std::vector<std::int64_t> lengths(int step) const;
  /// Keys that there are before the first step: all of them for a single step, else a key less than in it.
  std::vector<std::int64_t> lengths_at_start() const;
  /// Keys of the longest batch entry that there could be in step t.
  std::int64_t n_keys(int step) const;
  /// The queries of step t, [b, n_h, l, d_h]. Valid until the next call.
  virtual TensorView query(int step) = 0;
  /// Keys [1, n_kv, n, d_h] and values [1, n_kv, n, d_v] of some positions of one batch entry. Valid until the next call.
  virtual Shard keys_and_values(std::int64_t entry, KeyRange positions) = 0;
  /// Keys and values of some positions of all batch entries where they lie in host memory, to be borrowed for as long as the
  /// workload lives; none where they are made on demand.
  virtual std::optional<Shard> in_place(KeyRange) { return std::nullopt; }
  /// All keys and values [b, n_kv, N, d], for the oracle.
  virtual Shard whole() = 0;

 protected:
  Workload(WorkloadShape shape, int steps) : shape_(std::move(shape)), steps_(steps) {}
  WorkloadShape shape_;
  int steps_;
};

/// Appends keys and values to a cache until every batch entry holds those of its capacity below `lengths`, [b] over the
/// whole sequence. Appends nothing else.
void fill(KvCache& cache, Workload& workload, std::span<const std::int64_t> lengths);
/// The same for an empty cache, which borrows what lies in host memory.
void fill_at_start(KvCache& cache, Workload& workload, std::span<const std::int64_t> lengths);

/// Queries, keys and values of a safetensors file, mapped and read in place.
///
/// With steps > 1 the file must have that many query positions: step t uses position t alone.
/// @throws InputError in one line naming the file, the tensor and the values
std::unique_ptr<Workload> open_workload(const SafetensorsFile& file, int steps);

/// q, k, v and lengths of a file, checked: what `oracle` and `decode` share.
struct FileTensors {
  TensorView q, k, v;
  std::vector<std::int64_t> lengths;  ///< [b]; empty where the file has none: N in all batch entries
};
/// @throws InputError in one line naming the file, the tensor and the values
FileTensors read_tensors(const SafetensorsFile& file);

/// The lengths of all axes of a file.
WorkloadShape shape_of(const FileTensors& tensors);

/// Made-up queries, keys and values, about standard normal: a function of the seed and of the place of each number, so the
/// same for every number of ranks.
std::unique_ptr<Workload> make_workload(const WorkloadShape& shape, std::uint64_t seed, int steps);

}  // namespace tree_attn
