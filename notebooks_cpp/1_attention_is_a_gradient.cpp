// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 1

// %% [markdown]
// # Notebook 1: Attention is a gradient {#notebook_gradient}
//
// Attention is usually introduced as a recipe: score the keys, apply softmax, average the values.
// Section 4 of the paper obtains the same result from one scalar function, the energy
//
// $$
// F(\zeta) = \log \sum_a \exp(q \cdot k_a + \zeta \cdot v_a) .
// $$
//
// This is eq. (6). The vector $\zeta$ is called the *source*. Obs. 1 of the paper says that the
// gradient of $F$ with respect to $\zeta$, taken at $\zeta = 0$, is the attention output, eq. (5).
// This notebook evaluates the energy, differentiates it numerically, and compares the result with
// attention.
//
// **What you need:** the chain rule and the chapter on @ref energy. **What you get:** Obs. 1
// checked to ten digits, for one query and for all causal queries.

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
  // We take six keys, with values of two components, so that everything can be printed.

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
  // ## The energy and a small source
  //
  // Without a source, $F(0)$ is the log-sum-exp of the scores. A source adds $\zeta \cdot v_a$ to
  // the exponent of key $a$: it raises the weight of keys whose value points along $\zeta$ and
  // lowers the weight of the others.
  //
  // **Predict:** key 1 has the largest weight, and its value is $(1.381, -0.287)$. Does a source
  // along the first component raise the energy? And a source along the second?

  // %%
  const Vector zero = Vector::Zero(d_v);
  std::printf("F(0)       = %.6f\n", energy(q, K, V, zero));
  std::printf("F(0.1, 0)  = %.6f\n", energy(q, K, V, Vector{{0.1, 0.0}}));
  std::printf("F(0, 0.1)  = %.6f\n", energy(q, K, V, Vector{{0.0, 0.1}}));

  // %% [markdown]
  // ## The gradient of the energy is attention
  //
  // We approximate the gradient by central differences: shift $\zeta_j$ by $\pm h$ and divide the
  // change of $F$ by $2h$. The differences use the energy alone; no softmax occurs in them. Beside
  // them we print attention as the weighted mean $\sum_a P_a v_a$ of eq. (16), and the closed form
  // of the gradient, eq. (5).
  //
  // **Predict:** to how many digits do the three columns agree if $h = 10^{-5}$?

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
  // ## How accurate are the differences?
  //
  // A central difference has two errors. Truncating the Taylor series costs about $h^2$. Rounding
  // of $F$ costs about $u / h$, with $u = 2^{-53}$. The first decreases with $h$ and the second
  // increases, so there is a best step near $h = u^{1/3}$. The closed form has neither error.
  //
  // **Predict:** $u^{1/3}$ is $4.8 \cdot 10^{-6}$. What is the smallest error that a difference can
  // reach?

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

  // %% Drawing
  figure("notebook_differences", "$error << EOD\n" + points + R"(EOD
set xlabel 'log_{10} h'
set ylabel 'log_{10} error of dF/dζ_0'
set key left bottom
plot $error using 1:2 with linespoints pt 7 ps 0.5 lc rgb '#1982d2' title 'central difference')");

  // %% [markdown]
  // ![Error of a central difference of the energy against its step](notebook_differences.svg)
  //
  // ## Causal attention: all queries at once
  //
  // In causal attention, query $i$ uses the keys 0 to $i$. We give each query a source of its own
  // and add up the energies: eq. (25). The source of query $i$ occurs in one term of the sum only,
  // so the gradient with respect to it, eq. (26), is the attention of query $i$ alone.
  //
  // **Predict:** what is the output of query 0, before you look?

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
// ## What to take home
//
// 1. The attention output is the gradient of a log-sum-exp with respect to a source, at source
//    zero.
// 2. The source is a device of the derivation: it names the variable we differentiate by, and no
//    program stores it.
// 3. Adding the energies of several queries gives the attention of each, because each source occurs
//    in one term.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 1.1`: the logarithm of a sum of exponentials, for any exponents;
// * `./run exercise 1.2`: attention as the gradient of the energy.
//
// ## Questions
//
// 1. (Easy.) Why does query 0 return $v_0$ exactly, whatever its score?
//
//    <details><summary>Answer</summary>
//
//    It sees one key, and softmax over one score is 1. This also holds in floating point: the score
//    is subtracted from itself, $\mathrm e^0 = 1$, and both $1 \cdot v_0$ and the division by 1 are
//    exact.
//
//    </details>
//
// 2. (Easy.) Add the same constant $c$ to every score. Which of the printed quantities change, and
//    which formula of the chapter on @ref safe_softmax says so?
//
//    <details><summary>Answer</summary>
//
//    The scores and every value of $F$ increase by $c$. The weights $P_a$, the gradients and all
//    outputs stay the same: $F$ and $F'$ differ by a constant, so their gradients are equal,
//    eq. (37).
//
//    </details>
//
// 3. (Medium.) Couple a source $\eta$ to the *keys* instead, with the exponent
//    $q \cdot k_a + \eta \cdot k_a$. What is the gradient at $\eta = 0$?
//
//    <details><summary>Answer</summary>
//
//    $\sum_a P_a k_a$, the mean key under the attention weights. The exponent depends on $q + \eta$
//    only, so this is also $\partial F / \partial q$. The chapter on @ref moments_chapter uses it
//    to compute the entropy of the weights.
//
//    </details>
