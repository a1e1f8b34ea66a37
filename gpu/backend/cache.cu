// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys and values to the device as they arrive; the library kernel over them; its states back where they are asked
/// for.
#include "tree_attn/gpu/backend/cache.hpp"

#include "tree_attn/gpu/backend/append_rows.hpp"
#include "tree_attn/gpu/engine/equal_runs.cuh"
#include "tree_attn/reference/tensor/convert.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Positions that are converted at once.
constexpr std::int64_t kStagedPositions = 64;

std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(bytes_of(dtype)); }

bool is_dense(const TensorView& view) { return view.stride == TensorView::dense(nullptr, view.dtype, view.shape).stride; }

/// One row in another type. `row` is memory for its elements in F32.
void convert_row(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t a, DType dtype,
                 std::vector<float>& row, unsigned char* to) {
  if (view.dtype == dtype) {
    if (view.shape[3] > 0) std::memcpy(to, view.row(i, j, a), static_cast<std::size_t>(view.shape[3] * size_of(dtype)));
    return;
  }
  load_row(view, i, j, a, row.data());
  store(row.data(), dtype, view.shape[3], reinterpret_cast<std::byte*>(to));
}

}  // namespace

AttentionShape stored_on_device(const AttentionShape& shape) {
  AttentionShape stored = shape;
  if (kernel_unit_of(shape.dtype) == KernelUnit::None || shape.value_dtype != shape.dtype)
    stored.dtype = stored.value_dtype = DType::F32;
  return stored;
}

DeviceCache::DeviceCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity)
    : KvCache(shape, stored_on_device(shape), leaves, capacity),
      most_(allocated_positions(capacity, leaves.order())),
      k_(KvCache::shape().dtype, shape.head_dim, shape.batch * shape.kv_heads * most_),
      v_(KvCache::shape().value_dtype, shape.value_dim, shape.batch * shape.kv_heads * most_),
      appended_rows_(static_cast<std::size_t>(shape.batch), -1),
      appended_(static_cast<std::size_t>(shape.batch * bytes_of_entry())),
      staging_(static_cast<std::size_t>(shape.kv_heads * std::min(kStagedPositions, most_) *
                                        std::max(shape.head_dim, shape.value_dim) * size_of(KvCache::shape().dtype))),
      row_(static_cast<std::size_t>(std::max(shape.head_dim, shape.value_dim))) {}

void DeviceCache::upload(Rows& to, std::int64_t entry, std::int64_t first, const TensorView& view) const {
  const std::int64_t n_heads = shape().kv_heads, row = to.row_bytes(), pitch = most_ * row, n = view.shape[2];
  const std::int64_t at = (entry * n_heads * most_ + first) * row;
  if (n == 0 || row == 0 || n_heads == 0) return;

  // As it is, head by head, if the rows of a head follow each other.
  if (view.dtype == to.dtype && (view.stride[2] == to.dim || n == 1)) {
    to.memory.upload_rows(reinterpret_cast<const unsigned char*>(view.data), view.stride[1] * size_of(to.dtype), at, pitch,
                          n * row, n_heads);
    return;
  }
  // Else a few positions at a time.
  for (std::int64_t begin = 0; begin < n; begin += kStagedPositions) {
    const std::int64_t m = std::min(kStagedPositions, n - begin);
    for (std::int64_t h = 0; h < n_heads; ++h) {
      for (std::int64_t a = 0; a < m; ++a)
        convert_row(view, 0, h, begin + a, to.dtype, row_, staging_.data() + (h * m + a) * row);
    }
    to.memory.upload_rows(staging_.data(), m * row, at + begin * row, pitch, m * row, n_heads);
  }
}

void DeviceCache::allocate() {
  const std::int64_t before = most_, needed = allocated_positions(capacity(), leaves().order());
  if (needed <= before) return;
  most_ = needed;
  staging_.resize(static_cast<std::size_t>(shape().kv_heads * std::min(kStagedPositions, most_) *
                                           std::max(shape().head_dim, shape().value_dim) * size_of(shape().dtype)));
  // One copy on the device: the rows in use of every head.
  const std::int64_t n_heads = shape().batch * shape().kv_heads;
  for (Rows* rows : {&k_, &v_}) {
    const std::int64_t row = rows->row_bytes();
    DeviceBuffer<unsigned char> to(n_heads * most_ * row);
    to.queue_copy(Stream{}, rows->memory, 0, before * row, 0, most_ * row, longest() * row, n_heads);
    synchronise(Stream{});  // the memory before is freed
    rows->memory = std::move(to);
  }
}

