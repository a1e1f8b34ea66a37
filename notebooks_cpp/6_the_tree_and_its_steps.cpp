// SPDX-License-Identifier: Apache-2.0
// Run: build/notebooks/6_the_tree_and_its_steps

// %% [markdown]
// # The tree and its steps {#notebook_tree}
//
// Thm. 1: an associative operator reduces $N$ elements on $p$ processors in
//
// $$
// \left\lceil \frac N p \right\rceil - 1 + \lceil \log_2 p' \rceil , \qquad
// p' = \left\lceil \frac{N}{\lceil N/p \rceil} \right\rceil \le \min(N, p)
// $$
//
// steps, which is $O(N/p + \log p)$. This page counts the steps, looks at the brackets, and then
// asks for more: one tree for every $p$, so that the bits of the result do not tell how many
// machines there were.

// %%
#include "distributed/transport/exchange.hpp"
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

/// What Thm. 1 promises.
std::int64_t steps_of_theorem(std::int64_t N, std::int64_t p) {
  const std::int64_t chunk = (N + p - 1) / p, n_workers = (N + chunk - 1) / chunk;
  return chunk - 1 + ceil_log2(n_workers);
}

int main() {
  // %% [markdown]
  // ## The brackets themselves
  //
  // `tree_reduce()` takes any operator. Here is one that does nothing but write down what it was
  // asked to do: it puts its two operands into brackets. Eleven letters, on one worker and on more.

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
    expect(order == "abcdefghijk", "no worker changes the order: the operator need not commute");
  }

  // %% [markdown]
  // Every row says the same if the operator is associative, and in floating point every row rounds
  // in its own way. The number of brackets is always ten: more workers do not save work, they save
  // *time*, because brackets that do not contain each other can be computed at once. The steps are
  // the depth of the deepest nesting.
  //
  // ## Counted for every number of workers
  //
  // Each value carries with it how many operations had to come before it. For all $p$ up to $N$ the
  // count is what the theorem says; the table shows some of them.

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
  // On $700$ workers the chunks are of six, as on $683$, and 17 workers get nothing: $p'$ counts
  // those that do. The figure shows the steps for three lengths. On the left a worker more is a
  // chunk shorter, $N/p$; on the right every doubling costs one more round, $\log_2 p$, and the
  // chunks have nothing left to give.

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

  // %%
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
  // ## One tree for all
  //
  // The brackets of the first table change with $p$. The *canonical tree* does not: its leaves are
  // the positions 0, 1, 2, ..., its nodes are the aligned powers of two, and positions without a
  // key hold the empty state (@ref tree). Here it is for eleven keys on three ranks. A node belongs
  // to the rank that holds all of its positions; `.` marks one that lies in no single run, and `-`
  // one without a key.

  // %%
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
      const int width = 3 << level;  // three characters a position
      std::printf("[%s%c%s]", std::string(std::size_t(width - 3) / 2, ' ').c_str(), owner({level, i}),
                  std::string(std::size_t(width - 2) / 2, ' ').c_str());
    }
    std::printf("\n");
  }
  std::printf("        ");
  for (int a = 0; a < 16; ++a) std::printf(" %-2d", a);
  std::printf("\n");

  // %% [markdown]
  // What a rank hands on is its maximal subtrees: `cover()`. The nodes marked `.` are merged by
  // whoever meets both children, and they come out the same whoever that is.

  // %%
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::printf("rank %c holds [%td, %td) = ", char('A' + r), ranks[r].begin, ranks[r].end);
    for (const Subtree& subtree : cover(ranks[r].begin, ranks[r].end)) {
      std::printf(" [%td, %td)", subtree.begin(), subtree.end());
    }
    std::printf("\n");
  }
  expect(cover(3, 8).size() == 2 && cover(8, 11).size() == 2 && cover(8, 16).size() == 1,
         "a cut at an odd place costs a few subtrees, an aligned one does not");

  // %% [markdown]
  // ## Pushing is counting
  //
  // `Forest::push()` takes the next key and merges siblings while there are any. The sizes of the
  // subtrees it holds are the binary digits of the number of keys, and a merge is a carry.

  // %%
  Forest<float> counter(1, 1);
  const auto push_key = [](Forest<float>& forest, std::int64_t position, float s, float v) {
    set_key(forest.slot(), s, &v, 1);
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
    expect(std::popcount(std::uint64_t(a + 1)) == std::ssize(counter.subtrees()), "one a digit");
    expect(counter.n_merges() == a + 1 - std::ssize(counter.subtrees()), "a merge is a carry");
  }

  // %% [markdown]
  // ## Cuts that change nothing
  //
  // Five hundred keys are cut into runs at random places, one to twelve of them, some of them
  // empty. Every rank computes its forest alone, the forests are appended in order, and what is
  // left is folded. The bits of the root are printed in hexadecimal, for a thousand cuts: one line.

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
  // Beside it the brackets of `tree_reduce()`, which follow $p$, on 1 to 12 workers.

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
  // The brackets nest $\lceil \log_2 N \rceil$ deep, wherever the tree is cut. What a bad cut costs
  // is the size of messages: a rank hands on up to $2 \log_2 N$ subtrees in place of one state. How
  // many are they in fact? For $p$ equal runs of a million keys, and for the same runs with their
  // ends moved to multiples of a leaf of 64 keys:

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
  // Between ranks the tree becomes a schedule: who sends to whom, and when. `butterfly()` gives the
  // steps of one member. Here are those of five: `<->` is an exchange, `->` and `<-` go one way,
  // `<=` brings the finished result. Five is one too many for a power of two, so member 0 folds
  // into member 1 and waits for the end.

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
  // And of eight, where nobody has to wait.

  // %%
  print_schedule(8);

  // %% [markdown]
  // Does it work? We let all members take their steps, a step being done when both sides have come
  // to it. All that a member keeps is the run of members of which it has the merge, and a merge
  // must join neighbours.

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
      expect(member.has == MemberRange{0, p}, "everybody ends with everything");
    }
    std::printf("\n%d rounds, %d messages\n\n", n_rounds, n_messages);
    return n_rounds;
  };
  expect(walk(5) == 4, "fold, two rounds of doubling, hand back");
  expect(walk(8) == 3, "log2 p rounds");
}

// %% [markdown]
// ## Questions
//
// 1. $683$ and $819$ workers reduce $4096$ elements in the same number of steps. Which $p$ would
//    you order?
// 2. The theorem's first term wants $p$ large and its second one wants it small. For which $p$ is
//    the sum least, and why does the answer change if a step between machines costs a thousand
//    times a step inside one?
// 3. A rank with the positions $[1, 1024)$ hands on how many subtrees? Which single key more would
//    make it one?
// 4. The butterfly for $p = 5$ takes four rounds, and a binomial tree with a broadcast takes
//    $3 + 3$. When is the second one better all the same?
