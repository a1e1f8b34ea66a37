// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Test workloads on the device: upload as laid out, run by a step of the ladder, download.
#pragma once

#include "gpu/backend/session.hpp"
#include "gpu/ladder/ladder.hpp"
#include "reference/decode/decode.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace tree_attn::test {

namespace device = TREE_ATTN_PLATFORM;

/// Tests whether the device is the GPU in software (tests/gpu/soft_gpu), which is slow.
inline bool is_in_software() { return device::device().name.starts_with("GPU in software"); }

/// A shard of a workload on the device, as the test laid it out: with its strides and the elements past the lengths. A
/// DeviceCache preserves none of these. Each array is in a buffer of exactly the size that its view spans; values that are a
/// view of the keys stay one. Keys and values whose rows do not all start at multiples of 16 bytes get padding of NaN.
class DeviceShard {
 public:
  DeviceShard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale)
      : params(device::params_of(shape_of(q, shard.k, shard.v), q.shape[2], {shard.begin, shard.end()})),
        dtype(shard.k.dtype),
        lengths_(static_cast<std::int64_t>(lengths.size()), MemoryUse::Input) {
    lengths_.upload(lengths);
    params.q = upload(q, memory_[0]), params.k = upload_rows(shard.k, memory_[1]);
    const bool in_keys = shard.v.data == shard.k.data && shard.v.stride == shard.k.stride;
    params.v = in_keys ? params.k : upload_rows(shard.v, memory_[2]);
    params.lengths = lengths_.data();
    device::set_scale(params, dtype, scale);
  }

  DecodeParams params;
  DType dtype;

 private:
  /// Rows as they lie, or at the next multiple of 16 bytes, with padding.
  static DeviceView upload_rows(const TensorView& view, device::DeviceBuffer<unsigned char>& memory) {
    const auto size = static_cast<std::int64_t>(bytes_of(view.dtype));
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
        std::ranges::all_of(view.stride, [size](std::int64_t n) { return n * size % 16 == 0; }))
      return upload(view, memory);
    const auto& [b, n_h, n, d] = view.shape;
    const std::int64_t pitch = (d * size + 15) / 16 * 16;
    std::vector<unsigned char> padded(static_cast<std::size_t>(b * n_h * n * pitch), 0xFF);
    unsigned char* to = padded.data();
    for_each_row(view.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
      std::memcpy(to, view.row(i, h, a), static_cast<std::size_t>(d * size)), to += pitch;
    });
    memory = device::DeviceBuffer<unsigned char>(std::ssize(padded), MemoryUse::Input);
    memory.upload(padded);
    return {memory.data(), {n_h * n * pitch / size, n * pitch / size, pitch / size}};
  }
  /// The memory that a view spans, at the same offset from a multiple of 16.
  static DeviceView upload(const TensorView& view, device::DeviceBuffer<unsigned char>& memory) {
    const auto size = static_cast<std::int64_t>(bytes_of(view.dtype));
    if (std::any_of(view.shape.begin(), view.shape.end(), [](std::int64_t n) { return n == 0; })) return {};
    std::int64_t last = view.shape[3];
    for (std::size_t i = 0; i < 3; ++i) last += (view.shape[i] - 1) * view.stride[i];
    const std::int64_t n_bytes = last * size,
                       offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data) % 16);
    memory = device::DeviceBuffer<unsigned char>(offset + n_bytes, MemoryUse::Input);
    memory.upload({reinterpret_cast<const unsigned char*>(view.data), static_cast<std::size_t>(n_bytes)}, offset);
    return {memory.data() + offset, {view.stride[0], view.stride[1], view.stride[2]}};
  }

  device::DeviceBuffer<unsigned char> memory_[3];
  device::DeviceBuffer<std::int64_t> lengths_;
};

using device::DeviceWorkspace;

/// Finished rows of a shard that is the whole sequence. The outputs are poisoned before the launch: every element must be
/// written.
inline DecodeOutput run_step(const device::LadderStep& step, const DeviceShard& shard,
                             const device::LaunchOptions& options = {}) {
  const DecodeParams& params = shard.params;
  REQUIRE_MESSAGE(step.refusal(params, shard.dtype) == "", step.name);
  const device::LaunchPlan plan = step.plan(params, shard.dtype, options);
  const DeviceWorkspace workspace(plan);
  // An output without an address would be none.
  device::DeviceBuffer<float> out(std::max<std::int64_t>(1, params.n_rows() * params.d_v)), lse(params.n_rows());
  out.fill(0xFF), lse.fill(0xFF);
  step.run(params, shard.dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(), device::Stream{});
  // Every launch leaves the counters at zero.
  CHECK(std::ranges::all_of(workspace.counters().download(), [](unsigned n) { return n == 0; }));
  DecodeOutput output{out.download(), lse.download()};
  output.out.resize(static_cast<std::size_t>(params.n_rows() * params.d_v));
  return output;
}

/// Runs a step over a workload.
inline DecodeOutput run_step(const device::LadderStep& step, TensorWorkload& workload,
                             const device::LaunchOptions& options = {}) {
  return run_step(step, DeviceShard(workload.query(0), workload.whole(), workload.lengths(), workload.scale), options);
}

