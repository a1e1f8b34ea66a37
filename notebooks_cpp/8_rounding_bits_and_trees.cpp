// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 8

// %% [markdown]
// # Notebook 8: Rounding, bits and trees {#notebook_rounding}
//
// Attention computes the sums $D = \sum_a \mathrm e^{s_a}$ and $n = \sum_a \mathrm e^{s_a} v_a$.
// This notebook asks three questions about them in floating point. Which bits do they have if only
// the brackets change? How large is the error? And when do the exponentials overflow? Eq. (35)-(38)
// answer the last question with a shift.
//
// **What you need:** @ref notebook_state and @ref notebook_tree. **What you get:** the trees that
// share the bits of the canonical tree, why a leaf of 64 keys may have one shift, the error of a
// chain against that of a tree, and the range of exponents in which a plain gradient works.

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
// Besides the brackets of `tree_reduce()` we use one more tree: divide in the middle, then divide
// each half in the middle.

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
  // We reduce the same keys with seven bracketings, all but the second in the same order. Results
  // with equal bits get the same letter. $D$ and the first of four components of $n$ are printed,
  // first for 1000 keys, then for 1024.
  //
  // **Predict:** which of the seven agree with the canonical tree for 1000 keys, and which for
  // 1024?

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
      std::copy(x[a].begin(), x[a].end(), forest.next());
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
  // Pairs of neighbours, pairs of pairs and so on form the canonical tree, because a missing
  // partner is the empty set. Halves of halves form it only if $N$ is a power of two. Otherwise
  // their cuts depend on $N$, and one key more moves every bracket. In the canonical tree one key
  // more changes only the nodes above it.
  //
  // ## One shift per leaf
  //
  // The CPU decode does not merge single keys. It takes all 64 weights of a leaf relative to the
  // largest shift, and adds weights and products as pairs of pairs. The chapter on the tree,
  // @ref tree_leaf, proves that this gives the same bits if no weight and no product is subnormal.
  // We test both ways on 1000 leaves for each of four ranges of scores and values.
  //
  // **Predict:** the values of the last row are near $2^{-124}$. Do its leaves agree?

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
      set_key(forest.next(), s[a], &v[4 * a], 4);
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
  expect(n_differ(10, 0x1p-124f) > 900, "subnormal products lose digits with one shift per leaf");

  // %% [markdown]
  // In the last row most leaves differ. Merging key by key rounds a product at the shift of its own
  // key, where it is normal; with one shift the product is subnormal and loses digits. The other
  // exception is a key more than 126 binary orders below the largest. With one shift its weight
  // is 0. Key by key it may be scaled in two steps of $2^{-70}$, and it shows if its value is huge
  // and the other values are 0:

  // %%
  std::vector<float> far(64, -200), huge(4 * 64, 0);
  far[0] = -140, far[1] = -70, far[2] = 0, huge[0] = 0x1p100f;
  std::printf("key by key n_0 = %g, one shift n_0 = %g\n", key_by_key(far, huge)[kValues], one_shift(far, huge)[kValues]);
  expect(key_by_key(far, huge)[kValues] == 0x1p-40f && one_shift(far, huge)[kValues] == 0,
         "key by key the product is 2^(100 - 70 - 70)");

  // %% [markdown]
  // ## A chain that stops growing
  //
  // We take $2^{25}$ keys of equal score. The first half has the value 1, the second half the value
  // 0, so attention is $\frac12$.
  //
  // **Predict:** a chain adds 1 to a float $D$ again and again. At which $D$ does it stop growing,
  // and what is $n / D$ in the end?

  // %%
  const std::int64_t n_many = 1 << 25;
  State chain(3), key(3);
  set_empty(chain.data(), 1);
  Forest<float> tree(1, 1);
  for (std::int64_t a = 0; a < n_many; ++a) {
    const float v = a < n_many / 2 ? 1 : 0;
    set_key(key.data(), 0.0f, &v, 1);
    merge(chain.data(), key.data(), 1);
    std::copy(key.begin(), key.end(), tree.next());
    tree.push({0, a});
  }
  const std::span<const float> root = tree.fold();
  std::printf("chain:      D = %.0f, n = %.0f, z = %g\n", chain[kSum], chain[kValues], chain[kValues] / chain[kSum]);
  std::printf("canonical:  D = %.0f, n = %.0f, z = %g\n", root[kSum], root[kValues], root[kValues] / root[kSum]);
  expect(chain[kValues] / chain[kSum] == 1, "the chain has lost half of the keys");
  expect(root[kSum] == float(n_many) && root[kValues] / root[kSum] == 0.5f, "the tree has lost none");

  // %% [markdown]
  // At $2^{24}$ the sum $D + 1$ rounds to $D$, so the chain ignores the second half of the keys.
  //
  // ## Error against length
  //
  // Now the usual case: one query, normal scores, values between 0 and 1 (so that the sums do not
  // cancel), in float. We compare a chain with the canonical tree of `decode_shard()`.

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
  // these values, and we print the largest of sixteen components. Next to them is the bound of
  // `error_bound()`, with $N$ additions per weight for the chain and $\lceil \log_2 N \rceil + 2$
  // for the tree.
  //
  // **Predict:** how does the error of each grow with $N$?

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

    // The exact output, and the largest error in units of u z.
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

    // The errors of both orders, and both bounds.
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
  expect(tree_error < 16, "the tree is within the simple limit that tests use");

  // %% Drawing
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
  // The error of the chain grows somewhat faster than $\sqrt N$: roundings go in both directions
  // and partly cancel. Its bound grows as $N$, because they need not cancel, as the previous
  // section shows. The error of the tree does not grow visibly. Tests use the bound to tell
  // rounding from mistakes: @ref errors.
  //
  // ## The range of each type
  //
  // Every floating-point type has a largest number, a smallest one, and an end of the integers that
  // it can count. We find them by bisection: where $\mathrm e^x$, rounded to the type, becomes
  // infinite, where it becomes 0, and where $x + 1$ rounds to $x$.
  //
  // **Predict:** is $\mathrm e^{12}$ finite in F16? And in BF16?

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
  // A score of 12 is not unusual, and F16 cannot represent its exponential. BF16 has the range of
  // F32 but counts only to 256, which is why sums are accumulated in F32 whatever type the keys
  // have.
  //
  // ## Where a plain gradient fails
  //
  // Take two keys with exponents $x$ and $x - 1$ and values 1 and 0. The gradient of the energy at
  // $\zeta = 0$ is $1 / (1 + \mathrm e^{-1}) = 0.731$ for every $x$. We compute it as a plain
  // quotient $n / D$ with every intermediate result rounded to the type, and then with the shift of
  // eq. (38), which changes the exponents to 0 and $-1$.
  //
  // **Predict:** for which $x$ does each of the four types fail without a shift?

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
      expect(std::abs(gradient(x, x, type) - exact) < 3 * unit_roundoff(type), "the shifted gradient is right everywhere");
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    expect(std::isnan(gradient(ends[i] + 1.1, 0, types[i])), "inf / inf");
    expect(gradient(ends[i] - 0.1, 0, types[i]) == 0, "n / inf: finite and wrong");
    expect(std::abs(gradient(ends[i] - 1.5, 0, types[i]) - exact) < 0.01, "right below the overflow");
  }

  // %% [markdown]
  // For large $x$ the plain gradient fails at once, as $\infty / \infty$. Just below, the sum $D$
  // alone overflows and $n / \infty = 0$, a finite and wrong result. For small $x$ it loses digits
  // gradually, because subnormal numbers have fewer digits, and ends as $0 / 0$. The figure shows
  // the largest error in every interval of length one. A line ends where the result is NaN.

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

  // %% Drawing
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
  // ## The gradient does not depend on the shift
  //
  // By eq. (35) to eq. (38) *any* shift may be used: $F(\zeta) = m + F'(\zeta)$, eq. (shift), and
  // $F'$ has the same gradient as $F$. We take exponents near 1000, where the plain sum overflows,
  // and several shifts: the largest exponent, the next integer in base two as in the state, a shift
  // that is 300 too large, one that is 300 too small, and one that depends on $\zeta$.
  //
  // **Predict:** which columns of the table are the same in all rows?

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
    expect(std::abs(m_0 + F_shifted - F) < 1e-9, "the energy is F' plus the shift");
    expect(std::abs(dF - slope) < 1e-6, "the gradient does not depend on the shift");
  };
  const auto fixed = [&](const char* what, double shift) {
    const double dF = (shifted_energy(h, shift) - shifted_energy(-h, shift)) / (2 * h);
    row(what, shift, shifted_energy(0, shift), dF);
  };
  fixed("the largest", m);
  fixed("integer in base two", kLn2 * std::ceil(kLog2E * m));
  fixed("300 too large", m + 300);
  fixed("300 too small", m - 300);
  const auto moving = [&](double zeta) { return r(zeta).maxCoeff(); };
  const double d_moving = (moving(h) - moving(-h)) / (2 * h);
  const double d_rest = (shifted_energy(h, moving(h)) - shifted_energy(-h, moving(-h))) / (2 * h);
  std::printf("\nmoving with zeta: dm = %.6f, dF' = %.6f\n", d_moving, d_rest);
  row("the largest, moving", m, shifted_energy(0, m), d_moving + d_rest);

  // %% [markdown]
  // The last shift depends on $\zeta$. Its derivative is missing in $F'$ and returns with $m$, so
  // the sum is right again.
  //
  // Clamping the exponents is not a solution. Here are two exponents of 200 and 100, in F32, cut
  // off at 80:

  // %%
  const double clamped = 1 / (1 + std::exp(std::min(100., 80.) - std::min(200., 80.)));
  std::printf("clamped: the larger key weighs %g, exactly 1 - %.1e\n", clamped, std::exp(-100.0));
  expect(clamped == 0.5, "finite and wrong");
}

