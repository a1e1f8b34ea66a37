// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The interface of a backend, which computes the states of a shard: the CPU, a GPU, or an emulated GPU (section 6).
///
/// This header includes neither Eigen nor CUDA. gpu/backend/backends.hpp finds a backend by its name.
#pragma once

#include "reference/decode/kv_cache.hpp"
#include "reference/decode/session.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Error of a backend in addition to that of a balanced tree over single keys, see ErrorModel.
struct ErrorTerms {
  double exp_error = 2;    ///< error of exp in units of the roundoff
  double score_error = 1;  ///< roundings of a product of q.k
  double n_additions = 0;  ///< further additions in the longest chain that a weight passes through
};

/// A method of computing states. The order of its sums is a function of types and shapes, and its bits may differ from those
/// of other backends.
class Backend {
 public:
  virtual ~Backend() = default;
  /// The name that --backend accepts.
  virtual std::string_view name() const = 0;
  /// The reason why the backend cannot be used on this machine, in a few words; empty if it can. On a GPU the question makes
  /// a context, which takes memory there: use_gpu() comes first.
  virtual std::string missing() const = 0;
  /// Returns whether the backend needs a GPU.
  virtual bool needs_gpu() const { return false; }
  /// The names of the GPUs that it finds. Makes a context on none.
  virtual std::vector<std::string> gpus() const = 0;
  /// Lets the calling thread make its caches, and decode, on the GPU with this index in gpus(). Other threads keep theirs;
  /// without a call it is the first. The emulator has as many devices as are asked for, the CPU none.
  /// @throws std::out_of_range for a negative index; std::runtime_error if the backend has no such GPU, or it cannot be
  /// used,
  ///   as one in exclusive mode that another process has
  virtual void use_gpu(int index) const { static_cast<void>(index); }
  /// Returns whether a session computes a step on several threads of the host, as many as the caller chooses.
  virtual bool has_threads() const { return false; }
  /// Returns whether a session adds masks to scores.
  virtual bool has_masks() const { return false; }
  /// Returns whether kernels of one rank can store into memory of the device of another.
  virtual bool has_windows() const { return false; }
  /// The reason why the backend does not accept the shape, in a few words; empty if it does.
  virtual std::string refusal(const AttentionShape& shape) const = 0;
  virtual ErrorTerms error_terms(const AttentionShape& shape) const = 0;
  /// The name of what decides the bits of a cache of the shape: KvCache::arithmetic().
  virtual std::string_view arithmetic(const AttentionShape&) const { return "portable"; }
  /// The shape, with the types in which keys and values are stored.
  virtual AttentionShape stored(const AttentionShape& shape) const = 0;
  /// An empty cache for a range of the tree. @param capacity rows that there is room for before it grows
  virtual std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, const OwnedLeaves& leaves,
                                              std::int64_t capacity) const = 0;
  /// A cache with room for all positions of a range, in the contiguous order.
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, KeyRange range) const {
    return make_cache(shape, range, range.size());
  }
};

/// The CPU: streaming decode in one pass, leaves of 64 keys, F32 accumulation. F64 is rounded to F32 as it is read.
/// @param n_threads of each session, which share its leaves; no bit depends on it
/// @throws std::invalid_argument if n_threads < 1
/// @returns one object per number of threads, for the life of the program
const Backend& cpu_backend(int n_threads = 1);

}  // namespace tree_attn
