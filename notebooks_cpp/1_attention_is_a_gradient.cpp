// SPDX-License-Identifier: Apache-2.0
// Run: build/notebooks/1_attention_is_a_gradient

// %% [markdown]
// # Attention is a gradient {#notebook_gradient}
//
// Section 4 of the paper in one page. Take the exponents of attention and tilt them by a source
// $\zeta$:
//
// $$
// F(\zeta) = \log \sum_a \exp(q \cdot k_a + \zeta \cdot v_a) .
// $$
//
// That is one number for any $\zeta$: eq. (6). Obs. 1 says that its slope at $\zeta = 0$, eq. (5),
// is what a transformer calls attention. Nothing here is approximate: we compute the number, we
// push it, and watch how it moves.

// %%
#include "notebooks_cpp/notebook.hpp"
#include "reference/energy/energy.hpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <string>

using namespace tree_attn;
using notebook::expect, notebook::figure, notebook::normal;

int main() {
  // %% [markdown]
  // ## A small problem
  //
  // Six keys with values in the plane, so that everything can be printed and drawn.

  // %%
  std::mt19937 random(1);
  const Eigen::Index N = 6, d_h = 4, d_v = 2;
  const Vector q = normal(random, d_h, 1);
  const Matrix K = normal(random, N, d_h), V = normal(random, N, d_v);

  const Vector P = attention_probabilities(q, K);
  std::printf("  a    q.k_a      P_a     v_a\n");
  for (Eigen::Index a = 0; a < N; ++a) {
    const double score = K.row(a).dot(q);
    std::printf("  %td  %7.3f  %7.4f  (%6.3f, %6.3f)\n", a, score, P(a), V(a, 0), V(a, 1));
  }

  // %% [markdown]
  // ## The energy is one number
  //
  // With no source, $F(0)$ is the log-sum-exp of the scores. A source raises the weight of the keys
  // whose values point its way and lowers that of the others. Whether the energy rises is what its
  // slope says.

  // %%
  const Vector zero = Vector::Zero(d_v);
  std::printf("F(0)       = %.6f\n", energy(q, K, V, zero));
  std::printf("F(0.1, 0)  = %.6f\n", energy(q, K, V, Vector{{0.1, 0.0}}));
  std::printf("F(0, 0.1)  = %.6f\n", energy(q, K, V, Vector{{0.0, 0.1}}));

  // %% [markdown]
  // ## Its slope is attention
  //
  // Push $\zeta$ by a little on either side of 0 in every direction, and divide: central
  // differences know nothing of softmax. Beside them, attention as everybody writes it,
  // $\sum_a P_a v_a$ of eq. (16), and the closed form of eq. (5).

  // %%
  const Vector attention = V.transpose() * P;
  const Vector closed_form = energy_gradient(q, K, V, zero);
  std::printf("  j   dF/dzeta_j by differences   attention z_j   closed form\n");
  for (Eigen::Index j = 0; j < d_v; ++j) {
    const double h = 1e-5;
    const Vector push = h * Vector::Unit(d_v, j);
    const double slope = (energy(q, K, V, push) - energy(q, K, V, -push)) / (2 * h);
    std::printf("  %td        %18.12f  %14.12f  %.12f\n", j, slope, attention(j), closed_form(j));
    expect(std::abs(slope - attention(j)) < 1e-9, "the slope of the energy is attention");
    expect(std::abs(closed_form(j) - attention(j)) < 1e-15, "the closed form is attention");
  }

  // %% [markdown]
  // ## How good are differences?
  //
  // A central difference is wrong by about $h^2$ from the curvature and by about $u / h$ from
  // rounding, $u = 2^{-53}$. The figure shows both: the error falls with $h^2$ until rounding takes
  // over near $h = u^{1/3}$. The closed form has neither.

  // %%
  std::string points;
  double best = 1, best_h = 0;
  for (double h = 1; h > 1e-13; h /= 2) {
    const Vector push = h * Vector::Unit(d_v, 0);
    const double slope = (energy(q, K, V, push) - energy(q, K, V, -push)) / (2 * h);
    const double error = std::abs(slope - attention(0));
    if (error == 0) continue;
    points += std::to_string(std::log10(h)) + " " + std::to_string(std::log10(error)) + "\n";
    if (error < best) best = error, best_h = h;
  }
  std::printf("best step h = %.1e, error %.1e\n", best_h, best);
  expect(best < 1e-10, "differences agree to ten digits at their best");
  figure("notebook_differences", "$error << EOD\n" + points + R"(EOD
set xlabel 'log_{10} h'
set ylabel 'log_{10} error of dF/dzeta_0'
set key left bottom
plot $error using 1:2 with linespoints pt 7 ps 0.5 title 'central difference')");

  // %% [markdown]
  // ![Error of a central difference of the energy against its step](notebook_differences.svg)
  //
  // ## Causal attention, all queries at once
  //
  // Every query gets a source of its own, and the energies add up: eq. (25). The gradient with
  // respect to the source of query $i$, eq. (26), is the attention of query $i$ over the keys that it may
  // see, and no other query has a say in it.

  // %%
  const Matrix Q = normal(random, N, d_h);
  const Matrix sources = Matrix::Zero(N, d_v);
  const Matrix all = causal_energy_gradient(Q, K, V, sources);
  for (Eigen::Index i = 0; i < N; ++i) {
    const Vector alone = attention_mean(Q.row(i).transpose(), K.topRows(i + 1), V.topRows(i + 1));
    std::printf("query %td sees %td key%s: z = (%7.4f, %7.4f)\n", i, i + 1, i == 0 ? " " : "s", all(i, 0), all(i, 1));
    expect((all.row(i).transpose() - alone).norm() < 1e-14, "a row of the gradient is the attention of its query");
  }
  expect(all.row(0) == V.row(0), "the first query sees one key and returns its value");
}

// %% [markdown]
// ## Questions
//
// 1. Why does the first query return $v_0$ exactly, whatever its score?
// 2. Add a constant to every score. Which of the numbers above change, and which law of the chapter
//    on @ref safe_softmax says so?
// 3. $\zeta$ has as many components as a value, a key has not. What would the gradient with respect
//    to a source coupled to the *keys* be?
