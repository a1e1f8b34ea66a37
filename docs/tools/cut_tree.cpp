// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sixty-four keys as states, and what the tree and Alg. 3 make of them for some cuts: facts for
/// docs/cut_the_tree.js, as JSON.
///
/// Run: cut_tree FILE
#include "reference/state/forest.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace tree_attn {
namespace {

constexpr std::int64_t kKeys = 64, kDim = 3, kStateSize = state_size(kDim);
using Cuts = std::vector<std::int64_t>;  // where the shards begin and end: 0 .. kKeys

/// The states of the keys, [kKeys][2 + d_v]. Scores and values are multiples of 1/256, so any library draws the same ones.
std::vector<float> key_states() {
  std::mt19937 random(64);
  const auto draw = [&random](float scale) {
    return scale * static_cast<float>(static_cast<int>(random() % 513) - 256) / 256;
  };
  std::vector<float> states(kKeys * kStateSize);
  for (std::int64_t a = 0; a < kKeys; ++a) {
    const float s = draw(8);
    const float v[kDim] = {draw(1), draw(1), draw(1)};
    set_key(&states[static_cast<std::size_t>(a * kStateSize)], s, v, kDim);
  }
  return states;
}

/// The forest of the keys [begin, end), pushed one by one.
Forest<float> forest_of(const std::vector<float>& keys, std::int64_t begin, std::int64_t end) {
  Forest<float> forest(1, kDim);
  for (std::int64_t a = begin; a < end; ++a) {
    std::copy_n(&keys[static_cast<std::size_t>(a * kStateSize)], kStateSize, forest.next());
    forest.push({0, a});
  }
  return forest;
}

/// z by the tree: the forests of the ranks, joined from left to right.
std::vector<float> by_tree(const std::vector<float>& keys, const Cuts& cuts) {
  Forest<float> joined(1, kDim);
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    const Forest<float> forest = forest_of(keys, cuts[r], cuts[r + 1]);
    joined.append(forest.subtrees(), forest.states().data());
  }
  std::vector<float> z(kDim);
  finish(joined.fold().data(), z.data(), kDim);
  return z;
}

/// z by Alg. 3, lines 2 to 6, in float: o and lse of every rank, then the largest lse and two sums in the order of the
/// ranks.
std::vector<float> by_paper(const std::vector<float>& keys, const Cuts& cuts) {
  std::vector<std::vector<float>> o;
  std::vector<float> lse;
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    Forest<float> forest = forest_of(keys, cuts[r], cuts[r + 1]);
    const std::span<const float> state = forest.fold();
    o.emplace_back(kDim);
    finish(state.data(), o.back().data(), kDim);
    // exp and log in double, rounded once: then a browser has the same bits.
    lse.push_back(
        static_cast<float>(kLn2 * (static_cast<double>(state[kShift]) + std::log2(static_cast<double>(state[kSum])))));
  }
  const float m = *std::max_element(lse.begin(), lse.end());
  std::vector<float> n(kDim, 0);
  float D = 0;
  for (std::size_t r = 0; r < o.size(); ++r) {
    const float w = static_cast<float>(std::exp(static_cast<double>(lse[r] - m)));
    for (std::size_t j = 0; j < kDim; ++j) n[j] += o[r][j] * w;
    D += w;
  }
  for (float& n_j : n) n_j /= D;
  return n;
}

void print_bits(std::FILE* out, const std::vector<float>& x) {
  for (std::size_t i = 0; i < x.size(); ++i)
    std::fprintf(out, "%s\"%08x\"", i == 0 ? "" : ", ", std::bit_cast<std::uint32_t>(x[i]));
}

int write(const char* path) {
  std::FILE* const out = std::fopen(path, "w");
  if (out == nullptr) return std::perror(path), 1;
  const std::vector<float> keys = key_states();
  std::fprintf(out, "{\n  \"state_size\": %d,\n  \"keys\": [", static_cast<int>(kStateSize));
  for (std::size_t i = 0; i < keys.size(); ++i)
    std::fprintf(out, "%s%.9g", i == 0 ? "" : i % kStateSize == 0 ? ",\n           " : ", ", static_cast<double>(keys[i]));
  std::fprintf(out, "],\n  \"outputs\": [\n");
  std::mt19937 random(4);
  for (int i = 0; i < 40; ++i) {
    Cuts cuts{0, kKeys};
    for (int p = 1; p < 1 + i % 8; ++p) cuts.push_back(static_cast<std::int64_t>(1 + random() % (kKeys - 1)));
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::fprintf(out, "    {\"cuts\": [");
    for (std::size_t r = 0; r < cuts.size(); ++r) std::fprintf(out, "%s%d", r == 0 ? "" : ", ", static_cast<int>(cuts[r]));
    std::fprintf(out, "], \"tree\": [");
    print_bits(out, by_tree(keys, cuts));
    std::fprintf(out, "], \"paper\": [");
    print_bits(out, by_paper(keys, cuts));
    std::fprintf(out, "]}%s\n", i + 1 < 40 ? "," : "");
  }
  std::fprintf(out, "  ]\n}\n");
  return std::fclose(out) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tree_attn

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: cut_tree FILE.json\n"), 2;
  return tree_attn::write(argv[1]);
}
