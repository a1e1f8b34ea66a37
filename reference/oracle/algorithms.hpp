// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Algorithms 1, 2 and 3 of the paper, line by line, on virtual devices in one process (section 5).
///
/// One query, one head; q includes the scale, as in the paper. Device i holds lengths[i] consecutive keys. The lengths may
/// differ and may be 0. These are the paper's algorithms with the paper's max and exp. The decoders for real devices are in
/// distributed/; they merge with reference/state/state.hpp and need fewer collectives.
///
/// Functions throw std::invalid_argument if there are no devices, or shapes do not match.
///
/// Edges for all functions: an empty shard is neutral; if all keys are masked, z = 0 and lse = energy = -inf; every
/// reduction, including the max, keeps NaN; a score of -inf masks the key.
#pragma once

#include "reference/energy/energy.hpp"
#include "reference/state/require.hpp"
#include "reference/state/tree_reduce.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// The keys and values of one virtual device.
struct VirtualDevice {
  Matrix K;  ///< [t, d_h]
  Matrix V;  ///< [t, d_v]
};

/// Distributes k and v over p devices: line 1 of all three algorithms.
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] lengths keys of each device [p], with sum N
/// @throws std::invalid_argument if p is 0, a length is negative, or the lengths do not add up to N
inline std::vector<VirtualDevice> scatter(const MatrixRef& K, const MatrixRef& V, std::span<const std::int64_t> lengths) {
  require(!lengths.empty(), "scatter: no devices");
  for (const std::int64_t t : lengths) require(t >= 0, "scatter: shard of length ", t);
  const std::int64_t sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  require(sum == K.rows() && sum == V.rows(), "scatter: lengths add up to ", sum, ", there are ", K.rows(), " keys and ",
          V.rows(), " values");
  std::vector<VirtualDevice> devices;
  std::int64_t begin = 0;
  for (const std::int64_t t : lengths) {
    devices.push_back({K.middleRows(begin, t), V.middleRows(begin, t)});
    begin += t;
  }
  return devices;
}

/// Throws std::invalid_argument if there are no devices, or their values differ in length.
/// @param function that has them as an argument
inline void require_devices(const char* function, const std::vector<VirtualDevice>& devices) {
  require(!devices.empty(), function, ": no devices");
  const Eigen::Index d_v = devices[0].V.cols();
  for (const VirtualDevice& device : devices)
    require(device.V.cols() == d_v, function, ": values have length ", device.V.cols(), " on one device, ", d_v,
            " on another");
}

/// Reduces one scalar or vector per device, pairwise in a tree. In an AllReduce every device receives the result.
template <class T, class Op>
T tree_reduce_devices(const std::vector<T>& x, Op op) {
  return tree_reduce(std::span<const T>(x), std::ssize(x), op).value;
}

/// The first of the two associative operators of Alg. 1: the maximum of two scalars.
inline double max_of(double a, double b) { return max_keeping_nan(Eigen::Vector2d(a, b)); }
/// The second: the log-sum-exp of two scalars.
inline double log_sum_exp_of(double a, double b) { return log_sum_exp(Eigen::Vector2d(a, b)); }

/// The result of Alg. 1: m and lse, which Alg. 2 needs, and the energy.
struct EnergyForward {
  double m;       ///< largest exponent
  double lse;     ///< log sum_a exp(r_a - m): relative to m
  double energy;  ///< F(zeta) = m + lse. The paper returns lse as the energy, without m.
};

/// Algorithm 1, energy forward.
/// @param[in] q query [d_h]
/// @param[in] zeta source [d_v], or of length 0 for zeta = 0
/// @param[in] devices keys and values of p devices
/// @paper{alg_1, Alg. 1}
inline EnergyForward tree_energy(const VectorRef& q, const VectorRef& zeta, const std::vector<VirtualDevice>& devices) {
  require_devices("tree_energy", devices);

  // Lines 2 and 3: scatter q and zeta; on each device r = q.k + zeta.v.
  std::vector<Vector> r;
  for (const VirtualDevice& device : devices) r.push_back(exponents(q, device.K, device.V, zeta));

  // Line 4: tree-reduce max.
  std::vector<double> m_local;
  for (const Vector& r_local : r) m_local.push_back(max_keeping_nan(r_local));
  const double m = tree_reduce_devices(m_local, max_of);

  // Line 5: r <- r - m on each device. If m = -inf, all keys are masked and r stays as it is.
  if (m != -std::numeric_limits<double>::infinity()) {
    for (Vector& r_local : r) r_local.array() -= m;
  }

  // Line 6: tree-reduce logsumexp.
  std::vector<double> lse_local;
  for (const Vector& r_local : r) lse_local.push_back(log_sum_exp(r_local));
  const double lse = tree_reduce_devices(lse_local, log_sum_exp_of);

  // Lines 7 and 8: keep lse and m for the gradient.
  return {m, lse, m + lse};
}

