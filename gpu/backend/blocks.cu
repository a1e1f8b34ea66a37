// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The operations of a plan as kernels: one thread block per query row, or threads over elements.
#include "gpu/backend/blocks.hpp"

#include "gpu/backend/device_tensors.hpp"
#include "gpu/backend/kernel_stream.hpp"
#include "gpu/backend/merge_rows.cuh"
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/state/require.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr unsigned kThreads = 128;
constexpr int kMaxPairs = 32;

/// Pairs of one launch, handed over by value.
struct Pairs {
  int n = 0;
  DeviceBlocks::Pair of[kMaxPairs];
};

/// left <- merge(left, right), pair after pair.
/// - Grid: n_rows.
/// - Block: kThreads threads, which share the components of a row.
/// - Reads: the row of both states of every pair.
/// - Writes: the row of the left ones.
__global__ void merge_states(float* memory, Pairs pairs, std::int64_t d_v) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * state_size(d_v);
  for (int i = 0; i < pairs.n; ++i) merge_rows(memory + pairs.of[i].left + row, memory + pairs.of[i].right + row, d_v);
}

/// left <- op(left, right): a thread takes the same elements of all pairs, in their order.
/// - Grid: blocks of kThreads elements of n.
/// - Block: kThreads threads, an element each.
/// - Reads: the element of both blocks of every pair.
/// - Writes: the element of the left ones.
__global__ void combine_elements(float* memory, Pairs pairs, DeviceBlocks::Operator op, std::int64_t n) {
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= n) return;
  for (int i = 0; i < pairs.n; ++i) {
    float* const left = memory + pairs.of[i].left + element;
    const float ours = load_fresh(left), theirs = load_fresh(memory + pairs.of[i].right + element);
    float result = theirs;
    if (op == DeviceBlocks::Operator::kMax && (ours > theirs || ours != ours)) result = ours;
    if (op == DeviceBlocks::Operator::kAdd) result = ours + theirs;
    if (op == DeviceBlocks::Operator::kMultiply) result = multiply(ours, theirs);
    store_fresh(left, result);
  }
}

/// to <- from.
/// - Grid: blocks of kThreads elements of n.
/// - Block: kThreads threads, an element each.
/// - Reads: from [n].
/// - Writes: to [n].
__global__ void copy_elements(float* to, const float* from, std::int64_t n) {
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element < n) store_fresh(to + element, load_fresh(from + element));
}

/// The empty state in every row.
/// - Grid: blocks of kThreads rows of n_rows.
/// - Block: kThreads threads, a row each.
/// - Reads: nothing.
/// - Writes: state [n_rows][2 + d_v].
__global__ void write_empty(float* state, std::int64_t n_rows, std::int64_t d_v) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= n_rows) return;
  float empty[kValues + 1];
  set_empty(empty, 1);
  for (std::int64_t c = 0; c < state_size(d_v); ++c)
    store_fresh(state + row * state_size(d_v) + c, empty[c < kValues ? c : kValues]);
}

/// z and lse of states, or of merge(left, right); with learned sinks after that merge.
/// - Grid: n_rows.
/// - Block: kThreads threads, which share the components of a row.
/// - Reads: the row of the left state, and of the right one if it is another; and sinks[row] unless sinks is null.
/// - Writes: z [n_rows][d_v] and lse [n_rows].
__global__ void finish_states(const float* memory, DeviceBlocks::Pair states, float* z, float* lse, std::int64_t d_v,
                              const float* sinks) {
  const std::int64_t row = blockIdx.x;
  const float* const left = memory + states.left + row * state_size(d_v);
  const float* const right = memory + states.right + row * state_size(d_v);
  const bool is_one = left == right;
  const Rescale<float> r = rescale(load_fresh(left + kShift), load_fresh(right + kShift));
  const auto merged = [&](std::int64_t i) {
    const float own = load_fresh(left + i);
    return is_one ? own : merge_element(r, own, load_fresh(right + i));
  };
  // Without a sink its weight is -0, which changes no bit.
  const SinkState sink(sinks == nullptr ? -std::numeric_limits<float>::infinity() : load_once(sinks + row));
  const Rescale<float> with_sink = rescale(r.shift, sink.shift);
  const float e_and_D[] = {with_sink.shift, merge_element(with_sink, merged(kSum), sink.weight)};
  for (std::int64_t j = threadIdx.x; j < d_v; j += blockDim.x)
    store_fresh(z + row * d_v + j, finish_value(e_and_D, merge_element(with_sink, merged(kValues + j), sink.value)));
  if (threadIdx.x == 0) store_fresh(lse + row, finish_lse(e_and_D));
}

