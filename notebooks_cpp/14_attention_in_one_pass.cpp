// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 14

// %% [markdown]
// # Notebook 14: Attention in one pass {#notebook_stream}
//
// Section 3 of the paper starts from two sums. Key $i$ gets the weight $s_i$ of eq. (1), and a
// numerator and a denominator are accumulated, eq. (2) and eq. (3):
//
// $$
// s_i = \exp(q \cdot k_i), \qquad n_i = n_{i-1} + s_i v_i, \qquad D_i = D_{i-1} + s_i .
// $$
//
// After the last key, the output is the quotient $z = n_N / D_N$, eq. (quotient). This notebook
// follows the two sums from key to key, finds the scores at which they fail, counts what they read,
// and adds them in other orders and in pieces.
//
// **What you need:** the chapter on @ref stream. **What you get:** the ways in which the plain form
// fails, and the two facts on which the rest of the book is built: the order of the keys hardly
// matters, and the sums of two parts can be added.

// %%
#include "notebooks_cpp/notebook.hpp"
#include "reference/energy/energy.hpp"
#include "reference/energy/stream.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace tree_attn;
using notebook::expect, notebook::figure, notebook::normal;

/// Eq. (1) to eq. (3) for a given score and a value of one component, in F32 or F64.
template <class Scalar>
struct Sums {
  Scalar n = 0, D = 0;

  void add(Scalar score, Scalar v) {
    const Scalar s = std::exp(score);
    n += s * v;
    D += s;
  }
  Scalar z() const { return n / D; }

  friend Sums operator+(const Sums& left, const Sums& right) { return {left.n + right.n, left.D + right.D}; }
};

/// A matrix that counts the elements that are read.
struct Counted {
  const Matrix& elements;
  Eigen::Index n_read = 0;

  Vector row(Eigen::Index a) {
    n_read += elements.cols();
    return elements.row(a).transpose();
  }
};

