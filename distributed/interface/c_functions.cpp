// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The functions of the C interface that hold nothing open: attention, its oracle, bounds and moments, and merges.
#include "distributed/exchange/host_blocks.hpp"
#include "distributed/exchange/open_shard.hpp"
#include "distributed/interface/c_arguments.hpp"
#include "reference/decode/backend.hpp"
#include "reference/energy/moments.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/oracle/error_bound.hpp"
#include "reference/state/require_seen.hpp"

#include <array>
#include <cmath>
#include <vector>

namespace tree_attn {
namespace {

/// The last two axes, in double.
Matrix matrix_of(const TensorView& view) {
  Matrix matrix(view.shape[2], view.shape[3]);
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    load_row(view, 0, 0, i, row.data());
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) matrix(i, j) = row[static_cast<std::size_t>(j)];
  }
  return matrix;
}

}  // namespace
}  // namespace tree_attn

using namespace tree_attn;          // NOLINT: what follows is C
using namespace tree_attn::dlpack;  // NOLINT

int ta_attend(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, double scale,
              const ta_seen* seen, const DLManagedTensor* out, const DLManagedTensor* lse, int has_scale) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 4), ks = view_of(k, "k", 4), vs = view_of(v, "v", 4);
    check_shapes(qs, ks, vs);
    const Outputs outputs = out_and_lse(out, lse, {qs.shape[0], qs.shape[1], qs.shape[2], vs.shape[3]});
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(qs.shape[0]), ks.shape[2]);
    const double factor = scale_of(scale, has_scale).value_or(1 / std::sqrt(static_cast<double>(qs.shape[3])));
    const Asked all = asked(seen, qs.shape[1], outputs);
    require_seen("ta_attend", all.rule, all.sink.size(), all.mask, all.softcap, {qs.shape[0], qs.shape[1], qs.shape[2]},
                 ks.shape[2]);
    const Step step{qs, lengths, all.rule, all.sink, all.mask, all.softcap};
    const OpenShard shard = open_shard(cpu_backend(), qs, {.k = ks, .v = vs}, lengths, factor);
    const std::span<float> states = shard.session->decode(step).host().fold();
    const std::int64_t n_rows = qs.shape[0] * qs.shape[1] * qs.shape[2], size = state_size(vs.shape[3]);
    for (std::int64_t row = 0; !all.sink.empty() && row < n_rows; ++row)
      add_sink(states.data() + row * size, step.sink_of(row), vs.shape[3]);
    const DecodeOutput output = finish_rows(states, n_rows, vs.shape[3]);
    write(outputs, output.out, output.lse);
  });
}

int ta_oracle(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, const DLManagedTensor* zeta,
              double scale, const ta_seen* seen, const DLManagedTensor* out, const DLManagedTensor* lse,
              const DLManagedTensor* energy, const DLManagedTensor* gradient, int has_scale) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 4), ks = view_of(k, "k", 4), vs = view_of(v, "v", 4);
    check_shapes(qs, ks, vs);
    AttentionOptions options{.scale = scale_of(scale, has_scale)};
    if (zeta != nullptr) options.zeta = view_of(zeta, "zeta", 4);
    require(zeta != nullptr || (energy == nullptr && gradient == nullptr), "zeta is null, but energy or gradient is wanted");
    const std::array<std::int64_t, 4> shape{qs.shape[0], qs.shape[1], qs.shape[2], vs.shape[3]},
        rows{shape[0], shape[1], shape[2], 1};
    Outputs outputs;
    std::vector<const std::vector<double>*> results;
    AttentionResult result;
    const auto add = [&](const DLManagedTensor* managed, const char* name, bool scalars, const std::vector<double>& from) {
      if (managed == nullptr) return;
      outputs.add(managed, name, scalars ? 3 : 4, scalars ? rows : shape, scalars ? Rows::kScalars : Rows::kVectors);
      outputs[outputs.size() - 1].require_double();
      results.push_back(&from);
    };
    add(out, "out", false, result.out), add(lse, "lse", true, result.lse);
    add(energy, "energy", true, result.energy), add(gradient, "gradient", false, result.gradient);
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    if (options.zeta) outputs.require_apart(*options.zeta, "zeta");
    const Asked all = asked(seen, shape[1], outputs);
    options.rule = all.rule, options.sink.assign(all.sink.begin(), all.sink.end());
    options.mask = all.mask, options.softcap = all.softcap;
    result = attention(qs, ks, vs, options);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].write(results[i]->data());
  });
}

int ta_error_bound(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, double scale,
                   const ta_seen* seen, double n_additions, double n_rescalings, double output_roundoff,
                   const DLManagedTensor* bound, int has_scale) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 4), ks = view_of(k, "k", 4), vs = view_of(v, "v", 4);
    check_shapes(qs, ks, vs);
    Outputs outputs;
    outputs.add(bound, "bound", 4, {qs.shape[0], qs.shape[1], qs.shape[2], vs.shape[3]});
    outputs[0].require_double();
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    for (const double x : {n_additions, n_rescalings, output_roundoff})
      require(std::isfinite(x) && x >= 0, "n_additions is ", n_additions, ", n_rescalings ", n_rescalings,
              " and output_roundoff ", output_roundoff, "; none is negative");
    ErrorModel model = tree_decode_model(ks.shape[2]);
    if (n_additions > 0) model.n_additions = n_additions;
    model.n_rescalings = n_rescalings, model.output_roundoff = output_roundoff;
    const Asked all = asked(seen, qs.shape[1], outputs);
    const AttentionOptions options{.scale = scale_of(scale, has_scale),
                                   .rule = all.rule,
                                   .sink = std::vector<double>(all.sink.begin(), all.sink.end()),
                                   .mask = all.mask,
                                   .softcap = all.softcap};
    outputs[0].write(error_bound(qs, ks, vs, options, model).out.data());
  });
}

