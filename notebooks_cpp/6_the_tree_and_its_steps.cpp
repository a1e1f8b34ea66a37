// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 6

// %% [markdown]
// # Notebook 6: The tree and its steps {#notebook_tree}
//
// Thm. 1 of the paper: an associative operator reduces $N$ elements on $p$ processors in
//
// $$
// \left\lceil \frac N p \right\rceil - 1 + \lceil \log_2 p' \rceil , \qquad
// p' = \left\lceil \frac{N}{\lceil N/p \rceil} \right\rceil \le \min(N, p)
// $$
//
// steps, which is $O(N/p + \log p)$. This notebook counts the steps and prints the brackets of the
// reduction. It then introduces the canonical tree, which is the same for every $p$, so that the
// bits of the result do not depend on the number of ranks.
//
// **What you need:** binary trees, and @ref notebook_state for the second half. **What you get:**
// the theorem counted for every $p$, the canonical tree and its subtrees, and the schedule by which
// ranks exchange them.

// %%
#include "distributed/exchange/exchange.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/state/forest.hpp"
#include "reference/state/tree_reduce.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace tree_attn;
using notebook::expect, notebook::figure;

/// ceil(log2 n) for n >= 1.
std::int64_t ceil_log2(std::int64_t n) { return std::bit_width(static_cast<std::uint64_t>(n - 1)); }

/// The steps of Thm. 1.
std::int64_t steps_of_theorem(std::int64_t N, std::int64_t p) {
  const std::int64_t chunk = (N + p - 1) / p, n_workers = (N + chunk - 1) / chunk;
  return chunk - 1 + ceil_log2(n_workers);
}

