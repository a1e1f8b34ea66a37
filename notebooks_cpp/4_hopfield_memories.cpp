// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 4

// %% [markdown]
// # Notebook 4: Hopfield memories {#notebook_hopfield}
//
// Store $N$ patterns $x_a$ and let a state $\xi$ attend to them. With $K = V = X$ and
// $q = \beta \xi$, attention, eq. (16), maps the state to a weighted mean of the patterns,
//
// $$
// \xi' = \sum_a \mathrm{softmax}(\beta X \xi)_a \, x_a ,
// $$
//
// and this mean can be the next state. Because keys and values are equal (the *tied* case), a
// source acts like a query: the exponent $\beta \xi \cdot x_a + \zeta \cdot x_a$ of eq. (6) depends
// on $\beta \xi + \zeta$ only. One step is attention; repeated steps retrieve a stored pattern.
// They decrease an energy of the state,
//
// $$
// E(\xi) = - \frac 1 \beta \log \sum_a \mathrm e^{\beta \xi \cdot x_a} + \frac 1 2 |\xi|^2 ,
// \qquad \frac{\partial E}{\partial \xi} = \xi - \xi' .
// $$
//
// The paper mentions Hopfield networks and does not pursue them. We store letters, restore damaged
// ones, measure how many patterns fit, and apply the same iteration to the heads of a trained
// transformer.
//
// **What you need:** @ref notebook_gradient. **What you get:** attention as a memory, the proof
// that its energy decreases, its capacity, and what this says about real heads.

// %%
#include "notebooks_cpp/notebook.hpp"
#include "reference/data/safetensors.hpp"
#include "reference/energy/energy.hpp"
#include "reference/energy/hopfield.hpp"
#include "reference/energy/moments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace tree_attn;
using Eigen::Index;
using notebook::expect, notebook::figure, notebook::row;

// %% [markdown]
// ## Eight letters
//
// A letter has seven rows of five pixels, with ink 1 and paper $-1$. That gives eight patterns in
// dimension 35.

// %% The letters, and a function that prints them
constexpr Index kHeight = 7, kWidth = 5, kPixels = kHeight * kWidth;
const std::string kWord = "HOPFIELD";
const std::array<std::string, 8> kGlyphs{"#...##...##...#######...##...##...#", ".###.#...##...##...##...##...#.###.",
                                         "####.#...##...#####.#....#....#....", "######....#....####.#....#....#....",
                                         ".###...#....#....#....#....#...###.", "######....#....####.#....#....#####",
                                         "#....#....#....#....#....#....#####", "###..#..#.#...##...##...##..#.###.."};

Matrix letters() {
  return Matrix::NullaryExpr(8, kPixels, [](Index a, Index j) {
    return kGlyphs[static_cast<std::size_t>(a)][static_cast<std::size_t>(j)] == '#' ? 1.0 : -1.0;
  });
}

/// Prints pictures side by side, with four shades of ink: '#', '+', '-', '.'.
void show(const std::vector<Vector>& pictures) {
  for (Index y = 0; y < kHeight; ++y) {
    std::string line;
    for (const Vector& picture : pictures) {
      for (Index x = 0; x < kWidth; ++x) {
        const double ink = picture(y * kWidth + x);
        line += ink > 0.5 ? '#' : ink > 0 ? '+' : ink > -0.5 ? '-' : '.';
      }
      line += "   ";
    }
    std::printf("%s\n", line.substr(0, line.size() - 3).c_str());
  }
}

/// log of the mean of exp(beta u), u the cosine between random directions in dimension d.
double log_mean_weight(double d, double beta) {
  double sum = 0, norm = 0;
  for (int i = 0; i < 20000; ++i) {
    const double angle = std::numbers::pi * (i + 0.5) / 20000;
    const double density = std::pow(std::sin(angle), d - 2);
    sum += density * std::exp(beta * (std::cos(angle) - 1));
    norm += density;
  }
  return beta + std::log(sum / norm);
}

