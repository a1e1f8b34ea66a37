// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Covariance and entropy of the attention from the same tree reduction, over longer values (section C.1, Alg. 3).
///
/// The state carries sum_a w_a v_a for whatever v_a is. A value that is followed by the products of its components brings
/// home its second moments, and with them the covariance:
///
///     v  ->  (v, v_1^2 ... v_d^2)   or   (v, v_1 v_1, v_1 v_2, ... v_d v_d),        covariance = <v v^T> - <v> <v>^T
///
/// One that is followed by its own score, natural, brings home the mean score, and with it the entropy:
///
///     v  ->  (v, s),        H = -<log P> = lse - <s>,        since log P_a = s_a - lse
///
/// A score belongs to a query, and a stored value must not. But it is linear in the key, so let the *key* follow the value:
///
///     v  ->  (v, u) with u = k,        s_a = w.u_a with w = scale q,        <s> = w.<u>
///
/// Then decode_shard(), and every decoder above it, gives covariance and entropy over enlarged values as it is. And as a
/// merge looks at each component by itself, z and lse keep their bits.
///
/// merge(), Forest and finish() are those of reference/state/state.hpp, over layout.size() components instead of d_v.
#pragma once

#include "reference/state/state.hpp"
#include "reference/tensor/convert.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

/// Which products of components follow a value.
enum class Products {
  None,     ///< none
  Squares,  ///< v_j v_j, d_v of them: the diagonal of the covariance
  Triangle  ///< v_i v_j with i <= j, row by row, d_v (d_v + 1) / 2 of them: all of it
};

/// The components of an enlarged value: v [d_v], then products, then u [n_score].
struct MomentLayout {
  std::int64_t d_v = 0;                   ///< length of a value
  Products products = Products::Squares;  ///< what follows it
  std::int64_t n_score = 0;               ///< length of u: 0 for no entropy, d_h for the key, 1 for the score itself

  /// How many products there are.
  std::int64_t n_products() const {
    return products == Products::None ? 0 : products == Products::Squares ? d_v : d_v * (d_v + 1) / 2;
  }
  /// Length of an enlarged value: what the reduction takes for d_v.
  std::int64_t size() const { return d_v + n_products() + n_score; }
};

/// Writes the enlarged value of one key.
///
/// Where the mean is much larger than the deviation, the covariance is a small difference of large numbers. A `center` c
/// near the values, the same for all keys, helps: the products are then those of v - c, whose covariance is that of v. The
/// value itself is not moved.
///
/// Edges: Inf and NaN follow the formula and reach the products that they enter; a square may overflow where v does not.
/// @param[in] layout the components
/// @param[in] v value [d_v]
/// @param[in] u what the score is linear in [n_score]
/// @param[in] center c [d_v], or empty for 0
/// @param[out] enlarged [layout.size()]
template <class Real>
void enlarge(const MomentLayout& layout, const Real* v, const Real* u, std::span<const Real> center, Real* enlarged) {
  const auto dv = [&](std::int64_t j) { return center.empty() ? v[j] : v[j] - center[static_cast<std::size_t>(j)]; };
  Real* to = std::copy_n(v, layout.d_v, enlarged);
  for (std::int64_t i = 0; i < layout.d_v && layout.products != Products::None; ++i) {
    const std::int64_t end = layout.products == Products::Squares ? i + 1 : layout.d_v;
    for (std::int64_t j = i; j < end; ++j) *to++ = dv(i) * dv(j);
  }
  std::copy_n(u, layout.n_score, to);
}

/// The enlarged values of a shard, for decode_shard(): the key follows if layout.n_score is d_h.
///
/// In F32 whatever the storage: a square needs twice the digits, and of F16 and BF16 it is then exact.
/// @param[in] layout the components, n_score 0 or d_h
/// @param[in] k keys [b, n_kv, n, d_h]
/// @param[in] v values [b, n_kv, n, d_v]
/// @param[in] center c [d_v], or empty for 0
/// @returns [b, n_kv, n, layout.size()], last axis fastest
/// @throws std::invalid_argument if the layout is not one of these tensors
inline std::vector<float> enlarge_values(const MomentLayout& layout, const TensorView& k, const TensorView& v,
                                         std::span<const float> center = {}) {
  const auto [b, n_kv, n, d_h] = k.shape;
  if (layout.d_v != v.shape[3] || (layout.n_score != 0 && layout.n_score != d_h)) {
    throw std::invalid_argument("enlarge_values: layout of values of " + std::to_string(layout.d_v) + " and keys of " +
                                std::to_string(layout.n_score) + ", the tensors have " + std::to_string(v.shape[3]) +
                                " and " + std::to_string(d_h));
  }
  std::vector<float> enlarged(static_cast<std::size_t>(b * n_kv * n * layout.size()));
  std::vector<float> k_row(static_cast<std::size_t>(d_h)), v_row(static_cast<std::size_t>(layout.d_v));
  float* to = enlarged.data();
  for (std::int64_t row = 0; row < b * n_kv * n; ++row, to += layout.size()) {
    load_row(k, row / n / n_kv, row / n % n_kv, row % n, k_row.data());
    load_row(v, row / n / n_kv, row / n % n_kv, row % n, v_row.data());
    enlarge<float>(layout, v_row.data(), k_row.data(), center, to);
  }
  return enlarged;
}

