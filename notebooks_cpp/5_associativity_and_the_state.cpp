// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 5

// %% [markdown]
// # Notebook 5: Associativity and the state {#notebook_state}
//
// Thm. 1 requires an associative operator. The operator of tree decoding merges the states of two
// sets of keys. In the paper's form a state has a largest score $m$, a sum of weights $D$ and a
// weighted sum of values $n$, with
//
// $$
// m = \max(m_S, m_T), \quad D = \mathrm e^{m_S - m} D_S + \mathrm e^{m_T - m} D_T, \quad
// n = \mathrm e^{m_S - m} n_S + \mathrm e^{m_T - m} n_T .
// $$
//
// In exact arithmetic this merge is associative and commutative, and the empty set is its neutral
// element (@ref state). In floating point every operation rounds. We test which of the three laws
// still hold *bit for bit*, for the paper's form and for that of `reference/state/state.hpp`, whose
// shift is an integer.
//
// **What you need:** the chapter on @ref state, and how a float is rounded. **What you get:** a
// merge whose operands can be exchanged without changing a bit, and the reason why the paper's form
// is not one.

// %%
#include "distributed/exchange/exchange.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace tree_attn;
using notebook::expect, notebook::figure, notebook::same_bits;

constexpr int kValueDim = 8;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// e, D and n of the library, or m, D and n of the paper: one shift, then the sums.
using State = std::vector<float>;

// %% [markdown]
// ## The paper's merge in floating point
//
// The expression $\alpha x + \beta y$ is two products and a sum. With fused multiply-add (FMA), a
// processor computes $\alpha x + c$ with one rounding, and compilers use it where they may. Then
// the right product is rounded and the left one is not. We write `std::fma` explicitly, so that the
// result does not depend on compiler options.

// %%
/// The paper's merge in float: with fused multiply-add, or with every product rounded.
State paper_merge(const State& x, const State& y, bool fused = true) {
  const float m = std::max(x[kShift], y[kShift]);
  const float alpha = std::exp(x[kShift] - m), beta = std::exp(y[kShift] - m);
  State merged{m};
  for (std::size_t i = kSum; i < x.size(); ++i) {
    const volatile float left = alpha * x[i],
                         right = beta * y[i];  // volatile: rounded, never fused
    merged.push_back(fused ? std::fma(alpha, x[i], right) : left + right);
  }
  return merged;
}

/// The library's merge, on copies.
State merged(State left, const State& right) {
  merge(left.data(), right.data(), static_cast<std::int64_t>(left.size()) - kValues);
  return left;
}

/// The library's merge with fused multiply-add spelt out.
State fused_merge(const State& x, const State& y) {
  const Rescale<float> r = rescale(x[kShift], y[kShift]);
  State merged{r.shift};
  for (std::size_t i = kSum; i < x.size(); ++i) {
    const float high = r.right_is_high ? y[i] : x[i], low = r.right_is_high ? x[i] : y[i];
    merged.push_back(std::fma(r.factor, low, high));
  }
  return merged;
}

// %% [markdown]
// Both forms start from the same keys, with natural scores $s$ and values $v$ drawn from a normal
// distribution. A random state is the state of eight keys.

// %% Keys and random states
struct Key {
  float s;               ///< natural score
  std::vector<float> v;  ///< value
};

Key random_key(std::mt19937& random, float offset = 0) {
  std::normal_distribution<double> normal;
  Key key{static_cast<float>(offset + normal(random)), std::vector<float>(kValueDim)};
  for (float& v_j : key.v) v_j = static_cast<float>(normal(random));
  return key;
}

State paper_key(const Key& key) {
  State state{key.s, 1};
  state.insert(state.end(), key.v.begin(), key.v.end());
  return state;
}

State integer_key(const Key& key) {
  State state(kValues + key.v.size());
  set_key(state.data(), float(kLog2E) * key.s, key.v.data(), std::ssize(key.v));
  return state;
}

/// The states of eight random keys, in both forms. `offset` is added to every score.
struct TwoForms {
  State paper, integer;
};

