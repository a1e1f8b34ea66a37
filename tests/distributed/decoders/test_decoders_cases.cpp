// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every smoke case of tests/data/cases.json that is a decode, on every algorithm (Alg. 3).
#include "tree_attn/tests/support/cases.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <map>

namespace tree_attn::test {
namespace {

/// What is wrong with an output beyond what the oracle says; "" if nothing is.
using Expectation = std::function<std::string(TensorWorkload& workload, const std::vector<KeyRange>& ranges,
                                              const Algorithm& algorithm, const DecodeOutput& output)>;

/// What single kinds of input ask for by their field `expect`.
const std::map<std::string, Expectation>& expectations() {
  static const std::map<std::string, Expectation> kExpectations{
      {"q = 64, k = -64, v = 1 (raw score -524288)",
       [](TensorWorkload& workload, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         const bool ones = std::all_of(output.out.begin(), output.out.end(), [](float z) { return z == 1; });
         const double lse = workload.scale * -524288 + kLn2;
         return ones && std::abs(output.lse[0] - lse) < 1e-3 + 1e-5 * std::abs(lse) ? ""
                                                                                    : "o is not exactly 1, or lse is off";
       }},
      {"rank r has scores near -1000*r",
       [](TensorWorkload& workload, const std::vector<KeyRange>& ranges, const Algorithm&,
          const DecodeOutput& output) -> std::string {
         return same_bits(output, decode_alone(workload, ranges[0].end)) ? "" : "not the bits of rank 0 alone";
       }},
      {"all keys equal",
       [](TensorWorkload& workload, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         return std::abs(output.lse[0] - (1.5 + std::log(static_cast<double>(workload.n_keys())))) < 1e-5
                    ? ""
                    : "lse is not s + ln N";
       }},
      {"one score +100 above the rest",
       [](TensorWorkload& workload, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         std::vector<float> v(static_cast<std::size_t>(workload.shape().value_dim));
         for (std::size_t r = 0; r < output.lse.size(); ++r) {
           load_row(workload.v(), 0, static_cast<std::int64_t>(r) / 2, workload.n_keys() / 3, v.data());
           for (std::size_t j = 0; j < v.size(); ++j) {
             const float z = output.out[r * v.size() + j];
             if (z != v[j] && std::nextafter(z, v[j]) != v[j]) return "o is not that v to 1 ulp";
           }
         }
         return "";
       }},
      {"one key 0, N-1 keys at -9.9 (FA4 preserves_tail_mass)",
       [](TensorWorkload& workload, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         const double tail = static_cast<double>(workload.n_keys() - 1) * std::exp(-9.9);
         return std::abs(output.lse[0] - std::log1p(tail)) < 1e-5 ? "" : "the tail was flushed";
       }},
      {"one +inf value with weight > 0",
       [](TensorWorkload&, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         return output.out[1] == std::numeric_limits<float>::infinity() ? "" : "Inf did not stay Inf";
       }},
      {"one +inf value whose weight underflows to 0",
       [](TensorWorkload&, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         return std::isnan(output.out[1]) ? "" : "0 * Inf is not NaN";
       }},
      {"values -0.0",
       [](TensorWorkload&, const auto&, const Algorithm& algorithm, const DecodeOutput& output) -> std::string {
         // Where outputs are weighed by their lse, an empty shard adds +0.
         const bool keeps_sign = algorithm.rounding.weight_error_per_lse == 0;
         const bool right = std::all_of(output.out.begin(), output.out.end(),
                                        [&](float z) { return z == 0 && (std::signbit(z) || !keeps_sign); });
         return right ? "" : "not -0";
       }},
      {"q, k, v are strided views of one packed tensor",
       [](TensorWorkload& workload, const auto&, const Algorithm&, const DecodeOutput& output) -> std::string {
         std::vector<float> v(static_cast<std::size_t>(workload.shape().value_dim));
         const std::int64_t n_h = workload.shape().heads;
         for (std::int64_t r = 0; r < workload.shape().n_rows(); ++r) {
           load_row(workload.v(), r / n_h, r % n_h / (n_h / workload.shape().kv_heads), 0, v.data());
           for (std::size_t j = 0; j < v.size(); ++j) {
             if (!(std::abs(output.out[static_cast<std::size_t>(r) * v.size() + j] - v[j]) <= 0x1p-22f * std::abs(v[j])))
               return "N = 1, and o is not v";
           }
         }
         return "";
       }},
  };
  return kExpectations;
}

/// Scores of these inputs overflow in F32 and not in the oracle's double: NaN in every number is right, and so is the
/// oracle.
bool overflows(const Case& c) { return c.input.find("overflow fp32") != std::string::npos; }

void check_case(RankGroup& rank_group, const Case& c) {
  const int p = rank_group.size();
  const auto workload = input_of(c, p);
  const std::vector<KeyRange> ranges = ranges_of(c, p);
  REQUIRE(n_holders(ranges) == std::min<std::int64_t>(p, workload->n_keys()));
  const bool as_it_lies = c.input.find("packed") != std::string::npos || c.input.find("base pointers") != std::string::npos;
  const Layout layout{mixed_grouping(p), ranges, !as_it_lies};
  if (overflows(c)) {
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      for (const RankResult& result : decode(rank_group, algorithm, *workload, layout)) {
        CHECK(std::all_of(result.output.out.begin(), result.output.out.end(), [](float z) { return std::isnan(z); }));
        CHECK(std::all_of(result.output.lse.begin(), result.output.lse.end(), [](float lse) { return std::isnan(lse); }));
      }
    }
    return;
  }
  const auto expectation = expectations().find(c.input);
  check_all(rank_group, *workload, {layout}, [&](const Algorithm& algorithm, const DecodeOutput& output) {
    if (expectation != expectations().end()) CHECK(expectation->second(*workload, ranges, algorithm, output) == "");
  });
}

}  // namespace

