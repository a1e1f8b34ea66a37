// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Retrieval in the heads of a trained transformer layer (tests/data/minilm), each taken as a Hopfield memory of its
/// keys.
#include "tree_attn/reference/data/safetensors.hpp"
#include "tree_attn/reference/energy/hopfield.hpp"
#include "tree_attn/tests/support/compare.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace {

using namespace tree_attn;

/// One head of the layer, in double.
Matrix head(const TensorView& view, std::int64_t h) {
  Matrix x(view.shape[2], view.shape[3]);
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  for (std::int64_t n = 0; n < view.shape[2]; ++n) {
    load_row(view, 0, h, n, row.data());
    x.row(n) = Eigen::Map<const Eigen::RowVectorXd>(row.data(), view.shape[3]);
  }
  return x;
}

double mean_of(const std::vector<double>& x) { return Eigen::Map<const Vector>(x.data(), std::ssize(x)).mean(); }

double median_of(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

/// Statistics of one head over its 512 queries.
struct HeadReport {
  std::vector<double> entropy;    // entropy of the attention probabilities, in nats
  std::vector<double> n_keys;     // exp(entropy): effective number of keys after one step
  std::vector<double> n_settled;  // effective number of keys at the fixed point
  int n_fixed_points = 0;         // distinct fixed points over all queries
  double worst_rise = 0;          // largest increase of the energy in a step; at most rounding
  double worst_output = 0;        // |attention - output of the model|
};

HeadReport report_of(const Matrix& Q, const Matrix& K, const Matrix& V, const Matrix& expected) {
  const double beta = 1 / std::sqrt(static_cast<double>(K.cols()));
  const double longest = K.rowwise().norm().maxCoeff();
  HeadReport report;
  std::vector<Vector> fixed_points;
  for (Eigen::Index i = 0; i < Q.rows(); ++i) {
    const Vector q = Q.row(i).transpose();

    // The layer makes one step and reads the values.
    const Vector out = hopfield_recall(K, V, q, beta, 0);
    report.worst_output = test::larger_error(report.worst_output,
                                             (out - expected.row(i).transpose()).cwiseAbs().maxCoeff<Eigen::PropagateNaN>());
    report.entropy.push_back(entropy(beta * q, K, V, Vector()));
    report.n_keys.push_back(n_effective_patterns(K, q, beta));

    // For every fourth query, iterate on the keys to a fixed point.
    if (i % 4 != 0) continue;
    const Retrieval course = hopfield_retrieve(K, q, beta, 1e-6);
    CHECK(course.settled);
    for (int step = 0; step < course.n_steps; ++step) {
      report.worst_rise = test::larger_error(report.worst_rise, course.energy[step + 1] - course.energy[step]);
    }
    report.n_settled.push_back(n_effective_patterns(K, course.xi, beta));
    const auto same = [&](const Vector& xi) { return (xi - course.xi).norm() < 1e-3 * longest; };
    if (std::none_of(fixed_points.begin(), fixed_points.end(), same)) fixed_points.push_back(course.xi);
  }
  report.n_fixed_points = static_cast<int>(fixed_points.size());
  return report;
}

}  // namespace

TEST_CASE("hopfield: retrieval in the heads of a trained layer, in one step and at the fixed point") {
  const SafetensorsFile file = SafetensorsFile::open(std::string(TREE_ATTN_TEST_DATA) + "/minilm/attention.safetensors");
  const TensorView q = view4(file, "q", "b, n_h, l, d_h"), k = view4(file, "k", "b, n_h, N, d_h"),
                   v = view4(file, "v", "b, n_h, N, d_v"), expected = view4(file, "expected", "b, n_h, l, d_v");
  std::vector<HeadReport> heads;
  double least_entropy = std::log(512), most_entropy = 0;
  int n_memories = 0;
  for (std::int64_t h = 0; h < q.shape[1]; ++h) {
    heads.push_back(report_of(head(q, h), head(k, h), head(v, h), head(expected, h)));
    const HeadReport& r = heads.back();
    CHECK(r.worst_output < 2e-6);
    CHECK(r.worst_rise < 1e-11);
    most_entropy = std::max(most_entropy, mean_of(r.entropy));
    least_entropy = std::min(least_entropy, mean_of(r.entropy));

    // At the fixed point a head is one of two kinds: a memory of many single keys or small groups, or one average of
    // hundreds.
    const double at_rest = median_of(r.n_settled);
    if (at_rest < 3) {
      ++n_memories;
      CHECK(r.n_fixed_points > 1);
      CHECK(*std::max_element(r.n_settled.begin(), r.n_settled.end()) < 10);
      CHECK(at_rest < median_of(r.n_keys) / 10);  // iteration concentrates the weights
    } else {
      CHECK(r.n_fixed_points == 1);
      CHECK(at_rest > 150);
    }
  }
  // The figures of tests/data/minilm/README.md.
  CHECK(least_entropy == doctest::Approx(2.9).epsilon(0.02));
  CHECK(most_entropy == doctest::Approx(5.6).epsilon(0.02));
  CHECK(n_memories == 7);
  CHECK(heads.size() == 12);
}