TwoForms random_state(std::mt19937& random, float offset = 0) {
  const Key first = random_key(random, offset);
  TwoForms state{paper_key(first), integer_key(first)};
  for (int i = 1; i < 8; ++i) {
    const Key key = random_key(random, offset);
    state.paper = paper_merge(state.paper, paper_key(key));
    state.integer = merged(state.integer, integer_key(key));
  }
  return state;
}

int main() {
  // %% [markdown]
  // ## One merge that does not commute
  //
  // We merge random pairs until the two orders differ, and print that pair in hexadecimal, where
  // each digit is four bits of the float.

  // %%
  std::mt19937 random(5);
  TwoForms x = random_state(random), y = random_state(random);
  int n_tried = 1;
  for (; paper_merge(x.paper, y.paper)[kSum] == paper_merge(y.paper, x.paper)[kSum]; ++n_tried) {
    x = random_state(random), y = random_state(random);
  }
  if (x.paper[kShift] < y.paper[kShift]) std::swap(x, y);  // alpha = 1, beta < 1

  const float beta = std::exp(y.paper[kShift] - x.paper[kShift]);
  const double exact = double(beta) * double(y.paper[kSum]);  // 24 + 24 bits fit into a double
  std::printf("pair %d:  m_S = %.4f, m_T = %.4f\n", n_tried, x.paper[kShift], y.paper[kShift]);
  std::printf("beta                 %a\n", beta);
  std::printf("beta * D_T, exact    %a\n", exact);
  std::printf("beta * D_T, rounded  %a\n", static_cast<float>(exact));
  std::printf("D_S                  %a\n", x.paper[kSum]);
  std::printf("D of merge(S, T)     %a\n", paper_merge(x.paper, y.paper)[kSum]);
  std::printf("D of merge(T, S)     %a\n", paper_merge(y.paper, x.paper)[kSum]);
  expect(exact != static_cast<float>(exact), "the product is not exact");

  // %% [markdown]
  // One of the two factors is 1, because $m$ is one of the two maxima, and its product is exact.
  // The other product makes the difference: with $S$ on the left it is rounded before the addition,
  // with $T$ on the left it is fused and enters exactly.
  //
  // ## How often does the order matter?
  //
  // We count 20000 pairs in each of four arithmetics. A state counts as different if any of its
  // elements differs.
  //
  // **Predict:** for which of the four is the count zero?

  // %%
  const int n_pairs = 20000;
  int n_paper_D = 0, n_paper_state = 0, n_rounded = 0, n_integer = 0, n_integer_fused = 0;
  int n_fusing_matters = 0;
  for (int i = 0; i < n_pairs; ++i) {
    const TwoForms S = random_state(random), T = random_state(random);
    const State left = paper_merge(S.paper, T.paper), right = paper_merge(T.paper, S.paper);
    n_paper_D += left[kSum] != right[kSum];
    n_paper_state += !same_bits(left, right);
    n_rounded += !same_bits(paper_merge(S.paper, T.paper, false), paper_merge(T.paper, S.paper, false));

    const State integer = merged(S.integer, T.integer), fused = fused_merge(S.integer, T.integer);
    n_integer += !same_bits(integer, merged(T.integer, S.integer));
    n_integer_fused += !same_bits(fused, fused_merge(T.integer, S.integer));
    n_fusing_matters += !same_bits(integer, fused);
  }
  const auto percent = [n_pairs](int n) { return 100.0 * n / n_pairs; };
  std::printf("merge(S, T) != merge(T, S), in %d pairs\n\n", n_pairs);
  std::printf("  paper, fused:           D alone   %5.2f %%\n", percent(n_paper_D));
  std::printf("                          the state %5.2f %%  (D and %d components of n)\n", percent(n_paper_state),
              kValueDim);
  std::printf("  paper, rounded:         the state %5.2f %%\n", percent(n_rounded));
  std::printf("  integer shift, fused:   the state %5.2f %%\n", percent(n_integer_fused));
  std::printf("  integer shift, library: the state %5.2f %%\n\n", percent(n_integer));
  std::printf("fused and library form of the integer shift differ in %d pairs\n", n_fusing_matters);

  expect(n_paper_D > n_pairs / 10, "more than one denominator in ten depends on the order");
  expect(n_paper_state > n_pairs / 2, "most states depend on the order in some component");
  expect(n_rounded == 0, "without fused multiply-add the formula is symmetric in bits too");
  expect(n_integer == 0 && n_integer_fused == 0, "with an integer shift the merge commutes");
  expect(n_fusing_matters == 0, "with an integer shift fusing changes no bit");

  // %% [markdown]
  // Without FMA the paper's form commutes too, but then every compiler and every kernel must avoid
  // FMA. With an integer shift nothing has to be avoided: multiplying by a power of two is exact,
  // so the fused and the rounded product are equal.
  //
  // ## Why the order matters so often
  //
  // Let $g$ be the spacing of floats near the rounded product, and $\mathrm{ulp}(D)$ the spacing
  // near $D$. If $D_S$ is the larger part, the sum of $D_S$ and the rounded product is a multiple
  // of $g$, which is then rounded to a multiple of $\mathrm{ulp}(D)$. The exact product differs
  // from the rounded one by $\delta$, less than $g$. This changes the result only if the sum is
  // *exactly halfway* between two floats: the rounded product gives a tie, which rounds to even,
  // and the exact product breaks the tie. One multiple of $g$ in $\mathrm{ulp}(D) / g$ is halfway,
  // and half of the ties break the other way, so the probability is $\frac12 g / \mathrm{ulp}(D)$,
  // or 0 if the two spacings are equal. If $D_S$ is the smaller part, its own spacing is the finer
  // one, and $\delta$ may cross several multiples, which adds $\lfloor |\delta| / g \rfloor$ to the
  // $\frac12$.
  //
  // We now increase the difference of the two largest scores.
  //
  // **Predict:** does the order matter more often or less often as the difference grows? What
  // happens at a difference of 0?

  // %%
  const auto ulp = [](float D) { return double(std::nextafter(D, kInf)) - double(D); };
  std::string points;
  for (float gap = 0; gap <= 8; gap += 0.25f) {
    int n_differ = 0;
    double chance = 0;
    for (int i = 0; i < 4000; ++i) {
      State S = random_state(random).paper, T = random_state(random).paper;
      T[kShift] = S[kShift] - gap;
      const float D = paper_merge(S, T)[kSum];
      n_differ += D != paper_merge(T, S)[kSum];

      const double factor = std::exp(T[kShift] - S[kShift]), product = factor * double(T[kSum]);
      const double delta = std::abs(product - double(float(product)));
      const double g = std::min(ulp(S[kSum]), ulp(float(product)));
      if (delta > 0 && g < ulp(D)) chance += (std::floor(delta / g) + 0.5) * g / ulp(D);
    }
    points += std::to_string(gap) + " " + std::to_string(n_differ / 40.0) + " " + std::to_string(chance / 40.0) + "\n";
    expect(std::abs(n_differ - chance) < 120, "the share is that of the ties");
    expect(gap > 0 || n_differ == 0, "equal maxima commute");
  }

  // %% Drawing
  figure("notebook_commute", "$share << EOD\n" + points + R"(EOD
set xlabel 'm_S - m_T'
set ylabel 'merges that do not commute, %'
set yrange [0:*]
set key right top
plot $share using 1:3 with lines lw 2 lc rgb '#bbbbbb' title 'ties that go the other way', \
     $share using 1:2 with points pt 7 ps 0.7 lc rgb '#1982d2' title 'counted in D')");

  // %% [markdown]
  // ![Share of merges in the paper's form whose denominator depends on the order, against the difference of the two largest scores](notebook_commute.svg)
  //
  // The scaled side shrinks with the difference, and $g$ with it, so ties become rare. At a
  // difference of 0 both factors are 1 and no product is rounded.
  //
  // ## The consequence for an AllReduce
  //
  // In an AllReduce by recursive doubling (a butterfly), two ranks compute the same merge at the
  // same time. If each puts its own state on the left, one computes `merge(S, T)` and the other
  // `merge(T, S)`, and their results may differ. Here eight ranks follow the schedule of
  // `distributed/exchange/exchange.hpp`, and we count how many different states they end with.

  // %%
  const auto n_results = [](std::vector<State> ranks, auto merge_two) {
    const int p = static_cast<int>(ranks.size());
    const std::size_t n_rounds = butterfly(p, 0).size();
    for (std::size_t round = 0; round < n_rounds; ++round) {
      const std::vector<State> before = ranks;
      for (int me = 0; me < p; ++me) {
        const ExchangeStep step = butterfly(p, me)[round];
        ranks[std::size_t(me)] = merge_two(before[std::size_t(me)], before[std::size_t(step.peer)], step.peer_is_left(me));
      }
    }
    std::set<std::vector<std::uint32_t>> different;
    for (const State& state : ranks) {
      std::vector<std::uint32_t> bits;
      for (const float number : state) bits.push_back(std::bit_cast<std::uint32_t>(number));
      different.insert(bits);
    }
    return different.size();
  };

  // %% [markdown]
  // We compare three ways: the paper's merge with the own state first, the paper's merge in the
  // order of the ranks, and the integer shift with the own state first.
  //
  // **Predict:** in how many of 2000 decodes do the ranks disagree, in each of the three?

  // %%
  const auto paper_own_first = [](const State& own, const State& theirs, bool) { return paper_merge(own, theirs); };
  const auto paper_in_order = [](const State& own, const State& theirs, bool theirs_is_left) {
    return theirs_is_left ? paper_merge(theirs, own) : paper_merge(own, theirs);
  };
  const auto integer_own_first = [](const State& own, const State& theirs, bool) { return fused_merge(own, theirs); };

  // %%
  const int n_decodes = 2000;
  int n_own_first = 0, n_in_order = 0, n_integer_own_first = 0;
  std::size_t most = 0;
  for (int i = 0; i < n_decodes; ++i) {
    std::vector<State> paper, integer;
    for (int rank = 0; rank < 8; ++rank) {
      const TwoForms state = random_state(random);
      paper.push_back(state.paper), integer.push_back(state.integer);
    }
    const std::size_t n = n_results(paper, paper_own_first);
    most = std::max(most, n);
    n_own_first += n > 1;
    n_in_order += n_results(paper, paper_in_order) > 1;
    n_integer_own_first += n_results(integer, integer_own_first) > 1;
  }
  std::printf("decodes whose eight ranks do not agree, of %d:\n\n", n_decodes);
  std::printf("  paper, own state first          %4d, with up to %zu different results\n", n_own_first, most);
  std::printf("  paper, in the order of ranks    %4d\n", n_in_order);
  std::printf("  integer shift, own state first  %4d\n", n_integer_own_first);
  expect(n_own_first > n_decodes / 2, "the ranks of a butterfly end with different bits");
  expect(n_in_order == 0, "with a fixed order of the operands ranks agree too");
  expect(n_integer_own_first == 0, "with an integer shift ranks agree whatever the order");

  // %% [markdown]
  // The library does both: its schedules keep the order of the ranks, and its merge does not depend
  // on it.
  //
  // ## The empty state is neutral
  //
  // Ranks without keys, padding of the tree and short sequences of a batch all lead to merges with
  // the empty state, which must not change a bit. The neutral element of floating-point addition is
  // $-0$ and not $+0$, because $-0 + 0 = +0$. We merge a state that contains $-0$ with the empty
  // state of `set_empty()`, and with one that has $+0$ instead.

  // %%
  const Key key{-0.2f, {-0.0f, 3.5f}};
  const State state = integer_key(key);
  State empty(4), wrong(4);
  set_empty(empty.data(), 2);
  wrong = empty, wrong[kValues] = wrong[kValues + 1] = +0.0f;
  const auto show = [](const char* what, const State& s) {
    std::printf("  %-22s", what);
    for (const float number : s) std::printf(" %9g", number);
    std::printf("   ");
    for (const float number : s) std::printf(" %08x", std::bit_cast<std::uint32_t>(number));
    std::printf("\n");
  };
  std::printf("%34s %9s %9s %9s\n", "e", "D", "n_0", "n_1");
  show("S", state);
  show("empty", empty);
  show("merge(S, empty)", merged(state, empty));
  show("merge(empty, S)", merged(empty, state));
  show("merge(S, +0 for -0)", merged(state, wrong));
  expect(same_bits(merged(state, empty), state), "empty is neutral on the right");
  expect(same_bits(merged(empty, state), state), "empty is neutral on the left");
  expect(!same_bits(merged(state, wrong), state), "+0 is not neutral");

  // %% [markdown]
  // The shift of this key is another zero to watch: $\lceil -0.29 \rceil = -0$, and merge keeps the
  // left of two equal shifts, so the sign of the zero would depend on the order. `key_shift()`
  // therefore returns $+0$.
  //
  // ## Associative up to rounding
  //
  // No shift makes floating-point addition associative: $(R + S) + T$ and $R + (S + T)$ round at
  // different places. They can differ by a few units $u = 2^{-24}$ relative to $D$, which is a sum
  // of positive terms. The third row of the table has integer scores in base two, so that every sum
  // is exact.
  //
  // **Predict:** is the integer shift better than the paper's form here?

  // %%
  struct Apart {
    int n_differ = 0;
    double largest = 0, mean = 0;
    void add(float a, float b) {
      const double distance = std::abs(double(a) - double(b)) / double(a) / 0x1p-24;
      n_differ += a != b, largest = std::max(largest, distance), mean += distance / n_pairs;
    }
  } paper, integer, whole;
  for (int i = 0; i < n_pairs; ++i) {
    const TwoForms R = random_state(random), S = random_state(random, 1), T = random_state(random, 2);
    const State a = paper_merge(paper_merge(R.paper, S.paper), T.paper);
    const State b = paper_merge(R.paper, paper_merge(S.paper, T.paper));
    const State c = merged(merged(R.integer, S.integer), T.integer);
    const State d = merged(R.integer, merged(S.integer, T.integer));
    paper.add(a[kSum], b[kSum]);
    integer.add(c[kSum], d[kSum]);

    // Integer scores in base two: every weight is 1, every factor a power of two, every sum exact.
    const auto whole_key = [&random] {
      State born(3);
      const float v = float(random() % 64);
      set_key(born.data(), float(random() % 16), &v, 1);
      return born;
    };
    const State r = whole_key(), s = whole_key(), t = whole_key();
    whole.add(merged(merged(r, s), t)[kSum], merged(r, merged(s, t))[kSum]);
  }
  std::printf("D of (R S) T against R (S T), in %d triples\n\n", n_pairs);
  std::printf("                            differ     largest      mean\n");
  const auto row = [&](const char* what, const Apart& apart) {
    std::printf("  %-24s %6.2f %%   %6.2f u  %6.3f u\n", what, percent(apart.n_differ), apart.largest, apart.mean);
  };
  row("paper, fused", paper);
  row("integer shift", integer);
  row("integer scores", whole);
  expect(paper.n_differ > n_pairs / 10 && integer.n_differ > n_pairs / 10, "neither form is associative in bits");
  expect(integer.largest <= 4, "two additions on each side cost at most 4 u together");
  expect(whole.n_differ == 0, "where no sum is rounded, every bracketing gives the same bits");

  // %% [markdown]
  // Both forms are equal in this respect: what remains is the rounding of the additions, which is
  // the same in both. The last row is useful for tests: sums of small integers are exact in every
  // order. Everything else needs an error bound, or one fixed bracketing for all ranks
  // (@ref notebook_tree).
  //
  // ## A state while keys arrive
  //
  // A key has the state $e = \lceil s \rceil$, $D = 2^{s - e}$, $n = D v$, with the score $s$ in
  // base two. After all merges the result is $z = n / D$ and
  // $\mathrm{lse} = \ln 2\, (e + \log_2 D)$. Here a state merges one key at a time, while the
  // scores slowly increase.
  //
  // **Predict:** what happens to $D$ when $e$ rises?

  // %%
  State life(kValues + 1), newborn(kValues + 1);
  set_empty(life.data(), 1);
  std::string keys, shifts;
  std::normal_distribution<double> normal;
  std::printf("   a       s    |   e       D         n    |  lse/ln 2        z\n");
  for (int a = 0; a < 48; ++a) {
    const auto s = static_cast<float>(3 * normal(random) + 0.2 * a);
    const auto v = static_cast<float>(normal(random));
    set_key(newborn.data(), s, &v, 1);
    merge(life.data(), newborn.data(), 1);
    State end = life;
    float z;
    const float lse2 = finish(end.data(), &z, 1) / float(kLn2);
    if (a % 4 == 0 || a < 4) {
      std::printf("  %2d  %7.3f    | %3g  %7.4f  %8.4f    |  %7.4f  %8.4f\n", a, s, life[kShift], life[kSum], life[kValues],
                  lse2, z);
    }
    expect(life[kSum] >= 0.5f && life[kSum] <= float(a + 1), "1/2 <= D <= N");
    expect(lse2 > life[kShift] - 1, "the shift is less than one power of two above log2 of the sum");
    keys += std::to_string(a) + " " + std::to_string(s) + "\n";
    shifts += std::to_string(a) + " " + std::to_string(life[kShift]) + " " + std::to_string(lse2) + " " +
              std::to_string(life[kSum]) + "\n";
  }

  // %% Drawing
  figure("notebook_life", "$keys << EOD\n" + keys + "EOD\n$state << EOD\n" + shifts + R"(EOD
set multiplot
set lmargin 8
set xrange [-1:48]
set size 1,0.62
set origin 0,0.38
set ylabel 'base-two exponent'
set format x ''
set key left top
plot $keys using 1:2 with points pt 7 ps 0.5 lc rgb '#999999' title 'score s of the key', \
     $state using 1:2 with steps lw 2 lc rgb '#1982d2' title 'shift e', \
     $state using 1:3 with lines lw 2 lc rgb '#d9730d' title 'e + log_2 D'
set size 1,0.42
set origin 0,0
set format x '%g'
set xlabel 'keys merged'
set ylabel 'D'
set yrange [0:*]
plot $state using 1:4 with steps lw 2 lc rgb '#2d9d5a' notitle
unset multiplot)",
         640, 520);

  // %% [markdown]
  // ![A state while keys arrive: the shift follows the largest score in integer steps, and D is scaled down at each step](notebook_life.svg)
  //
  // While the shift stays the same, nothing is scaled and $D$ grows. When the shift rises, $D$ and
  // $n$ are multiplied by a power of two, exactly. $D$ stays in $[\frac12, N]$, so it neither
  // overflows nor vanishes.
  //
  // ## Infinities and NaN
  //
  // A score of $-\infty$ masks the key. A score of NaN or $+\infty$ makes the whole output NaN. An
  // infinite value affects its own component only. We put one such key among seven others, at each
  // of eight places, and merge in a tree and in a chain. Place and bracketing must not matter.

  // %%
  const auto finished = [](State s, std::vector<float>& z) {
    z.resize(s.size() - kValues);
    return finish(s.data(), z.data(), std::ssize(z));
  };
  const auto plain = [](float number) { return std::isnan(number) ? kNaN : number; };  // no sign
  std::printf("  score    value         e    D      n              lse    z\n");
  const std::vector<Key> odd_keys = {{-kInf, {kNaN, kInf}}, {kInf, {1, 1}}, {kNaN, {1, 1}}, {0, {kInf, 1}}, {0, {1, kNaN}}};
  for (const Key& odd : odd_keys) {
    const State born = integer_key(odd);
    std::vector<float> alone, z;
    const float lse = finished(born, alone);
    std::printf("  %5g    (%4g, %4g)  %4g %4g   (%4g, %4g)   %4g   (%4g, %4g)\n", odd.s, odd.v[0], odd.v[1], born[kShift],
                plain(born[kSum]), plain(born[2]), plain(born[3]), lse, alone[0], alone[1]);

    for (int place = 0; place < 8; ++place) {
      std::vector<State> eight;
      for (int a = 0; a < 8; ++a) {
        eight.push_back(a == place ? born : integer_key({0.3f * float(a), {1, float(a)}}));
      }
      State chain = eight[0];
      for (std::size_t a = 1; a < 8; ++a) chain = merged(chain, eight[a]);
      for (std::size_t stride = 1; stride < 8; stride *= 2) {
        for (std::size_t a = 0; a < 8; a += 2 * stride) {
          eight[a] = merged(eight[a], eight[a + stride]);
        }
      }
      for (const State& all : {chain, eight[0]}) {
        finished(all, z);
        expect(std::isnan(z[0]) == !(odd.s < kInf), "a NaN weight reaches every component");
        expect(std::isinf(z[0]) == (odd.s == 0 && std::isinf(odd.v[0])), "an Inf stays an Inf");
        expect(std::isfinite(z[1]) == (odd.s < kInf && odd.v[1] == 1) || odd.s == -kInf,
               "the other component is not affected");
      }
    }
  }
}

