// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The facade over communicators: the bits of one rank, whole and in parts.
#include "distributed/interface/mpi_attention.hpp"

#include "tests/distributed/interface/refusals.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/mpi_test_session.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {
namespace {

const AttentionShape kSmall{.heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 8};

/// A query, 300 keys that are the values too, and the output of one rank alone.
struct Small {
  std::mt19937 random{5};
  Tensor q = normal_tensor(random, {1, 2, 1, 8}), k = normal_tensor(random, {1, 2, 300, 8});
  DecodeOutput expected = [this] {
    Attention alone(kSmall);
    alone.append(0, k, k);
    return alone.step(q).copy();
  }();
};

}  // namespace

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
    CHECK(attention.transport().name() == (shares_memory ? "shared" : "mpi"));
    CHECK(attention.transport().topology().n_nodes() == (session().ranks().size() + 1) / 2);
    CHECK(attention.transport().ranks().deadline().seconds() == 60);
    for (int repeat = 0; repeat < 20; ++repeat) {
      attention.start(q);
      bool is_done = false;
      for (int i = 0; i < repeat * 50 && !is_done; ++i) is_done = attention.progress();
      CHECK(same_bits(attention.finish().copy(), expected));
    }
  }
}

TEST_CASE("facade: an open Attention that another is assigned to closes its messages first, on all ranks alike") {
  const MpiRanks& all = session().ranks();
  const Small in;
  for (const bool shares_memory : {false, true}) {
    Attention first = open_attention(all.comm(), kSmall, {.shares_memory = shares_memory}),
              second = open_attention(all.comm(), kSmall, {.shares_memory = !shares_memory});
    first.append(0, in.k.view().positions(0, 64), in.k.view().positions(0, 64));
    first.step(in.q);
    second.append(0, in.k, in.k);
    CHECK(first.transport().name() == (shares_memory ? "shared" : "mpi"));
    CHECK(second.transport().name() == (shares_memory ? "mpi" : "shared"));
    const Transport* const moved = &second.transport();
    first = std::move(second);
    CHECK(&first.transport() == moved);
    CHECK(first.lengths()[0] == 300);
    CHECK(same_bits(first.step(in.q).copy(), in.expected));
    second = open_attention(all.comm(), kSmall);
    second.append(0, in.k, in.k);
    CHECK(same_bits(second.step(in.q).copy(), in.expected));
  }
}

TEST_CASE("facade: the layers on a communicator share one duplicate and one transport, through memory of the node") {
  const MpiRanks& all = session().ranks();
  const Small in;
  constexpr int kLayers = 64;
  std::vector<Attention> layers;
  for (int i = 0; i < kLayers; ++i) layers.push_back(open_attention(all.comm(), kSmall, {}, 30 + i));
  const Transport* const shared = &layers[0].transport();
  CHECK(shared->name() == "shared");
  CHECK(shared->ranks().deadline().seconds() == 30 + kLayers - 1);
  for (Attention& layer : layers) {
    CHECK(&layer.transport() == shared);
    layer.append(0, in.k, in.k);
  }
  for (Attention& layer : layers) CHECK(same_bits(layer.step(in.q).copy(), in.expected));
  // One step at a time, since a message of another would come between its rounds.
  layers[0].start(in.q);
  const std::string busy = "Decoder::step: a step of another object over these messages is under way";
  CHECK(message([&] { layers[1].step(in.q); }) == busy);
  CHECK(message([&] { layers[1].use("gather"); }).ends_with("under way"));
  CHECK(same_bits(layers[0].finish().copy(), in.expected));
  // A layer that goes leaves the others theirs, in any order.
  layers.erase(layers.begin());
  CHECK(same_bits(layers.back().step(in.q).copy(), in.expected));
  // Other nodes and no shared memory have a transport of their own, over the same duplicate.
  Attention over_mpi = open_attention(all.comm(), kSmall, {.shares_memory = false}),
            alone_in_nodes = open_attention(all.comm(), kSmall, {.ranks_per_node = 1});
  CHECK(over_mpi.transport().name() == "mpi");
  CHECK(&over_mpi.transport().ranks() == &shared->ranks());
  CHECK(alone_in_nodes.transport().topology().n_nodes() == all.size());
  CHECK(&alone_in_nodes.transport() != shared);
  over_mpi.append(0, in.k, in.k);
  over_mpi.start(in.q);
  CHECK(message([&] { layers[0].step(in.q); }) == busy);
  CHECK(same_bits(over_mpi.finish().copy(), in.expected));
  // An open that is refused leaves the timeout.
  const auto refused = [&] { open_attention(all.comm(), kSmall, {}, -1); };
  CHECK_THROWS(refused());
  CHECK(shared->ranks().deadline().seconds() == 60);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(all.comm(), &comm);
  {
    Attention apart = open_attention(comm, kSmall);
    CHECK(&apart.transport().ranks() != &shared->ranks());
  }
  MPI_Comm_free(&comm);
}

TEST_CASE("facade: over a communicator all refuse an argument of one rank, and refused opens leave nothing") {
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  // MPI tells when it copies and frees a communicator with an attribute.
  static int n_copied = 0, n_freed = 0;
  n_copied = n_freed = 0;
  const auto copied = [](MPI_Comm, int, void*, void* in, void* out, int* is_copied) {
    return ++n_copied, *static_cast<void**>(out) = in, *is_copied = 1, MPI_SUCCESS;
  };
  const auto freed = [](MPI_Comm, int, void*, void*) { return ++n_freed, MPI_SUCCESS; };
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(all.comm(), &comm);
  MPI_Comm_create_keyval(copied, freed, &key, nullptr);
  MPI_Comm_set_attr(comm, key, nullptr);
  refusals::check_all(all, takes_all_cases() ? 10 : 2, [&](const AttentionShape& shape, const AttentionSetup& setup) {
    return std::unique_ptr<Attention>(new Attention(open_attention(comm, shape, setup)));
  });
  for (const bool shares_memory : {false, true})
    refusals::check_refused(
        all, [&] { open_attention(comm, refusals::kShape, {.shares_memory = shares_memory}, all.rank() == 1 ? -1 : 60); });
  // A refusal after messages and caches are open.
  CHECK(message<InputError>([&] {
          open_attention(comm, refusals::kShape, {.shares_memory = true, .pages = {.n_pages = -1}});
        }).starts_with("PageTable: -1 pages"));
  CHECK(n_copied > 100);
  CHECK(n_freed == n_copied);
  MPI_Comm_free(&comm);
  MPI_Comm_free_keyval(&key);
}

TEST_CASE("facade: a rank that abandons does not wait at its end, and the others are told by their deadline") {
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  const auto begin = std::chrono::steady_clock::now();
  {
    Attention attention = open_attention(all.comm(), kSmall, {}, all.rank() == 1 ? 60 : 0.3);
    std::mt19937 random(3);
    const Tensor q = normal_tensor(random, {1, 2, 1, 8});
    if (all.rank() == 1) attention.abandon();
    const std::string line = message<TransportError>([&] { attention.step(q); });
    CHECK_MESSAGE(line.find(all.rank() == 1 ? "has given up before" : "and gave up") != line.npos, line);
  }
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 10);
  all.barrier();
}

}  // namespace tree_attn::test
