// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What computes the states of a shard: the CPU, a GPU, or the emulator of one (section 6).
///
/// No Eigen and no CUDA is included here. gpu/backend/backends.hpp finds a backend by its name.
#pragma once

#include "reference/decode/session.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// What the arithmetic of a backend adds to the error of a balanced tree over single keys, see ErrorModel.
struct ErrorTerms {
  double exp_error = 2;    ///< error of exp in units of the roundoff
  double n_additions = 0;  ///< more additions in the longest chain that a weight passes through
};

/// Bytes of host memory, in double: the axes of an empty tensor may be beyond what 64 bits hold.
struct MemoryNeed {
  double cache = 0;           ///< keys and values that are appended
  double borrowed_cache = 0;  ///< the same where they lie in host memory and are borrowed
  double session = 0;         ///< a session over them
};

/// One way of computing states. Its bits are a function of types and shapes; they need not be those of another backend.
class Backend {
 public:
  virtual ~Backend() = default;
  /// As --backend takes it.
  virtual std::string_view name() const = 0;
  /// Why it cannot be used on this machine, in a few words; empty if it can.
  virtual std::string missing() const = 0;
  /// The GPUs that it finds, by name.
  virtual std::vector<std::string> gpus() const = 0;
  /// Why it does not take such a shape, in a few words; empty if it does.
  virtual std::string refusal(const AttentionShape& shape) const = 0;
  /// Positions at whose multiples shards may be cut without changing a bit: 1 where the tree goes down to single keys, 64 on
  /// tensor cores, which add up a leaf in an order of their own.
  virtual std::int64_t leaf_keys(const AttentionShape& shape) const = 0;
  virtual ErrorTerms error_terms(const AttentionShape& shape) const = 0;
  /// The shape with the types in which keys and values are stored.
  virtual AttentionShape stored(const AttentionShape& shape) const = 0;
  /// What a cache and a session will take.
  virtual MemoryNeed memory(const AttentionShape& shape, KeyRange capacity) const = 0;
  /// An empty cache for the positions of `capacity`.
  virtual std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, KeyRange capacity) const = 0;
};

/// The CPU: streaming decode in one pass, merges down to single keys, F32 accumulation. F64 is rounded to F32 as it is read.
const Backend& cpu_backend();

}  // namespace tree_attn
