// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The exchange alone: the bits of a merge in one process, bytes by heads, edges, and refusals (section 5.3).
#include "distributed/exchange/decoder.hpp"
#include "distributed/interface/combiner.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <vector>

namespace tree_attn::test::combiner_test {
namespace {

constexpr double kTimeout = 60;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// (o, lse) of every rank, by index in the order of the topology. No rank has keys for the first head of the first
/// entry, and o is rubbish there; the last row has a NaN on one rank.
struct Partials {
  std::vector<Tensor> o, lse;
};

Partials random_partials(unsigned seed, int p, const Shape& shape, DType dtype) {
  std::mt19937 random(seed);
  Partials partials;
  for (int i = 0; i < p; ++i) {
    partials.o.push_back(normal_tensor(random, shape, dtype));
    std::vector<float> lse = normal_elements(random, shape[0] * shape[1] * shape[2], 30);
    for (std::size_t row = 0; row < lse.size(); ++row)
      if (row < static_cast<std::size_t>(shape[2]) || (row + static_cast<std::size_t>(i)) % 7 == 0) lse[row] = -kInf;
    if (i == p / 2) lse.back() = kNaN;
    partials.o.back().set(0, 0, 0, 0, kNaN), partials.o.back().set(0, 0, 0, 1, kInf);
    partials.lse.emplace_back(lse, Shape{shape[0], shape[1], shape[2], 1});
  }
  return partials;
}

/// The merge in one process: one place of the canonical tree for each rank.
DecodeOutput merged(const Partials& partials, const Shape& shape) {
  const auto [b, n_h, l, d_v] = shape;
  Forest<float> forest(b * n_h * l, d_v);
  std::vector<float> row(static_cast<std::size_t>(d_v));
  for (std::size_t part = 0; part < partials.o.size(); ++part) {
    float* state = forest.next();
    for (std::int64_t r = 0; r < b * n_h * l; ++r, state += state_size(d_v)) {
      float lse = 0;
      load_row(partials.lse[part].view(), r / (n_h * l), r / l % n_h, r % l, &lse);
      load_row(partials.o[part].view(), r / (n_h * l), r / l % n_h, r % l, row.data());
      set_from_lse(state, row.data(), lse, d_v);
    }
    forest.push({0, static_cast<std::int64_t>(part)});
  }
  return finish_rows(forest.fold(), b * n_h * l, d_v);
}

/// The heads [first, first + n) of an output.
DecodeOutput heads_of(const DecodeOutput& output, const Shape& shape, std::int64_t first, std::int64_t n) {
  const auto [b, n_h, l, d_v] = shape;
  DecodeOutput part;
  for (std::int64_t i = 0; i < b; ++i) {
    const auto out = output.out.begin() + (i * n_h + first) * l * d_v;
    const auto lse = output.lse.begin() + (i * n_h + first) * l;
    part.out.insert(part.out.end(), out, out + n * l * d_v);
    part.lse.insert(part.lse.end(), lse, lse + n * l);
  }
  return part;
}

Traffic sent(const Topology& topology, const Shape& shape, OutputPart part) {
  const Partials partials = random_partials(1, topology.size(), shape, DType::F32);
  Traffic all;
  std::mutex mutex;
  run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
    Combiner combiner(transport, shape, part);
    const auto me = static_cast<std::size_t>(topology.index_of(transport.rank()));
    transport.clear_traffic();
    combiner.combine(partials.o[me], partials.lse[me]);
    std::int64_t predicted = 0;
    for (const RankCost::Round& round : combiner.cost().rounds)
      for (const RankCost::Message& message : round.sends) predicted += message.bytes;
    CHECK(predicted == transport.traffic().bytes);
    CHECK(combiner.cost().merge_steps == transport.traffic().merge_steps);
    const std::scoped_lock lock(mutex);
    add(all, transport.traffic());
  });
  return all;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("combiner: the bits of a merge in one process, whole or by heads, in any nodes and every type, NaN too") {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    for (int p = 1; p <= 8; ++p) {
      for (const Topology& topology : groupings(p)) {
        const Shape shape{p % 2 + 1, 2 * p, 3, 5};
        const Partials partials = random_partials(static_cast<unsigned>(p), p, shape, dtype);
        const DecodeOutput expected = merged(partials, shape);
        CHECK((expected.out[0] == 0 && expected.lse[0] == -kInf && std::isnan(expected.lse.back())));
        CAPTURE(p);
        CAPTURE(topology.n_nodes());
        run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
          const auto me = static_cast<std::size_t>(topology.index_of(transport.rank()));
          for (const std::int64_t slice_bytes : {std::int64_t{0}, std::int64_t{1} << 40}) {
            Combiner all(transport, shape, OutputPart::kAll, {.slice_bytes = slice_bytes});
            for (int repeat = 0; repeat < 2; ++repeat)
              CHECK(same_bits(all.combine(partials.o[me], partials.lse[me]).copy(), expected));
          }
          Combiner heads(transport, shape, OutputPart::kHeads);
          CHECK(heads.n_heads() == 2);
          for (int repeat = 0; repeat < 2; ++repeat)
            CHECK(same_bits(heads.combine(partials.o[me], partials.lse[me]).copy(),
                            heads_of(expected, shape, 2 * transport.rank(), 2)));
        });
      }
    }
  }
}

