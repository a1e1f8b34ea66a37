// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --moments 2`: variance and entropy ride along with the output and leave its bits alone.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/reference/energy/moments.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

#include <cmath>

namespace {

using tree_attn::Matrix;
using tree_attn::Vector;

/// Rows [0, n) of one head of a tensor.
Matrix rows(const Elements& elements, std::int64_t b, std::int64_t head, std::int64_t n) {
  const std::vector<std::int64_t>& shape = elements.shape;
  const double* const first = &elements.values[static_cast<std::size_t>((b * shape[1] + head) * shape[2] * shape[3])];
  return Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(first, n, shape[3]);
}

}  // namespace

/// @tested{eq_cov, eq. (cov)}
TEST_CASE("moments: variance and entropy are those of the definition, over ranks and with an empty entry") {
  const Scratch scratch;
  const std::int64_t d_h = 16, d_v = 8, l = 2, n_h = 4;
  FileWorkload workload = FileWorkload::draw(2, n_h, 2, l, 300, d_h, d_v);
  workload.lengths = {300, 0};
  std::string dtype;
  const auto check = [&](const std::string& backend, const tree_attn::Algorithm& algorithm) {
    CAPTURE(backend);
    CAPTURE(algorithm.name);
    CAPTURE(dtype);
    const Words options{"--backend", backend,     "--algorithm", std::string(algorithm.name),
                        "--shards",  "128,0,172", "--verify"};
    check_silent_success(run(ranks(3, Words{"decode", scratch.path("in"), scratch.path("plain")} + options)));
    check_silent_success(
        run(ranks(3, Words{"decode", scratch.path("in"), scratch.path("out"), "--moments", "2"} + options)));
    const std::vector<float> out = tensor<float>(scratch.path("out"), "out", {2, n_h, l, d_v});
    const std::vector<float> variance = tensor<float>(scratch.path("out"), "variance", {2, n_h, l, d_v});
    const std::vector<float> entropy = tensor<float>(scratch.path("out"), "entropy", {2, n_h, l});
    CHECK(out == tensor<float>(scratch.path("plain"), "out", {2, n_h, l, d_v}));
    CHECK(tensor<float>(scratch.path("out"), "lse", {2, n_h, l}) ==
          tensor<float>(scratch.path("plain"), "lse", {2, n_h, l}));

    // Each query by itself, in double.
    std::vector<double> variances, entropies;
    for (std::int64_t r = 0; r < 2 * n_h * l; ++r) {
      const std::int64_t b = r / (n_h * l), h = r / l % n_h;
      const Vector q = rows(workload.q, b, h, l).row(r % l).transpose() / std::sqrt(static_cast<double>(d_h));
      const Matrix K = rows(workload.k, b, h / 2, workload.lengths[static_cast<std::size_t>(b)]);
      const Matrix V = rows(workload.v, b, h / 2, workload.lengths[static_cast<std::size_t>(b)]);
      const Vector diagonal = tree_attn::covariance(q, K, V, Vector()).diagonal();
      variances.insert(variances.end(), diagonal.begin(), diagonal.end());
      entropies.push_back(tree_attn::entropy(q, K, V, Vector()));
    }
    check_near(variance, variances, 1e-5);
    check_near(entropy, entropies, 1e-5);
  };
  for (const auto& [stored, backend, name] : {std::tuple("F16", "cpu", "two-level"),
                                              {"F16", "cpu", "paper"},
                                              {"F32", "emulated", "two-level"},
                                              {"BF16", "emulated", "ring"}}) {
    dtype = stored;
    workload.write(scratch.path("in"), dtype);
    check(backend, tree_attn::find_algorithm(name));
  }
}
