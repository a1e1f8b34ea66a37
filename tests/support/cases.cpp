// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Builds the inputs of the cases, one maker per kind.
#include "tests/support/cases.hpp"

#include "reference/state/key_range.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
/// Positions after the last key that a rank also receives, if the case asks for poison.
constexpr std::int64_t kPoison = 19;

/// The three tensors under construction.
struct Draft {
  const Case& c;
  Tensor q, k, v;
  std::vector<KeyRange> ranges;

  std::int64_t n_keys() const { return k.shape[2]; }
  /// Sets the elements of all heads and entries: k[.., a, j] = f(a, j), or v, or q with a = 0.
  static void set_all(Tensor& tensor, const std::function<float(std::int64_t a, std::int64_t j)>& f) {
    for_each_row(tensor.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
      for (std::int64_t j = 0; j < tensor.shape[3]; ++j) tensor.set(i, h, a, j, f(a, j));
    });
  }

  /// Sets k and q so that the score of key a is level(a) + spread * N(0, 1) for every query.
  ///
  /// q has elements of magnitude 4 with alternating signs, and k has elements of magnitude m with the same signs, so
  /// s = sqrt(d) 4 m. Noise of size t in every component of k gives s a deviation of 4 t.
  void set_scores(const std::function<double(std::int64_t a)>& level, double spread) {
    std::mt19937 random(c.seed + 1);
    std::normal_distribution<double> normal(0, 1);
    const double root = std::sqrt(static_cast<double>(c.head_dim));
    const auto sign = [](std::int64_t j) { return j % 3 == 0 ? -1.0 : 1.0; };
    set_all(q, [&](std::int64_t, std::int64_t j) { return static_cast<float>(4 * sign(j)); });
    set_all(k, [&](std::int64_t a, std::int64_t j) {
      return static_cast<float>(sign(j) * (level(a) / (4 * root) + spread / 4 * normal(random)));
    });
  }
  /// First positions of the first and the last rank that hold keys.
  std::int64_t on_first_rank() const {
    return std::find_if(ranges.begin(), ranges.end(), [](KeyRange range) { return range.size() > 0; })->begin;
  }
  std::int64_t on_last_rank() const {
    return std::find_if(ranges.rbegin(), ranges.rend(), [](KeyRange range) { return range.size() > 0; })->begin;
  }
  /// The rank that holds a position.
  std::int64_t index_of(std::int64_t a) const {
    return std::find_if(ranges.begin(), ranges.end(), [a](KeyRange range) { return a >= range.begin && a < range.end; }) -
           ranges.begin();
  }
};

using Make = std::function<void(Draft&)>;

/// The change that each kind of input makes to standard normal q, k and v; those of another layout in memory make none.
const std::map<std::string, Make>& makers() {
  static const std::map<std::string, Make> kMakers{
      {"normal", [](Draft&) {}},
      // Lengths end before the positions do.
      {"keys and values behind N are NaN (poison)", [](Draft&) {}},
      // Scores.
      {"scores all near +1e4 with spread 1", [](Draft& d) { d.set_scores([](std::int64_t) { return 1e4; }, 1); }},
      {"scores all near -1e4 with spread 1", [](Draft& d) { d.set_scores([](std::int64_t) { return -1e4; }, 1); }},
      {"half the scores +1e4, half -1e4",
       [](Draft& d) { d.set_scores([](std::int64_t a) { return a % 2 == 0 ? 1e4 : -1e4; }, 1); }},
      {"rank r has scores near -1000*r",
       [](Draft& d) { d.set_scores([&d](std::int64_t a) { return -1000.0 * static_cast<double>(d.index_of(a)); }, 1); }},
      {"one score +100 above the rest",
       [](Draft& d) { d.set_scores([&d](std::int64_t a) { return a == d.n_keys() / 3 ? 100.0 : 0.0; }, 0); }},
      {"one key 0, N-1 keys at -9.9 (FA4 preserves_tail_mass)",
       [](Draft& d) { d.set_scores([&d](std::int64_t a) { return a == d.n_keys() / 3 ? 0.0 : -9.9; }, 0); }},
      {"all keys equal", [](Draft& d) { d.set_scores([](std::int64_t) { return 1.5; }, 0); }},
      {"the maximum occurs on every rank",
       [](Draft& d) {
         d.set_scores(
             [&d](std::int64_t a) {
               return a == d.ranges[static_cast<std::size_t>(d.index_of(a))].begin ? 3.0
                                                                                   : -1.0 - 0.01 * static_cast<double>(a);
             },
             0);
       }},
      {"q = 64, k = -64, v = 1 (raw score -524288)",
       [](Draft& d) {
         Draft::set_all(d.q, [](std::int64_t, std::int64_t) { return 64.0f; });
         Draft::set_all(d.k, [](std::int64_t, std::int64_t) { return -64.0f; });
         Draft::set_all(d.v, [](std::int64_t, std::int64_t) { return 1.0f; });
       }},
      // Here d = 64, so 256 x -256 gives scores of -524288; one component steps by 1/32, the score by 1.
      {"q=64,k=-64 style, scores -5.2e5",
       [](Draft& d) {
         Draft::set_all(d.q, [](std::int64_t, std::int64_t) { return 256.0f; });
         Draft::set_all(
             d.k, [](std::int64_t a, std::int64_t j) { return -256.0f + (j == 0 ? static_cast<float>(a % 3) / 32 : 0.0f); });
       }},
      {"q and k near 1e19: scores overflow fp32 to inf",
       [](Draft& d) {
         Draft::set_all(d.q, [](std::int64_t, std::int64_t j) { return 1e19f * (1 + 0.01f * static_cast<float>(j % 7)); });
         Draft::set_all(
             d.k, [](std::int64_t a, std::int64_t j) { return 1e19f * (1 + 0.01f * static_cast<float>((a + j) % 5)); });
       }},
      // NaN and Inf.
      {"one NaN key on rank 0", [](Draft& d) { d.k.set(0, 0, d.on_first_rank(), 1, kNaN); }},
      {"one NaN key on the last rank", [](Draft& d) { d.k.set(0, 0, d.on_last_rank(), 1, kNaN); }},
      {"one +inf value with weight > 0", [](Draft& d) { d.v.set(0, 0, d.on_last_rank(), 1, kInf); }},
      {"one +inf value whose weight underflows to 0",
       [](Draft& d) {
         d.set_scores([&d](std::int64_t a) { return a == d.on_last_rank() ? -200.0 : 0.0; }, 1);
         d.v.set(0, 0, d.on_last_rank(), 1, kInf);
       }},
      {"q[0] = +inf", [](Draft& d) { d.q.set(0, 0, 0, 0, kInf); }},
      {"all scores -inf on one rank only",
       [](Draft& d) {
         for (std::int64_t h = 0; h < d.c.heads; ++h) d.q.set(0, h, 0, 0, 1);
         for (std::int64_t h = 0; h < d.c.kv_heads; ++h) {
           for (std::int64_t a = d.on_last_rank(); a < d.n_keys(); ++a) d.k.set(0, h, a, 0, -kInf);
         }
       }},
      {"values -0.0", [](Draft& d) { Draft::set_all(d.v, [](std::int64_t, std::int64_t) { return -0.0f; }); }},
  };
  return kMakers;
}