int main() {
  // %% [markdown]
  // ## The two sums, key by key
  //
  // Eight keys, and values of one component. Dividing eq. (2) by eq. (3) gives the step of the
  // quotient: with $z_i = n_i / D_i$,
  //
  // $$
  // z_i = z_{i-1} + \frac{s_i}{D_i} \, (v_i - z_{i-1}) .
  // $$
  //
  // A key moves $z$ towards its value by its share $s_i / D_i$ of the denominator so far.
  //
  // **Predict:** what is $z$ after the first key? Can $z$ leave the range of the values?

  // %%
  std::mt19937 random(14);
  {
    const Eigen::Index N = 8, d_h = 4;
    const Vector q = normal(random, d_h, 1);
    const Matrix K = normal(random, N, d_h), V = normal(random, N, 1);
    AttentionStream stream(1);
    std::printf("  i    q.k_i      s_i      D_i   s_i/D_i      v_i      n_i      z_i\n");
    for (Eigen::Index i = 0; i < N; ++i) {
      const double score = K.row(i).dot(q), s = std::exp(score), z_before = i == 0 ? 0 : stream.z()(0);
      stream.add(q, K.row(i).transpose(), V.row(i).transpose());
      const double z = stream.z()(0);
      std::printf("  %td  %7.3f  %7.3f  %7.3f   %7.3f  %7.3f  %7.3f  %7.3f\n", i + 1, score, s, stream.D(), s / stream.D(),
                  V(i, 0), stream.n()(0), z);
      expect(z > V.topRows(i + 1).minCoeff() - 1e-15 && z < V.topRows(i + 1).maxCoeff() + 1e-15, "a mean of the values");
      expect(std::abs(z - attention_mean(q, K.topRows(i + 1), V.topRows(i + 1))(0)) < 1e-14, "z is the definition's");
      expect(std::abs(z - z_before - s / stream.D() * (V(i, 0) - z_before)) < 1e-14, "a step by the share");
    }
  }

  // %% [markdown]
  // After every key, $n_i / D_i$ is attention over the keys so far, to 14 digits. It is a weighted mean
  // of their values and does not leave their range. The first key has all of the weight.
  //
  // ## While the keys arrive
  //
  // Now 1024 keys. One of them has the value 1 and a score of $\ln 1024 + \frac12$, so its weight is
  // about that of all others together. The other scores are normal, their values are small. We add
  // the same keys three times: the large key comes early, in the middle, or last.
  //
  // **Predict:** how does $z$ change while the other keys arrive, before the large key and after it?

  // %%
  const std::size_t N = 1024;
  std::normal_distribution<double> draw;
  std::vector<double> score(N), value(N);
  for (double& r : score) r = draw(random);
  for (double& v : value) v = 0.1 * draw(random);
  score[0] = std::log(double(N)) + 0.5, value[0] = 1;

  const std::size_t places[] = {8, 512, N};
  std::vector<std::vector<double>> running;
  std::printf("  place of the large key   z before it   with it   after the last key\n");
  for (const std::size_t place : places) {
    Sums<double> sums;
    running.push_back({});
    for (std::size_t i = 1; i <= N; ++i) {
      const std::size_t a = i == place ? 0 : i < place ? i : i - 1;
      sums.add(score[a], value[a]);
      running.back().push_back(sums.z());
    }
    const std::vector<double>& z = running.back();
    std::printf("%24zu   %11.3f   %7.3f   %.15f\n", place, z[place - 2], z[place - 1], z.back());
    expect(std::abs(z.back() - running[0].back()) < 1e-14, "the same output");
  }

  // %% Drawing
  std::string points;
  for (std::size_t i = 0; i < N; ++i) points += notebook::row({double(i + 1), running[0][i], running[1][i], running[2][i]});
  figure("notebook_running_z", "$z << EOD\n" + points + R"(EOD
set xlabel 'keys so far'
set ylabel 'z over the keys so far'
set xrange [0:1040]
set yrange [-0.2:1.05]
set key top right
plot $z using 1:2 with lines lw 5 lc rgb '#d9730d' title 'large key early', \
     $z using 1:3 with lines lw 3 lc rgb '#1982d2' title 'in the middle', \
     $z using 1:4 with lines lw 1.8 lc rgb '#2d9d5a' title 'last')");

  // %% [markdown]
  // ![z over the keys so far, for three orders of the same 1024 keys](notebook_running_z.svg)
  //
  // The large key moves $z$ at once, by its share of the keys so far. Later keys reduce that share,
  // because $D$ grows. Wherever two orders have processed the same keys, their curves coincide: up to
  // rounding, the sums depend on the set of keys and not on its order. Before the last key, $z$ says
  // nothing about the keys to come.
  //
  // ## The exact scores at which it fails
  //
  // The weight $\exp(q \cdot k)$ must be representable. We bisect to neighbouring numbers: the
  // last score at which the weight is finite, or is not 0, and the next score, at which it fails.
  //
  // **Predict:** the largest double is $1.8 \cdot 10^{308}$, and $\ln 10 = 2.303$. Where is the upper
  // end? The smallest double is $4.9 \cdot 10^{-324}$. Why is the lower end not at its logarithm,
  // $-744.44$?

  // %%
  const auto ends = []<class Scalar>(const char* type, Scalar limit, int digits) {
    std::vector<Scalar> last;
    for (const Scalar fail : {limit, -limit}) {
      Scalar works = 0, fails = fail;
      while (std::nextafter(works, fails) != fails) {
        const Scalar middle = works + (fails - works) / 2, s = std::exp(middle);
        (std::isfinite(s) && s > 0 ? works : fails) = middle;
      }
      std::printf("%s  %19.*g   %8.3g   %19.*g   %8g\n", type, digits, double(works), double(std::exp(works)), digits,
                  double(fails), double(std::exp(fails)));
      last.push_back(works);
    }
    return last;
  };
  std::printf("     last score that works   weight            next score   weight\n");
  const std::vector<float> ends_32 = ends("F32", 1000.f, 9);
  const std::vector<double> ends_64 = ends("F64", 1000., 17);
  expect(std::abs(ends_32[0] - 88.72284f) < 1e-4f && std::abs(ends_32[1] + 103.97208f) < 1e-4f, "the ends of F32");
  expect(std::abs(ends_64[0] - 709.782712893384) < 1e-9 && std::abs(ends_64[1] + 745.133219101941) < 1e-9, "and of F64");

  // %% [markdown]
  // A weight of more than half the smallest double is rounded up to it. That moves the lower end by
  // $\ln 2$.
  //
  // But $z$ fails before its weights do. Three things can exceed the range: a weight, its product
  // with a value, and the sum.
  //
  // **Predict:** all keys of a row are equal, so $z$ is their value. In which rows is $z$ right,
  // infinite, NaN, or finite and wrong?

  // %%
  struct Row {
    double score, v;
    int n_keys;
    double expected;
  };
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  std::printf("   score   keys    v           D           n      z\n");
  for (const Row& row : {Row{709, 0.1, 2, 0.1}, Row{709, 0.1, 3, 0}, Row{709, 3, 2, inf}, Row{710, 0.1, 1, nan},
                         Row{-745, 0.3, 1, 0}, Row{-745, 0.7, 1, 1}, Row{-746, 0.7, 1, nan}}) {
    Sums<double> sums;
    for (int i = 0; i < row.n_keys; ++i) sums.add(row.score, row.v);
    const double z = std::isnan(sums.z()) ? nan : sums.z();
    std::printf("  %6g   %4d  %.1f  %10.3g  %10.3g  %5g\n", row.score, row.n_keys, row.v, sums.D, sums.n, z);
    expect(std::isnan(row.expected) ? std::isnan(z) : z == row.expected || std::abs(z - row.expected) < 1e-15, "as listed");
  }

  // %% [markdown]
  // If $D$ alone overflows, $z$ is 0. If $n$ alone overflows, it is infinite. Only
  // if both overflow is the result NaN, which reports the error. At $-745$ the only weight is the
  // smallest double, so $n$ is a multiple of it, and $z$ is the value *rounded to an integer*: 0.3
  // becomes 0 and 0.7 becomes 1. At $-746$ nothing is left. The remedy for both ends is a shift:
  // @ref safe_softmax.
  //
  // ## The order of the keys
  //
  // A sum does not depend on the order of its terms; a rounded sum does. We add 4096 keys in 1000
  // random orders, in F32 and in F64. The reference adds the same rounded weights in
  // `long double`. Errors are in units of $u z$, with the unit roundoff $u$.
  //
  // **Predict:** how many different results do 1000 orders have? A sum of 4096 terms may lose
  // $4096 u$. How much of that do you expect?

  // %%
  const std::size_t n_many = 4096;
  std::vector<double> r(n_many), v(n_many);
  for (double& r_a : r) r_a = float(draw(random));
  for (double& v_a : v) v_a = double(random() >> 8) * 0x1p-24;
  using Order = std::vector<int>;
  std::vector<Order> orders(1000, Order(n_many));
  for (Order& order : orders) {
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
  }

  // What the orders give: how many results, and their errors in units of u z, sorted.
  struct Spread {
    std::size_t n_different;
    std::vector<double> errors;
  };
  // The keys of an order are cut into p pieces; each piece is a stream, and the pieces are added in pairs.
  const auto spread = [&]<class Scalar>(Scalar, std::size_t p = 1) {
    Sums<long double> exact;
    for (std::size_t a = 0; a < n_many; ++a) {
      const long double s = std::exp(Scalar(r[a]));
      exact = exact + Sums<long double>{s * static_cast<long double>(v[a]), s};
    }
    std::set<Scalar> different;
    Spread found;
    for (const Order& order : orders) {
      std::vector<Sums<Scalar>> pieces(p);
      for (std::size_t i = 0; i < n_many; ++i) pieces[i * p / n_many].add(Scalar(r[order[i]]), Scalar(v[order[i]]));
      for (; pieces.size() > 1; pieces.resize(pieces.size() / 2)) {
        for (std::size_t i = 0; i < pieces.size() / 2; ++i) pieces[i] = pieces[2 * i] + pieces[2 * i + 1];
      }
      const Scalar z = pieces[0].z(), u = std::numeric_limits<Scalar>::epsilon() / 2;
      different.insert(z);
      found.errors.push_back(double(std::abs(z / exact.z() - 1) / u));
    }
    std::sort(found.errors.begin(), found.errors.end());
    found.n_different = different.size();
    return found;
  };
  const auto report = [](const char* name, const Spread& found) {
    std::printf("%s  %17zu   %12.1f   %13.1f\n", name, found.n_different, found.errors[500], found.errors.back());
  };
  const Spread in_f32 = spread(0.f), in_f64 = spread(0.);
  std::printf("     different results   median error   largest error\n");
  report("F32", in_f32), report("F64", in_f64);
  for (const Spread& found : {in_f32, in_f64}) {
    expect(found.n_different > 10, "the order changes bits");
    expect(found.errors[500] < 64 && found.errors.back() < 256, "but not more than a few of them");
  }

  // %% [markdown]
  // Roundings of single additions have both signs and partly cancel, so most errors are below
  // $\sqrt{4096} = 64$ units, far from the bound. Any order may be used. How badly a long chain can
  // round is shown in @ref notebook_rounding.
  //
  // ## What one pass reads and keeps
  //
  // The definition divides every weight by a sum over all keys, so it needs that sum first. Then it
  // reads the keys a second time, or it has kept all weights. We compare these two ways with the
  // stream, on matrices that count what is read.
  //
  // **Predict:** with $d_h = d_v = 64$, how many more elements do two passes read?

  // %%
  const Eigen::Index n_keys = 4096, d_h = 64, d_v = 64;
  const Vector q = normal(random, d_h, 1) / std::sqrt(double(d_h));
  const Matrix K = normal(random, n_keys, d_h), V = normal(random, n_keys, d_v);
  const Vector z = attention_mean(q, K, V);

  std::printf("                        elements read   elements kept\n");
  const auto count = [&](const char* way, Eigen::Index n_read, Eigen::Index n_kept, const Vector& out) {
    std::printf("%-22s  %13td   %13td\n", way, n_read, n_kept);
    expect((out - z).norm() < 1e-14, "every way gives attention");
  };
  {
    Counted keys{K}, values{V};
    Vector out = Vector::Zero(d_v);
    double D = 0;
    for (Eigen::Index a = 0; a < n_keys; ++a) D += std::exp(q.dot(keys.row(a)));
    for (Eigen::Index a = 0; a < n_keys; ++a) out += std::exp(q.dot(keys.row(a))) / D * values.row(a);
    count("two passes", keys.n_read + values.n_read, out.size() + 1, out);
    expect(keys.n_read + values.n_read == n_keys * (2 * d_h + d_v), "every key is read twice");
  }
  {
    Counted keys{K}, values{V};
    Vector P(n_keys), out = Vector::Zero(d_v);
    for (Eigen::Index a = 0; a < n_keys; ++a) P(a) = std::exp(q.dot(keys.row(a)));
    const double D = P.sum();
    for (Eigen::Index a = 0; a < n_keys; ++a) out += P(a) / D * values.row(a);
    count("two, weights kept", keys.n_read + values.n_read, P.size() + out.size() + 1, out);
  }
  {
    Counted keys{K}, values{V};
    AttentionStream stream(d_v);
    for (Eigen::Index a = 0; a < n_keys; ++a) stream.add(q, keys.row(a), values.row(a));
    count("one pass", keys.n_read + values.n_read, stream.n().size() + 1, stream.z());
    expect(keys.n_read + values.n_read == n_keys * (d_h + d_v), "every key and value is read once");
  }

  // %% [markdown]
  // Two passes read half as much again, and compute every weight twice. Keeping the
  // weights costs memory that grows with the number of keys. One pass reads everything once and
  // keeps $d_v + 1$ elements.
  //
  // ## Two streams
  //
  // Nothing in the sums says where the first key is. We cut the keys in two, run a stream over each
  // part as if on two devices, and add the numerators and the denominators.
  //
  // **Predict:** at how many of 255 cuts does the result have the bits of the uncut stream? Does a cut
  // make the error larger?

  // %%
  const auto stream_over = [&](Eigen::Index begin, Eigen::Index end) {
    AttentionStream stream(d_v);
    for (Eigen::Index a = begin; a < end; ++a) stream.add(q, K.row(a).transpose(), V.row(a).transpose());
    return stream;
  };
  const Vector uncut = stream_over(0, n_keys).z();
  int n_same = 0;
  double largest = 0;
  for (Eigen::Index cut = 16; cut < n_keys; cut += 16) {
    const AttentionStream left = stream_over(0, cut), right = stream_over(cut, n_keys);
    const Vector both = (left.n() + right.n()) / (left.D() + right.D());
    n_same += both == uncut;
    largest = std::max(largest, (both - uncut).lpNorm<Eigen::Infinity>());
  }
  std::printf("%d of 255 cuts have the bits of the uncut stream; largest difference %.1e\n", n_same, largest);
  std::printf("a part of 2048 keys has %td elements, its sums have %td\n", n_keys / 2 * (d_h + d_v), d_v + 1);
  expect(largest < 1e-14, "the sums of two parts can be added");

  // %% [markdown]
  // Only the last bits are lost. What has to be sent is the $d_v + 1$ elements of the sums, for any
  // number of keys. Eq. (13) counts these for every head, and one more: the shift.
  //
  // More parts make the chain of dependent additions shorter. We cut the 4096 keys of the random
  // orders into $p$ parts, and add the parts in pairs, pairs of pairs, and so on, in F32.
  //
  // **Predict:** at which $p$ is the chain shortest? Where is the error smallest?

  // %%
  std::printf("    p   dependent additions   different results   median error   largest error\n");
  std::vector<double> medians;
  for (const std::size_t p : {1, 2, 16, 64, 512, 4096}) {
    const Spread found = spread(0.f, p);
    medians.push_back(found.errors[500]);
    std::printf(" %4zu   %19.0f   %17zu   %12.1f   %13.1f\n", p, double(n_many / p - 1) + std::log2(double(p)),
                found.n_different, medians.back(), found.errors.back());
  }
  expect(medians.back() < 0.5 * medians.front(), "shorter chains round less");
}

