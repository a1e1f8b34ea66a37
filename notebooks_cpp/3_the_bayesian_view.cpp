// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 3

// %% [markdown]
// # Notebook 3: The Bayesian view {#notebook_bayes}
//
// Appendix C.2 of the paper couples the source $\zeta$ to an *activation* $z$ and calls
//
// $$
// \Gamma(\zeta, z) = \sum_i \bigl( z_i \cdot \zeta_i - F_i(\zeta_i) \bigr)
// $$
//
// a log-likelihood: eq. (30). Both gradients of $\Gamma$ vanish, eq. (31), at $\zeta = 0$,
// eq. (32), and $z$ equal to attention, eq. (33). The paper reads this point as the most likely pair
// under $\mathrm e^{-\Gamma}$, eq. (34).
//
// The stationary point is right, but it is a saddle and not a maximum. A maximum appears after one
// more step, which eliminates the source by a Legendre transform,
//
// $$
// F^*(z) = \sup_\zeta \, \bigl( z \cdot \zeta - F(\zeta) \bigr) .
// $$
//
// The function $\mathrm e^{-F^*(z)}$ has its only maximum at attention. Its value elsewhere says
// how far the weights must move from softmax to produce the output $z$.
//
// **What you need:** @ref notebook_moments and eigenvalues. **What you get:** the saddle, the
// Legendre transform computed by Newton's method, a map of $\mathrm e^{-F^*}$ over the hull of the
// values, and the use of the saddle in statistics.

// %%
#include "notebooks_cpp/notebook.hpp"
#include "reference/energy/bayes.hpp"
#include "reference/energy/energy.hpp"
#include "reference/energy/legendre.hpp"
#include "reference/energy/moments.hpp"

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace tree_attn;
using Eigen::Index;
using notebook::expect, notebook::figure, notebook::normal, notebook::row;

