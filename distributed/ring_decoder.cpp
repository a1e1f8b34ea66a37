// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ring attention, the baseline: keys and values travel (section 6, eq. (10)).
#include "distributed/decoder.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace tree_attn {
namespace {

/// Keys and values of one place, on their way around the ring: k [b, n_kv, n, d_h] and v [b, n_kv, n, d_v], dense.
struct Cargo {
  std::array<std::vector<std::byte>, 2> owned;       // empty where the rank's own shard is dense and can be sent as it lies
  std::array<std::span<const std::byte>, 2> bytes;   // what to send
  Shard shard;                                       // what to compute with

  std::int64_t owned_bytes() const { return static_cast<std::int64_t>(owned[0].size() + owned[1].size()); }
};

std::size_t dense_bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]) * bytes_of(view.storage);
}

bool is_dense(const TensorView& view) {
  return view.stride == TensorView::dense(nullptr, view.storage, view.shape).stride;
}

/// Cargo of the rank's own shard: in place if it is dense, else packed row by row.
Cargo load_own(const Shard& shard) {
  Cargo cargo;
  cargo.shard = shard;
  std::array<TensorView*, 2> views{&cargo.shard.k, &cargo.shard.v};
  for (std::size_t i = 0; i < 2; ++i) {
    TensorView& view = *views[i];
    const std::size_t n_bytes = dense_bytes(view);
    if (!is_dense(view)) {
      std::vector<std::byte>& packed = cargo.owned[i];
      packed.resize(n_bytes);
      const std::size_t run = static_cast<std::size_t>(view.shape[2] * view.shape[3]) * bytes_of(view.storage);
      const std::size_t row = static_cast<std::size_t>(view.shape[3]) * bytes_of(view.storage);
      for (std::int64_t j = 0; run > 0 && j < view.shape[0] * view.shape[1]; ++j) {
        for (std::int64_t a = 0; a < view.shape[2]; ++a) {
          std::memcpy(packed.data() + static_cast<std::size_t>(j) * run + static_cast<std::size_t>(a) * row,
                      view.row(j / view.shape[1], j % view.shape[1], a), row);
        }
      }
      view = TensorView::dense(packed.data(), view.storage, view.shape);
    }
    cargo.bytes[i] = {view.data, n_bytes};
  }
  return cargo;
}

/// Makes room for the cargo of another place.
void make_room(Cargo& cargo, const Shard& like, Run run) {
  cargo.shard = like;
  cargo.shard.begin = run.begin;
  std::array<TensorView*, 2> views{&cargo.shard.k, &cargo.shard.v};
  for (std::size_t i = 0; i < 2; ++i) {
    std::array<std::int64_t, 4> shape = views[i]->shape;
    shape[2] = run.size();
    *views[i] = TensorView::dense(nullptr, views[i]->storage, shape);
    cargo.owned[i].resize(dense_bytes(*views[i]));
    views[i]->data = cargo.owned[i].data();
    cargo.bytes[i] = cargo.owned[i];
  }
}

}  // namespace

DecodeOutput decode_ring(Transport& transport, const Backend& backend, const DecodeStep& step) {
  const std::vector<int>& row = transport.topology().row();
  const int p = transport.size(), me = transport.topology().place_of(transport.rank());
  const int right = row[static_cast<std::size_t>((me + 1) % p)], left = row[static_cast<std::size_t>((me - 1 + p) % p)];
  std::vector<Forest<float>> forests(static_cast<std::size_t>(p), Forest<float>(step.n_rows(), step.d_v()));

  // Hop i: compute on the cargo of place me - i while it goes on to the right and the next one comes in from the left.
  Cargo here = load_own(step.shard), next;
  for (int hop = 0; hop < p; ++hop) {
    if (hop + 1 < p) {
      make_room(next, step.shard, step.runs[static_cast<std::size_t>((me - hop - 1 + p) % p)]);
      for (std::size_t i = 0; i < 2; ++i) {
        transport.receive(next.owned[i], left);
        transport.send(here.bytes[i], right);
      }
      transport.traffic.buffer_kv_bytes = std::max(transport.traffic.buffer_kv_bytes, here.owned_bytes() + next.owned_bytes());
    }
    forests[static_cast<std::size_t>((me - hop + p) % p)] =
        backend.decode(step.q, here.shard, step.lengths, step.scale, [&] { transport.progress(); });
    transport.wait();
    std::swap(here, next);
  }

  Forest<float> forest = join(transport, forests);
  return finish_forest(transport, forest, step);
}

}  // namespace tree_attn
