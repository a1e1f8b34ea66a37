// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Finds the owners of all leaves, packs rows for each of them, and appends what arrives by ascending position.
#include "distributed/exchange/reshard.hpp"

#include "distributed/transport/ranks.hpp"
#include "reference/data/fnv1a.hpp"
#include "reference/decode/page_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

namespace tree_attn {
namespace {

/// Rows from that of a key on that lie in the same leaf of the same rank.
struct Location {
  int index;
  std::int64_t row, n;
};

/// Finds the rank and the row that hold the key of a position. @param leaves of all ranks, whose ranges ascend
Location location_of(std::span<const OwnedLeaves> leaves, std::int64_t position) {
  const std::int64_t at = slot_of(leaves.front().order(), position / kLeafKeys) * kLeafKeys + position % kLeafKeys;
  const auto owner = std::ranges::upper_bound(leaves, at, {}, [](const OwnedLeaves& each) { return each.range().end; });
  require<std::out_of_range>(owner != leaves.end() && owner->range().begin <= at, "moves_between: no rank holds key ",
                             position);
  const std::int64_t row = owner->n_keys(position);
  return {static_cast<int>(owner - leaves.begin()), row, owner->end_of_leaf(row) - row};
}

/// The rows of a move that a batch entry of some length has.
std::int64_t n_of_entry(const RowMove& move, std::span<const OwnedLeaves> before, std::int64_t length) {
  return std::clamp<std::int64_t>(before[static_cast<std::size_t>(move.from)].n_keys(length) - move.row_from, 0, move.n);
}

std::int64_t longest_of(std::span<const std::int64_t> lengths) {
  return lengths.empty() ? 0 : *std::ranges::max_element(lengths);
}

/// Rows [first, first + n) of all heads of a dense view of one entry, one head after the other.
std::byte* pack(const TensorView& view, std::int64_t first, std::int64_t n, std::byte* to) {
  const std::size_t n_bytes = static_cast<std::size_t>(n * view.shape[3]) * bytes_of(view.dtype);
  for (std::int64_t h = 0; h < view.shape[1] && n_bytes > 0; ++h, to += n_bytes)
    std::memcpy(to, view.row(0, h, first), n_bytes);
  return to;
}

/// Throws std::invalid_argument for what is wrong with the arguments of this rank.
void check(const Transport& transport, const KvCache& from, const KvCache& to, std::span<const OwnedLeaves> before,
           std::span<const OwnedLeaves> after, std::span<const std::int64_t> lengths) {
  const auto size = static_cast<std::size_t>(transport.size());
  require(before.size() == size && after.size() == size, "reshard: the leaves of ", before.size(), " and ", after.size(),
          " ranks, not ", size);
  const auto me = static_cast<std::size_t>(transport.topology().index_of(transport.rank()));
  require(before[me] == from.leaves() && after[me] == to.leaves(), "reshard: the leaves of rank ", transport.rank(),
          " are others than those of its caches");
  AttentionShape shape = from.shape();
  shape.row_multiple = to.shape().row_multiple;  // rows travel dense
  require(shape == to.shape(), "reshard: the caches have other shapes");
  require(from.scales() == to.scales(), "reshard: the caches have other scales");
  for (std::int64_t i = 0; from.pages() != nullptr && i < from.shape().batch; ++i)
    require(from.pages()->given_back(i).empty(), "reshard: keys of batch entry ", i, " have been given back");
  require(to.longest() == 0, "reshard: the new cache holds ", to.longest(), " rows");
  require(std::ranges::equal(rows_in_use(lengths, from.leaves()), from.lengths()), "reshard: rank ", transport.rank(),
          " holds other rows than sequences of these lengths have");
}

/// Throws on every rank unless all have the same arguments, and none refuses its own.
void require_agreement(const Transport& transport, const std::optional<std::string>& refusal,
                       std::span<const OwnedLeaves> before, std::span<const OwnedLeaves> after, const AttentionShape& shape,
                       std::span<const std::int64_t> lengths) {
  std::uint64_t hash = kFnvStart;
  for (const auto& leaves : {before, after}) {
    for (const OwnedLeaves& each : leaves) {
      const std::array numbers{each.range().begin, each.range().end, static_cast<std::int64_t>(each.order())};
      hash = fnv1a(std::as_bytes(std::span(numbers)), hash);
    }
  }
  require_equal(
      transport.ranks(), "reshard", "all ranks to move their caches",
      std::array{Field{"the longest sequence", longest_of(lengths)},
                 Field{"the hash of lengths", fnv1a(std::as_bytes(lengths))}, Field{"the hash of leaves", hash},
                 Field{"KV heads", shape.kv_heads}, Field{"head dim", shape.head_dim}, Field{"value dim", shape.value_dim},
                 Field{"type", name_of(shape.dtype)}, Field{"type of values", name_of(shape.value_dtype)},
                 Field{"values in keys", shape.values_in_keys}},
      refusal);
}

}  // namespace

std::vector<OwnedLeaves> owned_leaves(std::span<const KeyRange> ranges, LeafOrder order) {
  std::vector<OwnedLeaves> leaves;
  for (const KeyRange& range : ranges) leaves.emplace_back(range, order);
  return leaves;
}

std::vector<KeyRange> spread_over(std::span<const KeyRange> ranges, int n_ranks) {
  require(!ranges.empty() && std::ssize(ranges) <= n_ranks, "spread_over: ", ranges.size(), " ranges over ", n_ranks,
          " ranks");
  std::vector<KeyRange> result(ranges.begin(), ranges.end());
  const std::int64_t at = ranges.back().begin;
  result.insert(result.end() - 1, static_cast<std::size_t>(n_ranks) - ranges.size(), {at, at});
  return result;
}

std::vector<RowMove> moves_between(std::span<const OwnedLeaves> before, std::span<const OwnedLeaves> after,
                                   std::int64_t n_keys) {
  require(!before.empty() && before.size() == after.size(), "moves_between: ", before.size(), " and ", after.size(),
          " ranks");
  std::vector<RowMove> moves;
  std::map<std::pair<int, int>, std::size_t> last;  // move between two ranks
  for (std::int64_t position = 0; position < n_keys;) {
    const Location from = location_of(before, position), to = location_of(after, position);
    const std::int64_t n = std::min({from.n, to.n, n_keys - position});
    const auto [found, is_new] = last.try_emplace({from.index, to.index}, moves.size());
    RowMove* const before_it = is_new ? nullptr : &moves[found->second];
    if (before_it != nullptr && before_it->row_from + before_it->n == from.row &&
        before_it->row_to + before_it->n == to.row) {
      before_it->n += n;
    } else {
      found->second = moves.size();
      moves.push_back({from.index, to.index, from.row, to.row, n});
    }
    position += n;
  }
  return moves;
}

void reshard(Transport& transport, const KvCache& from, KvCache& to, std::span<const OwnedLeaves> before,
             std::span<const OwnedLeaves> after, std::span<const std::int64_t> lengths) {
  const Topology& topology = transport.topology();
  const int me = topology.index_of(transport.rank());
  const AttentionShape& shape = from.shape();
  require(transport.device() == nullptr, "reshard: the transport ", transport.name(), " sends from device memory");
  const auto refusal = refusal_of(transport.size() > 1, [&] { check(transport, from, to, before, after, lengths); });
  require_agreement(transport, refusal, before, after, shape, lengths);

  // In host memory: rows of this rank as they lie, and messages.
  std::vector<std::byte> copied;
  const Shard own = from.shard(from.longest(), [&](std::size_t n_bytes) {
    copied.resize(n_bytes);
    return copied.data();
  });
  const std::vector<RowMove> moves = moves_between(before, after, longest_of(lengths));
  std::vector<std::vector<std::byte>> sent(before.size()), received(before.size());
  AttentionShape entry = shape;
  entry.batch = 1;
  for (const RowMove& move : moves) {
    if (move.from == move.to || (move.from != me && move.to != me)) continue;
    std::vector<std::byte>& message =
        move.to == me ? received[static_cast<std::size_t>(move.from)] : sent[static_cast<std::size_t>(move.to)];
    for (const std::int64_t length : lengths)
      message.resize(message.size() +
                     static_cast<std::size_t>(n_of_entry(move, before, length) * entry.bytes_per_position()));
  }

  // A message has its moves in order, of each all entries, of each keys and then values.
  std::vector<std::byte*> end(before.size());
  std::ranges::transform(sent, end.begin(), [](auto& message) { return message.data(); });
  for (const RowMove& move : moves) {
    if (move.from != me || move.to == me) continue;
    std::byte*& at = end[static_cast<std::size_t>(move.to)];
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      const std::int64_t n = n_of_entry(move, before, lengths[static_cast<std::size_t>(i)]);
      at = pack(own.k.entry(i), move.row_from, n, at);
      if (!shape.values_in_keys) at = pack(own.v.entry(i), move.row_from, n, at);
    }
  }
  try {
    for (std::size_t index = 0; index < before.size(); ++index) {
      transport.receive(received[index], topology.order()[index]);
      transport.send(sent[index], topology.order()[index]);
    }
    transport.wait();
  } catch (...) {
    transport.abandon();
    // The transport may still use this memory.
    if (transport.has_messages_in_flight()) new auto(std::move(sent)), new auto(std::move(received));
    throw;
  }

  // Ascending positions are ascending rows.
  to.reserve(to.leaves().n_keys(longest_of(lengths)));
  std::vector<const std::byte*> next(before.size());
  std::ranges::transform(received, next.begin(), [](const auto& message) { return message.data(); });
  for (const RowMove& move : moves) {
    if (move.to != me) continue;
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      const std::int64_t n = n_of_entry(move, before, lengths[static_cast<std::size_t>(i)]);
      if (n == 0) continue;
      if (move.from == me) {
        to.append(i, own.k.entry(i).positions(move.row_from, move.row_from + n),
                  own.v.entry(i).positions(move.row_from, move.row_from + n));
        continue;
      }
      const std::byte*& at = next[static_cast<std::size_t>(move.from)];
      const Shard rows = dense_shard(entry, n, at, 0, false);
      to.append(i, rows.k, rows.v);
      at += n * entry.bytes_per_position();
    }
  }
}

}  // namespace tree_attn