int ta_moments(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, const DLManagedTensor* zeta,
               const DLManagedTensor* mean, const DLManagedTensor* covariance) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 1), ks = view_of(k, "k", 2), vs = view_of(v, "v", 2);
    const std::int64_t d_v = vs.shape[3];
    require(ks.shape[2] == vs.shape[2] && ks.shape[3] == qs.shape[3], "q has ", qs.shape[3], " elements, k is [",
            ks.shape[2], ", ", ks.shape[3], "] and v [", vs.shape[2], ", ", d_v, "]");
    Vector source = Vector::Zero(d_v);
    Outputs outputs;
    outputs.add(mean, "mean", 1, {1, 1, 1, d_v});
    outputs.add(covariance, "covariance", 2, {1, 1, d_v, d_v});
    for (std::size_t i = 0; i < 2; ++i) outputs[i].require_double();
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    if (zeta != nullptr) {
      const TensorView zetas = view_of(zeta, "zeta", 1);
      require(zetas.shape[3] == d_v, "zeta has ", zetas.shape[3], " elements; expected ", d_v);
      outputs.require_apart(zetas, "zeta");
      source = matrix_of(zetas).row(0);
    }
    const Vector query = matrix_of(qs).row(0);
    const Matrix K = matrix_of(ks), V = matrix_of(vs);
    const SeenValues seen = seen_values(query, K, V, source);
    const Vector first = seen.V.transpose() * seen.P;
    const Matrix second = tree_attn::covariance(query, K, V, source);  // symmetric, so its layout does not matter
    outputs[0].write(first.data());
    outputs[1].write(second.data());
  });
}

int ta_merge(const DLManagedTensor* o1, const DLManagedTensor* lse1, const DLManagedTensor* o2, const DLManagedTensor* lse2,
             int form, const DLManagedTensor* out, const DLManagedTensor* lse) {
  return guarded([&] {
    const std::array o{view_of(o1, "o1", 4), view_of(o2, "o2", 4)};
    const std::array l{view_of(lse1, "lse1", 3, Rows::kScalars), view_of(lse2, "lse2", 3, Rows::kScalars)};
    const auto [b, n_h, n, d_v] = o[0].shape;
    const std::array<std::int64_t, 4> rows{b, n_h, n, 1};
    require(o[1].shape == o[0].shape && l[0].shape == rows && l[1].shape == rows, "o1 is [", b, ", ", n_h, ", ", n, ", ",
            d_v, "], and o2 has other axes, or lse1 or lse2 is not [", b, ", ", n_h, ", ", n, "]");
    require(lse != nullptr, "lse is null");
    const LseForm of = form_of(form);
    const Outputs outputs = out_and_lse(out, lse, o[0].shape);
    constexpr std::array kNames{"o1", "o2", "lse1", "lse2"};
    for (std::size_t i = 0; i < 2; ++i) outputs.require_apart(o[i], kNames[i]), outputs.require_apart(l[i], kNames[2 + i]);
    std::array<std::vector<float>, 2> states;
    for (std::size_t i = 0; i < 2; ++i) {
      states[i].resize(static_cast<std::size_t>(b * n_h * n * state_size(d_v)));
      float* at = states[i].data();
      for (std::int64_t row = 0; row < b * n_h; ++row, at += n * state_size(d_v))
        set_head(at, o[i], l[i], row / n_h, row % n_h, of);
    }
    const std::int64_t n_rows = b * n_h * n, size = state_size(d_v);
    std::vector<std::array<bool, 2>> empty(static_cast<std::size_t>(n_rows));
    for (std::int64_t row = 0; row < n_rows; ++row) {
      float *const left = states[0].data() + row * size, *const right = states[1].data() + row * size;
      empty[static_cast<std::size_t>(row)] = {is_empty(left), is_empty(right)};
      merge(left, right, d_v);
    }
    DecodeOutput output = finish_rows(states[0], n_rows, d_v);
    // The other part of an empty one is returned as it was: its weight, and the quotient by it, would round.
    for (std::int64_t row = 0; row < n_rows; ++row) {
      const auto [left, right] = empty[static_cast<std::size_t>(row)];
      if (left == right) continue;
      const std::size_t from = left ? 1 : 0;
      load_row(o[from], row / (n_h * n), row / n % n_h, row % n, output.out.data() + row * d_v);
      if (of != LseForm::kBaseTwo) load_row(l[from], row / (n_h * n), row / n % n_h, row % n, output.lse.data() + row);
    }
    write(outputs, output.out, output.lse);
  });
}
