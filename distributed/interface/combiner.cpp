// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plan that scatters the output by heads, and the states of (o, lse).
#include "distributed/interface/combiner.hpp"

#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/decoder_setup.hpp"
#include "distributed/exchange/host_blocks.hpp"
#include "distributed/exchange/plan_builder.hpp"
#include "reference/tensor/float_environment.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace tree_attn {
namespace {

/// One position of the tree for each of p ranks.
std::vector<KeyRange> positions_of(int p) {
  return ranges_of_lengths(std::vector<std::int64_t>(static_cast<std::size_t>(p), 1));
}

void check_shape(const Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part) {
  const auto& [b, n_h, l, d_v] = shape;
  const double n =
      static_cast<double>(b) * static_cast<double>(n_h) * static_cast<double>(l) * (2 + static_cast<double>(d_v));
  require(*std::ranges::min_element(shape) >= 0 && n <= 0x1p40, "Combiner: b = ", b, ", n_h = ", n_h, ", l = ", l,
          ", d_v = ", d_v, "; an axis is negative, or the states have more than 2^40 elements");
  require(part == OutputPart::kAll || n_h % transport.size() == 0, "Combiner: ", n_h, " heads cannot be scattered over ",
          transport.size(), " ranks");
}

/// The arguments, compared and checked.
const std::array<std::int64_t, 4>& agreed(const Transport& transport, const std::array<std::int64_t, 4>& shape,
                                          OutputPart part, const PlanOptions& options) {
  const FloatEnvironment environment;
  const auto& [b, n_h, l, d_v] = shape;
  std::vector<Field> fields = fields_of(options);
  fields.insert(fields.begin(), {Field{"b", b}, Field{"n_h", n_h}, Field{"l", l}, Field{"d_v", d_v},
                                 Field{"by heads", part == OutputPart::kHeads}});
  require_equal(transport.ranks(), "Combiner", "all ranks to open a combiner", fields);
  check_shape(transport, shape, part);
  return shape;
}

Plan plan_of(const Transport& transport, OutputPart part, PlanOptions options, std::int64_t n_rows, std::int64_t d_v) {
  const FloatEnvironment environment;
  const Topology& topology = transport.topology();
  options.n_rows = n_rows, options.d_v = d_v;
  if (part == OutputPart::kHeads) return heads_plan(topology, transport.rank(), positions_of(topology.size()), options);
  const auto& exchange = find_algorithm("two-level").exchange;
  return std::get<PlanOf>(exchange)(topology, transport.rank(), positions_of(topology.size()), options);
}

}  // namespace

Combiner::Combiner(Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part, PlanOptions options,
                   MakeBlocks make_blocks)
    : transport_(transport),
      shape_(agreed(transport, shape, part, options)),
      part_(part),
      n_rows_(shape[0] * shape[1] * shape[2]),
      plan_(plan_of(transport, part, std::move(options), n_rows_, shape[3])),
      make_blocks_(transport.device() != nullptr ? transport.device()->make_blocks() : make_blocks) {}

RankCost Combiner::cost() const { return cost_of(plan_, n_rows_, shape_[3]); }

void Combiner::check(Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part, bool has_device,
                     const TensorView& o, const TensorView& lse) {
  check_shape(transport, shape, part);
  const auto [b, n_h, l, d_v] = shape;
  const bool has_axes = o.shape == shape && lse.shape == std::array{b, n_h, l, std::int64_t{1}};
  require(has_axes, "Combiner::combine: o is [", o.shape[0], ", ", o.shape[1], ", ", o.shape[2], ", ", o.shape[3],
          "] and lse [", lse.shape[0], ", ", lse.shape[1], ", ", lse.shape[2], ", ", lse.shape[3], "]; expected [", b, ", ",
          n_h, ", ", l, ", ", d_v, "] and [", b, ", ", n_h, ", ", l, ", 1]");
  require_view("Combiner::combine", o, "o", has_device);
  require_view("Combiner::combine", lse, "lse", has_device);
  require(o.on_device == lse.on_device && (o.on_device || transport.device() == nullptr),
          "Combiner::combine: o and lse have to be in the same memory, and for the transport ", transport.name(),
          " in that ", transport.device() != nullptr ? "of the device" : "of the host or its device");
}

Combiner::Side& Combiner::side(bool on_device) {
  Side& side = sides_[on_device];
  if (side.runner) return side;
  const auto [b, n_h, l, d_v] = shape_;
  const std::int64_t n_elements = n_rows_ * state_size(d_v) + b * n_heads() * l * (d_v + 1);
  if (on_device) {
    auto blocks = make_blocks_(n_elements, d_v, nullptr, nullptr);
    side.stream = &blocks->stream();
    side.memory = std::move(blocks);
  } else {
    side.memory = std::make_unique<HostBlocks>(n_elements, d_v);
  }
  side.runner.emplace(transport_, plan_, n_rows_, d_v,
                      std::make_shared<RunnerMemory>(transport_, RunnerSize(plan_, n_rows_, d_v), d_v,
                                                     on_device ? make_blocks_ : nullptr, side.stream));
  side.runner->leave_output(on_device);
  return side;
}

OutputView Combiner::combine(const TensorView& o, const TensorView& lse, LseForm form, std::optional<void*> stream) {
  const FloatEnvironment environment;
  check(transport_, shape_, part_, make_blocks_ != nullptr, o, lse);
  const auto [b, n_h, l, d_v] = shape_;
  const std::int64_t n = n_heads(), n_states = n_rows_ * state_size(d_v), n_out = b * n * l * d_v;
  auto& [memory, runner, own] = side(o.on_device);
  if (own == nullptr) stream.reset();

  // With all rows, state (i, h, j) is row (i n_h + h) l + j. By heads those of a rank are adjacent: the batch comes after
  // the head.
  const bool by_heads = part_ == OutputPart::kHeads;
  const auto heads_first = [](TensorView view) {
    std::swap(view.shape[0], view.shape[1]), std::swap(view.stride[0], view.stride[1]);
    return view;
  };
  memory->follow_default();
  if (stream) own->follow(*stream);
  memory->set_from_lse(0, by_heads ? heads_first(o) : o, by_heads ? heads_first(lse) : lse, form);
  const OutputView output = runner->step({memory->address(0), static_cast<std::size_t>(n_states)}, {}, !stream);
  if (stream && (!by_heads || b == 1)) own->lead(*stream);
  if (!by_heads || b == 1) return output;

  // [n_h / p, b, l] becomes [b, n_h / p, l].
  const auto turned = [&, b = b, l = l](std::span<const float> from, std::int64_t at, std::int64_t d) {
    TensorView source = TensorView::dense(from.data(), DType::F32, {n, b, l, d}),
               target = TensorView::dense(memory->address(at), DType::F32, {b, n, l, d});
    source.on_device = target.on_device = o.on_device;
    memory->convert(source, heads_first(target));
    return std::span<const float>(memory->address(at), from.size());
  };
  const OutputView result{turned(output.out, n_states, d_v), turned(output.lse, n_states + n_out, 1), o.on_device};
  if (stream)
    own->lead(*stream);
  else
    memory->wait();
  return result;
}

}  // namespace tree_attn
