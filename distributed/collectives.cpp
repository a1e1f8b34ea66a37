// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Schedules executed over a transport.
#include "distributed/collectives.hpp"

#include <algorithm>

namespace tree_attn {
namespace {

/// Place of this rank in a group.
int place_in(std::span<const int> group, int rank) { return static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin()); }

std::span<const std::byte> bytes_of_numbers(std::span<const float> numbers) { return std::as_bytes(numbers); }

/// Numbers in the message that carries the states of the run [begin, end).
std::size_t message_size(Run run, std::int64_t block_size) { return cover(run.begin, run.end).size() * static_cast<std::size_t>(block_size); }

/// Rebuilds a forest from a message.
Forest<float> unpack(Run run, std::span<const float> states, const Forest<float>& like) {
  Forest<float> forest(like.n_rows(), like.d_v());
  forest.append(cover(run.begin, run.end), states.data());
  return forest;
}

}  // namespace

void all_reduce(Transport& transport, std::vector<float>& numbers, const ReduceOp& op) {
  ++transport.traffic.collectives;
  const std::vector<int>& row = transport.topology().row();
  const int me = transport.topology().place_of(transport.rank());
  std::vector<float> theirs(numbers.size());
  for (const ScheduleStep& step : butterfly(transport.size(), me)) {
    const int peer = row[static_cast<std::size_t>(step.peer)];
    if (step.receives) transport.receive(std::as_writable_bytes(std::span(theirs)), peer);
    if (step.sends) transport.send(bytes_of_numbers(numbers), peer);
    transport.wait();
    if (!step.receives) continue;
    if (step.finished) {
      numbers.swap(theirs);
      continue;
    }
    // Lower side first: the partner computes the very same expression.
    if (step.peer_is_left(me)) numbers.swap(theirs);
    op(numbers, theirs);
    ++transport.traffic.merge_steps;
  }
}

void reduce_forest(Transport& transport, std::span<const int> group, std::span<const Run> runs, std::span<const ScheduleStep> steps,
                   Forest<float>& forest) {
  ++transport.traffic.collectives;
  const int me = place_in(group, transport.rank());
  std::vector<float> message;
  for (const ScheduleStep& step : steps) {
    const int peer = group[static_cast<std::size_t>(step.peer)];
    const Run theirs{step.receives ? runs[static_cast<std::size_t>(step.theirs.begin)].begin : 0,
                     step.receives ? runs[static_cast<std::size_t>(step.theirs.end) - 1].end : 0};
    message.resize(message_size(theirs, forest.block_size()));
    if (step.receives) transport.receive(std::as_writable_bytes(std::span(message)), peer);
    if (step.sends) transport.send(bytes_of_numbers(forest.states()), peer);
    transport.wait();
    if (!step.receives) continue;

    // Merge in the order of the row; a finished forest replaces what is here.
    Forest<float> received = unpack(theirs, message, forest);
    if (step.finished) {
      forest = std::move(received);
      continue;
    }
    if (step.peer_is_left(me)) std::swap(forest, received);
    const std::int64_t before = forest.n_merges();
    forest.append(received.subtrees(), received.states().data());
    transport.traffic.merge_steps += forest.n_merges() - before;
  }
}

Forest<float> join(Transport& transport, std::span<const Forest<float>> forests) {
  Forest<float> joined(forests[0].n_rows(), forests[0].d_v());
  for (const Forest<float>& forest : forests) joined.append(forest.subtrees(), forest.states().data());
  transport.traffic.merge_steps += joined.n_merges();
  return joined;
}

Forest<float> all_gather_forest(Transport& transport, std::span<const Run> runs, const Forest<float>& mine) {
  ++transport.traffic.collectives;
  const std::vector<int>& row = transport.topology().row();
  const int p = transport.size(), me = transport.topology().place_of(transport.rank());
  const auto size_of = [&](int place) { return message_size(runs[static_cast<std::size_t>(place % p)], mine.block_size()); };

  // Round i: the blocks of me, me + 1, ... held so far go 2^i places down, and as many come from 2^i places up.
  std::vector<float> blocks(mine.states().begin(), mine.states().end());
  for (int held = 1; held < p; held *= 2) {
    const int n = std::min(held, p - held);
    std::size_t sent = 0, received = 0;
    for (int i = 0; i < n; ++i) sent += size_of(me + i), received += size_of(me + held + i);
    const std::size_t end = blocks.size();
    blocks.resize(end + received);
    transport.receive(std::as_writable_bytes(std::span(blocks).subspan(end)), row[static_cast<std::size_t>((me + held) % p)]);
    transport.send(bytes_of_numbers(std::span(blocks).first(sent)), row[static_cast<std::size_t>((me - held + p) % p)]);
    transport.wait();
  }

  // Cut the blocks apart and merge them in row order.
  std::vector<Forest<float>> forests(static_cast<std::size_t>(p), Forest<float>(mine.n_rows(), mine.d_v()));
  std::span<const float> rest(blocks);
  for (int i = 0; i < p; ++i) {
    const std::size_t place = static_cast<std::size_t>((me + i) % p);
    forests[place] = unpack(runs[place], rest.first(size_of(me + i)), mine);
    rest = rest.subspan(size_of(me + i));
  }
  return join(transport, forests);
}

Forest<float> ring_gather_forest(Transport& transport, std::span<const Run> runs, const Forest<float>& mine) {
  const std::vector<int>& row = transport.topology().row();
  const int p = transport.size(), me = transport.topology().place_of(transport.rank());
  std::vector<Forest<float>> forests(static_cast<std::size_t>(p), Forest<float>(mine.n_rows(), mine.d_v()));
  forests[static_cast<std::size_t>(me)] = mine;

  // Hop i: the states of place me - i go on to the right, those of me - i - 1 come in from the left.
  std::vector<float> message;
  for (int hop = 0; hop + 1 < p; ++hop) {
    const std::size_t going = static_cast<std::size_t>((me - hop + p) % p), coming = static_cast<std::size_t>((me - hop - 1 + p) % p);
    message.resize(message_size(runs[coming], mine.block_size()));
    transport.receive(std::as_writable_bytes(std::span(message)), row[static_cast<std::size_t>((me - 1 + p) % p)]);
    transport.send(bytes_of_numbers(forests[going].states()), row[static_cast<std::size_t>((me + 1) % p)]);
    transport.wait();
    forests[coming] = unpack(runs[coming], message, mine);
  }
  return join(transport, forests);
}

void broadcast(Transport& transport, std::span<const int> group, std::span<float> numbers) {
  ++transport.traffic.collectives;
  for (const ScheduleStep& step : broadcast_from_first(static_cast<int>(group.size()), place_in(group, transport.rank()))) {
    const int peer = group[static_cast<std::size_t>(step.peer)];
    if (step.receives) transport.receive(std::as_writable_bytes(numbers), peer);
    if (step.sends) transport.send(bytes_of_numbers(numbers), peer);
    transport.wait();
  }
}

}  // namespace tree_attn