// %% [markdown]
// ## What to take home
//
// 1. Two trees give the same bits if they have the same brackets. The canonical tree equals pairs
//    of pairs, and halves of halves only for powers of two. One shift for all keys of a leaf changes
//    no bit unless a product is subnormal: a power of two commutes with rounding.
// 2. The error of a chain grows with $N$, up to losing half of the keys. The error of a tree hardly
//    grows.
// 3. Any shift gives the same energy and gradient in exact arithmetic. In floating point a shift
//    near the largest exponent is needed.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 8.1`: a sum whose bits do not depend on the cut.
//
// ## Questions
//
// 1. (Medium.) Draw the values from $[-1, 1)$ instead of $[0, 1)$. The error of the chain at
//    $2^{17}$ keys falls from 173 units to 2. Which of the two sums, $D$ or $n$, has the larger
//    error, and by what is it multiplied in $n / D$?
//
//    <details><summary>Answer</summary>
//
//    $D$: in this run it is off by $28 u$, relatively, and $n$ by $1.9 u \sum_a w_a |v_a|$, because
//    the partial sums of $n$ stay small. The relative error of $D$ is multiplied by $z = n / D$,
//    and with values of both signs no $|z_j|$ is above 0.0105 of the mean of $|v_j|$.
//
//    </details>
//
// 2. (Medium.) In F32 a chain of equal keys stops at $2^{24}$. When does a canonical tree with BF16
//    sums stop?
//
//    <details><summary>Answer</summary>
//
//    Never. A full subtree of $2^k$ equal keys adds two equal sums, which only changes the
//    exponent, so $D = 2^k$ is exact. If $N$ is not a power of two, each merge loses at most half a
//    unit in the last place: with 257 keys the last key is lost, with 258 none is.
//
//    </details>
//
// 3. (Easy.) In the last table the integer shift in base two lies above the largest exponent. By
//    how much at most, and why does that not matter?
//
//    <details><summary>Answer</summary>
//
//    By less than one binary order, $\ln 2 = 0.69$. It multiplies every weight by the same factor
//    between $\frac12$ and 1, so $D \ge \frac12$ and nothing overflows or vanishes.
//
//    </details>
//
// 4. (Easy.) In the figure BF16 and F32 fail at the same exponent on the right, but not on the
//    left. Why?
//
//    <details><summary>Answer</summary>
//
//    Both have 8 bits of exponent and nearly the same largest number, so both overflow at
//    $\mathrm e^{88.72}$. On the left the subnormal numbers decide: F32 has 23 fraction bits and
//    reaches $2^{-149}$, BF16 has 7 and reaches $2^{-133}$. Below half of that, $\mathrm e^x$
//    rounds to 0, at $x = -103.97$ and $-92.88$.
//
//    </details>