/// Component i of the mean enlarged value, in double. Not for the empty state: 0/0.
template <class Real>
double read_mean(const Real* state, std::int64_t i) {
  return static_cast<double>(state[kValues + i]) / static_cast<double>(state[kSum]);
}

/// The covariance of the values, from a finished reduction.
///
///     <dv_i dv_j>  =  <(v - c)_i (v - c)_j>  -  (<v> - c)_i (<v> - c)_j
///
/// with dv = v - `<v>`. The two terms are rounded apart, so a variance of 0 may come out as a small number of either sign,
/// of the order n_a u `<(v - c)^2>`, with n_a the longest chain of additions and u the roundoff of Real; it is not clamped.
///
/// Edges: 0 for the empty set; NaN where D is NaN or a value was, the one canonical NaN as in finish().
/// @param[in] layout the components, products not None
/// @param[in] state [2 + layout.size()]
/// @param[in] center c [d_v] as in enlarge()
/// @returns [d_v, d_v]; with Products::Squares the diagonal, as [d_v, 1]
/// @throws std::invalid_argument if the layout has no products
/// @paper{eq_cov, eq. (cov)}
template <class Real>
Eigen::MatrixXd read_covariance(const MomentLayout& layout, const Real* state, std::span<const Real> center = {}) {
  if (layout.products == Products::None) throw std::invalid_argument("read_covariance: the layout has no products");
  const bool all = layout.products == Products::Triangle;
  Eigen::MatrixXd covariance = Eigen::MatrixXd::Zero(layout.d_v, all ? layout.d_v : 1);
  if (is_empty(state)) return covariance;

  const auto mean = [&](std::int64_t j) {
    return read_mean(state, j) - (center.empty() ? 0.0 : static_cast<double>(center[static_cast<std::size_t>(j)]));
  };
  const auto canonical = [](double x) { return x == x ? x : std::numeric_limits<double>::quiet_NaN(); };
  std::int64_t at = layout.d_v;
  for (std::int64_t i = 0; i < layout.d_v; ++i) {
    for (std::int64_t j = i; j < (all ? layout.d_v : i + 1); ++j) {
      const double c_ij =
          canonical(std::fma(-mean(i), mean(j), read_mean(state, at++)));  // fused here or nowhere: same bits
      if (all)
        covariance(i, j) = covariance(j, i) = c_ij;
      else
        covariance(i, 0) = c_ij;
    }
  }
  return covariance;
}

/// The entropy of the attention, -sum_a P_a log P_a, in nats.
///
///     H  =  lse - <s>  =  ln 2 (e + log2 D) - w.<u>
///
/// lse and mean score are rounded apart: the error is of the order n_a u max |s|, and an entropy of 0 may come out as a
/// small number of either sign; it is not clamped.
///
/// Edges: 0 for the empty set; a key not seen has no part in it; NaN where D is NaN, the one canonical NaN.
/// @param[in] layout the components, n_score not 0
/// @param[in] state [2 + layout.size()]
/// @param[in] w the score is w.u, natural: scale q where u is the key, 1 where u is the score [n_score]
/// @throws std::invalid_argument if w is not as long as u, or there is no u
template <class Real>
double read_entropy(const MomentLayout& layout, const Real* state, std::span<const double> w) {
  if (layout.n_score == 0 || static_cast<std::int64_t>(w.size()) != layout.n_score) {
    throw std::invalid_argument("read_entropy: " + std::to_string(w.size()) + " factors for " +
                                std::to_string(layout.n_score) + " numbers");
  }
  if (is_empty(state)) return 0;
  double H = kLn2 * (static_cast<double>(state[kShift]) + std::log2(static_cast<double>(state[kSum])));
  for (std::int64_t i = 0; i < layout.n_score; ++i) {
    H = std::fma(-w[static_cast<std::size_t>(i)], read_mean(state, layout.d_v + layout.n_products() + i), H);
  }
  return H == H ? H : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tree_attn
