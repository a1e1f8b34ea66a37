// SPDX-License-Identifier: Apache-2.0
// Run: build/notebooks/8_rounding_bits_and_trees

// %% [markdown]
// # Rounding, bits and trees {#notebook_rounding}
//
// Three questions about one sum. Which bits does it have, if its terms are the same and only the
// brackets change? How wrong is it? And does it exist at all: exponentials overflow, and
// eq. (35)-(38) are how attention avoids that. The sum is the one of attention,
// $D = \sum_a \mathrm e^{s_a}$ and $n = \sum_a \mathrm e^{s_a} v_a$, held as a state.

// %%
#include "notebooks_cpp/notebook.hpp"
#include "reference/decode/decode.hpp"
#include "reference/energy/energy.hpp"
#include "reference/oracle/error_bound.hpp"
#include "reference/state/tree_reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

using namespace tree_attn;
using notebook::expect, notebook::figure;

constexpr double kU = 0x1p-24;  // unit roundoff of float
constexpr double kInf = std::numeric_limits<double>::infinity();

using State = std::vector<float>;

State merged(State left, const State& right) {
  merge(left.data(), right.data(), std::ssize(left) - kValues);
  return left;
}

std::vector<float> normal(std::mt19937& random, std::size_t n) {
  std::normal_distribution<double> draw;
  std::vector<float> elements(n);
  for (float& x : elements) x = static_cast<float>(draw(random));
  return elements;
}

// %% [markdown]
// Brackets to choose from, beside those of `tree_reduce()`: cut in the middle, and each half in the
// middle again.

// %%
State halves(std::span<const State> x) {
  if (x.size() == 1) return x[0];
  const std::size_t middle = x.size() / 2;
  return merged(halves(x.first(middle)), halves(x.subspan(middle)));
}