std::int64_t n_keys_of(const Case& c) {
  std::int64_t n = c.input.find("poison") != std::string::npos ? kPoison : 0;
  if (!c.lengths.empty()) n += *std::max_element(c.lengths.begin(), c.lengths.end());
  return n;
}

}  // namespace

std::vector<Case> cases_of(const std::string& tier) {
  static const std::vector<Case> kCases = [] {
    std::ifstream file(TREE_ATTN_TEST_DATA "/cases.json");
    const nlohmann::json json = nlohmann::json::parse(file);
    const std::map<std::string, DType> dtypes{{"fp32", DType::F32}, {"fp16", DType::F16}, {"bf16", DType::BF16}};
    std::vector<Case> cases;
    unsigned index = 0;
    for (const nlohmann::json& c : json.at("cases")) {
      const unsigned seed = index++;
      if (c.at("kind") != "decode") continue;
      if (c.at("seqlen_q") != 1 || c.at("causal") != false)
        throw std::invalid_argument("a case of several queries: " + c.dump());
      cases.push_back({.seed = seed,
                       .name = c.at("name"),
                       .input = c.at("input"),
                       .tier = c.at("tier"),
                       .dtype = dtypes.contains(c.at("dtype")) ? dtypes.at(c.at("dtype")) : DType::F64,
                       .batch = c.at("batch"),
                       .heads = c.at("n_q_heads"),
                       .kv_heads = c.at("n_kv_heads"),
                       .head_dim = c.at("head_dim"),
                       .lengths = c.at("seqlens"),
                       .ranks = c.at("ranks"),
                       .splits = c.at("splits")});
    }
    return cases;
  }();
  std::vector<Case> cases;
  std::ranges::copy_if(kCases, std::back_inserter(cases), [&](const Case& c) { return c.tier == tier; });
  return cases;
}

std::vector<KeyRange> ranges_of(const Case& c, int p) { return even_ranges(n_keys_of(c), p, kLeafKeys); }

std::unique_ptr<TensorWorkload> input_of(const Case& c, int p) {
  const Axes axes{c.batch, c.heads, c.kv_heads, c.head_dim, c.head_dim, 1, n_keys_of(c), c.dtype};
  std::mt19937 random(c.seed);
  Draft draft{c, normal_tensor(random, axes.q(), c.dtype), normal_tensor(random, axes.k(), c.dtype),
              normal_tensor(random, axes.v(), c.dtype), ranges_of(c, p)};
  const auto maker = makers().find(c.input);
  if (maker != makers().end()) maker->second(draft);
  auto workload = workload_of(std::move(draft.q), std::move(draft.k), std::move(draft.v), c.lengths);
  if (c.input == "q, k, v are strided views of one packed tensor") return packed(*workload);
  if (c.input.starts_with("base pointers ")) return misaligned(*workload, std::stoul(c.input.substr(14)));
  if (maker == makers().end()) throw std::invalid_argument(c.name + ": unknown input: " + c.input);
  return workload;
}

}  // namespace tree_attn::test