int main() {
  // %% [markdown]
  // ## One query, seven values in the plane
  //
  // The problem is the one of @ref notebook_moments again: five values are the corners of a polygon,
  // two lie inside.

  // %%
  std::mt19937 random(2);
  const Index N = 7, d_h = 4, d_v = 2;
  const Vector q = 2 * normal(random, d_h, 1);
  const Matrix K = normal(random, N, d_h);
  const Matrix V{{-2.0, -0.6}, {-0.8, 1.7}, {1.2, 1.4}, {2.1, -0.2}, {0.3, 0.4}, {0.6, -1.6}, {-0.6, -0.3}};
  const Vector zero = Vector::Zero(d_v), s = K * q, P = attention_probabilities(q, K);
  const Vector attention = attention_mean(q, K, V);
  std::printf("P         = %s\n", row({P.data(), P.data() + N}).substr(0, 62).c_str());
  std::printf("attention = (%.6f, %.6f)\n", attention(0), attention(1));
  std::printf("F(0)      = %.6f\n", energy(q, K, V, zero));

  // %% [markdown]
  // ## The stationary point is attention
  //
  // The gradient $\partial \Gamma / \partial z_i = \zeta_i$ vanishes only at $\zeta_i = 0$. There
  // $\partial \Gamma / \partial \zeta_i = z_i - \partial F_i$ vanishes only if $z_i$ is attention.
  // We check eq. (31) to eq. (33) for three causal queries, each with its own source and
  // activation.

  // %%
  const Matrix Q = normal(random, 3, d_h), none = Matrix::Zero(3, d_v);
  const SourceAndActivation best = stationary_point(Q, K.topRows(3), V.topRows(3));
  const SourceAndActivation flat = log_likelihood_gradient(Q, K.topRows(3), V.topRows(3), best);
  const Matrix causal = causal_energy_gradient(Q, K.topRows(3), V.topRows(3), none);
  for (Index i = 0; i < 3; ++i)
    std::printf("query %td: zeta* = (%g, %g)  z* = (%7.4f, %7.4f)\n", i, best.Zeta(i, 0), best.Zeta(i, 1), best.Z(i, 0),
                best.Z(i, 1));
  std::printf("largest derivative of Gamma there: %g\n",
              std::max(flat.Zeta.cwiseAbs().maxCoeff(), flat.Z.cwiseAbs().maxCoeff()));
  expect(flat.Zeta.isZero(0) && flat.Z.isZero(0), "Gamma is stationary");
  expect(best.Z == causal && best.Zeta.isZero(0), "zeta* = 0 and z* is attention");

  // %% [markdown]
  // ## The misprint of eq. (30)
  //
  // As printed in the paper, $F$ stands inside the sum over the components of $z \cdot \zeta$, so
  // it is subtracted $d_v$ times, and the gradient in $\zeta$ is $z - d_v \, \partial F$. We take
  // the printed formula literally and find its stationary point by differences.
  //
  // **Predict:** which $z$ comes out for $d_v = 2$?

  // %%
  const auto printed = [&](const Vector& zeta, const Vector& z) {
    double sum = 0;
    for (Index A = 0; A < d_v; ++A) sum += z(A) * zeta(A) - energy(q, K, V, zeta);
    return sum;
  };
  // The gradient is z minus a term that does not depend on z; at z = 0 only that term is left.
  Vector z_printed(d_v);
  for (Index j = 0; j < d_v; ++j) {
    const Vector push = 1e-5 * Vector::Unit(d_v, j);
    z_printed(j) = -(printed(push, zero) - printed(-push, zero)) / 2e-5;
  }
  std::printf("z* of the printed formula:  (%.6f, %.6f)\n", z_printed(0), z_printed(1));
  std::printf("divided by d_v = 2:         (%.6f, %.6f)\n", z_printed(0) / 2, z_printed(1) / 2);
  expect((z_printed - 2 * attention).norm() < 1e-8, "the misprint gives d_v times attention");

  // %% [markdown]
  // ## The stationary point is a saddle
  //
  // $\Gamma$ is linear in $z$ and concave in $\zeta$. Its Hessian in $(\zeta, z)$ is
  // $\begin{pmatrix} -C & 1 \\ 1 & 0 \end{pmatrix}$, where $C$ is the covariance of the values. On
  // an eigenvector of $C$ with eigenvalue $c$ it becomes
  // $\begin{pmatrix} -c & 1 \\ 1 & 0 \end{pmatrix}$. The determinant is $-1$, and the eigenvalues
  // $(-c \pm \sqrt{c^2 + 4}) / 2$ have opposite signs for every $c$. So $\Gamma$ has neither a
  // maximum nor a minimum there.
  //
  // **Predict:** $d_v = 2$. How many of the four eigenvalues are positive?

  // %%
  const Matrix hessian = log_likelihood_hessian(q, K, V, zero);
  const Vector lambda = Eigen::SelfAdjointEigenSolver<Matrix>(hessian).eigenvalues();
  const Vector c = Eigen::SelfAdjointEigenSolver<Matrix>(covariance(q, K, V, zero)).eigenvalues();
  std::printf("eigenvalues of the Hessian: %9.6f %9.6f %9.6f %9.6f\n", lambda(0), lambda(1), lambda(2), lambda(3));
  for (Index j = 0; j < d_v; ++j) {
    const double root = std::sqrt(c(j) * c(j) + 4);
    std::printf("c = %.6f gives %9.6f and %9.6f\n", c(j), (-c(j) - root) / 2, (-c(j) + root) / 2);
    expect(std::abs(lambda(d_v - 1 - j) - (-c(j) - root) / 2) < 1e-12, "the negative eigenvalues");
  }
  expect(signature(hessian).n_positive == 2 && signature(hessian).n_negative == 2, "a saddle");

  // Two steps away from the stationary point: along (e_0, e_0) and along (e_0, -e_0).
  const double top = -energy(q, K, V, zero);
  for (const double sign : {1.0, -1.0}) {
    const Vector step = 0.3 * Vector::Unit(d_v, 0);
    const SourceAndActivation at{step.transpose(), (attention + sign * step).transpose()};
    const double Gamma = log_likelihood(q.transpose(), K, V, at);
    std::printf("Gamma %s along (e_0, %se_0): %9.6f\n", sign > 0 ? "rises" : "falls", sign > 0 ? "" : "-", Gamma - top);
    expect(sign * (Gamma - top) > 0, "Gamma rises one way and falls another");
  }

  // %% [markdown]
  // ## The Legendre transform, by Newton's method
  //
  // For a given $z$ the function $g(\zeta) = z \cdot \zeta - F(\zeta)$ is concave. Its gradient is
  // $z - \langle v \rangle$ and its Hessian is $-C(\zeta)$, so Newton's direction is
  // $d = C^{-1}(z - \langle v \rangle)$.
  //
  // The full step may be too long. Let $w$ be the spread of $d \cdot v_a$ over the keys. The third
  // derivative along $d$ is at most $w$ times the second, which bounds from below what a step of
  // length $t$ gains. This bound is greatest at $t = \log(1 + w) / w$. With this $t$ every step
  // increases $g$ and no line search is needed. As $w \to 0$ it becomes the full step, so the last
  // steps converge quadratically.
  //
  // **Predict:** in the last lines of the table, what happens to the number of correct digits per
  // step?

  // %%
  const Vector z{{1.7, 0.4}};  // near the edge between the values 2 and 3
  Vector zeta = zero;
  int n_steps = 0;
  double before = -HUGE_VAL;
  std::printf("step   z.zeta - F(zeta)   |z - <v>|     t       d.(z - <v>)\n");
  for (double spread = 1; spread > 1e-6; ++n_steps) {
    const double g = z.dot(zeta) - energy(q, K, V, zeta);
    const Vector slope = z - energy_gradient(q, K, V, zeta);
    const Vector d = covariance(q, K, V, zeta).ldlt().solve(slope);
    spread = (V * d).maxCoeff() - (V * d).minCoeff();
    const double t = std::log1p(spread) / spread;
    std::printf("%4d   %16.12f   %.2e   %6.4f   %.1e\n", n_steps, g, slope.norm(), t, slope.dot(d));
    expect(g >= before - 1e-14, "every step climbs");
    before = g;
    zeta += t * d;
  }

  // %% [markdown]
  // The library uses the same method in the plane that the values span. It also doubles a step as
  // long as that increases $g$ further.

  // %%
  const LegendrePoint point = legendre_transform(q, K, V, z);
  std::printf("by hand:  F* = %.12f, zeta = (%.6f, %.6f), %d steps\n", z.dot(zeta) - energy(q, K, V, zeta), zeta(0), zeta(1),
              n_steps);
  std::printf("library:  F* = %.12f, zeta = (%.6f, %.6f), %d steps\n", point.value, point.zeta(0), point.zeta(1),
              point.n_steps);
  expect(std::abs(point.value - (z.dot(zeta) - energy(q, K, V, zeta))) < 1e-12, "the same F*");
  expect((energy_gradient(q, K, V, point.zeta) - z).norm() < 1e-9, "the tilted mean is z");
  expect(n_steps < 40 && point.n_steps <= n_steps, "few steps");

  // %% [markdown]
  // ## The maximum is at attention
  //
  // Setting $\zeta = 0$ in the supremum gives $F^*(z) \ge -F(0)$ for every $z$. Equality means that
  // the supremum is attained at $\zeta = 0$, so the gradient $z - \partial F(0)$ vanishes there,
  // and $z$ is attention. Therefore $\mathrm e^{-F^*}$ has one maximum, at attention.

  // %%
  const LegendrePoint peak = legendre_transform(q, K, V, attention);
  const double F_0 = energy(q, K, V, zero);
  std::printf("F*(attention) = %.15f in %d step\n", peak.value, peak.n_steps);
  std::printf("-F(0)         = %.15f\n", -F_0);
  expect(std::abs(peak.value + F_0) < 1e-14 && peak.zeta.norm() < 1e-14, "F*(z*) = -F(0)");

  // %% The map
  // Rays from attention to the edge of the hull, whose corners are listed anticlockwise.
  const std::vector<Index> corners{0, 5, 3, 2, 1};
  const auto to_edge = [&](const Vector& direction) {
    double length = HUGE_VAL;
    for (std::size_t i = 0; i < corners.size(); ++i) {
      const Vector a = V.row(corners[i]), b = V.row(corners[(i + 1) % corners.size()]);
      const Vector outward{{b(1) - a(1), a(0) - b(0)}};
      const double speed = outward.dot(direction);
      if (speed > 0) length = std::min(length, outward.dot(a - attention) / speed);
    }
    return length;
  };

  std::string map, values, hull;
  double highest = 0;
  for (int i = 0; i <= 144; ++i, map += "\n") {
    const double angle = 2 * std::numbers::pi * i / 144;
    const Vector direction{{std::cos(angle), std::sin(angle)}};
    const double length = 0.9999 * to_edge(direction);
    for (int j = 0; j <= 40; ++j) {
      const Vector at = attention + length * j / 40 * direction;
      const double likelihood = std::exp(profile_log_likelihood(q, K, V, at) - F_0);
      map += row({at(0), at(1), likelihood});
      if (j > 0) highest = std::max(highest, likelihood);
    }
  }
  expect(highest < 1, "exp(-F*) is largest at attention");
  for (Index a = 0; a < N; ++a) values += row({V(a, 0), V(a, 1), P(a), static_cast<double>(a)});
  for (std::size_t i = 0; i <= corners.size(); ++i)
    hull += row({V(corners[i % corners.size()], 0), V(corners[i % corners.size()], 1)});
  const std::string data = "$map << EOD\n" + map + "EOD\n$value << EOD\n" + values + "EOD\n$hull << EOD\n" + hull +
                           "EOD\n$attention << EOD\n" + row({attention(0), attention(1)});
  figure("notebook_hull", data + R"(EOD
set contour base
set cntrparam levels discrete 0.02,0.05,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.97
unset surface
set table $level
splot $map using 1:2:3
unset table
set palette defined (0 '#c9d8e6', 0.3 '#1982d2', 1 '#d9730d')
set size ratio -1
set xrange [-2.3:2.5]
set yrange [-1.9:2]
set xlabel 'z_0'
set ylabel 'z_1'
set cbrange [0:1]
set cblabel 'exp(-F*(z)) / exp(F(0))'
set key outside top center horizontal
plot $hull using 1:2 with lines lw 2 lc rgb '#555555' title 'hull of the values', \
     $level using 1:2:3 with lines lw 1.4 lc palette notitle, \
     $value using 1:2:(0.4+3*$3) with points pt 7 ps variable lc rgb '#2d9d5a' \
       title 'values; size grows with P', \
     $value using 1:2:(sprintf('%d', $4)) with labels offset 1.2,0.5 notitle, \
     $attention using 1:2 with points pt 2 ps 1.3 lw 3 lc rgb '#c2185b' title 'attention')",
         640, 560);

  // %% [markdown]
  // ![exp(-F*) over the convex hull of the values: one peak, at attention; zero outside](notebook_hull.svg)
  //
  // ## F* is a divergence
  //
  // Among all weights with mean value $z$, which are nearest to the attention weights? Write
  // $P_0 = \mathrm{softmax}(s)$ and $P_z = \mathrm{softmax}(s + \zeta \cdot v)$ with the $\zeta$
  // found above. The difference $\log P_z - \log P_0$ at key $a$ is
  // $\zeta \cdot v_a - F(\zeta) + F(0)$. It is affine in $v_a$, so its mean is the same under all
  // weights $P$ with mean $z$, and
  //
  // $$
  // \mathrm{KL}(P \,\|\, P_0) = \mathrm{KL}(P \,\|\, P_z) + \mathrm{KL}(P_z \,\|\, P_0) , \qquad
  // \mathrm{KL}(P_z \,\|\, P_0) = F^*(z) + F(0) .
  // $$
  //
  // The first term is not negative. Hence $P_z$ is nearest, and $F^*(z) + F(0)$ is its divergence.
  // We compare with other weights of the same mean: $P_z$ plus random changes that preserve the sum
  // and the mean.
  //
  // **Predict:** can any of them have a smaller divergence from $P_0$?

  // %%
  Matrix conditions(d_v + 1, N);
  conditions << V.transpose(), Vector::Ones(N).transpose();
  const Matrix unseen = Eigen::FullPivLU<Matrix>(conditions).kernel();
  std::printf("F*(z) + F(0) = %.9f = KL(P_z || P_0) = %.9f\n", point.value + F_0, point.divergence);
  std::printf("  KL(P || P_0)   KL(P || P_z) + KL(P_z || P_0)   |mean - z|\n");
  for (int trial = 0; trial < 5; ++trial) {
    // Half of the step at which the first weight would become zero.
    const Vector change = unseen * normal(random, unseen.cols(), 1);
    const Vector other = point.P - 0.5 / (change.array() / point.P.array()).maxCoeff() * change;
    const double from_0 = kl_divergence(other, s);
    const double from_z = kl_divergence(other, s + V * point.zeta);
    std::printf("  %.9f    %.9f + %.9f       %s\n", from_0, from_z, point.divergence,
                (V.transpose() * other - z).norm() < 1e-9 ? "0" : "not 0");
    expect((V.transpose() * other - z).norm() < 1e-9 && other.minCoeff() >= 0, "the same mean");
    expect(std::abs(from_0 - from_z - point.divergence) < 1e-9, "the divergences add up");
    expect(from_0 > point.divergence, "P_z is nearest");
  }

  // %% [markdown]
  // ## Corners of the hull, and points outside
  //
  // At a corner of the hull only one distribution has that mean: all weight on the key of the
  // corner. Its divergence from $P_0$ is $-\log P_a$, so the map above takes the value $P_a$ there,
  // in the limit $\zeta \to \infty$. A value *inside* the hull is the mean of many distributions.
  //
  // **Predict:** is the map at such a value above or below $P_a$?

  // %%
  std::printf("  a      P_a   exp(-F*(v_a)) / exp(F(0))\n");
  for (Index a = 0; a < N; ++a) {
    const double ratio = std::exp(profile_log_likelihood(q, K, V, V.row(a).transpose()) - F_0);
    const bool is_corner = std::find(corners.begin(), corners.end(), a) != corners.end();
    std::printf("  %td  %.6f   %.6f%s\n", a, P(a), ratio, is_corner ? "" : "  inside");
    expect(is_corner ? std::abs(ratio - P(a)) < 1e-8 : ratio > P(a), "corners take P_a");
  }

  // %% [markdown]
  // No weights have a mean outside the hull, so $F^* = +\infty$ there. The iteration then finds a
  // proof, a $\zeta$ with $\zeta \cdot (v_a - z) < 0$ for every key, and the function throws an
  // error.

  // %%
  for (const Vector& beyond : {Vector{{2.5, 1.0}}, Vector{{0.0, 1.8}}, Vector{{1.763, 0.4}}}) {
    bool thrown = false;
    try {
      legendre_transform(q, K, V, beyond);
    } catch (const std::domain_error& error) {
      thrown = true;
      std::printf("%s\n", error.what());
    }
    expect(thrown, "outside the hull is an error");
  }

  // %% [markdown]
  // ## The width of the peak
  //
  // The Hessian of $F^*$ is the inverse of the Hessian of $F$. At attention it is $C^{-1}$, so
  // Laplace's method approximates the peak by a Gaussian with covariance $C$: the peak is as wide
  // as the values are spread under the attention weights. This *posterior spread* describes a value
  // drawn with those weights. It is not an uncertainty of the attention output, which is known
  // exactly. The approximation also ignores the hull.
  //
  // **Predict:** we move from attention straight up to the edge of the hull. Is the Gaussian too
  // high or too low near the edge?

  // %%
  const Gaussian laplace = laplace_approximation(q, K, V);
  const Matrix precision = laplace.covariance.inverse();
  std::printf("posterior spread: %.4f and %.4f\n", std::sqrt(laplace.covariance(0, 0)), std::sqrt(laplace.covariance(1, 1)));
  expect((peak.curvature - precision).norm() < 1e-10, "the curvature of F* is C^-1");
  const double edge = to_edge(Vector::Unit(d_v, 1));
  std::printf("above attention    F* + F(0)   Laplace\n");
  for (const double share : {0.01, 0.1, 0.3, 0.6, 0.9, 0.999}) {
    const Vector up = share * edge * Vector::Unit(d_v, 1);
    const double exact = legendre_transform(q, K, V, attention + up).divergence;
    const double gaussian = 0.5 * up.dot(precision * up);
    std::printf("%5.1f%% of the way    %.6f  %.6f\n", 100 * share, exact, gaussian);
    expect(share > 0.1 || std::abs(gaussian / exact - 1) < 0.1, "Laplace is right near the peak");
    expect(share < 0.9 || exact > 1.05 * gaussian, "Laplace is too small near the edge");
  }

  // %% [markdown]
  // ## What the saddle is good for
  //
  // $\mathrm e^{F(\zeta)}$ is the Laplace transform of the weights $\mathrm e^{s_a}$ at the points
  // $v_a$. To invert it one integrates $\mathrm e^{-\Gamma}$ along *imaginary* $\zeta$. Along that
  // direction the modulus does have its maximum at the saddle. The method of steepest descent then
  // gives the density of the mean of $n$ values drawn from $\mathrm{softmax}(q \cdot k)$:
  //
  // $$
  // \sqrt{\det (n \, \partial^2 F^* / 2 \pi)} \; \mathrm e^{-n (F^*(z) + F(0))} .
  // $$
  //
  // We test it on a coin: two keys with values 0 and 1, for which the exact answer is the binomial
  // distribution.
  //
  // **Predict:** the coin shows 1 with probability $0.3$. At a mean of $0.7$, which approximation
  // fails, saddle or Gaussian?

  // %%
  const Matrix one = Matrix::Ones(1, 1), coin{{std::log(0.7)}, {std::log(0.3)}};
  const Matrix sides{{0.0}, {1.0}};
  std::printf("    n   mean   exact         saddle / exact   Gaussian / exact\n");
  for (const int n : {10, 100, 1000}) {
    for (const double mean : {0.3, 0.5, 0.7}) {
      const double k = std::round(n * mean);
      const double exact =
          std::lgamma(n + 1.0) - std::lgamma(k + 1) - std::lgamma(n - k + 1) + k * std::log(0.3) + (n - k) * std::log(0.7);
      const LegendrePoint at = legendre_transform(one.col(0), coin, sides, Vector{{mean}});
      const double saddle = 0.5 * std::log(at.curvature(0, 0) / (2 * std::numbers::pi * n)) - n * at.divergence;
      const Gaussian g = laplace_approximation(one.col(0), coin, sides, n);
      const double variance = g.covariance(0, 0), off = mean - g.mean(0);
      const double gaussian = -0.5 * std::log(2 * std::numbers::pi * variance) - 0.5 * off * off / variance - std::log(n);
      std::printf("%5d   %.1f    e^%-10.4f  %.5f          e^%.4f\n", n, mean, exact, std::exp(saddle - exact),
                  gaussian - exact);
      expect(std::abs(std::exp(saddle - exact) - 1) < 0.5 / n, "the saddle is right up to O(1/n)");
    }
  }
}