// %% [markdown]
// With one key per part all additions are in the tree: 12 dependent steps instead of 4095. With 16
// parts or more, most errors are below one unit. How the tree is built, and how its bits are made
// independent of the parts, is the subject of the chapter on @ref tree.
//
// ## What to take home
//
// 1. Attention is a quotient of two sums. One pass reads every key and value once and keeps
//    $d_v + 1$ elements.
// 2. The plain form fails above 709.78 and below $-745.13$, in F32 above 88.72 and below
//    $-103.97$. Near the ends it returns finite results that are wrong.
// 3. The order of the keys changes a few of the last bits. Streams over parts of the keys can
//    be added, so the chain of $N$ additions can become a tree.
//
// ## To program
//
// The line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 14.1`: one key of a stream that cannot overflow.
//
// ## Questions
//
// 1. (Easy.) In the figure the large key lifts $z$ to nearly 1 at place 8, and to a half at place 1024.
//    Its score and its value are the same in both orders. Why does its effect differ?
//
//    <details><summary>Answer</summary>
//
//    Its share is $s_i / D_i$, and $D_i$ has only 8 weights in one case and all 1024 in the other.
//    The output is the same, because keys after place 8 reduce the share to the same half.
//
//    </details>
//
// 2. (Medium.) All scores are 88, in F32, and all values are 1. How many keys does the plain form
//    survive? And with all scores 80?
//
//    <details><summary>Answer</summary>
//
//    The largest float is $\mathrm e^{88.72}$. Two keys fit, because $88 + \ln 2 = 88.69$, and three do
//    not. With scores of 80 there is room for $\mathrm e^{8.72}$ keys, which are 6141. The limit applies
//    to $\ln D$, the energy, and not only to the scores.
//
//    </details>
//
// 3. (Hard.) Each of two devices subtracts its own largest score, $m_A$ or $m_B$, from its scores.
//    What goes wrong if their sums are added as above, and which third number mends it?
//
//    <details><summary>Answer</summary>
//
//    The sums of $A$ are $\mathrm e^{-m_A} n_A$ and $\mathrm e^{-m_A} D_A$, and those of $B$ have
//    another factor. Added as they are, each part counts as if it contained the largest score of
//    all. Let $A$ have one key of score 0 and value 1, and $B$ nine of score $-100$ and value 0.
//    Attention is 1 to 42 digits, but the added sums give $1 / (1 + 9) = 0.1$. If each device sends
//    its $m$ too, the factors $\mathrm e^{m_A - m}$ and $\mathrm e^{m_B - m}$ with
//    $m = \max(m_A, m_B)$ make the sums comparable. The triple is the state (@ref state).
//
//    </details>
