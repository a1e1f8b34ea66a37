// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of backends.
#include "gpu/backend/backends.hpp"

#include "gpu/backend/one_shot_session.hpp"
#include "gpu/engine/peers.hpp"
#include "gpu/types/device_traffic.hpp"
#include "reference/data/input_error.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>

namespace tree_attn {

std::span<const std::string_view> backend_names() {
  static constexpr std::string_view kNames[] = {"cpu", "emulated", "cuda"};
  return kNames;
}

std::span<const Backend* const> backends() {
  static const Backend* const kAll[] = {
    &cpu_backend(),
#if !defined(TREE_ATTN_NO_EMULATOR)
    &emulated::backend(),
#endif
#if defined(TREE_ATTN_HAS_CUDA)
    &cuda::backend(),
#endif
  };
  return kAll;
}

const Backend* built_backend(std::string_view name) {
  const auto found = std::ranges::find(backends(), name, &Backend::name);
  return found == backends().end() ? nullptr : *found;
}

const Backend& find_backend(std::string_view name, int n_threads) {
  if (const Backend* const backend = built_backend(name); backend != nullptr) {
    if (const std::string why = backend->missing(); !why.empty())
      throw InputError("--backend " + std::string(name) + ": " + why);
    if (backend == &cpu_backend()) return cpu_backend(n_threads);
    return *backend;
  }
  static const std::map<std::string_view, std::string> not_built {
#if defined(TREE_ATTN_NO_EMULATOR)
    {"emulated", TREE_ATTN_NO_EMULATOR},
#endif
#if !defined(TREE_ATTN_HAS_CUDA)
        {"cuda", "not built in (" TREE_ATTN_NO_CUDA "); build with nvcc 12.5 or later"},
#endif
  };
  if (const auto found = not_built.find(name); found != not_built.end())
    throw InputError("--backend " + std::string(name) + ": " + found->second);
  std::string known;
  for (const std::string_view other : backend_names()) known += (known.empty() ? "" : ", ") + std::string(other);
  throw InputError("--backend " + std::string(name) + ": unknown; use one of " + known);
}

std::int64_t launches_of_thread() { return n_launches_of_thread; }

DevicePlatform platform_of([[maybe_unused]] const Backend& backend) {
#if !defined(TREE_ATTN_NO_EMULATOR)
  if (&backend == &emulated::backend()) return {emulated::make_blocks, true};
#endif
#if defined(TREE_ATTN_HAS_CUDA)
  if (&backend == &cuda::backend()) return {cuda::make_blocks, false};
#endif
  return {};
}

static_assert(kMostOneShotRanks == kMaxPeers);

namespace {

constexpr std::int64_t kPacketBytes = sizeof(Packet);

/// The exchange as one rank sees it.
Peers checked_peers(const char* function, std::span<const KeyRange> ranges, int me, std::int64_t n_rows, std::int64_t d_v) {
  require_neighbours(function, ranges);
  require(std::ssize(ranges) <= kMostOneShotRanks, function, ": ", ranges.size(), " ranks; at most ", kMostOneShotRanks);
  require<std::out_of_range>(me >= 0 && me < std::ssize(ranges), function, ": index ", me, " among ", ranges.size(),
                             " ranks");
  require(n_rows >= 0 && d_v >= 0, function, ": ", n_rows, " rows of ", d_v, " components");
  return Peers::of(ranges, me, n_rows, d_v);
}

}  // namespace

std::int64_t one_shot_bytes(std::span<const KeyRange> ranges, int from, std::int64_t n_rows, std::int64_t d_v) {
  return checked_peers("one_shot_bytes", ranges, from, n_rows, d_v).n_sent() * kPacketBytes;
}

std::int64_t one_shot_window_bytes(std::span<const KeyRange> ranges, std::int64_t n_rows, std::int64_t d_v) {
  return checked_peers("one_shot_window_bytes", ranges, 0, n_rows, d_v).n_window() * kPacketBytes;
}

std::unique_ptr<OneShotSession> open_one_shot([[maybe_unused]] const KvCache& cache, [[maybe_unused]] double scale,
                                              [[maybe_unused]] const OneShotOptions& options) {
#if !defined(TREE_ATTN_NO_EMULATOR)
  if (auto session = emulated::open_one_shot(cache, scale, options)) return session;
#endif
#if defined(TREE_ATTN_HAS_CUDA)
  if (auto session = cuda::open_one_shot(cache, scale, options)) return session;
#endif
  return nullptr;
}

}  // namespace tree_attn