/// exp(x - largest); 0 of an x of -inf, also where all are. NaN where the largest is.
__device__ float safe_weight(float x, float largest) {
  const bool is_empty = x == -std::numeric_limits<float>::infinity() && largest == largest;
  return is_empty ? 0 : static_cast<float>(std::exp(static_cast<double>(x) - static_cast<double>(largest)));
}

/// z <- exp(lse - m) z, and the weight where lse was.
/// - Grid: n_rows.
/// - Block: kThreads threads, which share the components of a row.
/// - Reads: z [n_rows][d_v], lse [n_rows], and m [n_rows], the largest lse of all shards.
/// - Writes: z and lse.
__global__ void weigh_rows(float* z, float* lse, const float* m, std::int64_t d_v) {
  const std::int64_t row = blockIdx.x;
  const float weight = safe_weight(load_fresh(lse + row), load_fresh(m + row));  // a shard without keys weighs nothing
  __syncthreads();
  for (std::int64_t j = row * d_v + threadIdx.x; j < (row + 1) * d_v; j += blockDim.x)
    store_fresh(z + j, multiply(load_fresh(z + j), weight));
  if (threadIdx.x == 0) store_fresh(lse + row, weight);
}

/// z = n / D where n was, and lse = m + log D where D was; with learned sinks.
/// - Grid: n_rows.
/// - Block: kThreads threads, which share the components of a row.
/// - Reads: n [n_rows][d_v], D [n_rows], and m [n_rows]; and sinks [n_rows] unless sinks is null.
/// - Writes: n and D.
__global__ void divide_rows(float* n, float* D, const float* m, std::int64_t d_v, const float* sinks) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t row = blockIdx.x;
  float sum = load_fresh(D + row), largest = load_fresh(m + row), factor = 1;
  if (sinks != nullptr) {
    const float sink = load_once(sinks + row), top = largest > sink || largest != largest ? largest : sink;
    factor = safe_weight(largest, top);
    sum = factor * sum + safe_weight(sink, top), largest = top;
  }
  const float m_and_sum[] = {largest, sum};  // the beginning of a state, but for the base of the exponent
  __syncthreads();
  for (std::int64_t j = row * d_v + threadIdx.x; j < (row + 1) * d_v; j += blockDim.x)
    store_fresh(n + j, finish_value(m_and_sum, multiply(factor, load_fresh(n + j))));
  if (threadIdx.x != 0) return;
  float lse = largest + std::log(sum);
  if (lse != lse) lse = largest == -kInf && sum == sum ? largest : kNaN;
  store_fresh(D + row, lse);
}

class Blocks : public DeviceBlocks {
 public:
  Blocks(std::int64_t n_elements, std::int64_t d_v, KernelStream* stream, void* memory)
      : memory_(memory == nullptr ? DeviceBuffer<float>(n_elements) : DeviceBuffer<float>(memory, n_elements)),
        d_v_(d_v),
        own_(stream == nullptr ? std::make_unique<KernelStream>() : nullptr),
        stream_(stream == nullptr ? *own_ : *stream) {}
  /// Waits for the queued operations, which read and write memory that ends here.
  ~Blocks() override { stream_.finish(); }

  void upload(std::int64_t at, std::span<const float> elements) override {
    synchronise(stream_);
    memory_.upload(elements, at);
  }
  void download(std::int64_t at, std::span<float> elements) const override { memory_.download(elements, at); }
  void take(std::int64_t at, const float* from, std::int64_t n) override {
    launch_over(n, copy_elements, address(at), from, n);
  }
  std::span<float> on_host(std::int64_t n) override {
    on_host_.emplace(n);
    return {on_host_->data(), static_cast<std::size_t>(n)};
  }
  void give(std::int64_t at, std::span<float> to) const override { memory_.queue_download(stream_, to, at); }
  void convert(const TensorView& from, const TensorView& to) override { convert_rows(from, to, stream_); }
  void set_from_lse(std::int64_t states, const TensorView& o, const TensorView& lse, LseForm form) override {
    set_states(address(states), o, lse, form, stream_);
  }
  int device() const override { return current_device(); }
  float* address(std::int64_t at) override { return memory_.data() + at; }
  DeviceStream& stream() override { return stream_; }

