// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The facade over communicators: the bits of one rank, whole and in parts.
#include "tree_attn/distributed/decoders/mpi_attention.hpp"

#include "tree_attn/tests/support/decoding.hpp"
#include "tree_attn/tests/support/mpi_test_session.hpp"
#include "tree_attn/tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <random>

namespace tree_attn::test {

TEST_CASE("facade: over a communicator a step has the bits of one rank, whole, in parts, and through shared memory") {
  const std::int64_t n_keys = 1000, d = 32;
  const AttentionShape shape{.heads = 8, .kv_heads = 2, .head_dim = d, .value_dim = d};
  std::mt19937 random(3);
  const Tensor q = normal_tensor(random, {1, 8, 1, d}), k = normal_tensor(random, {1, 2, n_keys, d}),
               v = normal_tensor(random, {1, 2, n_keys, d});
  Attention alone(shape);
  alone.append(0, k, v);
  const DecodeOutput expected = alone.step(q).copy();
  for (const bool shares_memory : {false, true}) {
    Attention attention =
        open_attention(session().ranks().comm(), shape, {.ranks_per_node = 2, .shares_memory = shares_memory});
    for (std::int64_t at = 0; at < n_keys; at += 10) {
      TensorView k_here = k.view().positions(at, at + 10), v_here = v.view().positions(at, at + 10);
      if (!attention.holds(at) && !attention.holds(at + 9)) k_here.data = v_here.data = nullptr;
      attention.append(0, k_here, v_here);
    }
    CHECK(same_bits(attention.step(q).copy(), expected));
    for (int repeat = 0; repeat < 20; ++repeat) {
      attention.start(q);
      bool is_done = false;
      for (int i = 0; i < repeat * 50 && !is_done; ++i) is_done = attention.progress();
      CHECK(same_bits(attention.finish().copy(), expected));
    }
  }
}

}  // namespace tree_attn::test
