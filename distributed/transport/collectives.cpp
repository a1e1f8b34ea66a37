// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Schedules executed over a transport.
#include "distributed/transport/collectives.hpp"

#include <algorithm>

namespace tree_attn {
namespace {

/// Place of this rank in a group.
int place_in(std::span<const int> group, int rank) { return static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin()); }

/// Numbers in the message that carries the states of the run [begin, end).
std::size_t message_size(Run run, std::int64_t block_size) { return cover(run.begin, run.end).size() * static_cast<std::size_t>(block_size); }

}  // namespace

void all_reduce(Transport& transport, std::span<float> numbers, const ReduceOp& op) {
  ++transport.traffic.collectives;
  const std::vector<int>& row = transport.topology().row();
  const int me = transport.topology().place_of(transport.rank());
  std::span<float> ours = numbers, theirs = transport.buffers[0].first<float>(numbers.size());
  for (const ScheduleStep& step : butterfly(transport.size(), me)) {
    const int peer = row[static_cast<std::size_t>(step.peer)];
    if (step.receives) transport.receive(std::as_writable_bytes(theirs), peer);
    if (step.sends) transport.send(std::as_bytes(ours), peer);
    transport.wait();
    if (!step.receives) continue;
    // Lower side first: the partner computes the very same expression. A finished result replaces what is here.
    if (step.finished || step.peer_is_left(me)) std::swap(ours, theirs);
    if (step.finished) continue;
    op(ours, theirs);
    ++transport.traffic.merge_steps;
  }
  if (ours.data() != numbers.data()) std::copy(ours.begin(), ours.end(), numbers.begin());
}

void reduce_forest(Transport& transport, std::span<const int> group, std::span<const Run> runs, std::span<const ScheduleStep> steps,
                   Forest<float>& forest) {
  ++transport.traffic.collectives;
  const int me = place_in(group, transport.rank());
  for (const ScheduleStep& step : steps) {
    const int peer = group[static_cast<std::size_t>(step.peer)];
    const Run theirs{step.receives ? runs[static_cast<std::size_t>(step.theirs.begin)].begin : 0,
                     step.receives ? runs[static_cast<std::size_t>(step.theirs.end) - 1].end : 0};
    const std::span<float> message = transport.buffers[0].first<float>(message_size(theirs, forest.block_size()));
    if (step.receives) transport.receive(std::as_writable_bytes(message), peer);
    if (step.sends) transport.send(std::as_bytes(forest.states()), peer);
    transport.wait();
    if (!step.receives) continue;

    // Merge in the order of the row; a finished forest replaces what is here.
    const std::vector<Subtree> subtrees = cover(theirs.begin, theirs.end);
    if (!step.finished && !step.peer_is_left(me)) {
      const std::int64_t before = forest.n_merges();
      forest.append(subtrees, message.data());
      transport.traffic.merge_steps += forest.n_merges() - before;
      continue;
    }
    Forest<float> received(forest.n_rows(), forest.d_v());
    received.append(subtrees, message.data());
    if (!step.finished) received.append(forest.subtrees(), forest.states().data());
    transport.traffic.merge_steps += received.n_merges();
    forest = std::move(received);
  }
}

Forest<float> join(Transport& transport, std::span<const Forest<float>> forests) {
  Forest<float> joined(forests[0].n_rows(), forests[0].d_v());
  for (const Forest<float>& forest : forests) joined.append(forest.subtrees(), forest.states().data());
  transport.traffic.merge_steps += joined.n_merges();
  return joined;
}

namespace {

/// The states of all places in one buffer: those of this rank's place, of the next place to the right, and so on around the
/// row.
class Blocks {
 public:
  /// Holds those of this rank, and room for the others.
  Blocks(Transport& transport, std::span<const Run> runs, const Forest<float>& mine)
      : transport_(transport),
        runs_(runs),
        me_(transport.topology().place_of(transport.rank())),
        like_(mine.n_rows(), mine.d_v()) {
    for (std::size_t i = 0; i < runs.size(); ++i) start_.push_back(start_.back() + message_size(run(i), mine.block_size()));
    states_ = transport.buffers[0].first<float>(start_.back());
    std::copy(mine.states().begin(), mine.states().end(), states_.begin());
  }

  /// The states of n places, from i places to the right of this rank on.
  std::span<std::byte> bytes(std::size_t i, std::size_t n = 1) {
    return std::as_writable_bytes(states_.subspan(start_[i], start_[i + n] - start_[i]));
  }

  /// Merges all of them in row order, and counts the steps.
  Forest<float> join() const {
    Forest<float> joined = like_;
    for (std::size_t place = 0; place < runs_.size(); ++place) {
      const std::size_t i = (place + runs_.size() - static_cast<std::size_t>(me_)) % runs_.size();
      joined.append(cover(run(i).begin, run(i).end), states_.data() + start_[i]);
    }
    transport_.traffic.merge_steps += joined.n_merges();
    return joined;
  }

 private:
  Run run(std::size_t i) const { return runs_[(static_cast<std::size_t>(me_) + i) % runs_.size()]; }

  Transport& transport_;
  std::span<const Run> runs_;
  int me_;
  Forest<float> like_;
  std::vector<std::size_t> start_{0};
  std::span<float> states_;
};

}  // namespace

Forest<float> all_gather_forest(Transport& transport, std::span<const Run> runs, const Forest<float>& mine) {
  ++transport.traffic.collectives;
  const std::vector<int>& row = transport.topology().row();
  const std::size_t p = row.size(), me = static_cast<std::size_t>(transport.topology().place_of(transport.rank()));
  Blocks blocks(transport, runs, mine);

  // Round i: the 2^i blocks held so far go 2^i places down, and as many come from 2^i places up, or as many as are missing.
  for (std::size_t held = 1; held < p; held *= 2) {
    const std::size_t n = std::min(held, p - held);
    transport.receive(blocks.bytes(held, n), row[(me + held) % p]);
    transport.send(blocks.bytes(0, n), row[(me - held + p) % p]);
    transport.wait();
  }
  return blocks.join();
}

Forest<float> ring_gather_forest(Transport& transport, std::span<const Run> runs, const Forest<float>& mine) {
  const std::vector<int>& row = transport.topology().row();
  const std::size_t p = row.size(), me = static_cast<std::size_t>(transport.topology().place_of(transport.rank()));
  Blocks blocks(transport, runs, mine);

  // Hop i: the states of place me - i go on to the right, those of me - i - 1 come in from the left.
  for (std::size_t hop = 0; hop + 1 < p; ++hop) {
    transport.receive(blocks.bytes(p - hop - 1), row[(me - 1 + p) % p]);
    transport.send(blocks.bytes((p - hop) % p), row[(me + 1) % p]);
    transport.wait();
  }
  return blocks.join();
}

void broadcast(Transport& transport, std::span<const int> group, std::span<float> numbers) {
  ++transport.traffic.collectives;
  for (const ScheduleStep& step : broadcast_from_first(static_cast<int>(group.size()), place_in(group, transport.rank()))) {
    const int peer = group[static_cast<std::size_t>(step.peer)];
    if (step.receives) transport.receive(std::as_writable_bytes(numbers), peer);
    if (step.sends) transport.send(std::as_bytes(numbers), peer);
    transport.wait();
  }
}

}  // namespace tree_attn