// %% [markdown]
// The exponent $F^* + F(0)$ is Cramér's rate function. Far from attention the Gaussian is wrong by
// a factor that grows exponentially with $n$. The saddle's relative error is a fraction of $1/n$.
//
// ## What to take home
//
// 1. The stationary point of $\Gamma$ is attention, and it is a saddle for all keys and values.
// 2. After the source is eliminated, $\mathrm e^{-F^*}$ has its maximum at attention, and
//    $F^*(z) + F(0)$ is the least divergence of weights with mean $z$.
// 3. No weights produce an output outside the convex hull of the values; there $F^* = +\infty$.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 3.1`: the source that moves the mean.
//
// ## Questions
//
// 1. (Medium.) Give one key $a$ a score that is larger than all others by 20. How does the map
//    change?
//
//    <details><summary>Answer</summary>
//
//    It becomes a needle at $v_a$. A mean $z$ that needs a weight $t$ on other keys has a
//    divergence of about $20 t$ less the entropy of $(t, 1 - t)$, so the map falls to one half
//    where about 5 % of the weight has to move. The posterior spread is about $\mathrm e^{-10}$
//    times the distance to the other values.
//
//    </details>
//
// 2. (Easy.) The first causal query sees one key. What is its hull, what is $F^*$, and what is the
//    posterior spread?
//
//    <details><summary>Answer</summary>
//
//    The hull is the point $v_0$. $F(\zeta) = s_0 + \zeta \cdot v_0$ is linear, so
//    $F^*(v_0) = -s_0$ and $F^* = +\infty$ elsewhere. The covariance and the spread are 0.
//
//    </details>
//
// 3. (Medium.) With two components, seven keys and a given mean, weights can change in four
//    directions that preserve sum and mean. What does $P_z$ do with this freedom?
//
//    <details><summary>Answer</summary>
//
//    It uses it to minimise the divergence. Along each of the four directions
//    $\mathrm{KL}(P \,\|\, P_0)$ has derivative 0 at $P_z$, because $\log P_z - \log P_0$ is affine
//    in $v_a$, and affine functions sum to 0 along these directions. Every change in them increases
//    the divergence.
//
//    </details>
//
// 4. (Hard.) Prove that the covariance at $\zeta$ is the inverse of the curvature of $F^*$ at
//    $z = \partial F(\zeta)$.
//
//    <details><summary>Answer</summary>
//
//    The supremum in $F^*(z)$ is attained where $\partial F(\zeta) = z$. By the envelope theorem
//    $\partial F^*(z)$ is that $\zeta$, so $\partial F^*(\partial F(\zeta)) = \zeta$. Differentiate
//    both sides: $\partial^2 F^* \cdot \partial^2 F = 1$. (If the values do not span the space,
//    this holds in the plane that they span.)
//
//    </details>