int main() {
  // %%
  const Matrix X = letters();
  std::vector<Vector> all;
  for (Index a = 0; a < 8; ++a) all.push_back(X.row(a));
  show(all);
  for (Index a = 0; a < 8; ++a) {
    for (Index b = 0; b < a; ++b)
      expect((X.row(a) - X.row(b)).cwiseAbs().sum() >= 2 * 3, "letters differ in three pixels or more");
  }

  // %% [markdown]
  // ## Retrieval
  //
  // We take an H, flip ten of its 35 pixels, and iterate. The printed row shows the letter, the
  // cue, and the state after 1, 2, 4, 8 and all steps. The letters are far from orthogonal (P and F
  // share 32 pixels), so the first step gives a mixture of several letters.
  //
  // **Predict:** after how many steps is the letter readable again?

  // %%
  std::mt19937 random(4);
  const auto damaged = [&](Index a, int n_flips) {
    std::vector<Index> pixels(kPixels);
    std::iota(pixels.begin(), pixels.end(), 0);
    std::shuffle(pixels.begin(), pixels.end(), random);
    Vector cue = X.row(a);
    for (int i = 0; i < n_flips; ++i) cue(pixels[static_cast<std::size_t>(i)]) *= -1;
    return cue;
  };
  const double beta = 0.3;
  const Vector cue = damaged(0, 10);
  std::vector<Vector> course{X.row(0), cue};
  for (const int n_steps : {1, 2, 4, 8, 10000}) course.push_back(hopfield_retrieve(X, cue, beta, 1e-8, n_steps).xi);
  show(course);
  const Retrieval retrieval = hopfield_retrieve(X, cue, beta);
  std::printf("settled after %d steps, %.2f from the letter\n", retrieval.n_steps,
              (retrieval.xi - X.row(0).transpose()).norm());
  expect((X.row(2) - X.row(3)).cwiseAbs().sum() == 6, "P and F share 32 pixels");
  expect(retrieval.settled && (retrieval.xi - X.row(0).transpose()).norm() < 0.2, "the cue ends at the H");
  const Vector by_gradient = energy_gradient(beta * cue, X, X, Vector::Zero(kPixels));
  expect(hopfield_step(X, cue, beta) == by_gradient, "a step is the gradient of the energy");

  // %% [markdown]
  // ## The energy decreases at every step
  //
  // Log-sum-exp is convex, so it lies above its tangent at $\xi$. The slope of the first term of
  // $E$ there is $-\xi'$, hence
  //
  // $$
  // E(\xi') \le E(\xi) - \xi' \cdot (\xi' - \xi) + \tfrac 1 2 \bigl( |\xi'|^2 - |\xi|^2 \bigr)
  // = E(\xi) - \tfrac 1 2 |\xi' - \xi|^2 .
  // $$
  //
  // Each step decreases the energy by at least half its squared length. We start from the same cue
  // at five values of the inverse temperature $\beta$.
  //
  // **Predict:** at which of the five does the state become a single letter?

  // %%
  std::string falls;
  std::printf("   beta   steps   E(cue)     E(end)     letters in the state\n");
  for (const double b : {0.05, 0.15, 0.2, 0.3, 1.0}) {
    const Retrieval r = hopfield_retrieve(X, cue, b);
    std::printf("  %5.2f   %5d   %8.4f   %8.4f   %.2f\n", b, r.n_steps, r.energy.front(), r.energy.back(),
                n_effective_patterns(X, r.xi, b));
    Vector xi = cue;
    for (int i = 0; i < r.n_steps; ++i) {
      const Vector next = hopfield_step(X, xi, b);
      const double* E = &r.energy[static_cast<std::size_t>(i)];
      expect(E[0] - E[1] >= 0.5 * (next - xi).squaredNorm() - 1e-12, "a step gains half its squared length");
      const double above = E[0] - r.energy.back();
      if (above > 1e-11) falls += row({static_cast<double>(i), std::log10(above)});
      xi = next;
    }
    falls += "\n\n";
  }

  // %% Drawing
  figure("notebook_hopfield_energy", "$fall << EOD\n" + falls + R"(EOD
set xlabel 'step'
set ylabel 'log_{10} ( E - E(end) )'
set key right top
colours = '#d9730d #8a4fbf #1982d2 #2d9d5a #777777'
plot for [i=0:4] $fall index i using 1:2 with linespoints pt 7 ps 0.5 lw 1.6 lc rgb word(colours, i + 1) \
  title 'β = '.word('0.05 0.15 0.2 0.3 1', i + 1))");

  // %% [markdown]
  // ![The energy above its last value, step by step, from the same cue at five temperatures](notebook_hopfield_energy.svg)
  //
  // ## Stored patterns are fixed points at low temperature
  //
  // At low temperature (large $\beta$) every letter is nearly a fixed point. At high temperature
  // the only fixed point is an average of all letters. In between, similar letters share a fixed
  // point. We start from each letter and print $\exp H$ of the final weights, with $H$ their
  // entropy: the number of letters that share the final state.
  //
  // **Predict:** which letters still share a state at $\beta = 0.3$?

  // %%
  std::printf("  beta    letters in the state that is reached from\n      ");
  for (const char letter : kWord) std::printf("       %c", letter);
  std::printf("\n");
  for (const double b : {0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0}) {
    std::string line;
    for (Index a = 0; a < 8; ++a) {
      const Retrieval r = hopfield_retrieve(X, X.row(a), b);
      char cell[16];
      std::snprintf(cell, sizeof cell, "  %6.3f", n_effective_patterns(X, r.xi, b));
      line += cell;
      if (b >= 1) expect((r.xi - X.row(a).transpose()).norm() < 0.05, "letters come back");
      if (b <= 0.05) expect(n_effective_patterns(X, r.xi, b) > 7, "an average of all");
    }
    std::printf("  %4.2f%s\n", b, line.c_str());
  }

  // %% [markdown]
  // How many damaged letters are restored? For each number of flipped pixels we take 400 cues and
  // count those that end at their letter. One flipped pixel is always corrected, because no two
  // letters are closer than three pixels. With more flips a P may end as an F.
  //
  // **Predict:** how many of the cues with ten flips come back?

  // %%
  std::printf("flipped    came back\n");
  for (const int n_flips : {0, 1, 2, 4, 6, 8, 10, 12}) {
    int n_back = 0;
    for (int trial = 0; trial < 400; ++trial) {
      const Vector end = hopfield_retrieve(X, damaged(trial % 8, n_flips), 1.0).xi;
      n_back += (end - X.row(trial % 8).transpose()).norm() < 0.1;
    }
    std::printf("%4d       %5.1f%%\n", n_flips, n_back / 4.0);
    expect(n_flips > 1 || n_back == 400, "one flip is always corrected");
    expect(n_flips > 8 || n_back > 200, "most cues with up to eight flips come back");
  }

  // %% [markdown]
  // ## Values that differ from the keys
  //
  // If the values differ from the keys, the memory is hetero-associative: first iterate among the
  // keys, then read the values. Here the value of each letter is the next letter of the word, and
  // the value of the last is the first.
  //
  // **Predict:** we start from the damaged H and feed each answer back as a cue. What is printed?

  // %%
  Matrix Y(8, kPixels);
  for (Index a = 0; a < 8; ++a) Y.row(a) = X.row((a + 1) % 8);
  std::vector<Vector> recited{cue};
  for (Index i = 0; i < 8; ++i) {
    recited.push_back(hopfield_recall(X, Y, recited.back(), 1.0));
    expect((recited.back() - Y.row(i).transpose()).norm() < 0.1, "it recites the word");
  }
  show(recited);

  // %% [markdown]
  // ## Capacity
  //
  // How many random patterns of length 1 can be stored in dimension $d$? The stored pattern has
  // weight $\mathrm e^\beta$. The $N$ others together have weight
  // $N \langle \mathrm e^{\beta u} \rangle$, where $u$ is the cosine between two random directions.
  // The pattern is lost where the second is a fixed fraction of the first,
  //
  // $$
  // \log N = \beta - \log \langle \mathrm e^{\beta u} \rangle + \mathrm{const} .
  // $$
  //
  // With $\beta = d / 2$ the right-hand side grows in proportion to $d$: the capacity is
  // *exponential* in the dimension. We measure it with cues at a distance of 0.3, as the geometric
  // mean over 20 sets of patterns, and fit the constant of the formula.
  //
  // **Predict:** from $d = 12$ to $d = 24$, by which factor does the capacity grow?

  // %%
  std::vector<std::array<double, 3>> capacity;  // d, measured log N, formula
  double constant = 0;
  for (const int d : {8, 12, 16, 20, 24}) {
    const double n = hopfield_capacity(d, CapacityTrial{0.5 * d}, random);
    capacity.push_back({1.0 * d, std::log(n), 0.5 * d - log_mean_weight(d, 0.5 * d)});
    constant += (capacity.back()[1] - capacity.back()[2]) / 5;
  }
  std::string measured, formula;
  std::printf("   d    patterns    formula\n");
  for (const auto& [d, log_n, theory] : capacity) {
    std::printf("  %2.0f    %8.1f   %8.1f\n", d, std::exp(log_n), std::exp(theory + constant));
    measured += row({d, std::exp(log_n)});
    formula += row({d, std::exp(theory + constant)});
    expect(std::abs(log_n - theory - constant) < 0.5, "the formula gives the capacity");
  }
  const double growth = (capacity[4][1] - capacity[1][1]) / 12;
  const double expected = (capacity[4][2] - capacity[1][2]) / 12;
  std::printf("log N grows by %.3f for each dimension, formula %.3f\n", growth, expected);
  expect(std::abs(growth - expected) < 0.05, "capacity grows exponentially");

  // %% Drawing
  figure("notebook_capacity", "$n << EOD\n" + measured + "EOD\n$f << EOD\n" + formula + R"(EOD
set logscale y 10
set xlabel 'dimension d'
set ylabel 'patterns that can be stored'
set xrange [7:25]
set key left top
plot $f using 1:2 with lines lw 2 lc rgb '#bbbbbb' title 'formula, constant fitted', \
     $n using 1:2 with points pt 7 ps 0.9 lc rgb '#1982d2' title 'measured')");

  // %% [markdown]
  // ![Capacity of the memory against dimension, with the formula](notebook_capacity.svg)
  //
  // ## What the heads of a transformer retrieve
  //
  // `tests/data/minilm` holds $q$, $k$ and $v$ of one layer of a trained sentence encoder: twelve
  // heads over 512 word pieces. A head does not iterate. It reads once, with $\beta = 1 / \sqrt{32}$,
  // from values that differ from the keys. We first check that our attention equals the output of
  // the model.

  // %%
  const SafetensorsFile file = SafetensorsFile::open(TREE_ATTN_TEST_DATA "/minilm/attention.safetensors");
  const auto head_of = [&file](const char* name, Index h) {
    const TensorView view = view4(file, name, "b, n_h, l, d_h");
    Matrix transposed(view.shape[3], view.shape[2]);
    for (Index i = 0; i < view.shape[2]; ++i) load_row(view, 0, h, i, transposed.col(i).data());
    return Matrix(transposed.transpose());
  };
  const double scale = 1 / std::sqrt(32.0);
  double largest_error = 0;
  for (Index h = 0; h < 12; ++h) {
    const Matrix Q = head_of("q", h), K = head_of("k", h), V = head_of("v", h);
    const Matrix model = head_of("expected", h);
    for (Index i = 0; i < Q.rows(); ++i) {
      const Vector ours = hopfield_recall(K, V, Q.row(i), scale, 0);
      const Vector off = ours - model.row(i).transpose();
      largest_error = std::max(largest_error, off.cwiseAbs().maxCoeff());
    }
  }
  std::printf("largest difference from the model's own output: %.1e\n", largest_error);
  expect(largest_error < 2e-6, "our attention is the model's");

  // %% [markdown]
  // For each head we print how many keys one step uses ($\exp$ of the mean entropy), and the mean
  // weight on the piece itself, on its two neighbours and on the first piece, [CLS]. Then we
  // iterate among the keys, from every 16th query, and print the number of different final states,
  // the number of keys in such a state (the median), and its weight on [CLS].
  //
  // **Predict:** [CLS] has up to a quarter of the weight in the first step. How much in the final
  // states?

  // %%
  std::printf("              one step of attention          iterated among the keys\n");
  std::printf("head    keys    itself   next to   [CLS]     states   keys   [CLS]\n");
  int n_single = 0, n_average = 0;
  for (Index h = 0; h < 12; ++h) {
    const Matrix Q = head_of("q", h), K = head_of("k", h);
    const Index l = Q.rows();
    double H = 0, itself = 0, beside = 0, first = 0, first_settled = 0;
    std::vector<double> n_keys;
    std::vector<Vector> states;
    for (Index i = 0; i < l; ++i) {
      const Vector q = Q.row(i), P = attention_probabilities(scale * q, K);
      H += entropy(scale * q, K, K, Vector()) / static_cast<double>(l);
      itself += P(i) / static_cast<double>(l);
      beside += ((i > 0 ? P(i - 1) : 0) + (i + 1 < l ? P(i + 1) : 0)) / static_cast<double>(l);
      first += P(0) / static_cast<double>(l);
      if (i % 16 != 0) continue;
      const Retrieval end = hopfield_retrieve(K, q, scale, 1e-6, 1000);
      expect(end.settled, "every query settles");
      n_keys.push_back(n_effective_patterns(K, end.xi, scale));
      first_settled += end.P(0) / 32;
      const auto is_end = [&](const Vector& xi) { return (xi - end.xi).norm() < 1e-3 * xi.norm(); };
      if (std::none_of(states.begin(), states.end(), is_end)) states.push_back(end.xi);
    }
    std::sort(n_keys.begin(), n_keys.end());
    std::printf("%3td   %6.1f    %.3f     %.3f    %.3f      %3zu   %6.1f   %.3f\n", h, std::exp(H), itself, beside, first,
                states.size(), n_keys[16], first_settled);
    expect(first_settled < 0.01, "no query settles on [CLS]");
    n_single += n_keys[16] < 2;
    n_average += states.size() == 1 && n_keys[16] > 100;
  }
  std::printf("%d heads end at single keys, %d at one average of more than 100 keys\n", n_single, n_average);
  expect(n_single == 5 && n_average == 5, "two kinds of heads");
}

