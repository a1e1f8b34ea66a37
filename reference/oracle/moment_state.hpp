// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Covariance and entropy of the attention probabilities, computed by the same tree reduction over longer values
/// (section C.1, Alg. 3).
///
/// The state accumulates sum_a w_a v_a for any v_a. If each value is followed by the products of its components, the
/// reduction also returns the second moments, and from them the covariance:
///
///     v  ->  (v, v_1^2 ... v_d^2)   or   (v, v_1 v_1, v_1 v_2, ... v_d v_d),        covariance = <v v^T> - <v> <v>^T
///
/// If each value is followed by its natural score, the reduction also returns the mean score, and from it the entropy:
///
///     v  ->  (v, s),        H = -<log P> = lse - <s>,        since log P_a = s_a - lse
///
/// A score depends on the query, but a stored value must not. Since the score is linear in the key, the *key* can follow the
/// value instead:
///
///     v  ->  (v, u) with u = k,        s_a = w.u_a with w = scale q,        <s> = w.<u>
///
/// decode_shard() and all decoders thus compute covariance and entropy without a change, if they are given enlarged values.
/// A merge is element-wise, so z and lse keep their bits on the CPU. Kernels store keys of 16-bit types in F32 beside values
/// of F32, and z and lse then have the bits of that type.
///
/// merge(), Forest and finish() are those of reference/state/, with layout.size() in place of d_v.
#pragma once

#include "reference/state/state.hpp"
#include "reference/tensor/convert.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

namespace tree_attn {

/// The products of components that follow a value.
enum class Products {
  Squares,  ///< v_j v_j, d_v of them: the diagonal of the covariance
  Triangle  ///< v_i v_j with i <= j, row by row, d_v (d_v + 1) / 2 of them: the whole covariance
};

/// The components of an enlarged value: v [d_v], then products, then u [n_score].
struct MomentLayout {
  std::int64_t d_v = 0;                   ///< length of a value
  Products products = Products::Squares;  ///< products that follow it
  std::int64_t n_score = 0;               ///< length of u: 0 for no entropy, d_h for the key