/// Algorithm 2, the gradient of the energy at zeta = 0 in closed form, without a zeta in memory.
/// @param[in] q query [d_h]
/// @param[in] devices keys and values of p devices
/// @param[in] forward m and lse of Alg. 1 at zeta = 0
/// @returns z [d_v]
/// @paper{alg_2, Alg. 2}
inline Vector tree_energy_gradient(const VectorRef& q, const std::vector<VirtualDevice>& devices,
                                   const EnergyForward& forward) {
  require_devices("tree_energy_gradient", devices);
  std::vector<Vector> R;
  for (const VirtualDevice& device : devices) {
    // Line 4: r = q.k - m on each device.
    const Vector s = exponents(q, device.K, device.V, Vector());
    const Vector r = s.array() - forward.m;

    // Line 5: R = exp(r - lse) v, summed over the keys of the device that are not masked.
    R.push_back(Vector::Zero(device.V.cols()));
    for (Eigen::Index a = 0; a < r.size(); ++a) {
      if (s(a) == -std::numeric_limits<double>::infinity()) continue;
      R.back() += std::exp(r(a) - forward.lse) * device.V.row(a).transpose();
    }
  }

  // Line 6: tree-reduce sum.
  return tree_reduce_devices(R, [](const Vector& a, const Vector& b) -> Vector { return a + b; });
}

/// The result of Alg. 3 on every device.
struct TreeDecode {
  Vector z;           ///< attention output [d_v]
  double lse;         ///< natural log-sum-exp of the scores
  int n_all_reduces;  ///< number of collectives
};

/// Algorithm 3, tree decoding, with three AllReduces. It takes time O(N/p + 3 log p): the local attention does not
/// communicate.
/// @param[in] q query [d_h]
/// @param[in] devices keys and values of p devices
/// @paper{alg_3, Alg. 3}
/// @paper{eq_7, eq. (7)}
inline TreeDecode tree_decode_paper(const VectorRef& q, const std::vector<VirtualDevice>& devices) {
  require_devices("tree_decode_paper", devices);
  int n_all_reduces = 0;
  const auto all_reduce = [&n_all_reduces](const auto& x, auto op) {
    ++n_all_reduces;
    return tree_reduce_devices(x, op);
  };

  // Line 2: o, lse = attention(q, k, v) on each device. The paper uses FlashAttention-2; this code uses the definition.
  std::vector<Vector> o;
  std::vector<double> lse;
  for (const VirtualDevice& device : devices) {
    o.push_back(attention_mean(q, device.K, device.V));
    lse.push_back(energy(q, device.K, device.V, Vector()));
  }

  // Line 3: m = AllReduce(max, lse).
  const double m = all_reduce(lse, max_of);

  // Line 4: n = o exp(lse - m), D = exp(lse - m). An empty shard has lse = -inf and weight 0, even if all shards are empty.
  std::vector<Vector> n;
  std::vector<double> D;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    D.push_back(safe_weight(lse[i], m));
    n.push_back(o[i] * D[i]);
  }

  // Line 5: n = AllReduce(sum, n), D = AllReduce(sum, D).
  const Vector n_sum = all_reduce(n, [](const Vector& a, const Vector& b) -> Vector { return a + b; });
  const double D_sum = all_reduce(D, [](double a, double b) { return a + b; });

  // Line 6: z = n / D. If all keys are masked, 0 / 0 is replaced by 0.
  if (D_sum == 0) return {n_sum, -std::numeric_limits<double>::infinity(), n_all_reduces};
  return {n_sum / D_sum, m + std::log(D_sum), n_all_reduces};
}

}  // namespace tree_attn