// %% [markdown]
// [CLS] has a tenth to a quarter of the weight of the first step in eleven of the heads, and none
// in the final states: the keys with the largest weight in one step are not those at which
// iteration ends. Five heads act as memories: different queries end at different single keys. Five
// others act as averages: at this temperature all queries end in one state that hundreds of keys
// share. A head itself uses only the weights of the first step.
//
// ## What to take home
//
// 1. With keys equal to values, one step of attention decreases an energy of the state, by at least
//    half the squared length of the step.
// 2. At low temperature stored patterns are fixed points, and their number grows exponentially with
//    the dimension; at high temperature only an average is left.
// 3. An attention head reads its values with the weights of one step of such a memory. Iterated, some
//    heads retrieve single keys, and others compute one average for all queries.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 4.1`: one step of an associative memory.
//
// ## Questions
//
// 1. (Easy.) In the tied case a source acts like a query. What does Obs. 1 say about a Hopfield
//    memory? What is the covariance of @ref notebook_moments at a stored pattern?
//
//    <details><summary>Answer</summary>
//
//    One retrieval step is the gradient of a log-sum-exp. The covariance $C$ of the patterns under
//    the weights gives the derivative of the step, $\partial \xi' / \partial \xi = \beta C$. At a
//    stored pattern and low temperature one weight is nearly 1, so $C$ is nearly 0 and the
//    iteration converges in a few steps.
//
//    </details>
//
// 2. (Hard.) Below which $\beta$ do all letters end in one state? Linearise the step at the average
//    of all patterns.
//
//    <details><summary>Answer</summary>
//
//    At the average the derivative of a step is $\beta C$, with $C$ the covariance of the eight
//    letters. Its largest eigenvalue is 7.27, so the estimate is $\beta = 1 / 7.27 = 0.138$.
//    Iteration gives one final state for all letters at $\beta = 0.135$, and two at $0.14$. The
//    estimate ignores that the common state moves away from the average as $\beta$ grows: at
//    $\beta = 0.135$ it uses 5.7 letters and is still stable, and the second state appears beside
//    it.
//
//    </details>
//
// 3. (Medium.) Every fixed point is a stationary point of $E$. Why does iteration not end at a
//    saddle in practice?
//
//    <details><summary>Answer</summary>
//
//    The Hessian of $E$ is $1 - \beta C$. At a saddle it has a negative eigenvalue, so $\beta C$
//    has an eigenvalue above 1, and a step enlarges every deviation in that direction. Only
//    starting points of measure zero lead to the saddle, and rounding moves the state away from it.
//
//    </details>
//
// 4. (Medium.) In a transformer, keys and queries are different projections of the same words. What
//    must hold for a layer to be a *tied* memory?
//
//    <details><summary>Answer</summary>
//
//    The output must be usable as the next query. That needs values equal to keys, $W_V = W_K$, and
//    queries proportional to keys, $W_Q = \beta W_K$.
//
//    </details>