/// The states of a shard, as a Forest.
inline Forest<float> forest_of(const device::LadderStep& step, TensorWorkload& workload, KeyRange range, int n_splits,
                               int unit_log = -1) {
  const Shard part = workload.shard(range);
  const DeviceShard shard(workload.query(0), part, workload.lengths(), workload.scale);
  const std::vector<Subtree> subtrees = cover(range.begin, range.end);
  Forest<float> forest(shard.params.n_rows(), shard.params.d_v);
  device::DeviceBuffer<float> states(static_cast<std::int64_t>(subtrees.size()) * forest.block_size());
  states.fill(0xFF);
  const device::LaunchPlan plan = step.plan(shard.params, shard.dtype, {.n_splits = n_splits, .unit_log = unit_log});
  const DeviceWorkspace workspace(plan);
  step.run(shard.params, shard.dtype, {.states = states.data()}, plan, workspace.get(), device::Stream{});
  const std::vector<float> elements = states.download();
  forest.append(subtrees, elements.data());
  return forest;
}

/// The plan of a step for dense arrays of such axes, of which there are none.
inline device::LaunchPlan plan_of(const device::LadderStep& step, const Axes& axes, int n_splits = 0) {
  DecodeParams params =
      device::params_of({axes.dtype, axes.dtype, axes.batch, axes.heads, axes.kv_heads, axes.head_dim, axes.value_dim},
                        axes.n_queries, {0, axes.n_keys});
  for (const auto& [view, d] : {std::pair(&params.k, axes.head_dim), std::pair(&params.v, axes.value_dim)}) {
    const std::int64_t each = 16 / static_cast<std::int64_t>(bytes_of(axes.dtype)), pitch = (d + each - 1) / each * each;
    *view = {nullptr, {axes.kv_heads * axes.n_keys * pitch, axes.n_keys * pitch, pitch}};
  }
  return step.plan(params, axes.dtype, {.n_splits = n_splits});
}

/// Counts of a call, see DeviceTraffic.
struct Counts {
  std::int64_t allocations = 0, uploads = 0, uploaded = 0, downloaded = 0, launches = 0, replays = 0;
  std::int64_t of_thread = 0;  ///< n_launches_of_thread

  static Counts now() {
    const DeviceTraffic& t = device::traffic();
    return {t.n_allocations, t.n_uploads, t.bytes_uploaded,    t.bytes_downloaded,
            t.n_launches,    t.n_replays, n_launches_of_thread};
  }
  bool operator==(const Counts&) const = default;
};
template <class Call>
Counts counts_of(const Call& call) {
  const Counts a = Counts::now();
  call();
  const Counts b = Counts::now();
  return {b.allocations - a.allocations, b.uploads - a.uploads, b.uploaded - a.uploaded,  b.downloaded - a.downloaded,
          b.launches - a.launches,       b.replays - a.replays, b.of_thread - a.of_thread};
}

/// Tests whether two outputs agree bit for bit.
inline bool same_output(const DecodeOutput& a, const DecodeOutput& b) { return same_bits(a, b); }

/// Longest chain of additions of a step.
inline double longest_chain(const device::LadderStep& step, const DeviceShard& shard) {
  return step.n_additions(shard.params, shard.dtype);
}
/// Tests whether scalar cores multiply. Steps on scalar cores agree in bits; steps on tensor cores have other bits.
inline bool is_scalar(const device::LaunchPlan& plan) { return plan.path == std::string("scalar"); }

/// Compares an output with the oracle: positions of NaN and Inf, and the error bound of the elements. Returns the first
/// fault, or "".
///
/// @param n_additions longest chain of additions that a weight passes through; 0: that of the canonical tree over keys
/// @param exp_error of the polynomial; 4 of the exponential of the device, which rungs 1, 2, 3 and 5 take
inline std::string against_oracle(TensorWorkload& workload, const DecodeOutput& output, double n_additions = 0,
                                  double exp_error = 2) {
  AttentionOptions options;
  options.scale = workload.scale;
  options.lengths = workload.lengths();
  const Shard whole = workload.whole();
  const TensorView q = workload.query(0);
  ErrorModel model = tree_decode_model(std::max<std::int64_t>(1, workload.n_keys()));
  model.exp_error = exp_error;
  if (workload.k().dtype != DType::F32) model.score_error = 1.5;  // tensor cores cut off
  if (n_additions > 0) model.n_additions = n_additions;
  AttentionResult want = attention(q, whole.k, whole.v, options);
  // A weight may underflow in F32 but not in double. Then 0 * Inf = NaN is the correct result.
  for (std::size_t i = 0; i < std::min(want.out.size(), output.out.size()); ++i) {
    if (std::isinf(want.out[i]) && std::isnan(output.out[i])) want.out[i] = output.out[i];
  }
  const ErrorBound bound = error_bound(q, whole.k, whole.v, options, model);
  const auto finite = [](std::vector<double> bounds, const std::vector<double>& elements) {
    // Where the oracle is not finite, only NaN and Inf are compared.
    for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = std::isfinite(elements[i]) ? bounds[i] : 0;
    return bounds;
  };
  const Comparison out = compare(output.out, want.out, finite(bound.out, want.out), NonFinite::Match),
                   lse = compare(output.lse, want.lse, finite(bound.lse, want.lse), NonFinite::Match);
  if (!out.ok) return "out: " + out.message;
  return lse.ok ? "" : "lse: " + lse.message;
}
inline std::string against_oracle(TensorWorkload& workload, const DecodeOutput& output, const device::LadderStep& step,
                                  const DeviceShard& shard) {
  return against_oracle(workload, output, longest_chain(step, shard), step.is_fused || !step.is_canonical ? 4 : 2);
}

}  // namespace tree_attn::test