int main() {
  // %% [markdown]
  // ## The brackets of a reduction
  //
  // `tree_reduce()` accepts any operator. We give it one that writes its two operands in brackets,
  // and reduce eleven letters on 1, 2, 3, 4 and 11 workers.
  //
  // **Predict:** how many brackets has each row, and how deep are they nested?

  // %%
  std::vector<std::string> letters;
  for (char letter = 'a'; letter <= 'k'; ++letter) letters.push_back(std::string(1, letter));
  const auto bracket = [](const std::string& left, const std::string& right) { return "(" + left + right + ")"; };
  std::printf("   p   steps\n");
  for (const std::int64_t p : {1, 2, 3, 4, 11}) {
    const auto reduced = tree_reduce(std::span<const std::string>(letters), p, bracket);
    std::printf("  %2td   %5td   %s\n", p, reduced.n_steps, reduced.value.c_str());
    std::string order = reduced.value;
    std::erase_if(order, [](char c) { return c == '(' || c == ')'; });
    expect(order == "abcdefghijk", "the order of the elements is kept: the operator need not commute");
  }

  // %% [markdown]
  // If the operator is associative, all rows are equal. In floating point each row rounds
  // differently. There are always ten operations: more workers save time, not work, because
  // operations that do not depend on each other run at once. The number of steps is the depth of
  // the nesting.
  //
  // ## The steps for every number of workers
  //
  // Each value carries the number of operations on the longest path to it. For every $p$ up to $N$
  // the count equals the formula of the theorem. The table shows some of them.
  //
  // **Predict:** do 700 workers need fewer steps than 683 for 4096 elements?

  // %%
  const std::int64_t N = 4096;
  const std::vector<int> ones(N, 1);
  const auto counted = [&ones](std::int64_t p) { return tree_reduce(std::span<const int>(ones), p, std::plus<int>()); };
  for (std::int64_t p = 1; p <= N; ++p) {
    expect(counted(p).n_steps == steps_of_theorem(N, p), "the steps of Thm. 1, exactly");
  }
  std::printf("    p     p'   ceil(N/p) - 1   ceil(log2 p')   steps\n");
  for (const std::int64_t p : {1, 2, 8, 64, 100, 512, 683, 700, 1024, 2048, 4096}) {
    const auto reduced = counted(p);
    std::printf(" %4td   %4td   %13td   %13td   %5td\n", p, reduced.n_workers, (N + p - 1) / p - 1,
                ceil_log2(reduced.n_workers), reduced.n_steps);
    expect(reduced.value == N, "every element is counted once");
  }

  // %% [markdown]
  // Both 683 and 700 workers have chunks of six elements, and of the 700 workers 17 get nothing:
  // $p'$ counts those that do. The figure shows the steps for three lengths. On the left the chunks
  // dominate, and the steps fall as $N/p$. On the right the rounds dominate, and each doubling of
  // $p$ adds one.

  // %%
  std::string curves;
  for (const std::int64_t length : {1 << 8, 1 << 12, 1 << 16}) {
    for (std::int64_t p = 1; p <= length; p *= 2) {
      const std::vector<int> x(std::size_t(length), 1);
      const auto reduced = tree_reduce(std::span<const int>(x), p, std::plus<int>());
      curves += std::to_string(p) + " " + std::to_string(reduced.n_steps) + " " + std::to_string(ceil_log2(p)) + "\n";
    }
    curves += "\n\n";
  }

  // %% Drawing
  figure("notebook_steps", "$steps << EOD\n" + curves + R"(EOD
set style line 1 pt 7 ps 0.6 lw 2 lc rgb '#1982d2'
set style line 2 pt 7 ps 0.6 lw 2 lc rgb '#d9730d'
set style line 3 pt 7 ps 0.6 lw 2 lc rgb '#2d9d5a'
set logscale xy 2
set xlabel 'workers p'
set ylabel 'dependent steps'
set format x '2^{%L}'
set format y '2^{%L}'
set xrange [1:2**17]
set yrange [4:2**16.5]
set key right top
plot $steps index 2 using 1:2 with linespoints ls 1 title 'N = 2^{16}', \
     $steps index 1 using 1:2 with linespoints ls 2 title 'N = 2^{12}', \
     $steps index 0 using 1:2 with linespoints ls 3 title 'N = 2^8', \
     $steps index 2 using 1:3 with lines dt 2 lw 2 lc rgb '#999999' title 'log_2 p')");

  // %% [markdown]
  // ![Dependent steps of a reduction against the number of workers, for three lengths](notebook_steps.svg)
  //
  // ## The canonical tree
  //
  // The brackets of the first table change with $p$. The *canonical tree* does not. Its leaves are
  // the positions 0, 1, 2, ..., its nodes are aligned ranges whose length is a power of two, and
  // positions without a key hold the empty state (@ref tree). Here is the tree for eleven keys on
  // three ranks A, B and C. A node is marked with the rank that holds all of its positions, with
  // `.` if several ranks hold them, and with `-` if it has no key.

  // %% Printing the tree
  struct Cut {
    std::int64_t begin, end;
  };
  const std::vector<Cut> ranks = {{0, 3}, {3, 8}, {8, 11}};
  const std::int64_t n_keys = ranks.back().end;
  const auto owner = [&](const Subtree& node) {
    if (node.begin() >= n_keys) return '-';
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].begin <= node.begin() && node.end() <= ranks[r].end) return char('A' + r);
    }
    return '.';
  };
  for (int level = 4; level >= 0; --level) {
    std::printf("level %d ", level);
    for (std::int64_t i = 0; i < 16 >> level; ++i) {
      const int width = 3 << level;  // three characters per position
      std::printf("[%s%c%s]", std::string(std::size_t(width - 3) / 2, ' ').c_str(), owner({level, i}),
                  std::string(std::size_t(width - 2) / 2, ' ').c_str());
    }
    std::printf("\n");
  }
  std::printf("        ");
  for (int a = 0; a < 16; ++a) std::printf(" %-2d", a);
  std::printf("\n");

  // %% [markdown]
  // Each rank sends the states of its maximal subtrees, which `cover()` lists. A node marked `.` is
  // merged on a rank that has received both children. The result has the same bits on every rank.
  //
  // **Predict:** rank B holds the positions 3 to 7. Into which subtrees does this range decompose?

  // %%
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::printf("rank %c holds [%td, %td) = ", char('A' + r), ranks[r].begin, ranks[r].end);
    for (const Subtree& subtree : cover(ranks[r].begin, ranks[r].end)) {
      std::printf(" [%td, %td)", subtree.begin(), subtree.end());
    }
    std::printf("\n");
  }
  expect(cover(3, 8).size() == 2 && cover(8, 11).size() == 2 && cover(8, 16).size() == 1,
         "a cut at an odd position costs a few subtrees, an aligned cut does not");

  // %% [markdown]
  // ## A forest counts in binary
  //
  // `Forest::push()` appends one key and merges siblings as long as there are any. The sizes of the
  // subtrees in the forest are the binary digits of the number of keys. A merge corresponds to a
  // carry.
  //
  // **Predict:** which sizes does the forest hold after 11 keys, and how many merges did it take?

  // %%
  Forest<float> counter(1, 1);
  const auto push_key = [](Forest<float>& forest, std::int64_t position, float s, float v) {
    set_key(forest.next(), s, &v, 1);
    forest.push({0, position});
  };
  std::printf("keys  binary  subtrees          merges\n");
  for (std::int64_t a = 0; a < n_keys; ++a) {
    push_key(counter, a, 0, 1);
    std::string digits, sizes;
    for (int bit = 3; bit >= 0; --bit) digits += char('0' + ((a + 1) >> bit & 1));
    for (const Subtree& subtree : counter.subtrees()) {
      sizes += (sizes.empty() ? "" : " + ") + std::to_string(subtree.end() - subtree.begin());
    }
    std::printf("%4td  %6s  %-16s  %6td\n", a + 1, digits.c_str(), sizes.c_str(), counter.n_merges());
    expect(std::popcount(std::uint64_t(a + 1)) == std::ssize(counter.subtrees()), "one subtree per binary digit");
    expect(counter.n_merges() == a + 1 - std::ssize(counter.subtrees()), "a merge is a carry");
  }

  // %% [markdown]
  // ## Cuts that change no bit
  //
  // We cut 500 keys at random places into up to twelve ranges, some of them empty. Each range
  // computes its forest on its own. Then the forests are appended in order and folded into the
  // root. We repeat this a thousand times and print every different root in hexadecimal.
  //
  // **Predict:** how many lines are printed?

  // %%
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  std::vector<float> s(500), v(500);
  for (float& s_a : s) s_a = static_cast<float>(normal(random));
  for (float& v_a : v) v_a = static_cast<float>(normal(random));
  using Root = std::vector<float>;
  const auto show = [](const std::map<Root, int>& roots) {
    for (const auto& [root, n] : roots) {
      std::printf("  e = %g, D = %a, n = %a   %d time%s\n", root[0], root[1], root[2], n, n == 1 ? "" : "s");
    }
  };

  std::map<Root, int> canonical;
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::int64_t> ends{500};
    for (auto n = random() % 12; n > 0; --n) ends.push_back(std::int64_t(random() % 501));
    std::sort(ends.begin(), ends.end());
    Forest<float> whole(1, 1);
    std::int64_t a = 0;
    for (const std::int64_t end : ends) {
      Forest<float> range(1, 1);
      for (; a < end; ++a) push_key(range, a, s[std::size_t(a)], v[std::size_t(a)]);
      whole.append(range.subtrees(), range.states().data());
    }
    const std::span<const float> root = whole.fold();
    ++canonical[Root(root.begin(), root.end())];
  }
  show(canonical);
  expect(canonical.size() == 1, "no cut changes a bit");

  // %% [markdown]
  // For comparison: `tree_reduce()` on 1 to 12 workers, whose brackets depend on $p$.

  // %%
  std::vector<Root> states(500, Root(3));
  for (std::size_t a = 0; a < 500; ++a) set_key(states[a].data(), s[a], &v[a], 1);
  const auto merge_two = [](Root left, const Root& right) {
    merge(left.data(), right.data(), 1);
    return left;
  };
  std::map<Root, int> by_workers;
  for (std::int64_t p = 1; p <= 12; ++p) {
    ++by_workers[tree_reduce(std::span<const Root>(states), p, merge_two).value];
  }
  show(by_workers);
  expect(by_workers.size() > 6, "other trees have bits that depend on the number of workers");

  // %% [markdown]
  // ## What a cut costs
  //
  // Cutting the tree does not change its depth, $\lceil \log_2 N \rceil$. It changes the size of
  // messages: a rank sends up to $2 \log_2 N$ states instead of one. We divide a million keys
  // evenly among $p$ ranks, first at any position, then at multiples of a leaf of 64 keys, and
  // print the largest number of subtrees of a rank.
  //
  // **Predict:** the bound is $2 \log_2 10^6 \approx 40$. How close do even cuts come to it?

  // %%
  std::printf("      most subtrees of a rank, N = 10^6\n   p    cut anywhere   cut at leaves\n");
  for (const std::int64_t p : {1, 2, 3, 7, 8, 64, 100}) {
    std::size_t anywhere = 0, leaves = 0;
    for (std::int64_t r = 0; r < p; ++r) {
      const std::int64_t begin = r * 1000000 / p, end = (r + 1) * 1000000 / p;
      anywhere = std::max(anywhere, cover(begin, end).size());
      leaves = std::max(leaves, cover(begin / 64 * 64, end / 64 * 64).size());
    }
    std::printf(" %3td    %12zu   %13zu\n", p, anywhere, leaves);
    expect(double(anywhere) <= 2 * std::log2(1e6), "at most 2 log2 N");
    expect(leaves <= anywhere, "aligned cuts cost less");
  }

  // %% [markdown]
  // ## The butterfly
  //
  // Between ranks the tree becomes a schedule that says which rank sends to which, and when.
  // `butterfly()` returns the steps of one member. First for five members: `<->` is an exchange,
  // `->` and `<-` are messages in one direction, `<=` returns the finished result. Five is not a
  // power of two, so member 0 first sends its state to member 1 and receives the result at the end.

  // %%
  const auto print_schedule = [](int p) {
    for (int me = 0; me < p; ++me) {
      std::printf("member %d:", me);
      for (const ExchangeStep& step : butterfly(p, me)) {
        const char* way = step.finished ? "<=" : !step.sends ? "<-" : !step.receives ? "->" : "<->";
        std::printf("   %3s %d", way, step.peer);
      }
      std::printf("\n");
    }
  };
  print_schedule(5);

  // %% [markdown]
  // With eight members no such first and last step is needed.

  // %%
  print_schedule(8);

  // %% [markdown]
  // Does the schedule compute the right thing? We let all members follow it. A step is taken as
  // soon as both partners have reached it. Each member keeps only the range of members whose states
  // it has merged, and we check that every merge joins neighbouring ranges.
  //
  // **Predict:** how many rounds and messages do five and eight members need?

  // %%
  struct Member {
    std::vector<ExchangeStep> steps;
    MemberRange has;
    std::size_t n_taken = 0;
    const ExchangeStep* next() const { return n_taken < steps.size() ? &steps[n_taken] : nullptr; }
  };
  const auto take_round = [](std::vector<Member>& members) {
    const std::vector<Member> before = members;
    int n_messages = 0;
    for (int me = 0; me < std::ssize(members); ++me) {
      const ExchangeStep* step = before[std::size_t(me)].next();
      if (step == nullptr) continue;
      const Member& peer = before[std::size_t(step->peer)];
      if (peer.next() == nullptr || peer.next()->peer != me) continue;

      Member& member = members[std::size_t(me)];
      ++member.n_taken;
      n_messages += step->sends;
      if (!step->receives) continue;
      const MemberRange left = step->peer_is_left(me) ? peer.has : member.has;
      const MemberRange right = step->peer_is_left(me) ? member.has : peer.has;
      expect(step->theirs == peer.has, "a member knows what it receives");
      expect(step->finished || left.end == right.begin, "only neighbours merge");
      member.has = step->finished ? peer.has : MemberRange{left.begin, right.end};
    }
    return n_messages;
  };

  // %%
  const auto walk = [&take_round](int p) {
    std::vector<Member> members;
    for (int me = 0; me < p; ++me) members.push_back({butterfly(p, me), {me, me + 1}});
    std::printf("member   ");
    for (int me = 0; me < p; ++me) std::printf(" %6d ", me);
    int n_rounds = 0, n_messages = 0;
    for (int n = 1; n > 0; n_messages += n, n_rounds += n > 0) {
      std::printf("\nround %d  ", n_rounds);
      for (const Member& member : members) {
        std::printf("  [%d, %d)", member.has.begin, member.has.end);
      }
      n = take_round(members);
    }
    for (const Member& member : members) {
      expect(member.has == MemberRange{0, p}, "every member ends with the whole range");
    }
    std::printf("\n%d rounds, %d messages\n\n", n_rounds, n_messages);
    return n_rounds;
  };
  expect(walk(5) == 4, "one round in, two rounds of doubling, one round out");
  expect(walk(8) == 3, "log2 p rounds");
}

