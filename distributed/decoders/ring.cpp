// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ring attention, the baseline: keys and values travel (section 6, eq. (10)).
#include "distributed/decoders/decoder.hpp"

#include <algorithm>
#include <array>

namespace tree_attn {
namespace {

/// Keys and values of one place, on their way around the ring.
struct Cargo {
  Buffer* buffer;               // memory for the keys and, after them, the values
  std::span<std::byte> held{};  // what lies there: nothing if the rank's own shard is dense, which is sent as it lies
  Shard shard{};                // k [b, n_kv, n, d_h] and v [b, n_kv, n, d_v], dense
};

std::size_t n_bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]) * bytes_of(view.storage);
}

bool is_dense(const TensorView& view) {
  return view.stride == TensorView::dense(nullptr, view.storage, view.shape).stride;
}

/// Copies the rows of a tensor to one place, one after the other.
void pack(const TensorView& view, std::byte* to) {
  const std::size_t row = static_cast<std::size_t>(view.shape[3]) * bytes_of(view.storage);
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t a = 0; a < view.shape[2]; ++a) to = std::copy_n(view.row(i, h, a), row, to);
    }
  }
}

/// Makes room for the keys and values of a run; types and the other axes are those of `like`.
void make_room(Cargo& cargo, const Shard& like, Run run) {
  const auto dense = [&run](const TensorView& view) {
    std::array<std::int64_t, 4> shape = view.shape;
    shape[2] = run.size();
    return TensorView::dense(nullptr, view.storage, shape);
  };
  cargo.shard = {dense(like.k), dense(like.v), run.begin};
  cargo.held = cargo.buffer->first<std::byte>(n_bytes(cargo.shard.k) + n_bytes(cargo.shard.v));
  cargo.shard.k.data = cargo.held.data();
  cargo.shard.v.data = cargo.held.data() + n_bytes(cargo.shard.k);
}

/// Cargo of the rank's own shard: in place if it is dense, else packed.
void load_own(Cargo& cargo, const Shard& own) {
  cargo.shard = own;
  if (is_dense(own.k) && is_dense(own.v)) return;
  make_room(cargo, own, {own.begin, own.end()});
  pack(own.k, cargo.held.data());
  pack(own.v, cargo.held.data() + n_bytes(own.k));
}

/// Keys and values travel p - 1 hops, the next shard in flight while this one is computed; states are kept by source and merged
/// in rank order.
DecodeOutput run_ring(Transport& transport, const Backend& backend, const DecodeStep& step) {
  const std::vector<int>& order = transport.topology().row();
  const int p = transport.size(), me = transport.topology().place_of(transport.rank());
  const int right = order[static_cast<std::size_t>((me + 1) % p)], left = order[static_cast<std::size_t>((me - 1 + p) % p)];
  std::vector<Forest<float>> forests(static_cast<std::size_t>(p), Forest<float>(step.n_rows(), step.d_v()));

  // Hop i: compute on the cargo of place me - i while it goes on to the right and the next one comes in from the left.
  Cargo here{&transport.buffers[0]}, next{&transport.buffers[1]};
  load_own(here, step.shard);
  for (int hop = 0; hop < p; ++hop) {
    if (hop + 1 < p) {
      make_room(next, step.shard, step.runs[static_cast<std::size_t>((me - hop - 1 + p) % p)]);
      transport.receive(next.held.first(n_bytes(next.shard.k)), left);
      transport.receive(next.held.subspan(n_bytes(next.shard.k)), left);
      transport.send({here.shard.k.data, n_bytes(here.shard.k)}, right);
      transport.send({here.shard.v.data, n_bytes(here.shard.v)}, right);
      transport.count_held_kv_bytes(static_cast<std::int64_t>(here.held.size() + next.held.size()));
    }
    forests[static_cast<std::size_t>((me - hop + p) % p)] =
        backend.decode(step.q, here.shard, step.lengths, step.scale, [&] { transport.progress(); }, step.lift);
    transport.wait();
    std::swap(here, next);
  }

  Forest<float> joined(step.n_rows(), step.d_v());
  for (const Forest<float>& forest : forests) joined.append(forest.subtrees(), forest.states().data());
  const std::span<const float> root = joined.fold();
  transport.count_merge_steps(joined.n_merges());
  return finish_rows(root, step.n_rows(), step.d_v());
}

/// Of dense shards, which are sent from where they are.
RankCost ring_cost(const Topology& topology, int rank, std::span<const Run> ranges, const ProblemShape& shape) {
  const std::vector<int>& order = topology.row();
  const std::size_t p = order.size(), me = static_cast<std::size_t>(topology.place_of(rank));
  const std::int64_t key_bytes = shape.batch * shape.kv_heads * shape.head_dim * static_cast<std::int64_t>(bytes_of(shape.storage)),
                     value_bytes = shape.bytes_per_position() - key_bytes;
  const auto messages = [&](int peer, std::size_t index) {
    std::vector<RankCost::Message> both{{peer, ranges[index].size() * key_bytes}, {peer, ranges[index].size() * value_bytes}};
    std::erase_if(both, [](const RankCost::Message& message) { return message.bytes == 0; });
    return both;
  };
  RankCost cost;
  std::int64_t largest_hop = 0;
  for (std::size_t hop = 0; hop + 1 < p; ++hop) {
    const std::size_t here = (me + p - hop) % p, next = (me + 2 * p - hop - 1) % p;
    cost.rounds.push_back({messages(order[(me + 1) % p], here), messages(order[(me + p - 1) % p], next)});
    largest_hop = std::max(largest_hop, (hop == 0 ? 0 : ranges[here].size()) + ranges[next].size());
  }

  // The states of every source, then joined.
  std::int64_t n_blocks = 0;
  Forest<float> joined(0, 0);
  for (const Run& range : ranges) {
    const std::vector<Subtree> subtrees = cover(range.begin, range.end);
    n_blocks += 2 * static_cast<std::int64_t>(subtrees.size());
    joined.append(subtrees, nullptr);
  }
  joined.fold();
  cost.merge_steps = joined.n_merges();
  cost.elements = largest_hop * shape.batch * shape.kv_heads * (shape.head_dim + shape.value_dim) +
                  shape.n_rows() * (n_blocks * state_size(shape.value_dim) + shape.value_dim + 1);
  return cost;
}

/// Eq. (10), p - 1 times.
/// @paper{eq_10, eq. (10)}
double bytes_of_formula(const ProblemShape& shape, int p) {
  return static_cast<double>(shape.n_keys * shape.bytes_per_position()) * (p - 1);
}

}  // namespace

extern const Algorithm kRing;
constinit const Algorithm kRing{.name = "ring",
                                .brief = "the baseline: keys and values travel",
                                .kv_shards_in_flight = 2,
                                .exchange = OwnLoop{run_ring, ring_cost},
                                .paper_bytes = bytes_of_formula};

}  // namespace tree_attn