void DeviceCache::write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) {
  // What waits is older, and may be of a row that has been removed since.
  std::int64_t& row = appended_rows_[static_cast<std::size_t>(entry)];
  if (row >= 0) put_appended();
  if (k.shape[2] != 1) return write_now(entry, first, k, v);
  row = first;
  unsigned char* to = appended_.data() + entry * bytes_of_entry();
  for (const auto& [view, rows] : {std::pair(&k, &k_), std::pair(&v, &v_)}) {
    for (std::int64_t h = 0; h < shape().kv_heads; ++h, to += rows->row_bytes())
      convert_row(*view, 0, h, 0, rows->dtype, row_, to);
  }
}

void DeviceCache::write_now(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) const {
  upload(k_, entry, first, k);
  upload(v_, entry, first, v);
}

void DeviceCache::put_appended() const {
  const AttentionShape& s = shape();
  for (std::int64_t i = 0; i < s.batch; ++i) {
    std::int64_t& row = appended_rows_[static_cast<std::size_t>(i)];
    if (row < 0) continue;
    const auto* const k = reinterpret_cast<const std::byte*>(appended_.data() + i * bytes_of_entry());
    write_now(i, row, TensorView::dense(k, s.dtype, {1, s.kv_heads, 1, s.head_dim}),
              TensorView::dense(k + s.kv_heads * key_bytes(), s.value_dtype, {1, s.kv_heads, 1, s.value_dim}));
    row = -1;
  }
}

void DeviceCache::take_appended(std::int64_t* rows, unsigned char* data) const {
  for (std::int64_t i = 0; i < shape().batch; ++i) {
    rows[i] = std::exchange(appended_rows_[static_cast<std::size_t>(i)], -1);
    if (rows[i] >= 0) std::copy_n(appended_.data() + i * bytes_of_entry(), bytes_of_entry(), data + i * bytes_of_entry());
  }
}

Shard DeviceCache::dense_shard(const std::byte* memory, std::int64_t n, bool on_device) const {
  const AttentionShape& s = shape();
  const std::byte* const v = memory + s.batch * s.kv_heads * n * key_bytes();
  return {TensorView::dense(memory, s.dtype, {s.batch, s.kv_heads, n, s.head_dim}),
          TensorView::dense(v, s.value_dtype, {s.batch, s.kv_heads, n, s.value_dim}), leaves().range().begin, on_device};
}

Shard DeviceCache::read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const {
  put_appended();
  std::byte* const all = memory(static_cast<std::size_t>(shape().batch * n * bytes_of_entry()));
  auto* to = reinterpret_cast<unsigned char*>(all);
  for (const Rows* from : {&k_, &v_}) {
    const std::int64_t row = from->row_bytes();
    for (std::int64_t h = 0; h < shape().batch * shape().kv_heads && n * row > 0; ++h, to += n * row)
      from->memory.download({to, static_cast<std::size_t>(n * row)}, h * most_ * row);
  }
  return dense_shard(all, n, false);
}

Shard DeviceCache::read_all_on_device(std::int64_t n, std::byte* memory) const {
  put_appended();
  const std::int64_t n_heads = shape().batch * shape().kv_heads;
  auto* to = reinterpret_cast<unsigned char*>(memory);
  for (const Rows* from : {&k_, &v_}) {
    const std::int64_t row = from->row_bytes();
    from->memory.queue_copy_out(Stream{}, to, n * row, 0, most_ * row, n * row, n_heads);
    to += n_heads * n * row;
  }
  return dense_shard(memory, n, true);
}