int main() {
  // %% [markdown]
  // ## Which trees give which bits
  //
  // The same keys, in the same order but for the second row, seven ways to set brackets. States of
  // the same bits get the same letter; $D$ and the first of four components of $n$ are printed. A
  // thousand keys first, then 1024.

  // %%
  std::mt19937 random(8);
  const std::vector<float> scores = normal(random, 1024), values = normal(random, 4 * 1024);
  std::vector<State> keys(1024, State(kValues + 4));
  for (std::size_t a = 0; a < 1024; ++a) {
    set_key(keys[a].data(), scores[a], &values[4 * a], 4);
  }

  std::vector<std::string> letters;
  for (const std::size_t N : {1000, 1024}) {
    const std::span<const State> x = std::span<const State>(keys).first(N);
    const auto workers = [&x](std::int64_t p) { return tree_reduce(x, p, merged).value; };
    const std::vector<State> reversed(x.rbegin(), x.rend());
    Forest<float> forest(1, 4);
    for (std::size_t a = 0; a < N; ++a) {
      std::copy(x[a].begin(), x[a].end(), forest.slot());
      forest.push({0, std::int64_t(a)});
    }
    const std::span<const float> root = forest.fold();

    const std::vector<std::pair<const char*, State>> trees = {
        {"chain", workers(1)},
        {"chain, from the right", tree_reduce(std::span<const State>(reversed), 1, merged).value},
        {"4 chains, then pairs", workers(4)},
        {"7 chains, then pairs", workers(7)},
        {"halves of halves", halves(x)},
        {"pairs of pairs", workers(std::int64_t(N))},
        {"canonical", State(root.begin(), root.end())}};
    std::vector<State> different;
    letters.push_back("");
    std::printf("N = %zu\n", N);
    for (const auto& [name, state] : trees) {
      const auto found = std::find(different.begin(), different.end(), state);
      letters.back() += char('A' + (found - different.begin()));
      std::printf("  %-22s  D = %a  n_0 = %-14a  %c\n", name, state[kSum], state[kValues], letters.back().back());
      if (found == different.end()) different.push_back(state);
    }
  }
  for (const std::string& row : letters) {
    expect(row[5] == row[6], "pairs of pairs is the canonical tree");
  }
  expect(letters[0][4] != letters[0][6], "halves of 1000 are cut elsewhere");
  expect(letters[1][4] == letters[1][6], "halves of a power of two are the canonical tree");
  for (const std::string& row : letters) {
    expect(row.substr(0, 4) == "ABCD" && row[6] > 'D', "chains have bits of their own");
  }

  // %% [markdown]
  // Pairs of neighbours, pairs of pairs and so on are the canonical tree, because a partner that is
  // missing is the empty set. Halves look like the same idea, and are for a power of two; but where
  // they cut depends on $N$, so one key more moves every bracket. In the canonical tree a key more
  // changes the nodes above it, and no other.
  //
  // ## One shift per leaf
  //
  // The CPU decode does not merge single keys. It brings the 64 weights of a leaf to the largest
  // shift at once, and adds up weights and products as pairs of pairs. The chapter on the tree,
  // @ref tree_leaf, proves that this changes no bit as long as products stay normal. Both ways, on a
  // thousand leaves of each kind:

  // %%
  const auto pairs_of_pairs = [](std::vector<float> x) {
    for (std::size_t n = x.size() / 2; n > 0; n /= 2) {
      for (std::size_t i = 0; i < n; ++i) x[i] = x[2 * i] + x[2 * i + 1];
    }
    return x[0];
  };
  const auto one_shift = [&](const std::vector<float>& s, const std::vector<float>& v) {
    float e = key_shift(s[0]);
    for (const float s_a : s) e = std::max(e, key_shift(s_a));
    std::vector<float> w(s.size()), product(s.size());
    for (std::size_t a = 0; a < s.size(); ++a) w[a] = key_weight(s[a]) * pow2(key_shift(s[a]) - e);
    State leaf{e, pairs_of_pairs(w)};
    for (std::size_t j = 0; j < 4; ++j) {
      for (std::size_t a = 0; a < s.size(); ++a) product[a] = w[a] * v[4 * a + j];
      leaf.push_back(pairs_of_pairs(product));
    }
    return leaf;
  };
  const auto key_by_key = [](const std::vector<float>& s, const std::vector<float>& v) {
    Forest<float> forest(1, 4);
    for (std::size_t a = 0; a < s.size(); ++a) {
      set_key(forest.slot(), s[a], &v[4 * a], 4);
      forest.push({0, std::int64_t(a)});
    }
    const std::span<const float> root = forest.fold();
    return State(root.begin(), root.end());
  };

  std::mt19937 of_leaves(64);
  const auto n_differ = [&](float score_scale, float value_scale) {
    int n = 0;
    for (int i = 0; i < 1000; ++i) {
      std::vector<float> s = normal(of_leaves, 64), v = normal(of_leaves, 4 * 64);
      for (float& s_a : s) s_a *= score_scale;
      for (float& v_aj : v) v_aj *= value_scale;
      n += one_shift(s, v) != key_by_key(s, v);
    }
    std::printf("scores x %-3g  values x %-12g  %4d leaves differ\n", score_scale, value_scale, n);
    return n;
  };
  for (const float score_scale : {1.0f, 10.0f, 100.0f}) {
    expect(n_differ(score_scale, 1) == 0, "one shift per leaf has the bits of the tree of single keys");
  }
  expect(n_differ(10, 0x1p-124f) > 900, "a subnormal product is rounded at one shift or at another");

  // %% [markdown]
  // With values near the end of the normal numbers most leaves differ: key by key a product is
  // rounded first at its own shift, where it is still normal. The other exception is a key more than
  // 126 binary orders below the largest. One shift gives it the weight 0. Key by key it may arrive
  // in two steps of 70, and shows if its value is huge and the others are 0:

  // %%
  std::vector<float> far(64, -200), huge(4 * 64, 0);
  far[0] = -140, far[1] = -70, far[2] = 0, huge[0] = 0x1p100f;
  std::printf("key by key n_0 = %g, one shift n_0 = %g\n", key_by_key(far, huge)[kValues], one_shift(far, huge)[kValues]);
  expect(key_by_key(far, huge)[kValues] == 0x1p-40f && one_shift(far, huge)[kValues] == 0, "2^100 2^-70 2^-70");

  // %% [markdown]
  // ## A chain that stands still
  //
  // Rounding need not be small. $2^{25}$ keys of equal score; the first half has the value 1, the
  // second 0; attention is $\frac12$. In a chain the float $D$ grows to $2^{24}$, and there $D + 1$
  // rounds to $D$: the second half is not seen.

  // %%
  const std::int64_t n_many = 1 << 25;
  State chain(3), key(3);
  set_empty(chain.data(), 1);
  Forest<float> tree(1, 1);
  for (std::int64_t a = 0; a < n_many; ++a) {
    const float v = a < n_many / 2 ? 1 : 0;
    set_key(key.data(), 0.0f, &v, 1);
    merge(chain.data(), key.data(), 1);
    std::copy(key.begin(), key.end(), tree.slot());
    tree.push({0, a});
  }
  const std::span<const float> root = tree.fold();
  std::printf("chain:      D = %.0f, n = %.0f, z = %g\n", chain[kSum], chain[kValues], chain[kValues] / chain[kSum]);
  std::printf("canonical:  D = %.0f, n = %.0f, z = %g\n", root[kSum], root[kValues], root[kValues] / root[kSum]);
  expect(chain[kValues] / chain[kSum] == 1, "the chain has lost half of the keys");
  expect(root[kSum] == float(n_many) && root[kValues] / root[kSum] == 0.5f, "the tree has lost none");

  // %% [markdown]
  // ## Error against length
  //
  // Now the usual case: one query, normal scores, values between 0 and 1 (so that the sums do not
  // cancel), in float. Here is the chain, and the canonical tree of `decode_shard()`.

  // %%
  const std::int64_t d_v = 16;
  const AttentionOptions options{.scale = 1.0};
  const float one = 1;  // keys of one component: the query is 1, the scores are the keys
  const TensorView query = TensorView::dense(&one, DType::F32, {1, 1, 1, 1});

  const auto in_chain = [&](const std::vector<float>& k, const std::vector<float>& v) {
    State state(std::size_t(state_size(d_v))), next = state;
    set_empty(state.data(), d_v);
    for (std::size_t a = 0; a < k.size(); ++a) {
      set_key(next.data(), float(kLog2E) * k[a], v.data() + a * std::size_t(d_v), d_v);
      merge(state.data(), next.data(), d_v);
    }
    return finish_rows(state, 1, d_v).out;
  };
  const auto in_tree = [&](const Shard& shard) {
    const std::vector<std::int64_t> lengths{shard.end()};
    return finish_rows(decode_shard(query, shard, lengths, *options.scale).fold(), 1, d_v).out;
  };

  // %% [markdown]
  // The oracle computes in double. Errors are in units of $u \sum_a w_a |v_a|$, which is $u z$ for
  // these values, the largest of sixteen components. Beside them the bound of `error_bound()`: for
  // the chain with $n_a = N$ additions behind a weight, for the tree with
  // $\lceil \log_2 N \rceil + 2$.

  // %%
  std::string points;
  double chain_error = 0, tree_error = 0;
  std::printf("      N     chain   bound      tree   bound\n");
  for (int level = 2; level <= 17; ++level) {
    const std::int64_t N = std::int64_t{1} << level;
    const std::vector<float> k = normal(random, std::size_t(N));
    std::vector<float> v(std::size_t(N * d_v));
    for (float& v_aj : v) v_aj = float(random() >> 8) * 0x1p-24f;
    const Shard shard{TensorView::dense(k.data(), DType::F32, {1, 1, N, 1}),
                      TensorView::dense(v.data(), DType::F32, {1, 1, N, d_v})};

    // What is exact, and the largest of some errors.
    const std::vector<double> z = attention(query, shard.k, shard.v, options).out;
    const auto largest = [&z](auto error_of) {
      double worst = 0;
      for (std::size_t j = 0; j < z.size(); ++j) worst = std::max(worst, error_of(j) / z[j]);
      return worst / kU;
    };
    const auto error = [&](const std::vector<float>& got) {
      return largest([&](std::size_t j) { return std::abs(got[j] - z[j]); });
    };
    const auto bound = [&](const ErrorModel& model) {
      const ErrorBound of = error_bound(query, shard.k, shard.v, options, model);
      return largest([&of](std::size_t j) { return of.out[j]; });
    };

    // Both ways to add, and both bounds.
    ErrorModel chain_model = tree_decode_model(N);
    chain_model.n_additions = double(N);
    const double chain_bound = bound(chain_model), tree_bound = bound(tree_decode_model(N));
    chain_error = error(in_chain(k, v)), tree_error = error(in_tree(shard));
    expect(chain_error < chain_bound && tree_error < tree_bound, "both are below their bounds");
    if (level % 3 == 2) {
      std::printf(" %6td  %8.2f %7.0f  %8.2f %7.0f\n", N, chain_error, chain_bound, tree_error, tree_bound);
    }
    for (const double number : {double(N), chain_error, chain_bound, tree_error, tree_bound}) {
      points += std::to_string(number) + " ";
    }
    points += "\n";
  }
  expect(chain_error > 50 * tree_error, "at 2^17 keys the tree is far better");
  expect(tree_error < 16, "and within the quick gate that tests use for normal data");

  // %%
  figure("notebook_errors", "$errors << EOD\n" + points + R"(EOD
set logscale x 2
set logscale y 10
set format x '2^{%L}'
set format y '10^{%L}'
set xlabel 'keys N'
set ylabel 'error, units of u Σ w |v|'
set yrange [0.1:1e6]
set key left top
plot $errors using 1:3 with lines dt 2 lw 2 lc rgb '#d9730d' title 'chain, bound', \
     $errors using 1:2 with linespoints pt 7 ps 0.6 lw 2 lc rgb '#d9730d' title 'chain', \
     $errors using 1:5 with lines dt 2 lw 2 lc rgb '#1982d2' title 'canonical tree, bound', \
     $errors using 1:4 with linespoints pt 7 ps 0.6 lw 2 lc rgb '#1982d2' title 'canonical tree')");

  // %% [markdown]
  // ![Error of attention in float against the number of keys, in a chain and in the canonical tree, with their bounds](notebook_errors.svg)
  //
  // The chain's error grows with $N$, somewhat faster than $\sqrt N$: roundings point either way,
  // and many cancel. Its bound grows as $N$, because nothing forbids them to agree, as those of the
  // ones above did. The tree's error does not grow at all that one could see. A bound is there to
  // tell rounding from mistakes: @ref errors.
  //
  // ## Where numbers end
  //
  // Every type of float has an end on both sides. We look for them by bisection: where
  // $\mathrm e^x$, rounded to the type, becomes infinite, and where it becomes 0; and up to where
  // one can count in steps of one.

  // %%
  const auto rounded = [](double x, DType type) {
    if (type == DType::F64) return x;
    const float single = static_cast<float>(x);
    std::byte stored[sizeof(float)];
    float back;
    store(&single, type, 1, stored);
    load(stored, type, 1, &back);
    return double(back);
  };
  const auto bisect = [](double still, double no_more, auto holds) {
    for (int i = 0; i < 60; ++i) {
      const double middle = (still + no_more) / 2;
      (holds(middle) ? still : no_more) = middle;
    }
    return still;
  };
  const DType types[] = {DType::F16, DType::BF16, DType::F32, DType::F64};
  std::printf("            u     exp(x) = inf   exp(x) = 0   x + 1 = x\n");
  std::vector<double> ends;
  for (const DType type : types) {
    const auto weight = [&](double x) { return rounded(std::exp(x), type); };
    const double above = bisect(0, 1000, [&](double x) { return weight(x) < kInf; });
    const double below = bisect(0, -1000, [&](double x) { return weight(x) > 0; });
    double count = 1;
    while (rounded(count + 1, type) > count) count *= 2;
    std::printf("  %-4s  2^-%-3.0f   above %7.2f   below %7.2f   from 2^%.0f\n", name_of(type).data(),
                -std::log2(unit_roundoff(type)), above, below, std::log2(count));
    ends.push_back(above);
    expect(count * unit_roundoff(type) == 1, "counting ends at 1/u");
  }
  const auto near = [](double x, double y) { return std::abs(x - y) < 0.01; };
  expect(near(ends[0], 11.09) && near(ends[1], 88.72) && near(ends[2], 88.72) && near(ends[3], 709.78),
         "the limits of the chapter on safe softmax");

  // %% [markdown]
  // A score of 12 is nothing unusual, and in F16 it has no exponential. BF16 reaches as far as F32,
  // but cannot count beyond 256: that is why sums are accumulated in F32 whatever the keys are
  // stored in.
  //
  // ## Where the gradient dies
  //
  // Two keys with exponents $x$ and $x - 1$, values 1 and 0. The gradient of the energy at
  // $\zeta = 0$ is $1 / (1 + \mathrm e^{-1}) = 0.731$ wherever $x$ is. We compute it plainly,
  // $n / D$ with every number rounded to the type, and with the shift of eq. (38), which turns the
  // exponents into 0 and $-1$.

  // %%
  const auto gradient = [&](double x, double shift, DType type) {
    const double first = rounded(std::exp(rounded(x - shift, type)), type);
    const double second = rounded(std::exp(rounded(x - 1 - shift, type)), type);
    return rounded(first / rounded(first + second, type), type);
  };
  const double exact = 1 / (1 + std::exp(-1.0));
  std::printf("       x      F16     BF16      F32      F64   shifted, F16\n");
  for (const double x : {-800., -740., -104., -90., -17., -14., 0., 10., 12., 80., 90., 700., 720.}) {
    std::printf("  %6g", x);
    for (const DType type : types) std::printf("  %7.4f", std::abs(gradient(x, 0, type)));
    std::printf("   %12.4f\n", gradient(x, x, DType::F16));
    for (const DType type : types) {
      expect(std::abs(gradient(x, x, type) - exact) < 3 * unit_roundoff(type), "the shifted one is right everywhere");
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    expect(std::isnan(gradient(ends[i] + 1.1, 0, types[i])), "inf / inf");
    expect(gradient(ends[i] - 0.1, 0, types[i]) == 0, "n / inf: a number, and a wrong one");
    expect(std::abs(gradient(ends[i] - 1.5, 0, types[i]) - exact) < 0.01, "before it was fine");
  }

  // %% [markdown]
  // On the right it dies at once, as $\infty / \infty$; just before, the sum $D$ alone overflows,
  // and $n / \infty$ is 0: not even a NaN. On the left it fades, because numbers below the normal
  // ones have fewer and fewer digits, and then it is $0 / 0$. The figure shows the largest error in
  // every interval of length one; a line ends where there is no number.

  // %%
  std::string errors;
  for (double x = -125; x <= 100; ++x) {
    errors += std::to_string(x);
    for (const DType type : types) {
      double error = 1e-17;
      for (double part = 0; part < 1; part += 0x1p-5) {
        const double here = std::abs(gradient(x + part, 0, type) - exact);
        error = std::isnan(here) ? here : std::max(error, here);
      }
      errors += ' ';
      errors += std::isnan(error) ? "NaN" : std::to_string(std::log10(error));
    }
    errors += "\n";
  }

  // %%
  figure("notebook_gradient_dies", "$errors << EOD\n" + errors + R"(EOD
set xlabel 'larger exponent x'
set ylabel 'log_{10} error of the gradient'
set xrange [-125:100]
set yrange [-17.5:1]
set key outside top center horizontal
plot $errors using 1:2 with lines lw 2 lc rgb '#d9730d' title 'F16', \
     $errors using 1:3 with lines lw 2 lc rgb '#2d9d5a' title 'BF16', \
     $errors using 1:4 with lines lw 2 lc rgb '#1982d2' title 'F32', \
     $errors using 1:5 with lines lw 2 lc rgb '#777777' title 'F64')");

  // %% [markdown]
  // ![Error of the plain gradient against the larger exponent, in four types](notebook_gradient_dies.svg)
  //
  // ## A shift that no gradient sees
  //
  // Eq. (35) to eq. (38) say that *any* shift will do: $F(\zeta) = m + F'(\zeta)$, eq. (shift), and
  // the slope of $F'$ is that of $F$. Here are exponents near 1000, out of reach of a plain sum, and
  // several shifts: the largest exponent, a power of two above it as in the state, one that is 300
  // too large, one that is 300 too small, and one that moves with $\zeta$.

  // %%
  const auto draw = [&random](Eigen::Index rows, Eigen::Index columns) -> Matrix {
    std::normal_distribution<double> number;
    return Matrix::NullaryExpr(rows, columns, [&] { return number(random); });
  };
  Vector q = draw(8, 1);
  Matrix K = draw(40, 8), V = draw(40, 1);
  q(0) = 25, K.col(0).setConstant(40);  // raises every exponent by 1000
  const auto r = [&](double zeta) { return exponents(q, K, V, Vector{{zeta}}); };
  const double m = r(0).maxCoeff();
  const auto shifted_energy = [&](double zeta, double shift) {
    double sum = 0;
    for (const double r_a : r(zeta)) sum += safe_weight(r_a, shift);
    return std::log(sum);  // F' of eq. (36)
  };
  const Vector zero = Vector::Zero(1);
  const double Z = partition_function(q, K, V, zero);
  const double F = energy(q, K, V, zero), slope = energy_gradient(q, K, V, zero)(0);
  std::printf("plain:               Z = %g, so F = %g\n", Z, std::log(Z));
  std::printf("library:             F = %.6f   dF = %.6f\n\n", F, slope);
  const double h = 1e-4;
  const auto row = [&](const char* what, double m_0, double F_shifted, double dF) {
    std::printf("%-20s m = %8.3f   F' = %9.4f   m + F' = %.6f   dF = %.6f\n", what, m_0, F_shifted, m_0 + F_shifted, dF);
    expect(std::abs(m_0 + F_shifted - F) < 1e-9, "the energy is short of the shift, and of nothing else");
    expect(std::abs(dF - slope) < 1e-6, "the slope does not see the shift");
  };
  const auto fixed = [&](const char* what, double shift) {
    const double dF = (shifted_energy(h, shift) - shifted_energy(-h, shift)) / (2 * h);
    row(what, shift, shifted_energy(0, shift), dF);
  };
  fixed("the largest", m);
  fixed("a power of two", kLn2 * std::ceil(kLog2E * m));
  fixed("300 too large", m + 300);
  fixed("300 too small", m - 300);
  const auto moving = [&](double zeta) { return r(zeta).maxCoeff(); };
  const double d_moving = (moving(h) - moving(-h)) / (2 * h);
  const double d_rest = (shifted_energy(h, moving(h)) - shifted_energy(-h, moving(-h))) / (2 * h);
  std::printf("\nmoving with zeta: dm = %.6f, dF' = %.6f\n", d_moving, d_rest);
  row("the largest, moving", m, shifted_energy(0, m), d_moving + d_rest);

  // %% [markdown]
  // The last shift has a slope of its own, and $F'$ is short of just as much. Is clamping a
  // cure as well? Two exponents of 200 and 100, in F32, cut off at 80:

  // %%
  const double clamped = 1 / (1 + std::exp(std::min(100., 80.) - std::min(200., 80.)));
  std::printf("clamped: the larger key weighs %g, exactly 1 - %.1e\n", clamped, std::exp(-100.0));
  expect(clamped == 0.5, "a number again, and the wrong one");
}

// %% [markdown]
// ## Questions
//
// 1. With values of both signs the errors of the chain come out a hundred times smaller than with
//    values between 0 and 1. Try it. Which of the two sums, $D$ or $n$, has the larger error, and
//    what is it multiplied with in $n / D$?
// 2. A chain in F32 stands still at $2^{24}$ equal keys. A canonical tree over BF16 sums: when
//    would it?
// 3. The power of two in the last table is above the largest exponent. By how much at most, and why
//    does that not matter?
// 4. In the figure of dying gradients BF16 and F32 die in the same place on the right, and not on
//    the left. Why?
