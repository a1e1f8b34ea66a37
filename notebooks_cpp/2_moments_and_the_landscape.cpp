// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 2

// %% [markdown]
// # Notebook 2: Moments and the landscape {#notebook_moments}
//
// Attention is the first derivative of the energy at $\zeta = 0$. This notebook looks at the higher
// derivatives. Let $v$ be a random vector that equals $v_a$ with probability
// $P_a \propto \mathrm e^{q \cdot k_a + \zeta \cdot v_a}$. Each derivative of the partition
// function $Z(\zeta) = \sum_a \mathrm e^{q \cdot k_a + \zeta \cdot v_a}$, eq. (19), brings down one
// more component of $v$. By eq. (20)
//
// $$
// \frac 1 Z \frac{\partial^n Z}{\partial \zeta_{A_1} \cdots \partial \zeta_{A_n}}
// = \langle v_{A_1} \cdots v_{A_n} \rangle ,
// $$
//
// so $Z(\zeta) / Z(0)$ generates the moments. Its logarithm, the energy $F = \log Z$ of eq. (24),
// generates the *cumulants*. With $\delta v = v - \langle v \rangle$ the first three are,
// as @ref moments_chapter derives,
//
// $$
// \frac{\partial F}{\partial \zeta_A} = \langle v_A \rangle , \quad
// \frac{\partial^2 F}{\partial \zeta_A \partial \zeta_B}
// = \langle \delta v_A \, \delta v_B \rangle , \quad
// \frac{\partial^3 F}{\partial \zeta_A \partial \zeta_B \partial \zeta_C}
// = \langle \delta v_A \, \delta v_B \, \delta v_C \rangle .
// $$
//
// **What you need:** @ref notebook_gradient, and mean and covariance of a random vector. **What you
// get:** these formulas checked by differences, a picture of $F$, the covariance of the values from
// the same reduction that computes attention, and the cost of a gradient.

// %%
#include "notebooks_cpp/notebook.hpp"
#include "reference/energy/energy.hpp"
#include "reference/energy/moments.hpp"
#include "reference/energy/op_count.hpp"
#include "reference/energy/reverse_mode.hpp"
#include "reference/oracle/moment_state.hpp"
#include "reference/state/forest.hpp"

#include <Eigen/Eigenvalues>
#include <unsupported/Eigen/AutoDiff>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace tree_attn;
using Eigen::Index;
using notebook::expect, notebook::figure, notebook::normal, notebook::row, notebook::same_bits;

/// Components of zeta by which a function is differentiated; they may repeat.
using Components = std::vector<Index>;
using Function = std::function<double(const Vector&)>;

// %% [markdown]
// ## Derivatives of any order, by differences
//
// We apply a central difference once for every component in the list. The truncation error is about
// $h^2$, and rounding costs about $u / h^n$ with $u = 2^{-53}$. Their sum is least near
// $h = u^{1/(n+2)}$, which leaves about six digits for the third derivative.

// %%
double difference(const Function& f, const Vector& at, Components A, double h) {
  if (A.empty()) return f(at);
  const Vector push = h * Vector::Unit(at.size(), A.back());
  A.pop_back();
  return (difference(f, at + push, A, h) - difference(f, at - push, A, h)) / (2 * h);
}

double derivative(const Function& f, const Vector& at, const Components& A) {
  return difference(f, at, A, std::exp2(-53.0 / (static_cast<double>(A.size()) + 2)));
}

