// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decode steps over a device cache: their input, their plan, and one graph from the upload to the end.
#include "gpu/backend/session.hpp"

#include "gpu/backend/append_rows.hpp"
#include "gpu/backend/device_tensors.hpp"
#include "gpu/engine/equal_runs.cuh"
#include "reference/state/score_scale.hpp"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tree_attn::TREE_ATTN_PLATFORM {

std::unique_ptr<DecodeSession> DeviceCache::open(double scale, std::int64_t most_queries) const {
  for (Rows* rows : {&k_, &v_}) scales_on_device(*rows, 0);
  return std::make_unique<DeviceSession>(*this, scale, most_queries);
}

StepRunner::StepRunner(const DeviceCache& cache, double scale, std::int64_t most_queries, StepKernel& kernel)
    : plan_{.cache = cache}, kernel_(kernel), scale_(scale), most_queries_(std::max<std::int64_t>(1, most_queries)) {
  if (const std::vector<float>& of_keys = cache.scales().k; !of_keys.empty()) {
    std::vector<float> scales;
    for (const float of_head : of_keys) {
      const ScoreScale parts = split_scale(scale * double{of_head});
      scales.insert(scales.end(), {parts.query, parts.score});
    }
    head_scales_ = DeviceBuffer<float>(std::ssize(scales), MemoryUse::Input);
    head_scales_.upload(scales);
  }
  plan_range(closed(cache.leaves().range(), cache.leaves().range().begin + cache.capacity()));
}

void StepRunner::plan_range(KeyRange range, std::int64_t most_queries) {
  synchronise(stream_);  // memory of the plan before may be freed
  stream_.forget();
  const DeviceCache& cache = plan_.cache;
  const AttentionShape& s = cache.shape();
  const std::int64_t n_positions = cache.n_positions(), l = plan_.n_queries;
  plan_.range = range, plan_.order = cache.leaves().order();
  plan_.n_positions = -1;  // until it is planned: an error leaves no plan
  plan_.subtrees = cover(range.begin, range.end);
  const std::int64_t most_before = most_queries_;
  plan_.n_queries = most_queries_ = std::max(most_queries, most_queries_);
  try {
    if (has_work()) {
      plan_keys();
      if (const std::string why = accepts_copied_rows(plan_.params, s.dtype); !why.empty())
        throw DeviceError("the kernels do not take " + why);
      take_memory();
    }
  } catch (...) {
    most_queries_ = most_before;  // fewer queries may have room
    throw;
  }
  plan_queries(l);
  if (has_work()) plan_.prefix.plan(cache, range, plan_.params);
  plan_.n_positions = n_positions;
}

void StepRunner::plan_keys() {
  const DeviceCache& cache = plan_.cache;
  const AttentionShape& s = cache.shape();
  const KeyRange range = plan_.range;
  if (!input_ || input_->n_queries() < most_queries_) {
    input_.emplace(s, most_queries_);
    lists_ = {};
  }
  if (const std::int64_t n_bytes = s.n_rows(most_queries_) * s.head_dim * size_of_q();
      plan_.q_on_device && device_q_.size() < n_bytes)
    device_q_ = DeviceBuffer<unsigned char>(n_bytes);
  const StepArrays input = input_->on_device();
  ListedParams& params = plan_.params;
  if (plan_.is_listed()) {
    static_cast<DecodeParams&>(params) = params_of(s, most_queries_, {0, cache.n_allocated()});
    const auto leaves_of = [](std::int64_t n) { return (n + kLeafKeys - 1) / kLeafKeys; };
    const std::int64_t n_leaves = leaves_of(cache.n_allocated());
    params.tree_positions =
        LeafLists::tree_positions(cache.leaves(), plan_.prefix.rest_of(range), leaves_of(cache.n_positions()));
    params.n_subtrees = n_subtrees(plan_.prefix.rest_of(range).begin, plan_.prefix.rest_of(range).end);
    if (n_leaves > lists_.most_leaves()) lists_ = LeafLists(s.batch, n_leaves);
    lists_.set(params), params.lists = input.lists;
  } else {
    // A range without positions has a leaf without keys, for a kernel that has something to do all the same.
    const std::int64_t leaf = range.begin / kLeafKeys * kLeafKeys;
    static_cast<DecodeParams&>(params) =
        params_of(s, most_queries_, range.empty() ? KeyRange{leaf, leaf + kLeafKeys} : range);
    params.readable_end = range.begin + std::min(allocated_positions(range.size()), cache.n_positions());
  }
  params.k = cache.keys(), params.v = cache.values(), params.lengths = input.lengths, params.rule = plan_.rule;
  params.softcap = SoftCap(plan_.softcap), params.wide_queries = type_of_q() == DType::F32;
  params.head_scales = head_scales_.size() == 0 ? nullptr : head_scales_.data();
  // Where no row is stored, since the range has no positions or no entry reaches it, rows are described and never read.
  const auto leaf_of = [&](const DeviceView& rows) {
    return DeviceView{input.q, {s.kv_heads * kLeafKeys * rows.stride[2], kLeafKeys * rows.stride[2], rows.stride[2]}};
  };
  if (range.empty() || cache.n_positions() == 0) params.k = leaf_of(params.k), params.v = leaf_of(params.v);
  params.q.data = plan_.q_on_device ? device_q_.data() : input.q;
}