void DeviceCache::write_all(const Shard& shard, std::span<const std::int64_t> lengths) {
  if (!shard.on_device) return KvCache::write_all(shard, lengths);
  if (lengths.empty()) return;
  // One copy of the longest entry's rows for all: rows that another does not use are not read.
  const std::int64_t n = shard.k.shape[2], n_used = *std::max_element(lengths.begin(), lengths.end());
  reserve(n_used);
  for (const auto& [rows, from] : {std::pair(&k_, shard.k.data), std::pair(&v_, shard.v.data)}) {
    const std::int64_t row = rows->row_bytes();
    rows->memory.queue_copy_in(Stream{}, reinterpret_cast<const unsigned char*>(from), n * row, 0, most_ * row, n_used * row,
                               shape().batch * shape().kv_heads);
  }
}

std::unique_ptr<DecodeSession> DeviceCache::open(double scale) const {
  return std::make_unique<DeviceSession>(*this, scale);
}

DeviceSession::DeviceSession(const DeviceCache& cache, double scale)
    : DecodeSession(cache),
      cache_(cache),
      scale_(scale),
      input_(cache.shape()),
      row_(static_cast<std::size_t>(cache.shape().head_dim)),
      forest_(cache.shape().n_rows(), cache.shape().value_dim) {
  plan_range(closed(cache.leaves().range(), cache.leaves().range().begin + cache.capacity()));
}

void DeviceSession::plan_range(KeyRange range) {
  synchronise(stream_);  // memory of the plan before may be freed
  const AttentionShape& shape = cache_.shape();
  planned_ = range;
  planned_order_ = cache_.leaves().order();
  stream_.forget();
  planned_rows_ = cache_.n_allocated();
  subtrees_ = cover(planned_.begin, planned_.end);
  if (!has_work()) return;
  const StepArrays input = input_.on_device();
  if (is_dealt()) {
    static_cast<DecodeParams&>(params_) = params_of(shape, {0, planned_rows_});
    const std::int64_t n_leaves = planned_rows_ / kLeafKeys;
    params_.tree_positions = LeafLists::tree_positions(cache_.leaves(), n_leaves);
    if (n_leaves > lists_.most_leaves()) lists_ = LeafLists(shape.batch, n_leaves);
    lists_.set(params_), params_.lists = input.lists;
  } else {
    // A range without positions has a leaf without keys, for a kernel that has something to do all the same.
    const std::int64_t leaf = planned_.begin / kLeafKeys * kLeafKeys;
    static_cast<DecodeParams&>(params_) = params_of(shape, planned_.empty() ? KeyRange{leaf, leaf + kLeafKeys} : planned_);
    params_.readable_end = planned_.begin + std::min(allocated_positions(planned_.size()), planned_rows_);
  }
  params_.k = cache_.keys(), params_.v = cache_.values(), params_.lengths = input.lengths;
  const AttentionShape& s = shape;
  // A leaf without keys is described, and never read.
  const auto leaf_of = [&](std::int64_t d) { return DeviceView{input.q, {s.kv_heads * kLeafKeys * d, kLeafKeys * d, d}}; };
  if (planned_.empty()) params_.k = leaf_of(s.head_dim), params_.v = leaf_of(s.value_dim);
  params_.q = {input.q, {s.heads * s.n_queries * s.head_dim, s.n_queries * s.head_dim, s.head_dim}};
  if (const std::string why = library_kernel().refusal(params_, s.dtype); !why.empty())
    throw DeviceError("the kernels do not take " + why);
  plan_ = plan_kernel();
  if (!workspace_.is_enough_for(plan_)) workspace_ = DeviceWorkspace(plan_);
  const std::int64_t n_states = std::max<std::int64_t>(1, std::ssize(subtrees_)) * forest_.block_size();
  if (n_states > states_.size()) states_ = DeviceBuffer<float>(n_states);
  forest_.reserve(subtrees_.size());
}

void DeviceSession::prepare(std::int64_t longest) {
  const KeyRange range = closed(cache_.leaves().range(), longest);
  if (planned_.begin != range.begin || planned_.end != range.end || planned_order_ != cache_.leaves().order() ||
      planned_rows_ != cache_.n_allocated())
    plan_range(range);
}