// %% [markdown]
// ## What to take home
//
// 1. A reduction of $N$ elements on $p$ workers takes
//    $\lceil N/p \rceil - 1 + \lceil \log_2 p' \rceil$ dependent steps, and always $N - 1$
//    operations.
// 2. The canonical tree depends on positions only, so neither cuts nor the number of ranks change a
//    bit.
// 3. A rank sends at most $2 \log_2 N$ subtrees; cuts at multiples of a leaf need fewer.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 6.1`: the subtrees of a range;
// * `./run exercise 6.2`: a forest that carries.
//
// ## Questions
//
// 1. (Easy.) 683 and 819 workers reduce 4096 elements in the same number of steps. Which number
//    would you order?
//
//    <details><summary>Answer</summary>
//
//    Order 683. With 819 workers the chunks still have $\lceil 4096 / 819 \rceil = 6$ elements, so
//    683 of them work and 136 are idle. Both need $5 + 10 = 15$ steps; 820 workers have chunks of
//    five and need 14.
//
//    </details>
//
// 2. (Medium.) The first term of the theorem decreases with $p$, and the second increases. For
//    which $p$ is the sum least if $N = 4096$? What changes if a step between machines costs a
//    thousand times a step inside one?
//
//    <details><summary>Answer</summary>
//
//    The least is 12 steps, for every $p$ from 2048 to 4096. Without rounding up, the minimum of
//    $N/p + \log_2 p$ is at $p = N \ln 2$. If a round costs 1000 steps, $p = 4$ is best:
//    $1023 + 2000 = 3023$, hardly less than the 3047 of two machines, or the 4095 of one.
//
//    </details>
//
// 3. (Easy.) How many subtrees does a rank with the positions 1 to 1023 send? Which single position
//    more would make it one?
//
//    <details><summary>Answer</summary>
//
//    Ten, of the sizes 1, 2, 4, ..., 512. With position 0 they merge into one subtree of 1024.
//
//    </details>
//
// 4. (Medium.) For five members the butterfly takes four rounds. A binomial tree to one member,
//    followed by a broadcast, takes $3 + 3$. When is the second better?
//
//    <details><summary>Answer</summary>
//
//    When bytes or messages cost more than rounds: it sends $4 + 4 = 8$ messages instead of 10, and
//    for eight members 14 instead of 24. Also if one member alone needs the result, because the
//    broadcast can then be left out.
//
//    </details>