void StepRunner::plan_queries(std::int64_t l) {
  const AttentionShape& s = plan_.shape();
  plan_.n_queries = l;
  if (!has_work()) return;
  plan_.params.group = s.rows_per_kv_head(l), plan_.params.n_queries = l;
  plan_.params.q = {plan_.params.q.data, {s.heads * l * s.head_dim, l * s.head_dim, s.head_dim}};
  plan_.launch = kernel_.launch_of(plan_);
}

void StepRunner::take_memory() {
  LaunchPlan most;
  for (std::int64_t l = most_queries_; l >= 1; --l) {
    plan_queries(l);
    most.n_floats = std::max(most.n_floats, plan_.launch.n_floats);
    most.n_counters = std::max(most.n_counters, plan_.launch.n_counters);
  }
  if (!plan_.workspace.is_enough_for(most)) plan_.workspace = DeviceWorkspace(most);
  const std::int64_t n_states = std::max<std::int64_t>(1, std::ssize(plan_.subtrees)) * plan_.shape().n_rows(most_queries_) *
                                state_size(plan_.shape().value_dim);
  if (n_states > plan_.states.size()) plan_.states = DeviceBuffer<float>(n_states);
}

void StepRunner::prepare(std::int64_t l, std::int64_t longest) {
  const DeviceCache& cache = plan_.cache;
  const KeyRange range = closed(cache.leaves().range(), longest);
  if (l > most_queries_ || plan_.range.begin != range.begin || plan_.range.end != range.end ||
      plan_.order != cache.leaves().order() || plan_.n_positions != cache.n_positions())
    plan_range(range, l);
}

void StepRunner::prepare(const Step& step, bool has_end) {
  if (step.mask.data != nullptr)
    throw std::invalid_argument("DecodeSession::decode: no kernel adds a mask to scores; use the backend cpu");
  const std::int64_t l = step.q.shape[2];
  // Where messages follow, other ranks may not begin a new graph when pages change here.
  const bool is_other_prefix = has_end ? plan_.prefix.clear() : plan_.prefix.count(plan_.cache, step);
  if (is_other_prefix || l > most_queries_ || step.rule != plan_.rule || step.softcap != plan_.softcap ||
      step.q.on_device != plan_.q_on_device) {
    plan_.n_queries = l, plan_.rule = step.rule, plan_.softcap = step.softcap, plan_.q_on_device = step.q.on_device;
    plan_range(closed(plan_.cache.leaves().range(), step.longest()), l);
  } else if (l != plan_.n_queries) {
    plan_queries(l);
  }
}

void StepRunner::run(const Step& step, StepEnd* end, const std::function<void()>& progress) {
  const std::int64_t l = step.q.shape[2];
  stream_.choose(end == nullptr ? ~static_cast<std::uint64_t>(l) : end->graph());
  prepare(step, end != nullptr);
  const bool is_recorded = !stream_.is_new();
  prepare(l, step.longest());
  if (end != nullptr && is_recorded && stream_.is_new())
    throw std::logic_error("DeviceSession: this rank begins a new graph, and the others may not");
  if (!has_work() && end == nullptr) return;

  // The step before has read what it was given, and the graph is free.
  synchronise(stream_);
  if (has_work()) stage(step);
  if (progress) progress();

  set_scale(plan_.params, plan_.shape().dtype, scale_);
  stream_.follow_default();
  if (step.stream) stream_.follow(*step.stream);
  if (has_work() && plan_.q_on_device) {
    const TensorView q = TensorView::dense(device_q_.data(), type_of_q(), step.q.shape);
    convert_rows(step.q, q, stream_);
  }
  stream_.repeat([&] { queue_step(end); }, end == nullptr || end->may_be_recorded());
  if (has_work()) plan_.cache.forget_appended();
}