TEST_CASE("combiner: by heads a rank sends half of what two-level sends, between nodes too") {
  const Shape shape{1, 48, 1, 512};
  for (const int ranks_per_node : {8, 4, 2, 1}) {
    const Topology topology = Topology::pretend(8, ranks_per_node);
    const Traffic all = sent(topology, shape, OutputPart::kAll), heads = sent(topology, shape, OutputPart::kHeads);
    CAPTURE(ranks_per_node);
    CHECK(static_cast<double>(heads.bytes) <= 0.51 * static_cast<double>(all.bytes));
    CHECK(static_cast<double>(heads.bytes_between_nodes) <= 0.51 * static_cast<double>(all.bytes_between_nodes));
    // A rank sends 7 eighths of its states: all heads but its own, once.
    if (ranks_per_node == 8) CHECK(heads.bytes == 8 * 7 * 6 * (2 + 512) * 4);
    CHECK(heads.merge_steps <= 7);
  }
}

TEST_CASE("combiner: what ranks have different, other axes, and heads that do not divide are refused in one line") {
  const Shape shape{1, 6, 1, 4};
  run_threads(Topology::pretend(4, 4), kTimeout, [&](ThreadTransport& transport) {
    const OutputPart part = transport.rank() == 2 ? OutputPart::kHeads : OutputPart::kAll;
    const std::string text = message([&] { Combiner(transport, {1, 8, 1, 4}, part); });
    CHECK(text == "Combiner: ranks 0 and 2 differ in by heads (0 and 1)");
    PlanOptions options;
    if (transport.rank() == 3) options.network.inside.latency_us *= 2;
    CHECK(message([&] {
            Combiner(transport, shape, OutputPart::kAll, options);
          }).starts_with("Combiner: ranks 0 and 3 differ in latency in a node ("));
    CHECK(message([&] { Combiner(transport, shape, OutputPart::kHeads); }) ==
          "Combiner: 6 heads cannot be scattered over 4 ranks");
    CHECK(message([&] { Combiner(transport, {1, -6, 1, 4}); }).find("an axis is negative") != std::string::npos);
    Combiner combiner(transport, shape);
    const Tensor o(std::vector<float>(24), shape), lse(std::vector<float>(6), {1, 6, 1, 1});
    CHECK(message([&] { combiner.combine(o, o); }).find("expected [1, 6, 1, 4] and [1, 6, 1, 1]") != std::string::npos);
    TensorView null = o.view();
    null.data = nullptr;
    CHECK(message([&] { combiner.combine(null, lse); }) == "Combiner::combine: o has no data");
    combiner.combine(o, lse);
  });
}

}  // namespace tree_attn::test::combiner_test
