// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Alg. 3 in two levels, with NCCL alone: plain_two_level.cpp for states in the memory of devices (section 5.3).
#include "distributed/transport/nccl_api.hpp"
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/state/forest.hpp"
#include "reference/state/key_range.hpp"

#include <chrono>
#include <memory>
#include <thread>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

using Member = std::pair<int, KeyRange>;  ///< a rank, and the range of its keys
using Part = std::pair<Subtree, float*>;  ///< a subtree, and its states [n_rows][2 + d_v]

/// left <- merge(left, right), and z and lse of states: a thread per row. gpu/backend/blocks.cu has one per component.
__global__ void merge_rows(float* left, const float* right, std::int64_t d_v) {
  merge(left + blockIdx.x * state_size(d_v), right + blockIdx.x * state_size(d_v), d_v);
}
__global__ void finish_rows(const float* states, float* out, float* lse, std::int64_t d_v) {
  lse[blockIdx.x] = finish(states + blockIdx.x * state_size(d_v), out + blockIdx.x * d_v, d_v);
}

}  // namespace

/// The attention over the keys of all ranks, on every rank, with the bits of plain_two_level() for the same states.
/// @param library, comm NCCL, and a communicator of all ranks whose calls do not block; after an error it is null
/// @param rank, nodes, ranges this rank; nodes and keys of all, in the order of the ranks. Those of a node are neighbours
/// @param states of cover() of the own range, [subtrees][n_rows][2 + d_v], from the default stream; they are kept
/// @param[out] out, lse [n_rows][d_v] and [n_rows]
/// @throws std::runtime_error with the call that failed, or was not done before the deadline
/// @paper{alg_3, Alg. 3}
void plain_two_level_nccl(const nccl::Functions& library, nccl::Comm*& comm, int rank, std::span<const int> nodes,
                          std::span<const KeyRange> ranges, float* states, std::int64_t n_rows, std::int64_t d_v, float* out,
                          float* lse, std::chrono::steady_clock::time_point deadline) {
  constexpr auto kFloat = nccl::Type::kFloat32;
  std::int64_t block = n_rows * state_size(d_v), n_blocks = 1;
  const Launch per_row{.grid = {static_cast<unsigned>(n_rows)}};

  // The ranks of this node, and the first ranks of all nodes with the ranges of the nodes.
  std::vector<Member> node, leaders;
  for (int i = 0; i < std::ssize(ranges); ++i) {
    if (i == 0 || nodes[i] != nodes[i - 1]) leaders.emplace_back(i, ranges[i]);
    leaders.back().second.end = ranges[i].end;
    if (nodes[i] == nodes[rank]) node.emplace_back(i, ranges[i]);
    n_blocks += 2 * n_subtrees(ranges[i].begin, ranges[i].end);
  }
  const int leader = node[0].first;

  // The empty state, and room for both levels. The upload waits for the default stream; later waits have a deadline.
  DeviceBuffer<float> room(n_blocks * block);
  room.upload(Forest<float>(n_rows, d_v).fold());
  float* next = room.data() + block;
  OwnedStream stream;
  LibraryStream on(stream);
  Event end;

  // After an error nothing on the stream may wait for messages. A group that is open would take in the abort.
  const auto abort = [&](auto) { library.ncclGroupEnd(), library.ncclCommAbort(std::exchange(comm, nullptr)); };
  std::unique_ptr<nccl::Comm*, decltype(abort)> guard(&comm, abort);
  // A call may be in progress when it returns: then it is polled for.
  const auto check = [&](const std::string& call, nccl::Status status = nccl::Status::kInProgress) {
    for (; status == nccl::Status::kInProgress && std::chrono::steady_clock::now() < deadline; std::this_thread::yield())
      if (const auto poll = library.ncclCommGetAsyncError(comm, &status); poll != nccl::Status::kSuccess) status = poll;
    if (status != nccl::Status::kSuccess)
      throw std::runtime_error(call + ": " + library.ncclGetErrorString(status) + ": " + library.ncclGetLastError(comm));
  };
  const auto merge_last_two = [&](std::vector<Part>& forest) {
    launch(merge_rows, per_row, stream, forest.end()[-2].second, forest.back().second, d_v);
    forest.pop_back(), forest.back().first = forest.back().first.parent();
  };
  // Sends a forest to some ranks, and joins those of some ranks from left to right. A rank sends to itself, too.
  const auto gather_and_join = [&](std::vector<Part> mine, std::span<const Member> to, std::span<const Member> from) {
    std::vector<Part> all, joined;
    check("ncclGroupStart", library.ncclGroupStart());
    for (const auto& [peer, range] : to)
      for (const auto& [subtree, at] : mine) check("ncclSend", library.ncclSend(at, block, kFloat, peer, comm, on.handle()));
    for (const auto& [peer, range] : from)
      for (const Subtree& subtree : cover(range.begin, range.end)) {
        check("ncclRecv", library.ncclRecv(next, block, kFloat, peer, comm, on.handle()));
        all.emplace_back(subtree, std::exchange(next, next + block));
      }
    check("ncclGroupEnd", library.ncclGroupEnd());
    for (const Part& each : all) {
      joined.push_back(each);
      while (joined.size() > 1 && joined.end()[-2].first.is_left_sibling_of(joined.back().first)) merge_last_two(joined);
    }
    return joined;
  };

  // Lines 3 to 5, first in a node, then between the nodes. Line 2, the decode of the own keys, has given the states.
  std::vector<Part> forest;
  for (const Subtree& subtree : cover(ranges[rank].begin, ranges[rank].end))
    forest.emplace_back(subtree, std::exchange(states, states + block));
  forest = gather_and_join(forest, std::span(node).first(1), std::span(node).first(rank == leader ? node.size() : 0));
  if (rank == leader) {
    forest = gather_and_join(forest, leaders, leaders);
    forest.emplace(forest.begin(), Subtree{}, room.data());
    while (forest.size() > 1) merge_last_two(forest);
    launch(finish_rows, per_row, stream, forest[0].second, out, lse, d_v);
  }

  // Line 6, z = n / D, which the first rank of a node hands to the others.
  check("ncclGroupStart", library.ncclGroupStart());
  for (const auto& [at, n] : {std::pair(out, n_rows * d_v), std::pair(lse, n_rows)}) {
    if (rank != leader) check("ncclRecv", library.ncclRecv(at, n, kFloat, leader, comm, on.handle()));
    for (const auto& [peer, range] : std::span(node).subspan(1))
      if (rank == leader) check("ncclSend", library.ncclSend(at, n, kFloat, peer, comm, on.handle()));
  }
  check("ncclGroupEnd", library.ncclGroupEnd());
  end.record(stream);
  while (!end.has_passed()) check("the output");
  guard.release();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
