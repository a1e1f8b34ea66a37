// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The queries of a rank in one message, where they stay.
#include "distributed/exchange/queries_by_heads.hpp"

#include <cstring>
#include <span>

namespace tree_attn {

TensorView QueriesByHeads::gather(Transport& transport, const TensorView& mine) {
  const auto& [b, n, l, d] = mine.shape;
  const int p = transport.size(), me = transport.rank();
  const std::size_t row_bytes = static_cast<std::size_t>(d) * bytes_of(mine.dtype),
                    n_bytes = static_cast<std::size_t>(b * n * l) * row_bytes;
  const std::span<std::byte> all = memory_.first<std::byte>(n_bytes * static_cast<std::size_t>(p));
  const auto of_rank = [&](int rank) { return all.subspan(static_cast<std::size_t>(rank) * n_bytes, n_bytes); };
  std::byte* at = of_rank(me).data();
  for (std::int64_t h = 0; h < n && row_bytes > 0; ++h) {
    for (std::int64_t i = 0; i < b; ++i) {
      for (std::int64_t j = 0; j < l; ++j, at += row_bytes) std::memcpy(at, mine.row(i, h, j), row_bytes);
    }
  }
  try {
    for (int distance = 1; distance < p; ++distance) {
      const int from = (me + p - distance) % p, to = (me + distance) % p;
      transport.receive(of_rank(from), from);
      transport.send(of_rank(me), to);
    }
    transport.wait();
  } catch (...) {
    transport.abandon();
    if (transport.has_messages_in_flight()) memory_.leave();
    throw;
  }
  transport.count_collectives(1);
  return {all.data(), mine.dtype, {b, n * p, l, d}, {l * d, b * l * d, d}};
}

}  // namespace tree_attn
