// SPDX-License-Identifier: Apache-2.0
// Run: build/notebooks/4_hopfield_memories

// %% [markdown]
// # Hopfield memories {#notebook_hopfield}
//
// Store $N$ patterns $x_a$ and let a state $\xi$ attend to them. With $K = V = X$ and
// $q = \beta \xi$, attention, eq. (16), maps the state to a weighted mean of the patterns,
//
// $$
// \xi' = \sum_a \mathrm{softmax}(\beta X \xi)_a \, x_a ,
// $$
//
// and the result can be fed back. In this *tied* case a source is a query: the exponent
// $\beta \xi \cdot x_a + \zeta \cdot x_a$ of eq. (6) knows only the sum $\beta \xi + \zeta$. What
// one step of attention reads, many steps retrieve. They go down an energy of the state,
//
// $$
// E(\xi) = - \frac 1 \beta \log \sum_a \mathrm e^{\beta \xi \cdot x_a} + \frac 1 2 |\xi|^2 ,
// \qquad \frac{\partial E}{\partial \xi} = \xi - \xi' .
// $$
//
// The paper names this neighbour of its own energy and leaves it there. We store letters,
// damage one, count how many memories fit, and ask the heads of a trained transformer.

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
// Seven rows of five pixels, ink is 1 and paper is $-1$: patterns in dimension 35, eight of them.

// %%
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

/// Pictures side by side: full ink, some, hardly any, none.
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
    for (Index b = 0; b < a; ++b) expect((X.row(a) - X.row(b)).cwiseAbs().sum() >= 2 * 3, "letters differ in three pixels");
  }

  // %% [markdown]
  // ## Retrieval
  //
  // Take an H, flip ten of its 35 pixels, and iterate. From left to right: the letter, the cue,
  // and the state after 1, 2, 4, 8 and all steps. The letters are far from orthogonal (P and F
  // share 32 pixels), so the first step reads a blur of several; the following ones sharpen it.

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
  expect(retrieval.settled && (retrieval.xi - X.row(0).transpose()).norm() < 0.2, "an H again");
  const Vector by_gradient = energy_gradient(beta * cue, X, X, Vector::Zero(kPixels));
  expect(hopfield_step(X, cue, beta) == by_gradient, "a step is the gradient of the energy");

  // %% [markdown]
  // ## The energy falls at every step
  //
  // Log-sum-exp is convex, so it lies above its tangent at $\xi$, whose slope is $\beta \xi'$:
  //
  // $$
  // E(\xi') \le E(\xi) - \xi' \cdot (\xi' - \xi) + \tfrac 1 2 \bigl( |\xi'|^2 - |\xi|^2 \bigr)
  // = E(\xi) - \tfrac 1 2 |\xi' - \xi|^2 .
  // $$
  //
  // Each step gains at least half its squared length. The same cue at five temperatures:

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
      expect(E[0] - E[1] >= 0.5 * (next - xi).squaredNorm() - 1e-12, "half its square");
      const double above = E[0] - r.energy.back();
      if (above > 1e-11) falls += row({static_cast<double>(i), std::log10(above)});
      xi = next;
    }
    falls += "\n\n";
  }
  figure("notebook_hopfield_energy", "$fall << EOD\n" + falls + R"(EOD
set xlabel 'step'
set ylabel 'log_{10} ( E - E(end) )'
set key right top
plot for [i=0:4] $fall index i using 1:2 with linespoints pt 7 ps 0.5 lw 1.6 \
  title 'β = '.word('0.05 0.15 0.2 0.3 1', i + 1))");

  // %% [markdown]
  // ![The energy above its last value, step by step, from the same cue at five temperatures](notebook_hopfield_energy.svg)
  //
  // ## Stored patterns come back
  //
  // At low temperature every letter is a fixed point, nearly. At high temperature none is: the
  // only one left is an average of all, and in between lie states shared by a few similar letters.
  // $\exp H$, with $H$ the entropy of the weights, says how many share a state.

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
  // And damaged ones? Of 400 cues for each number of flipped pixels, this many end at their
  // letter. One flip can always be mended: no two letters are closer than three pixels. More can
  // make an F of a P.

  // %%
  std::printf("flipped    came back\n");
  for (const int n_flips : {0, 1, 2, 4, 6, 8, 10, 12}) {
    int n_back = 0;
    for (int trial = 0; trial < 400; ++trial) {
      const Vector end = hopfield_retrieve(X, damaged(trial % 8, n_flips), 1.0).xi;
      n_back += (end - X.row(trial % 8).transpose()).norm() < 0.1;
    }
    std::printf("%4d       %5.1f%%\n", n_flips, n_back / 4.0);
    expect(n_flips > 1 || n_back == 400, "one flip can always be mended");
    expect(n_flips > 8 || n_back > 200, "most cues with up to eight flips come back");
  }

  // %% [markdown]
  // ## Untied: what comes after H?
  //
  // Let the values differ from the keys, and the memory is hetero-associative: settle among the
  // keys, read the values. That is one layer of attention behind a few steps of cleaning. Here the
  // value of each letter is the letter that follows it, and of the last the first. From the
  // damaged H above it recites:

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
  // How many random patterns of length 1 fit into dimension $d$? The one that is asked for weighs
  // $\mathrm e^\beta$; $N$ others together weigh $N \langle \mathrm e^{\beta u} \rangle$, $u$ the
  // cosine of a random direction. The pattern is lost where the second is a fixed part of the
  // first,
  //
  // $$
  // \log N = \beta - \log \langle \mathrm e^{\beta u} \rangle + \mathrm{const} ,
  // $$
  //
  // which with $\beta = d / 2$ grows in proportion to $d$: capacity is *exponential* in the
  // dimension. Measured with cues at a distance of 0.3, as the geometric mean over 20 sets, and
  // against the formula, its constant fitted.

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
  // heads over 512 word pieces. A layer makes one step among its keys, with
  // $\beta = 1 / \sqrt{32}$, and reads values: it is hetero-associative. First that our attention
  // is the model's.

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
  // For each head: how many keys one step spreads over ($\exp$ of the mean entropy), and the mean
  // weight on the piece itself, on its two neighbours and on the first one, [CLS]. Then the
  // question of this page: if the keys were values and the step were repeated, where would every
  // 16th query end? In how many different states, and of how many keys are they made, at the
  // median?

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
  std::printf("%d heads remember single keys, %d know but one average\n", n_single, n_average);
  expect(n_single == 5 && n_average == 5, "two kinds of heads");
}

// %% [markdown]
// [CLS] takes a tenth to a quarter of the first step in eleven of the heads, and nothing of the
// end: what a query looks at first need not be what it would settle on. Some heads are memories:
// iterated, they end at single keys, and at different ones for different queries. Others are
// averages: their keys lie so close together, at this temperature, that all queries flow into one
// state shared by hundreds. What a layer reads in its one step is the start of that road.
//
// ## Questions
//
// 1. In the tied case a source is a query. What does Obs. 1 say about a Hopfield memory, and what
//    is the covariance of @ref notebook_moments at a stored pattern?
// 2. At which $\beta$ do the letters melt into one? Linearise the step at the average of all.
// 3. The fixed points are where $E$ is stationary. Why does iteration never end on a saddle in
//    practice?
// 4. A key and a query of a transformer are different projections of the same word. What would
//    have to hold between the two for a layer to be a *tied* memory?
