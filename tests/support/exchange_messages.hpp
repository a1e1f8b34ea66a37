// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages from every rank to every other, whose bytes say which they are.
#pragma once

#include "distributed/transport/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tree_attn::test {

/// Byte i of message number m from one rank to another.
inline std::byte byte_of(int from, int to, std::size_t m, std::size_t i) {
  return static_cast<std::byte>(i * 2654435761u >> 7 ^ static_cast<std::size_t>(31 * from + 17 * to) ^ m);
}

/// Lets all ranks exchange messages of these lengths with all others in one wait. @returns wrong bytes
inline std::int64_t exchange_messages(Transport& transport, const std::vector<std::size_t>& lengths,
                                      std::size_t first_number) {
  const int me = transport.rank(), p = transport.size();
  std::vector<std::vector<std::byte>> sent, received;
  for (int peer = 0; peer < p; ++peer) {
    for (std::size_t m = 0; m < lengths.size(); ++m) {
      std::vector<std::byte>& message = sent.emplace_back(lengths[m]);
      for (std::size_t i = 0; i < lengths[m]; ++i) message[i] = byte_of(me, peer, first_number + m, i);
      received.emplace_back(lengths[m]);
    }
  }
  const auto at = [&](int peer, std::size_t m) { return static_cast<std::size_t>(peer) * lengths.size() + m; };
  for (std::size_t m = 0; m < lengths.size(); ++m) {
    for (int hop = 1; hop < p; ++hop) {
      const int to = (me + hop) % p, from = (me + p - hop) % p;
      transport.receive(received[at(from, m)], from);
      transport.send(sent[at(to, m)], to);
    }
  }
  transport.wait();
  std::int64_t n_wrong = 0;
  for (int peer = 0; peer < p; ++peer) {
    for (std::size_t m = 0; peer != me && m < lengths.size(); ++m) {
      for (std::size_t i = 0; i < lengths[m]; ++i)
        n_wrong += received[at(peer, m)][i] != byte_of(peer, me, first_number + m, i);
    }
  }
  return n_wrong;
}

}  // namespace tree_attn::test
