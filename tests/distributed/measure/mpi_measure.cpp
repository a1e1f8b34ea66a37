// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What measure() says of ranks that end with different bits: the negative control of same_bits_on_all_ranks.
#include "tree_attn/distributed/measure/measure.hpp"
#include "tree_attn/distributed/transport/mpi_transport.hpp"
#include "tree_attn/tests/support/mpi_test_session.hpp"

#include <doctest/doctest.h>

#include <bit>

namespace tree_attn::test {
namespace {

int odd_rank = -1;        ///< ends with another bit than the others; none if it is no rank
bool odd_in_lse = false;  ///< the last bit of lse, or else of out
float common = 0;         ///< the value that the others have

/// An algorithm that ignores its states: every rank ends with the common value, one rank with the next float.
class OddDecoder : public Decoder {
 public:
  OddDecoder(Transport& transport, OpenShard& shard) : Decoder(transport, shard) {}

 protected:
  OutputView run(const Step& step) override {
    decode_own_shard(step);
    const auto n_rows = static_cast<std::size_t>(shard_.cache->shape().n_rows());
    output_ = {std::vector<float>(n_rows * static_cast<std::size_t>(shard_.cache->shape().value_dim), common),
               std::vector<float>(n_rows, common)};
    if (transport_.rank() == odd_rank) {
      float& element = (odd_in_lse ? output_.lse : output_.out).back();
      element = std::bit_cast<float>(std::bit_cast<std::uint32_t>(element) + 1);
    }
    return {output_.out, output_.lse};
  }

 private:
  DecodeOutput output_;
};

std::unique_ptr<Decoder> open_odd(Transport& transport, OpenShard& shard, std::span<const KeyRange>, const PlanOptions&) {
  return std::make_unique<OddDecoder>(transport, shard);
}

RankCost no_cost(const Topology&, int, std::span<const KeyRange>, const WorkloadShape&, const PlanOptions&) { return {}; }

}  // namespace

TEST_CASE("measure: one rank that ends with one other bit is seen by all, whichever it is") {
  const int p = session().ranks().size();
  const auto workload = make_workload({{.heads = 2, .kv_heads = 2, .head_dim = 4, .value_dim = 4}, 8, {8}}, 1, 1);
  const Topology topology = Topology::pretend(p, p);
  MpiTransport transport(session().ranks(), topology);
  const Bench bench{session().ranks(), transport, cpu_backend(), *workload, even_ranges(8, p, 1), 1.0, 0, 1};
  OpenShard shard = open_shard(bench.backend, workload->shape(),
                               bench.ranges[static_cast<std::size_t>(session().ranks().rank())], bench.scale);
  const auto same_bits = [&](int rank) {
    odd_rank = rank;
    const Algorithm oddly{.name = "oddly", .brief = "", .exchange = OwnDecoder{open_odd, no_cost}};
    return measure(bench, shard, oddly).same_bits_on_all_ranks;
  };
  // The last bit of a number, the one that makes -inf a NaN, the payload of a NaN.
  for (const float number : {1.0f, 0.0f, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    common = number;
    CAPTURE(number);
    CHECK(same_bits(p));
    for (int rank = 0; rank < p; ++rank) {
      odd_in_lse = rank % 2 == 1;
      CHECK(same_bits(rank) == (p == 1));
    }
  }
}

}  // namespace tree_attn::test