int main() {
  // %% [markdown]
  // ## A small problem
  //
  // We take seven keys with values of two components. Five of the values are the corners of a
  // polygon; values 4 and 6 lie inside it. The polygon is the convex hull of the values, so every
  // weighted mean of them lies in it.

  // %%
  std::mt19937 random(2);
  const Index N = 7, d_h = 4, d_v = 2;
  const Vector q = 2 * normal(random, d_h, 1);
  const Matrix K = normal(random, N, d_h);
  const Matrix V{{-2.0, -0.6}, {-0.8, 1.7}, {1.2, 1.4}, {2.1, -0.2}, {0.3, 0.4}, {0.6, -1.6}, {-0.6, -0.3}};
  const Vector zero = Vector::Zero(d_v), s = K * q, P = attention_probabilities(q, K);
  std::printf("  a      P_a     v_a\n");
  for (Index a = 0; a < N; ++a) std::printf("  %td  %7.4f  (%4.1f, %4.1f)\n", a, P(a), V(a, 0), V(a, 1));

  // %% [markdown]
  // ## Z generates the moments
  //
  // The left column has derivatives of $Z$, by differences, divided by $Z$. The right column has
  // the sums $\sum_a P_a v_{a A_1} \cdots v_{a A_n}$ of eq. (20).
  //
  // **Predict:** keys 0, 1 and 6 have 60 % of the weight, and their values lie on the left. Which sign
  // has the first moment of component 0?

  // %%
  const Function Z = [&](const Vector& zeta) { return partition_function(q, K, V, zeta); };
  std::printf("  A       differences of Z     moment\n");
  for (const Components& A : {Components{0}, {1}, {0, 0}, {0, 1}, {1, 1}, {0, 0, 1}, {1, 1, 1}}) {
    const double by_differences = derivative(Z, zero, A) / Z(zero);
    const double closed = moment(q, K, V, zero, A);
    std::string name;
    for (const Index j : A) name += std::to_string(j) + " ";
    std::printf("  %-6s  %16.6f  %9.6f\n", name.c_str(), by_differences, closed);
    expect(std::abs(by_differences - closed) < 1e-5, "derivatives of Z over Z are moments");
  }

  // %% [markdown]
  // ## F generates the cumulants
  //
  // The same differences, applied to $F$, give mean, covariance and third cumulant. This holds at
  // any $\zeta$, with the weights $\mathrm{softmax}(q \cdot k_a + \zeta \cdot v_a)$.
  //
  // **Predict:** the first moments equal the first cumulants. Which rows of the table below differ
  // from those above?

  // %%
  const Function F = [&](const Vector& zeta) { return energy(q, K, V, zeta); };
  const Vector tilted{{0.7, -0.4}};
  std::printf("                          zeta = 0                zeta = (0.7, -0.4)\n");
  std::printf("  A       differences of F  cumulant   differences of F  cumulant\n");
  for (const Components& A : {Components{0}, {1}, {0, 0}, {0, 1}, {1, 1}, {0, 0, 1}, {1, 1, 1}}) {
    std::string line;
    for (const Index j : A) line += std::to_string(j) + " ";
    line.resize(8, ' ');
    for (const Vector& zeta : {zero, tilted}) {
      double closed = energy_gradient(q, K, V, zeta)(A[0]);
      if (A.size() == 2) closed = covariance(q, K, V, zeta)(A[0], A[1]);
      if (A.size() == 3) closed = third_cumulant(q, K, V, zeta)[A[0]](A[1], A[2]);
      const double by_differences = derivative(F, zeta, A);
      char cell[64];
      std::snprintf(cell, sizeof cell, "%16.6f  %8.6f   ", by_differences, closed);
      line += cell;
      expect(std::abs(by_differences - closed) < 1e-5, "derivatives of F are cumulants");
    }
    std::printf("  %s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }

  // %% [markdown]
  // ## The fourth cumulant is not a central moment
  //
  // Up to third order a cumulant is a central moment. The fourth cumulant is
  // $\partial^4 F = \langle \delta v^4 \rangle - 3 \langle \delta v^2 \rangle^2$. It is zero for a
  // Gaussian, and negative if the values sit at two ends. We take component 0.
  //
  // **Predict:** the values of component 0 lie between $-2$ and $2.1$. What is the sign?

  // %%
  const Vector dv = V.col(0).array() - P.dot(V.col(0));
  const double central_2 = P.dot(dv.cwiseAbs2()), central_4 = P.dot(dv.cwiseAbs2().cwiseAbs2());
  const double kappa_4 = derivative(F, zero, {0, 0, 0, 0});
  std::printf("fourth derivative of F         %8.4f\n", kappa_4);
  std::printf("<dv^4>                         %8.4f\n", central_4);
  std::printf("<dv^4> - 3 <dv^2>^2            %8.4f\n", central_4 - 3 * central_2 * central_2);
  expect(std::abs(kappa_4 - (central_4 - 3 * central_2 * central_2)) < 1e-3, "the fourth cumulant");
  expect(std::abs(kappa_4 - central_4) > 1, "the fourth cumulant is not a central moment");

  // %% [markdown]
  // ## The landscape
  //
  // The Hessian of $F$ is a covariance matrix, so its eigenvalues are not negative and $F$ is
  // convex. The gradient is a weighted mean of values, so it stays in their convex hull. Far from
  // the origin one value has nearly all the weight, and the scores matter little:
  // $F(\zeta) - \max_a \zeta \cdot v_a$ stays between the score of that key and $F(0)$. The graph
  // of $F$ then looks like a polyhedral funnel, with one face for each corner of the hull.
  //
  // **Predict:** along $\zeta = t \, (0.8, 0.6)$, which value does the gradient approach? Where do
  // the eigenvalues go?

  // %%
  std::printf("   zeta            F      gradient           eigenvalues of the Hessian\n");
  for (const double t : {0.0, 1.0, 4.0, 16.0}) {
    const Vector zeta = t * Vector{{0.8, 0.6}}, slope = energy_gradient(q, K, V, zeta);
    const Vector lambda = Eigen::SelfAdjointEigenSolver<Matrix>(covariance(q, K, V, zeta)).eigenvalues();
    std::printf("  (%4.1f, %3.1f)  %7.3f  (%7.4f, %7.4f)   %.2e  %.2e\n", zeta(0), zeta(1), F(zeta), slope(0), slope(1),
                std::max(0.0, lambda(0)), lambda(1));
    expect(lambda(0) > -1e-12, "the energy is convex");
  }
  Index winner;
  const Vector far = 100 * Vector{{0.8, 0.6}};
  const double height = (V * far).maxCoeff(&winner), above = F(far) - height;
  expect((energy_gradient(q, K, V, far) - V.row(winner).transpose()).norm() < 1e-6, "one value has all the weight");
  expect(above > s(winner) - 1e-9 && above < F(zero) + 1e-9, "far out F follows one value");

  // %% [markdown]
  // The gradient vanishes where the tilted mean is the origin, and there $F$ has its minimum. The
  // minimum exists because the origin lies inside the hull. We find it by Newton's method, with the
  // covariance as the Hessian.

  // %%
  Vector lowest = zero;
  for (int i = 0; i < 20; ++i) lowest -= covariance(q, K, V, lowest).ldlt().solve(energy_gradient(q, K, V, lowest));
  const Vector attention = energy_gradient(q, K, V, zero);
  std::printf("attention, the gradient at 0:  (%.4f, %.4f)\n", attention(0), attention(1));
  std::printf("minimum at zeta =              (%.4f, %.4f), F = %.4f; F(0) = %.4f\n", lowest(0), lowest(1), F(lowest),
              F(zero));
  expect(energy_gradient(q, K, V, lowest).norm() < 1e-12, "the gradient vanishes at the minimum");
  expect(F(lowest) <= F(zero), "no point is lower than the minimum");

  // %% Drawing
  // Heights on a grid, and arrows along the gradient.
  std::string grid, arrows;
  for (double x = -3; x < 3.01; x += 0.1, grid += "\n") {
    for (double y = -3; y < 3.01; y += 0.1) grid += row({x, y, F(Vector{{x, y}})});
  }
  for (double x = -2.8; x < 3; x += 0.56) {
    for (double y = -2.8; y < 3; y += 0.56) {
      const Vector slope = 0.2 * energy_gradient(q, K, V, Vector{{x, y}});
      arrows += row({x, y, slope(0), slope(1)});
    }
  }
  const std::string marks = row({attention(0), attention(1), lowest(0), lowest(1)});
  const std::string data = "$F << EOD\n" + grid + "EOD\n$slope << EOD\n" + arrows + "EOD\n$marks << EOD\n" + marks;
  figure("notebook_landscape", data + R"(EOD
set contour base
set cntrparam cubicspline levels incremental 1,0.5,18
unset surface
set table $level
splot $F using 1:2:3
unset table
set palette defined (0 '#1982d2', 1 '#8ac7a4', 2 '#d9730d')
set size ratio -1
set xrange [-3:3]
set yrange [-3:3]
set xlabel 'ζ_0'
set ylabel 'ζ_1'
set cblabel 'F(ζ)'
set key outside top center horizontal
plot $level using 1:2:3 with lines lw 1.2 lc palette notitle, \
     $slope using 1:2:3:4 with vectors filled size 0.1,20 lc rgb '#888888' title 'gradient / 5', \
     $marks using (0):(0):1:2 with vectors filled size 0.12,20 lw 3 lc rgb '#c2185b' \
       title 'attention', \
     $marks using 3:4 with points pt 2 ps 1.2 lw 2 lc rgb '#000000' title 'minimum')",
         600, 560);

  // %% [markdown]
  // ![Contours of the energy F over the source, with its gradient; at the origin the gradient is attention](notebook_landscape.svg)
  //
  // ## The Taylor series and its remainder
  //
  // Eq. (21) reconstructs $Z(\zeta) / Z(0)$ from the moments at 0. With $x = \zeta \cdot v$ its
  // terms are $\langle x^n \rangle / n!$. Lagrange's form of the remainder after order $n$ gives
  // the bound
  //
  // $$
  // \frac{1}{(n+1)!} \left\langle |x|^{n+1} \max(1, \mathrm e^x) \right\rangle ,
  // $$
  //
  // which tends to 0 for every $\zeta$: the series converges everywhere.
  //
  // **Predict:** the second $\zeta$ is six times as long as the first. How many more terms does it
  // need?

  // %%
  std::printf("           zeta = (0.7, -0.4)          zeta = (4.2, -2.4)\n");
  std::printf("  order    error      bound            error      bound\n");
  for (const int order : {0, 1, 2, 4, 8, 16, 32, 48}) {
    std::printf("  %5d  ", order);
    for (const double t : {1.0, 6.0}) {
      const Vector zeta = t * tilted;
      const double exact = std::exp(F(zeta) - F(zero));
      const TaylorSum sum = moment_series(q, K, V, zeta, order);
      const double error = std::abs(sum.value - exact), rounding = 1e-14 * exact;
      // An error below the rounding of the sum itself has no meaning.
      if (error < rounding)
        std::printf("  rounding   %.2e", sum.remainder);
      else
        std::printf("  %.2e   %.2e", error, sum.remainder);
      std::printf("%s", t < 2 ? "       " : "\n");
      expect(error <= sum.remainder + rounding, "the remainder bounds the error");
      expect(order < 48 || error < 1e-10 * exact, "the series converges");
    }
  }

  // %% [markdown]
  // ## The same moments from one reduction
  //
  // Tree decoding computes $\sum_a w_a v_a$ whatever the vectors $v_a$ are. We append the products
  // of components to each value, $v \to (v,\, v_0^2,\, v_0 v_1,\, v_1^2)$, and the key as well. The
  // same merge and the same tree then also return the covariance, and the entropy
  // $H = -\langle \log P \rangle = \mathrm{lse} - q \cdot \langle k \rangle$
  // (`reference/oracle/moment_state.hpp`). Below, the seven keys lie on three ranks.
  //
  // **Predict:** how many elements has the enlarged state?

  // %%
  const MomentLayout layout{d_v, Products::Triangle, d_h};
  const auto shard = [&](Index begin, Index end) {
    Forest<double> forest(1, layout.size());
    for (Index a = begin; a < end; ++a) {
      const Vector v = V.row(a).transpose(), k = K.row(a).transpose();
      Vector enlarged(layout.size());
      enlarge<double>(layout, v.data(), k.data(), enlarged.data());
      set_key(forest.next(), kLog2E * s(a), enlarged.data(), layout.size());
      forest.push({0, a});
    }
    return forest;
  };
  Forest<double> ranks = shard(0, 3);
  for (const Forest<double>& right : {shard(3, 4), shard(4, N)}) ranks.append(right.subtrees(), right.states().data());
  const std::span<const double> state = ranks.fold();
  std::printf("elements of a state: %td, for attention alone: %td\n", static_cast<std::ptrdiff_t>(state.size()), 2 + d_v);

  // %%
  const Matrix C = read_covariance(layout, state.data()), exact = covariance(q, K, V, zero);
  const double H = read_entropy(layout, state.data(), std::span(q.data(), d_h));
  std::printf("               one reduction    definition\n");
  for (Index j = 0; j < d_v; ++j)
    std::printf("mean %td        %13.10f %13.10f\n", j, read_mean(state.data(), j), attention(j));
  for (const auto& [i, j] : {std::pair<Index, Index>{0, 0}, {0, 1}, {1, 1}})
    std::printf("covariance %td%td %13.10f %13.10f\n", i, j, C(i, j), exact(i, j));
  std::printf("entropy       %13.10f %13.10f\n", H, entropy(q, K, V, zero));
  expect((C - exact).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-14, "covariance from one reduction");
  expect(std::abs(H - entropy(q, K, V, zero)) < 1e-14, "entropy from one reduction");

  // %% [markdown]
  // One rank alone gives the same bits. The attention part of the enlarged state also has the bits
  // of a plain state, because a merge treats every component separately.

  // %%
  Forest<double> one_rank = shard(0, N), plain(1, d_v);
  for (Index a = 0; a < N; ++a) {
    const Vector v = V.row(a).transpose();
    set_key(plain.next(), kLog2E * s(a), v.data(), d_v);
    plain.push({0, a});
  }
  const bool ranks_agree = same_bits(one_rank.fold(), state);
  const bool untouched = same_bits(plain.fold(), state.first(2 + d_v));
  std::printf("three ranks and one: %s bits; with and without products: %s bits\n", ranks_agree ? "same" : "different",
              untouched ? "same" : "different");
  expect(ranks_agree && untouched, "the enlarged state keeps its bits");

  // %% [markdown]
  // ## What a gradient costs
  //
  // Section 5.2 of the paper computes attention as the gradient of an energy because reverse mode
  // returns a gradient for a small multiple of the cost of the energy, whatever the length of
  // $\zeta$. Forward mode propagates $d_v$ derivatives instead. We count operations rather than
  // time: `energy()` runs with a number type that counts its operations.

  // %%
  struct Cost {
    double by_hand, reverse, forward;  // in energies
  };
  const auto gradient_cost = [&random](Index n, Index components) {
    const MatrixOf<Counted> k = normal(random, n, 16).cast<Counted>();
    const MatrixOf<Counted> v = normal(random, n, components).cast<Counted>();
    const VectorOf<Counted> query = normal(random, 16, 1).cast<Counted>();
    const VectorOf<Counted> zeta = VectorOf<Counted>::Zero(components);
    const auto total = [](auto f) { return static_cast<double>(count_operations(f)); };
    const double once = total([&] { energy<Counted>(query, k, v, zeta); });

    using Taped = Reverse<Counted>;
    const double reverse = total([&] {
      const VectorOf<Taped> taped = Taped::variables(zeta);
      const Taped value = energy<Taped>(query.cast<Taped>(), k.cast<Taped>(), v.cast<Taped>(), taped);
      Taped::gradient(value, components);
    });

    using Forward = Eigen::AutoDiffScalar<VectorOf<Counted>>;
    const auto constant = [components](Counted x) { return Forward(x, VectorOf<Counted>::Zero(components)); };
    const double forward = total([&] {
      VectorOf<Forward> seeded(components);
      for (Index j = 0; j < components; ++j) seeded(j) = Forward(zeta(j), components, j);
      energy<Forward>(query.unaryExpr(constant), k.unaryExpr(constant), v.unaryExpr(constant), seeded);
    });
    const double by_hand = total([&] { energy_gradient<Counted>(query, k, v, zeta); });
    return Cost{by_hand / once, reverse / once, forward / once};
  };

  // %% [markdown]
  // We use 32 keys of 16 components. "By hand" is the closed form of eq. (5), which Alg. 2 uses.
  //
  // **Predict:** for $d_v = 128$, how many energies does each of the three methods cost?

  // %%
  std::string points;
  std::printf("  d_v   by hand   reverse   forward    (operations, in energies)\n");
  for (Index n = 1; n <= 128; n *= 2) {
    const Cost cost = gradient_cost(32, n);
    std::printf("  %3td   %7.2f   %7.2f   %7.2f\n", n, cost.by_hand, cost.reverse, cost.forward);
    points += row({static_cast<double>(n), cost.by_hand, cost.reverse, cost.forward});
    expect(cost.reverse < 5 && cost.by_hand < 2, "reverse mode costs a small constant");
    expect(cost.forward > 0.5 * static_cast<double>(n), "forward mode costs about d_v");
  }

  // %% Drawing
  figure("notebook_gradient_cost", "$cost << EOD\n" + points + R"(EOD
set logscale x 2
set logscale y 2
set style line 1 pt 7 ps 0.6 lw 2 lc rgb '#d9730d'
set style line 2 pt 7 ps 0.6 lw 2 lc rgb '#1982d2'
set style line 3 pt 7 ps 0.6 lw 2 lc rgb '#2d9d5a'
set xlabel 'components of a value, d_v'
set ylabel 'operations / those of the energy'
set yrange [0.5:*]
set key left top
plot $cost using 1:4 with linespoints ls 1 title 'forward mode', \
     $cost using 1:3 with linespoints ls 2 title 'reverse mode', \
     $cost using 1:2 with linespoints ls 3 title 'closed form')");
}

// %% [markdown]
// ![Operations of the gradient against those of the energy, as the values grow longer](notebook_gradient_cost.svg)
//
// ## What to take home
//
// 1. $Z(\zeta) / Z(0)$ generates moments, and $F = \log Z$ generates cumulants: mean, covariance,
//    third cumulant.
// 2. $F$ is convex, and its gradient stays in the convex hull of the values.
// 3. Covariance and entropy of the attention weights come from the same reduction as attention,
//    with a longer state.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 2.1`: the variance of the values in one pass.
//
// ## Questions
//
// 1. (Hard.) The series of $Z$ converges for every $\zeta$. The series of $F$ does not: two keys of
//    equal score with values $\pm 1$ have $F = \log (2 \cosh \zeta)$. Where in the complex plane is
//    $F$ singular, and what is the radius of convergence?
//
//    <details><summary>Answer</summary>
//
//    At the zeros of $\cosh$; the nearest are $\zeta = \pm \mathrm i \pi / 2$. The radius is
//    $\pi / 2$.
//
//    </details>
//
// 2. (Easy.) Add the same vector $c$ to all values. Which cumulants change?
//
//    <details><summary>Answer</summary>
//
//    The mean changes by $c$, and no other. $F$ gains the term $\zeta \cdot c$, which is linear, so
//    only the first derivative sees it. The moments above the first do change.
//
//    </details>
//
// 3. (Medium.) The covariance from the reduction is the difference
//    $\langle v_A v_B \rangle - \langle v_A \rangle \langle v_B \rangle$. For which values does it
//    lose digits, and how would a constant that is subtracted from all values help?
//
//    <details><summary>Answer</summary>
//
//    It loses digits if the mean is much larger than the deviation: the relative error is about
//    $u \, (\mathrm{mean} / \mathrm{deviation})^2$. With a constant $c$ near the values, the products
//    are those of $v - c$, whose mean is small. The covariance does not depend on $c$, see
//    question 2.
//
//    </details>
//
// 4. (Medium.) What happens to the minimum of $F$ if the origin lies outside the hull?
//
//    <details><summary>Answer</summary>
//
//    There is none. Some direction has $\zeta \cdot v_a < 0$ for all keys, and along it
//    $F \to -\infty$.
//
//    </details>