States& DeviceSession::run(const Step& step, const std::function<void()>& progress) {
  if (end_ != std::exchange(last_end_, end_)) stream_.forget();
  const bool is_recorded = !stream_.is_new();
  prepare(step.longest());
  if (end_ != nullptr && is_recorded && stream_.is_new())
    throw std::logic_error("DeviceSession: this rank begins a new graph, and the others may not");
  is_on_host_ = false;
  if (!has_work() && end_ == nullptr) return *this;

  // The step before has read what it was given, and the graph is free.
  synchronise(stream_);
  if (has_work()) stage(step);
  if (progress) progress();

  set_scale(params_, cache_.shape().dtype, scale_);
  stream_.follow_default();
  stream_.repeat([this] { queue_step(); });
  if (end_ == nullptr) {
    after_.record(stream_);
    after_.hold(Stream{});
  }
  if (progress) progress();
  return *this;
}

void DeviceSession::decode_to(StepEnd& end, const Step& step, const std::function<void()>& progress) {
  end_ = &end;
  try {
    decode(step, progress);
  } catch (...) {
    end_ = nullptr;
    throw;
  }
  end_ = nullptr;
}

void DeviceSession::stage(const Step& step) {
  const auto& [q, lengths] = step;
  const DType dtype = cache_.shape().dtype;
  const StepArrays input = input_.on_host();
  if (q.dtype == dtype && is_dense(q)) {
    const std::int64_t n_bytes = cache_.shape().n_rows() * cache_.shape().head_dim * size_of(dtype);
    if (n_bytes > 0) std::memcpy(input.q, q.data, static_cast<std::size_t>(n_bytes));
  } else {
    unsigned char* to = input.q;
    for (std::int64_t i = 0; i < q.shape[0]; ++i) {
      for (std::int64_t h = 0; h < q.shape[1]; ++h) {
        for (std::int64_t j = 0; j < q.shape[2]; ++j, to += q.shape[3] * size_of(dtype))
          convert_row(q, i, h, j, dtype, row_, to);
      }
    }
  }
  std::copy(lengths.begin(), lengths.end(), input.lengths);
  if (planned_.empty()) std::fill_n(input.lengths, lengths.size(), 0);
  cache_.take_appended(input.rows, input.appended);
  if (is_dealt()) lists_.update(cache_.leaves(), lengths, input.lists);
}

LaunchPlan DeviceSession::plan_kernel() const {
  const DType dtype = cache_.shape().dtype;
  return is_dealt() ? plan_equal_runs(params_, dtype, {}) : library_kernel().plan(params_, dtype, {});
}

void DeviceSession::queue_kernel() {
  const DType dtype = cache_.shape().dtype;
  const DeviceOutput output{.states = states_.data()};
  if (is_dealt())
    run_equal_runs(params_, dtype, output, plan_, workspace_.get(), stream_);
  else
    library_kernel().run(params_, dtype, output, plan_, workspace_.get(), stream_);
}

void DeviceSession::queue_step() {
  if (has_work()) queue_decode();
  if (end_ != nullptr) end_->queue(states_.data());
}

void DeviceSession::queue_decode() {
  input_.queue_upload(stream_, is_dealt());
  const StepArrays input = input_.on_device();
  append_rows({.rows = input.rows,
               .data = input.appended,
               .k = static_cast<unsigned char*>(const_cast<void*>(cache_.keys().data)),
               .v = static_cast<unsigned char*>(const_cast<void*>(cache_.values().data)),
               .batch = cache_.shape().batch,
               .kv_heads = cache_.shape().kv_heads,
               .n_allocated = cache_.n_allocated(),
               .key_bytes = cache_.key_bytes(),
               .value_bytes = cache_.value_bytes()},
              stream_);
  queue_kernel();
}

Forest<float>& DeviceSession::host() {
  if (is_on_host_) return forest_;
  const std::span<float> states = forest_.assign(subtrees_);
  if (!states.empty()) states_.download(states);
  is_on_host_ = true;
  return forest_;
}

std::string DeviceSession::describe() const {
  std::ostringstream line;
  line << (plan_.cluster > 0 ? kShortEnd : kEqualRuns).name << " of " << name_of(cache_.shape().dtype)
       << (is_dealt() ? ", listed leaves, on " : " on ") << plan_.path << " cores: " << plan_.n_blocks << " blocks of "
       << plan_.n_threads << " threads, " << plan_.n_stages << " stages, " << plan_.shared_bytes / 1024
       << " KiB shared, workspace " << plan_.n_floats * 4 / 1024 << " KiB";
  return line.str();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
