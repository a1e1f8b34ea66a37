// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decisions of the host before a launch: how a step is laid out, and what shapes kernels take (sections 5 and
/// 6).
#pragma once

#include "gpu/engine/params.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/tensor/dtype.hpp"
#include "reference/tensor/shape.hpp"

#include <string>
#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Options of a launch plan. 0 leaves it to the step, which looks at the shape and the device.
struct LaunchOptions {
  int n_splits = 0;   ///< parts that the keys of a kv head are cut into, each for a block of its own
  int unit_log = -1;  ///< leaves of a unit, as a power of two; negative: what the lengths ask for. For tests
};

/// The launch that a step has picked: enough to launch it, and to say so.
struct LaunchPlan {
  int n_splits = 1;              ///< blocks that share the keys of a kv head; of units the clusters of the grid for each
  int n_threads = 128;           ///< threads of a block
  int n_row_tiles = 1;           ///< tiles of rows that read the same copies: row_tiles(), or blocks of a cluster
  int n_stages = 0;              ///< stages of the ring of copies; 0 where there is none
  int n_blocks = 0;              ///< blocks of the grid, where they take units
  int cluster = 1;               ///< blocks of a cluster, each for a tile of rows: they read the same copies
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
  std::int64_t n_floats = 0;     ///< workspace, in floats
  std::int64_t n_counters = 0;   ///< workspace, in counters
  int unit_log = -1;             ///< as LaunchOptions has it
  int n_combining = 1;           ///< warps of a block that combines
  bool overlaps = false;         ///< whether the launch may begin before the one before it has ended: begin_early()
  const char* path = "scalar";   ///< "scalar", or "tensor" where tensor cores multiply
};

/// Memory that a step needs beside its input and output. It may be used again for the next launch on the same stream.
struct Workspace {
  float* floats = nullptr;       ///< [plan.n_floats], any contents
  unsigned* counters = nullptr;  ///< [plan.n_counters], zero before the first launch; every launch leaves them zero
};

/// Largest d_h and d_v that any kernel takes, and largest d_v on tensor cores.
inline constexpr int kLongestRow = 576, kLongestValue = 512;

/// True if this build has kernels for a stored type. TREE_ATTN_NO_F16_KERNELS leaves those for F16 out, where kernels are
/// compiled to be checked: they are the templates that BF16 uses too.
#if defined(TREE_ATTN_NO_F16_KERNELS)
inline constexpr bool kHasF16Kernels = false;
#else
inline constexpr bool kHasF16Kernels = true;
#endif
template <class T>
inline constexpr bool kHasKernels = DTypeTraits<T>::kCores != KernelCores::None &&
                                    (kHasF16Kernels || DTypeTraits<T>::kDType != DType::F16);

/// The type that tensor cores multiply, and of queries beside it, where keys and values are of a type: F8_E4M3 is widened to
/// BF16, exactly.
template <class T>
using Multiplied = std::conditional_t<std::is_same_v<T, Float8>, BFloat16, T>;
constexpr DType multiplied(DType dtype) { return dtype == DType::F8_E4M3 ? DType::BF16 : dtype; }

/// Calls f with an element of the stored type, T{}. @throws DeviceError for a type that no kernel takes
template <class F>
void with_type(DType dtype, const F& f) {
  with_dtype(dtype, [&]<class T>(T element) {
    if constexpr (kHasKernels<T>)
      f(element);
    else
      throw DeviceError("no kernel takes " + std::string(name_of(dtype)));
  });
}

/// The axes of a shape, l queries and the positions of a cache as a kernel sees them; no pointers yet.
DecodeParams params_of(const AttentionShape& shape, std::int64_t l, KeyRange capacity);
/// True if every row of k and v starts at a multiple of 16 bytes, so that 16 bytes may be copied at once.
bool starts_aligned(const DecodeParams& params, DType dtype);

/// True if a row of k, and one of v, can be copied at once: a multiple of 16 bytes that starts at one.
bool has_bulk_rows(const DecodeParams& params, DType dtype);

/// Sets query_scale and score_scale to split_scale(scale).
///
/// On tensor cores F16 keeps to (1, log2(e) * scale): elements of at most 65504 make no sum that overflows, and tensor
/// cores, which take queries in 16 bits, would round what is made smaller.
void set_scale(DecodeParams& params, DType dtype, double scale);

/// Refuses a shape, in a few words; empty if the kernels take it. All refuse F64, d of more than kLongestRow, and more than
/// kMostWorkItems.
std::string accepts_any_grid(const DecodeParams& params, DType dtype);
/// Refuses likewise, and rows that do not start at multiples of 16 bytes: so do the kernels of the library.
std::string accepts_copied_rows(const DecodeParams& params, DType dtype);

/// The type in which a session has queries: the one that tensor cores multiply, or F32, in which no query is rounded.
DType query_type(const DecodeParams& params, DType dtype);

/// True if tensor cores multiply: elements of 16 or 8 bits, in values of at most kLongestValue, unless a portable result is
/// asked for.
///
/// A function of that, of the type and of the length of rows alone, for it changes bits. So a query has the same bits alone
/// and among others, in a batch, and on every device whose tensor cores add alike: those of compute capability 8 do, and
/// those from 9 on.
bool multiplies_on_tensor_cores(const DecodeParams& params, DType dtype);

/// Longest chain of additions that a weight passes through in the kernels of the library, for the error bound: n_a of
/// ErrorModel. That of the canonical tree over keys; on tensor cores also those of a leaf, of which all have three parts.
double n_additions(const DecodeParams& params, DType dtype);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