void StepRunner::stage(const Step& step) {
  const TensorView& q = step.q;
  const auto lengths = step.lengths;
  const AttentionShape& shape = plan_.shape();
  const StepArrays input = input_->on_host();
  unsigned char* to = input.q;
  for (std::int64_t i = 0; i < q.shape[0] && !q.on_device; ++i) {
    for (std::int64_t h = 0; h < q.shape[1]; ++h) {
      for (std::int64_t j = 0; j < q.shape[2]; ++j, to += shape.head_dim * size_of_q())
        store_row(q, i, h, j, 1, type_of_q(), row_, reinterpret_cast<std::byte*>(to));
    }
  }
  std::copy(lengths.begin(), lengths.end(), input.lengths);
  if (plan_.range.empty()) std::fill_n(input.lengths, lengths.size(), 0);
  if (q.on_device)
    plan_.cache.put_appended();
  else
    plan_.cache.copy_appended(input.rows, input.appended);
  if (plan_.is_listed())
    lists_.update(plan_.cache.leaves(), plan_.prefix.rest_of(plan_.range), step, plan_.cache.pages(), input.lists);
}

void StepRunner::queue_step(StepEnd* end) {
  if (has_work()) {
    const DeviceCache& cache = plan_.cache;
    input_->queue_upload(stream_, plan_.n_queries, plan_.is_listed(), plan_.q_on_device);
    const StepArrays input = input_->on_device();
    if (!plan_.q_on_device)
      append_rows({.rows = input.rows,
                   .data = input.appended,
                   .k = static_cast<unsigned char*>(const_cast<void*>(cache.keys().data)),
                   .v = static_cast<unsigned char*>(const_cast<void*>(cache.values().data)),
                   .batch = cache.shape().batch,
                   .kv_heads = cache.shape().kv_heads,
                   .n_allocated = cache.n_allocated(),
                   .entry_stride = cache.entry_stride(),
                   .key_bytes = cache.key_bytes(),
                   .value_bytes = cache.value_bytes(),
                   .key_pitch = cache.key_pitch(),
                   .value_pitch = cache.value_pitch()},
                  stream_);
    kernel_.queue(plan_, stream_);
  }
  if (end != nullptr) end->queue(plan_.states.data());
}

std::string StepRunner::describe() const {
  const LaunchPlan& launch = plan_.launch;
  std::ostringstream line;
  line << "equal-runs of " << name_of(plan_.shape().dtype) << (plan_.is_listed() ? ", listed leaves" : "");
  if (const std::int64_t n = plan_.prefix.n_leaves(); n > 0) line << ", " << n << " of them once for all entries";
  line << " on " << launch.path << " cores: " << launch.n_blocks << " blocks of " << launch.n_threads << " threads, "
       << launch.n_stages << " stages, " << launch.shared_bytes / 1024 << " KiB shared, workspace "
       << launch.n_floats * 4 / 1024 << " KiB";
  return line.str();
}

DeviceSession::DeviceSession(const DeviceCache& cache, double scale, std::int64_t most_queries)
    : DecodeSession(cache, scale, most_queries),
      steps_(cache, scale, most_queries, *this),
      forest_(cache.shape().n_rows(std::max<std::int64_t>(1, most_queries)), cache.shape().value_dim) {
  forest_.reserve(steps_.plan().subtrees.size());
}

States& DeviceSession::run(const Step& step, const std::function<void()>& progress) {
  steps_.run(step, nullptr, progress);
  is_on_host_ = false;
  if (!steps_.has_work()) return *this;
  after_.record(steps_.stream());
  after_.hold(Stream{});
  if (progress) progress();
  return *this;
}

void DeviceSession::prepare(const Step& step) {
  steps_.prepare(step, true), steps_.prepare(step.q.shape[2], step.longest());
}

void DeviceSession::decode_to(StepEnd& end, const Step& step, const std::function<void()>& progress) {
  is_on_host_ = false;
  steps_.run(step, &end, progress);
  if (progress) progress();
}

LaunchPlan DeviceSession::launch_of(const StepPlan& plan) const {
  const DType dtype = plan.shape().dtype;
  return plan.is_listed() ? plan_equal_runs(plan.params, dtype, {}) : plan_equal_runs<DecodeParams>(plan.params, dtype, {});
}

void DeviceSession::queue(const StepPlan& plan, Stream stream) {
  const DType dtype = plan.shape().dtype;
  const DeviceOutput output{.states = plan.prefix.n_leaves() > 0 ? plan.prefix.rest() : plan.states.data()};
  plan.prefix.queue(plan.params, dtype, stream);
  if (plan.is_listed())
    run_equal_runs(plan.params, dtype, output, plan.launch, plan.workspace.get(), stream);
  else
    run_equal_runs<DecodeParams>(plan.params, dtype, output, plan.launch, plan.workspace.get(), stream);
  plan.prefix.join(plan.states.data(), stream);
}

Forest<float>& DeviceSession::host() {
  if (is_on_host_) return forest_;
  forest_.set_rows(steps_.plan().n_rows());
  const std::span<float> states = forest_.assign(steps_.plan().subtrees);
  if (!states.empty()) steps_.plan().states.download(states);
  is_on_host_ = true;
  return forest_;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