// %% [markdown]
// ## What to take home
//
// 1. With an integer shift the merge commutes bit for bit, with or without FMA; the paper's form
//    does not.
// 2. No form is associative bit for bit. Equal bits need one fixed bracketing.
// 3. The empty state has $D = 0$ and $n = -0$; $\frac12 \le D \le N$ for every other state of
//    finite scores.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 5.1`: the state of one key, with an integer shift;
// * `./run exercise 5.2`: the merge of two states.
//
// ## Questions
//
// 1. (Medium.) The first table counts 0 if both products are rounded. Why is
//    $\operatorname{fl}(\operatorname{fl}(\alpha x) + \operatorname{fl}(\beta y))$ symmetric bit
//    for bit, and which freedom of a compiler breaks the symmetry?
//
//    <details><summary>Answer</summary>
//
//    Floating-point addition is commutative, and each product is rounded on its own, wherever it
//    stands. Contraction breaks the symmetry: the compiler may turn one of the products and the sum
//    into an FMA, and which one depends on its place.
//
//    </details>
//
// 2. (Medium.) Integer scores made all bracketings agree. With equal scores, weights of 1 and
//    integer values up to 63, how many keys can be summed before the first rounding?
//
//    <details><summary>Answer</summary>
//
//    At least 266305: sums up to $2^{24}$ are exact, and $\lfloor 2^{24} / 63 \rfloor = 266305$. If
//    the scores are integers from 0 to 15, the smallest weight is $2^{-15}$, and only
//    $\lfloor 2^9 / 63 \rfloor = 8$ keys are safe.
//
//    </details>
//
// 3. (Medium.) The shift could be a multiple of 8 or of 64 instead. What is gained, and what
//    becomes of $\frac12 \le D \le N$?
//
//    <details><summary>Answer</summary>
//
//    The shift rises less often, so sums are scaled less often, and scaling stays exact. With
//    multiples of $k$ the bound becomes $2^{-k} \le D \le N$. For $k = 64$ weights and products
//    come close to the smallest normal number $2^{-126}$, and keys with smaller scores are lost
//    earlier.
//
//    </details>
//
// 4. (Hard.) An empty state and a key with a NaN score have the same shift. What would go wrong in
//    `merge()` if the NaN were in the shift?
//
//    <details><summary>Answer</summary>
//
//    Comparisons with NaN are false, so `rescale()` takes the left side as the high one, with the
//    factor 0. A NaN shift on the right disappears together with its key. A NaN shift on the left
//    stays, but the right side is multiplied by 0, so $z$ is a finite and wrong result. In both
//    cases the outcome depends on the order. A NaN in $D$ and $n$ survives every addition.
//
//    </details>