  /// Number of products.
  std::int64_t n_products() const { return products == Products::Squares ? d_v : d_v * (d_v + 1) / 2; }
  /// Length of an enlarged value, which replaces d_v in the reduction.
  std::int64_t size() const { return d_v + n_products() + n_score; }
};

/// Writes the enlarged value of one key.
///
/// Edges: Inf and NaN propagate to the products that they enter, as in the formula; a square may overflow where v does not.
/// @param[in] layout the components
/// @param[in] v value [d_v]
/// @param[in] u vector in which the score is linear [n_score]
/// @param[out] enlarged [layout.size()]
template <class Real>
void enlarge(const MomentLayout& layout, const Real* v, const Real* u, Real* enlarged) {
  Real* to = std::copy_n(v, layout.d_v, enlarged);
  for (std::int64_t i = 0; i < layout.d_v; ++i) {
    const std::int64_t end = layout.products == Products::Squares ? i + 1 : layout.d_v;
    for (std::int64_t j = i; j < end; ++j) *to++ = v[i] * v[j];
  }
  std::copy_n(u, layout.n_score, to);
}

/// The enlarged values of a shard, for decode_shard(). The key follows each value if layout.n_score is d_h.
///
/// They are F32 for every storage type: a square needs twice the digits, and squares of F16 and BF16 elements are exact in
/// F32.
/// @param[in] layout the components, n_score 0 or d_h
/// @param[in] k keys [b, n_kv, n, d_h]
/// @param[in] v values [b, n_kv, n, d_v]
/// @returns [b, n_kv, n, layout.size()], last axis fastest
/// @throws std::invalid_argument if the layout and the tensors do not match, or a tensor has no data
inline std::vector<float> enlarge_values(const MomentLayout& layout, const TensorView& k, const TensorView& v) {
  const auto [b, n_kv, n, d_h] = k.shape;
  require_view("enlarge_values", k, "k");
  require_view("enlarge_values", v, "v");
  require(v.shape[0] == b && v.shape[1] == n_kv && v.shape[2] == n, "enlarge_values: k is [", b, ", ", n_kv, ", ", n,
          ", d_h], v is [", v.shape[0], ", ", v.shape[1], ", ", v.shape[2], ", d_v]");
  require(layout.d_v == v.shape[3] && (layout.n_score == 0 || layout.n_score == d_h), "enlarge_values: layout of values of ",
          layout.d_v, " and keys of ", layout.n_score, ", the tensors have ", v.shape[3], " and ", d_h);
  std::vector<float> enlarged(static_cast<std::size_t>(b * n_kv * n * layout.size()));
  std::vector<float> k_row(static_cast<std::size_t>(d_h)), v_row(static_cast<std::size_t>(layout.d_v));
  float* to = enlarged.data();
  for (std::int64_t row = 0; row < b * n_kv * n; ++row, to += layout.size()) {
    load_row(k, row / n / n_kv, row / n % n_kv, row % n, k_row.data());
    load_row(v, row / n / n_kv, row / n % n_kv, row % n, v_row.data());
    enlarge<float>(layout, v_row.data(), k_row.data(), to);
  }
  return enlarged;
}

/// Component i of the mean enlarged value, in double. The empty state gives 0/0 = NaN.
template <class Real>
double read_mean(const Real* state, std::int64_t i) {
  const double n = state[kValues + i], D = state[kSum];
  return n / D;
}

/// The covariance of the values, from a finished reduction.
///
///     <dv_i dv_j>  =  <v_i v_j>  -  <v_i> <v_j>
///
/// with dv = v - `<v>`. The two terms are rounded separately, so a variance of 0 may be computed as a small value of either
/// sign, of the order n_a u `<v^2>`, with n_a the longest chain of additions and u the roundoff of Real. It is not clamped.
///
/// Edges: 0 for the empty set; NaN where D is NaN or a value was, always the same quiet NaN, as in finish().
/// @param[in] layout the components
/// @param[in] state [2 + layout.size()]
/// @returns [d_v, d_v]; with Products::Squares the diagonal, as [d_v, 1]
/// @paper{eq_cov, eq. (cov)}
template <class Real>
Eigen::MatrixXd read_covariance(const MomentLayout& layout, const Real* state) {
  const bool all = layout.products == Products::Triangle;
  Eigen::MatrixXd covariance = Eigen::MatrixXd::Zero(layout.d_v, all ? layout.d_v : 1);
  if (is_empty(state)) return covariance;

  const auto canonical = [](double x) { return x == x ? x : std::numeric_limits<double>::quiet_NaN(); };
  std::int64_t at = layout.d_v;
  for (std::int64_t i = 0; i < layout.d_v; ++i) {
    for (std::int64_t j = i; j < (all ? layout.d_v : i + 1); ++j) {
      // An explicit fma gives the same bits whether or not the compiler contracts.
      const double c_ij = canonical(std::fma(-read_mean(state, i), read_mean(state, j), read_mean(state, at++)));
      if (all)
        covariance(i, j) = covariance(j, i) = c_ij;
      else
        covariance(i, 0) = c_ij;
    }
  }
  return covariance;
}

/// The entropy of the attention probabilities, -sum_a P_a log P_a, in nats.
///
///     H  =  lse - <s>  =  ln 2 (e + log2 D) - w.<u>
///
/// lse and the mean score are rounded separately. The error is of the order n_a u max |s|, so an entropy of 0 may be
/// computed as a small value of either sign. It is not clamped.
///
/// Edges: 0 for the empty set; a masked key does not contribute; NaN where D is NaN, always the same quiet NaN.
/// @param[in] layout the components, n_score not 0
/// @param[in] state [2 + layout.size()]
/// @param[in] w factor of u in the natural score w.u: scale q [n_score]
/// @throws std::invalid_argument if the lengths of w and u differ, or n_score is 0
template <class Real>
double read_entropy(const MomentLayout& layout, const Real* state, std::span<const double> w) {
  require(layout.n_score != 0 && std::ssize(w) == layout.n_score, "read_entropy: ", w.size(), " factors for ",
          layout.n_score, " elements");
  if (is_empty(state)) return 0;
  const double e = state[kShift], D = state[kSum];
  double H = kLn2 * (e + std::log2(D));
  std::int64_t i = layout.d_v + layout.n_products();
  for (const double w_j : w) H = std::fma(-w_j, read_mean(state, i++), H);
  return H == H ? H : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tree_attn