/// A case runs over its own numbers of ranks where there are threads, over those at hand under mpirun. Shards that a case
/// deals out cyclically are neighbouring runs here, for positions have an order: 12 cases. None is left out.
/// @tested{alg_3, Alg. 3}
TEST_CASE("decoders: every smoke case of other projects' suites") {
  const std::vector<Case> cases = cases_of("decode", "smoke");
  CHECK(cases.size() == 284);
  CHECK(std::count_if(cases.begin(), cases.end(), [](const Case& c) { return c.shard == "cyclic"; }) == 12);
  std::size_t n_run = 0;
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CAPTURE(c.seed);
    const std::vector<RankGroup*> here = rank_groups(c.ranks);
    for (RankGroup* rank_group : here) check_case(*rank_group, c);
    n_run += !here.empty();
  }
  CHECK(n_run == cases.size());
}

/// The cases' splits are cuts of one device's keys. The CPU backend has none; merged in order, they change no bit.
/// @tested{thm_1, Thm. 1}
TEST_CASE("decoders: splits of the smoke cases, merged in order, have the bits of the whole") {
  std::size_t n_splits = 0;
  for (const Case& c : cases_of("decode", "smoke")) {
    for (const int split : c.splits) {
      if (split < 2) continue;  // 1 is the whole, 0 leaves the number to a library
      CAPTURE(c.name);
      CAPTURE(split);
      const auto workload = input_of(c, 1);
      Forest<float> forest(workload->shape().n_rows(), workload->shape().value_dim);
      for (const KeyRange& range : even_ranges(workload->n_keys(), split, 1)) {
        const Forest<float> part =
            decode_shard(workload->query(0), workload->shard(range), workload->lengths(), workload->scale);
        forest.append(part.subtrees(), part.states().data());
      }
      CHECK(same_bits(finish_rows(forest.fold(), workload->shape().n_rows(), workload->shape().value_dim),
                      decode_alone(*workload)));
      ++n_splits;
    }
  }
  CHECK(n_splits == 64);
}

/// One partial result a rank, merged by every algorithm: an empty partial is neutral, an Inf convention is left at the
/// border. The merge cases are of tier standard; these are the small ones of both origins, every fifth of them.
/// @tested{alg_3, Alg. 3}
TEST_CASE("decoders: partial results (o, lse) of the merge cases") {
  std::size_t n_run = 0, n_small = 0;
  for (const Case& c : cases_of("merge", "standard")) {
    const std::int64_t n_elements = c.batch * c.heads * c.head_dim * c.splits.at(0);
    if (n_elements > 300'000 || n_small++ % 5 != 0) continue;
    CAPTURE(c.name);
    CAPTURE(c.seed);
    const auto workload = partials_of(c);
    for (RankGroup* rank_group : rank_groups(c.ranks)) {
      const int p = rank_group->size();
      check_all(*rank_group, *workload, {{mixed_grouping(p), even_ranges(workload->n_keys(), p, 1)}});
    }
    ++n_run;
  }
  CHECK(n_run == 13);
}

}  // namespace tree_attn::test