  void merge(std::span<const Pair> pairs, std::int64_t n_rows) override {
    for_each_batch(pairs, [&](const Pairs& batch) { launch_per_row(n_rows, merge_states, address(0), batch, d_v_); });
  }
  void combine(Operator op, std::span<const Pair> pairs, std::int64_t n) override {
    for_each_batch(pairs, [&](const Pairs& batch) { launch_over(n, combine_elements, address(0), batch, op, n); });
  }
  void set_empty(std::int64_t state, std::int64_t n_rows) override {
    launch_over(n_rows, write_empty, address(state), n_rows, d_v_);
  }
  const float* put_sinks(std::span<const float> of_rows) override {
    if (of_rows.empty()) return nullptr;
    if (!std::ranges::equal(of_rows, sinks_there_)) {
      synchronise(stream_);
      if (std::ssize(of_rows) > sinks_.size()) sinks_ = DeviceBuffer<float>(std::ssize(of_rows), MemoryUse::Input);
      sinks_.upload(of_rows);
      sinks_there_.assign(of_rows.begin(), of_rows.end());
    }
    return sinks_.data();
  }
  void finish(Pair states, std::int64_t z, std::int64_t lse, std::int64_t n_rows, const float* sinks) override {
    launch_per_row(n_rows, finish_states, address(0), states, address(z), address(lse), d_v_, sinks);
  }
  void weigh(std::int64_t z, std::int64_t lse, std::int64_t m, std::int64_t n_rows) override {
    launch_per_row(n_rows, weigh_rows, address(z), address(lse), address(m), d_v_);
  }
  void divide(std::int64_t n, std::int64_t D, std::int64_t m, std::int64_t n_rows, const float* sinks) override {
    launch_per_row(n_rows, divide_rows, address(n), address(D), address(m), d_v_, sinks);
  }

 private:
  /// One thread block per row, and one thread per element; nothing for none.
  template <class Kernel, class... Arguments>
  void launch_per_row(std::int64_t n_rows, Kernel* kernel, const Arguments&... arguments) {
    if (n_rows > 0) launch(kernel, {.grid = {static_cast<unsigned>(n_rows)}, .block = {kThreads}}, stream_, arguments...);
  }
  template <class Kernel, class... Arguments>
  void launch_over(std::int64_t n, Kernel* kernel, const Arguments&... arguments) {
    launch_per_row((n + kThreads - 1) / kThreads, kernel, arguments...);
  }

  template <class Use>
  void for_each_batch(std::span<const Pair> pairs, const Use& use) const {
    for (; !pairs.empty(); pairs = pairs.subspan(std::min<std::size_t>(pairs.size(), kMaxPairs))) {
      Pairs batch;
      batch.n = static_cast<int>(std::min<std::size_t>(pairs.size(), kMaxPairs));
      std::copy_n(pairs.begin(), batch.n, batch.of);
      use(batch);
    }
  }

  DeviceBuffer<float> memory_;
  std::int64_t d_v_;
  std::optional<HostBuffer<float>> on_host_;
  DeviceBuffer<float> sinks_;
  std::vector<float> sinks_there_;
  std::unique_ptr<KernelStream> own_;
  KernelStream& stream_;
};

}  // namespace

std::unique_ptr<DeviceBlocks> make_blocks(std::int64_t n_elements, std::int64_t d_v, DeviceStream* stream, void* memory) {
  require(n_elements >= 0 && d_v >= 0, "make_blocks: ", n_elements, " elements, d_v = ", d_v);
  auto* const on = dynamic_cast<KernelStream*>(stream);
  if (on == nullptr && stream != nullptr) throw std::logic_error("make_blocks: a stream of another platform");
  return std::make_unique<Blocks>(n_elements, d_v, on, memory);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
