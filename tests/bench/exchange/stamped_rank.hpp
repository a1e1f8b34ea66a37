// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A rank that exchanges by the kernel of `one-shot` with stamps, and what its stamps say (section 5.3).
#pragma once

#include "gpu/backend/session.hpp"
#include "tests/bench/exchange/rank_steps.hpp"
#include "tests/bench/exchange/stamped_one_shot.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn::exchange {

/// Times of a rank in a step, in nanoseconds of a clock that all ranks share.
struct StepStamps {
  std::uint64_t joined = 0, sent = 0;  ///< of the last block
  std::uint64_t first = 0, last = 0;   ///< of the states that arrived first and last
  std::uint64_t merged = 0;            ///< of the last block
  std::uint64_t first_joined = 0;      ///< of the first block, before which nothing of this rank can arrive
  bool is_ordered = true;              ///< every block joins, sends and merges in this order, every state arrives before
                                       ///< the last block has merged
};

/// The keys of a rank and its stamps, on this thread's part of the device.
class StampedRank {
 public:
  StampedRank(Rank& rank, const std::vector<KeyRange>& ranges, int me, double timeout)
      : rank_(rank), cache_(dynamic_cast<const device::DeviceCache&>(*rank.shard.cache)), lengths_(1, MemoryUse::Input) {
    const AttentionShape& shape = cache_.shape();
    params_ = device::params_of(shape, 1, ranges[static_cast<std::size_t>(me)]);
    params_.k = cache_.keys(), params_.v = cache_.values();
    q_ = device::DeviceBuffer<unsigned char>(
        shape.n_rows(1) * shape.head_dim * static_cast<std::int64_t>(bytes_of(shape.dtype)), MemoryUse::Input);
    params_.q = {q_.data(), {shape.heads * shape.head_dim, shape.head_dim, shape.head_dim}};
    lengths_.upload(rank.lengths), params_.lengths = lengths_.data();
    device::set_scale(params_, shape.dtype, 1 / std::sqrt(static_cast<double>(shape.head_dim)));
    plan_ = device::plan_stamped_one_shot(params_);
    workspace_ = device::DeviceWorkspace(plan_);

    const std::int64_t n_rows = shape.n_rows(1), d_v = shape.value_dim;
    static_cast<Peers&>(peers_) = Peers::of(ranges, me, n_rows, d_v);
    peers_.limit_ns = static_cast<std::uint64_t>(1e9 * timeout);
    out_ = device::DeviceBuffer<float>(n_rows * d_v), lse_ = device::DeviceBuffer<float>(n_rows);
    steps_ = device::DeviceBuffer<unsigned>(n_rows, MemoryUse::Window);
    gave_up_ = device::DeviceBuffer<GaveUp>(1, MemoryUse::Window);
    arrivals_ = device::DeviceBuffer<std::uint64_t>(2 * peers_.n_states());
    stamps_ = device::DeviceBuffer<std::uint64_t>(n_rows * device::kExchangeStages);
    steps_.fill(0), gave_up_.fill(0), arrivals_.fill(0), stamps_.fill(0);
    device::synchronise({});
    peers_.steps = steps_.data(), peers_.gave_up = gave_up_.data(), peers_.arrivals = arrivals_.data();
  }

  /// A new window for this rank.
  device::DeviceBuffer<Packet> make_window() const {
    device::DeviceBuffer<Packet> window(peers_.n_window(), MemoryUse::Window);
    window.fill(0);
    device::synchronise({});
    return window;
  }
  /// @param windows of all ranks, which outlive the steps of all ranks
  void connect(std::span<const device::DeviceBuffer<Packet>> windows) {
    std::ranges::transform(windows, peers_.window, [](const auto& window) { return window.data(); });
  }

  /// Uploads the query of a step.
  void stage(int t) {
    const TensorView q = rank_.query(t);
    q_.upload({reinterpret_cast<const unsigned char*>(q.data), static_cast<std::size_t>(q_.size())});
  }
  /// The next step. @throws std::runtime_error if a wait gives up
  void step() {
    device::run_stamped_one_shot(params_, peers_, {.out = out_.data(), .lse = lse_.data()}, plan_, workspace_.get(),
                                 stamps_.data(), stream_);
    device::synchronise(stream_);
    ++n_steps_;
    if (const GaveUp wait = gave_up_.download()[0]; wait.n > 0)
      throw std::runtime_error("step " + std::to_string(n_steps_) + ": no states from rank " + std::to_string(wait.source));
  }
  DecodeOutput output() const { return {out_.download(), lse_.download()}; }

  StepStamps stamps() const {
    StepStamps found{.first = std::numeric_limits<std::uint64_t>::max(),
                     .first_joined = std::numeric_limits<std::uint64_t>::max()};
    const std::vector<std::uint64_t> of_blocks = stamps_.download(), arrived = arrivals_.download();
    for (std::size_t block = 0; block < of_blocks.size(); block += device::kExchangeStages) {
      const std::uint64_t* const at = of_blocks.data() + block;
      if (at[device::kCombined] == 0) continue;
      found.joined = std::max(found.joined, at[device::kCombined]), found.sent = std::max(found.sent, at[device::kSent]);
      found.merged = std::max(found.merged, at[device::kMerged]);
      found.first_joined = std::min(found.first_joined, at[device::kCombined]);
      found.is_ordered =
          found.is_ordered && at[device::kCombined] <= at[device::kSent] && at[device::kSent] <= at[device::kMerged];
    }
    const std::int64_t n = peers_.n_states();
    for (const std::uint64_t time :
         std::span(arrived).subspan(static_cast<std::size_t>(n_steps_ % 2 * n), static_cast<std::size_t>(n)))
      found.first = std::min(found.first, time), found.last = std::max(found.last, time);
    found.is_ordered = found.is_ordered && found.first >= found.first_joined && found.last <= found.merged;
    return found;
  }

 private:
  Rank& rank_;
  const device::DeviceCache& cache_;
  DecodeParams params_;
  device::StampedPeers peers_;
  device::LaunchPlan plan_;
  device::DeviceWorkspace workspace_;
  device::DeviceBuffer<unsigned char> q_;
  device::DeviceBuffer<std::int64_t> lengths_;
  device::DeviceBuffer<float> out_, lse_;
  device::DeviceBuffer<unsigned> steps_;
  device::DeviceBuffer<GaveUp> gave_up_;
  device::DeviceBuffer<std::uint64_t> arrivals_, stamps_;
  device::OwnedStream stream_;
  std::int64_t n_steps_ = 0;
};

}  // namespace tree_attn::exchange
