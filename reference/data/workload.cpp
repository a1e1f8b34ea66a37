// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Workloads from files, and filling a cache from a workload.
#include "reference/data/workload.hpp"

#include "reference/data/input_error.hpp"
#include "reference/oracle/attention.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

namespace tree_attn {

Workload::Workload(WorkloadShape shape, int steps) : shape_(std::move(shape)), steps_(steps) {
  require_workload("Workload", shape_);
  require(steps >= 1, "Workload: ", steps, " steps");
}

void Workload::require_step(int step) const {
  require<std::out_of_range>(step >= 0 && step < steps_, "Workload: step ", step, " of ", steps_);
}

std::vector<std::int64_t> Workload::lengths(int step) const {
  require_step(step);
  std::vector<std::int64_t> lengths = shape_.lengths;
  if (lengths.empty()) lengths.assign(static_cast<std::size_t>(shape_.batch), shape_.n_keys);
  for (std::int64_t& length : lengths) length = std::max<std::int64_t>(0, length - (steps_ - 1 - step));
  return lengths;
}

std::vector<std::int64_t> Workload::lengths_at_start() const {
  std::vector<std::int64_t> start = lengths(0);
  for (std::int64_t& length : start) length = std::max<std::int64_t>(0, length - (steps_ > 1 ? 1 : 0));
  return start;
}

std::int64_t Workload::longest_at_start() const {
  // Without the lengths themselves: a batch without elements may have any number of entries.
  return std::max<std::int64_t>(0, shape_.longest() - (steps_ > 1 ? steps_ : 0));
}

void fill(KvCache& cache, Workload& workload, std::span<const std::int64_t> lengths) {
  constexpr std::int64_t kAtOnce = 256;  // positions generated per call
  require(std::ssize(lengths) == cache.shape().batch, "fill: ", lengths.size(), " lengths for a batch of ",
          cache.shape().batch);
  const OwnedLeaves& leaves = cache.leaves();
  for (std::int64_t i = 0; i < cache.shape().batch; ++i) {
    const std::int64_t end = leaves.n_keys(lengths[static_cast<std::size_t>(i)]);
    for (std::int64_t a = cache.lengths()[static_cast<std::size_t>(i)]; a < end;) {
      // In the dealt order the next leaf of the range may be anywhere.
      const std::int64_t n =
          std::min(end, leaves.order() == LeafOrder::kContiguous ? a + kAtOnce : leaves.end_of_leaf(a)) - a;
      const std::int64_t begin = leaves.position(a);
      const Shard next = workload.keys_and_values(i, {begin, begin + n});
      cache.append(i, next.k, next.v);
      a += n;
    }
  }
}

void fill_at_start(KvCache& cache, Workload& workload, std::span<const std::int64_t> lengths) {
  const KeyRange range = cache.leaves().range();
  const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const std::optional<Shard> shard = cache.leaves().order() == LeafOrder::kContiguous
                                         ? workload.in_place({range.begin, std::clamp(longest, range.begin, range.end)})
                                         : std::nullopt;
  if (shard)
    cache.borrow(*shard, rows_in_use(lengths, cache.leaves()));
  else
    fill(cache, workload, lengths);
}

namespace {

/// Names that other programs give to tensors by which the output would be another one.
constexpr std::string_view kOtherAttention[] = {"attn_mask",    "attention_mask", "bias",         "attn_bias",
                                                "alibi_slopes", "block_table",    "block_tables", "page_table"};

}  // namespace

std::string ignored_tensors(const SafetensorsFile& file, std::string_view expected) {
  constexpr std::string_view kRead[] = {"q", "k", "v", "zeta", "lengths", "sink", "sinks", "mask", "k_scale", "v_scale"};
  std::string names;
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name == expected || std::ranges::count(kRead, tensor.name) > 0) continue;
    names += (names.empty() ? "" : ", ") + readable(tensor.name);
  }
  return readable(names, 200);
}

