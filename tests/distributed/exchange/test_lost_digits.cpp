// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Digits lost by algorithms that weight outputs by exp(lse - m): the table of the chapter on error bounds.
#include "tests/support/decoding.hpp"

#include <cmath>
#include <fstream>
#include <map>

namespace tree_attn::test {
namespace {

/// Largest error of the share that each of three ranks has in the sum of weights, where all scores are equal: its share of
/// the keys. The scores of 64 batch entries are spread over [x, 2 x).
double lost(const Algorithm& algorithm, float x) {
  constexpr std::int64_t kBatch = 64;
  const std::vector<std::int64_t> n_keys{64, 64, 12};
  const Layout layout{Topology::pretend(3, 3), ranges_of_lengths(n_keys)};
  std::vector<float> q(kBatch), k(kBatch * 140, 1), v(kBatch * 140 * 3);
  for (std::size_t i = 0; i < kBatch; ++i) {
    q[i] = x * (1 + static_cast<float>(i) / kBatch);
    for (std::size_t a = 0; a < 140; ++a) v[(i * 140 + a) * 3 + std::min<std::size_t>(a / 64, 2)] = 1;
  }
  const auto workload =
      workload_of(Tensor(q, {kBatch, 1, 1, 1}), Tensor(k, {kBatch, 1, 140, 1}), Tensor(v, {kBatch, 1, 140, 3}), {}, 1.0);
  const DecodeOutput output = decode(*rank_groups({3})[0], algorithm, *workload, layout)[0].output;
  double largest = 0;
  for (std::size_t r = 0; r < output.out.size(); ++r)
    largest = std::max(largest, std::abs(output.out[r] - static_cast<double>(n_keys[r % 3]) / 140));
  return largest;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("lost digits: with equal scores, those of the chapter on error bounds") {
  // Numbers of the table: by the names of its first column, one for each x.
  std::ifstream file(TREE_ATTN_CHAPTER);
  const std::string begin = "<!-- lost digits: begin (tests/distributed/exchange/test_lost_digits.cpp) -->";
  std::map<std::string, std::vector<double>> table;
  std::string line;
  while (std::getline(file, line) && line != begin) {
  }
  while (std::getline(file, line) && line.starts_with("|")) {
    std::istringstream cells(line);
    std::string cell, name;
    std::getline(cells, cell, '|');
    std::getline(cells, name, '|');
    while (std::getline(cells, cell, '|')) {
      if (cell.find_first_of("0123456789") != std::string::npos) table[name].push_back(std::stod(cell));
    }
  }
  REQUIRE(table.size() == 3);
  const std::vector<double>& x = table.at(" scores $s$ to $2s$ ");
  REQUIRE(x.size() == 7);

  // Deterministic, up to the exponential and the logarithm of the C library.
  for (const Algorithm& algorithm : algorithms()) {
    CAPTURE(algorithm.name);
    const bool weighs_outputs = algorithm.rounding.weight_error_per_lse > 0;
    const std::vector<double>& shown = table.at(weighs_outputs ? " `paper`, `packed` " : " all others ");
    REQUIRE(shown.size() == x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = lost(algorithm, static_cast<float>(x[i]));
      const bool as_shown = error < 2 * shown[i] && (!weighs_outputs || error > shown[i] / 2);
      CHECK_MESSAGE(as_shown, "scores of ", x[i], ": lost ", error);
    }
  }
}

}  // namespace tree_attn::test
