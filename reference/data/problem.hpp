// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What `decode` works on: a cache of keys and values that grows, and the queries, from a file or made up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/data/safetensors.hpp"
#include "reference/decode/decode.hpp"
#include "reference/state/run.hpp"

namespace tree_attn {

/// Lengths of all axes, and what goes with them.
struct ProblemShape {
  Storage storage = Storage::F32;
  std::int64_t batch = 1, heads = 16, kv_heads = 16, head_dim = 128, value_dim = 128, n_queries = 1, n_keys = 0;
  std::vector<std::int64_t> lengths;       ///< keys in use per batch entry [b]; empty: n_keys in all of them
  std::optional<Storage> value_storage{};  ///< type of the values, where it is not that of the keys

  std::int64_t n_rows() const { return batch * heads * n_queries; }
  /// Bytes of one position: a key and a value for every key/value head of every batch entry.
  std::int64_t bytes_per_position() const {
    return batch * kv_heads * (head_dim * static_cast<std::int64_t>(bytes_of(storage)) +
                               value_dim * static_cast<std::int64_t>(bytes_of(value_storage.value_or(storage))));
  }
};

/// A source of queries, keys and values. Every rank has one, and asks it for its own run only.
///
/// Tokens are decoded in `steps` steps: in step t of steps the cache holds what it holds at the end, less the last
/// steps - t - 1 keys of every batch entry, and there is a new query. So the last step is the same whatever `steps` is.
class Problem {
 public:
  virtual ~Problem() = default;
  const ProblemShape& shape() const { return shape_; }
  int steps() const { return steps_; }

  /// Keys in use per batch entry in step t: a key less for every step still to come, never less than 0.
  std::vector<std::int64_t> lengths(int step) const;
  /// Keys of the longest cache in step t.
  std::int64_t n_keys(int step) const;
  /// The queries of step t, [b, n_h, l, d_h].
  virtual TensorView query(int step) = 0;
  /// Keys and values of the run in step t, as far as they are there: keys that arrive with this step are appended now, by
  /// whoever holds them.
  virtual Shard shard(Run run, int step) = 0;
  /// All keys and values, for the oracle.
  virtual Shard whole() = 0;

 protected:
  Problem(ProblemShape shape, int steps) : shape_(std::move(shape)), steps_(steps) {}
  ProblemShape shape_;
  int steps_;
};

/// Queries, keys and values of a safetensors file, mapped and read in place.
///
/// With steps > 1 the file must have that many query positions: step t uses position t alone.
/// @throws InputError in one line naming the file, the tensor and the values
std::unique_ptr<Problem> open_problem(const SafetensorsFile& file, int steps);

/// q, k, v and lengths of a file, checked: what `oracle` and `decode` share.
struct FileTensors {
  TensorView q, k, v;
  std::vector<std::int64_t> lengths;  ///< [b]; empty where the file has none: N in all batch entries
};
/// @throws InputError in one line naming the file, the tensor and the values
FileTensors read_tensors(const SafetensorsFile& file);

/// The lengths of all axes of a file.
ProblemShape shape_of(const FileTensors& tensors);

/// Made-up queries, keys and values, about standard normal: a function of the seed and of the place of each number, so the
/// same for every number of ranks.
std::unique_ptr<Problem> make_problem(const ProblemShape& shape, std::uint64_t seed, int steps);

}  // namespace tree_attn