FileTensors read_tensors(const SafetensorsFile& file, std::int64_t value_dim) {
  const auto refuse = [&file](const auto&... why) { refuse_file(file.path(), why...); };
  FileTensors tensors{view4(file, "q", "b, n_h, l, d_h"), view4(file, "k", "b, n_kv, N, d_h"), {}, {}};
  WorkloadShape& shape = tensors.shape;
  if (value_dim == 0) {
    tensors.v = view4(file, "v", "b, n_kv, N, d_v");
  } else {
    if (file.find("v")) refuse("--value-dim takes values from the keys, but there is a tensor \"v\"");
    if (value_dim > tensors.k.shape[3]) refuse("--value-dim ", value_dim, ": keys have ", tensors.k.shape[3], " components");
    tensors.v = tensors.k, tensors.v.shape[3] = value_dim;
  }
  for (const std::string_view name : kOtherAttention) {
    if (file.find(name)) refuse("tensor \"", name, "\" asks for an attention that is not computed here; leave it out");
  }
  const bool is_float8 = tensors.k.dtype == DType::F8_E4M3;
  const DType of_q = is_float8 && tensors.q.dtype == DType::BF16 ? tensors.k.dtype : tensors.q.dtype;
  if (of_q != tensors.k.dtype || of_q != tensors.v.dtype)
    refuse("q is ", name_of(tensors.q.dtype), ", k ", name_of(tensors.k.dtype), ", v ", name_of(tensors.v.dtype),
           ": they must have the same type; q may be BF16 where k is F8_E4M3");

  // Read the scales [b, n_kv] of keys and values.
  for (const auto& [name, scales] : {std::pair("k_scale", &shape.scales.k), {"v_scale", &shape.scales.v}}) {
    const TensorInfo* info = file.find(name);
    if (info == nullptr) continue;
    const std::string subject = std::string("tensor \"") + name + "\"";
    const std::int64_t b = tensors.k.shape[0], n_kv = tensors.k.shape[1];
    if (!is_float8) refuse(subject, " is for keys and values of F8_E4M3, but k is ", name_of(tensors.k.dtype));
    if (info->dtype != "F32" || info->shape != std::vector<std::int64_t>{b, n_kv})
      refuse(subject, " must be F32 of shape [", b, ", ", n_kv, "], one for each head");
    scales->resize((info->end - info->begin) / sizeof(float));
    load(file.data(*info), DType::F32, std::ssize(*scales), scales->data());
    for (std::size_t i = 0; i < scales->size(); ++i)
      if (!is_scale((*scales)[i]))
        refuse(subject, " has ", std::to_string((*scales)[i]), " at ", i, "; scales are from 2^-100 to 2^100");
  }
  // Values that are components of keys have their scale.
  if (value_dim > 0 && file.find("v_scale")) refuse("--value-dim takes values from the keys; leave \"v_scale\" out");
  if (value_dim > 0) shape.scales.v = shape.scales.k;

  // Read lengths [b], I64.
  if (const TensorInfo* info = file.find("lengths")) {
    if (info->dtype != "I64" || info->shape != std::vector<std::int64_t>{tensors.q.shape[0]})
      refuse("tensor \"lengths\" must be I64 of shape [", tensors.q.shape[0], "]");
    shape.lengths.resize(static_cast<std::size_t>(tensors.q.shape[0]));
    if (!shape.lengths.empty())
      std::memcpy(shape.lengths.data(), file.data(*info), shape.lengths.size() * sizeof(std::int64_t));
  }
  // Read a learned sink of every head, [n_h].
  for (const std::string_view name : {"sink", "sinks"}) {
    if (const TensorInfo* info = file.find(name)) {
      if (!shape.sink.empty()) refuse("tensors \"sink\" and \"sinks\": give one of them");
      const auto dtype = std::ranges::find(kDTypes, info->dtype, [](DType each) { return name_of(each); });
      if (dtype == std::end(kDTypes) || *dtype == DType::F8_E4M3 ||
          info->shape != std::vector<std::int64_t>{tensors.q.shape[1]})
        refuse("tensor \"", name, "\" must be F64, F32, F16 or BF16 of shape [", tensors.q.shape[1],
               "], a logit for every query head");
      shape.sink.resize(static_cast<std::size_t>(tensors.q.shape[1]));
      load_row(TensorView::dense(file.data(*info), *dtype, {1, 1, 1, tensors.q.shape[1]}), 0, 0, 0, shape.sink.data());
    }
  }
  // Read a mask [b or 1, n_h or 1, l, N].
  if (const TensorInfo* info = file.find("mask")) {
    const bool is_boolean = info->dtype == "BOOL" || info->dtype == "U8";
    const auto& [b, n_h, l, d_h] = tensors.q.shape;
    const std::int64_t n_keys = tensors.k.shape[2];
    const auto& n = info->shape;
    if ((!is_boolean && info->dtype != "F32") || n.size() != 4 || (n[0] != 1 && n[0] != b) || (n[1] != 1 && n[1] != n_h) ||
        n[2] != l || n[3] != n_keys)
      refuse("tensor \"mask\" must be BOOL, U8 or F32 of shape [", b, " or 1, ", n_h, " or 1, ", l, ", ", n_keys, "]");
    shape.mask = Mask::dense(file.data(*info), is_boolean, {n[0], n[1], n[2], n[3]});
  }
  AttentionOptions options;
  options.lengths = shape.lengths;
  try {
    check_shapes(tensors.q, tensors.k, tensors.v);
    check_options(tensors.q, tensors.k, tensors.v, options);
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
  static_cast<AttentionShape&>(shape) = shape_of(tensors.q, tensors.k, tensors.v);
  shape.values_in_keys = value_dim > 0;
  shape.n_keys = tensors.k.shape[2], shape.n_queries = tensors.q.shape[2];
  return tensors;
}

namespace {

class FileWorkload : public Workload {
 public:
  FileWorkload(FileTensors tensors, WorkloadShape shape, int steps)
      : Workload(std::move(shape), steps), tensors_(std::move(tensors)) {}

  TensorView query(int step) override {
    require_step(step);
    return steps_ == 1 ? tensors_.q : tensors_.q.positions(step, step + 1);
  }

  Shard keys_and_values(std::int64_t entry, KeyRange positions) override {
    return {tensors_.k.entry(entry).positions(positions.begin, positions.end),
            tensors_.v.entry(entry).positions(positions.begin, positions.end), positions.begin};
  }
  std::optional<Shard> in_place(KeyRange positions) override {
    return Shard{tensors_.k.positions(positions.begin, positions.end), tensors_.v.positions(positions.begin, positions.end),
                 positions.begin};
  }

  Shard whole() override { return {tensors_.k, tensors_.v, 0}; }

 private:
  FileTensors tensors_;
};

}  // namespace

std::unique_ptr<Workload> open_workload(const SafetensorsFile& file, int steps, LeafOrder order, const SeenRule& rule,
                                        double softcap, std::int64_t value_dim) {
  FileTensors tensors = read_tensors(file, value_dim);
  const auto& q = tensors.q.shape;
  if (steps > 1 && q[2] != steps)
    refuse_file(file.path(), "--steps ", steps, " needs as many query positions in q, which has l = ", q[2]);
  WorkloadShape shape = std::move(tensors.shape);
  shape.order = order, shape.rule = rule, shape.softcap = softcap;
  if (steps > 1) shape.n_queries = 1;
  return std::make_unique<FileWorkload>(std::move(tensors), std::move(shape), steps);
}

}  // namespace tree_attn
