// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shared memory of blocks: pieces between red zones, NaN before and after.
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/shadow.hpp"
#include "gpu/emulator/thread.hpp"

#include <bit>
#include <string>

namespace tree_attn::emulated::runtime {
namespace {

constexpr std::size_t kLeastAlignment = 128, kMaxAlignment = 1024;
/// Before, between and after the pieces.
constexpr std::size_t kRedZone = 128;
constexpr std::size_t kMaxTakes = 64;

std::size_t round_up(std::size_t n_bytes, std::size_t alignment = kLeastAlignment) {
  return (n_bytes + alignment - 1) / alignment * alignment;
}

/// Tests whether bytes that no thread may write still have their pattern.
bool is_poison(const Cluster& cluster, const std::byte* from, std::size_t n_bytes) {
  for (std::size_t i = 0; i < n_bytes; ++i) {
    if (from[i] != static_cast<std::byte>(cluster.nan >> 8 * (i % 2))) return false;
  }
  return true;
}

}  // namespace

void begin_shared_memory(Cluster& cluster) {
  const std::size_t whole =
      round_up(round_up(cluster.grid.config.shared_bytes) + (kMaxTakes + 1) * (kRedZone + kLeastAlignment), kMaxAlignment);
#if defined(TREE_ATTN_EMULATOR_THREAD)
  // Fresh memory, that TSan takes for such, and no memory of the meetings of other blocks.
  std::vector<std::byte>().swap(cluster.memory);
  std::vector<std::uint64_t>().swap(cluster.marks);
#endif
  if (cluster.memory.empty()) {
    cluster.marks.resize(1024);
    cluster.memory.resize(whole * cluster.blocks.size() + kMaxAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(cluster.memory.data());
    cluster.memory_begin = cluster.memory.data() + (round_up(address, kMaxAlignment) - address);
    cluster.memory_stride = whole;
  }
  const std::size_t all = whole * cluster.blocks.size();
  allow(cluster.memory_begin, all);
  fill_with(cluster.nan, cluster.memory_begin, all);
  forbid(cluster.memory_begin, all);
  for (Block& block : cluster.blocks) {
    block.shared = cluster.memory_begin + whole * static_cast<std::size_t>(block.rank);
    block.takes.reserve(kMaxTakes);
  }
}

void end_shared_memory(Block& block) {
  Cluster& cluster = *block.cluster;
  for (const BulkCopy& copy : cluster.bulk_copies) {
    if (copy.block == &block) fail(copy.line, "bulk_copy: the block ends before the copy has arrived");
  }
  if (block.end_warpgroups != nullptr) block.end_warpgroups(block);
  shadow::end_block(block);
  // The end of a block counts as a write, after all that its own threads did.
  acquire(block.shared);
  for (const Take& take : block.takes) note_write(take.first, take.n_bytes);
  allow(block.shared, cluster.memory_stride);
  const std::byte* from = block.shared;
  for (const Take& take : block.takes) {
    if (!is_poison(cluster, from, static_cast<std::size_t>(take.first - from))) {
      fail(take.line, "somebody has written shared memory just before what was taken here");
    }
    from = take.first + take.n_bytes;
  }
  if (!block.takes.empty() && !is_poison(cluster, from, kRedZone)) {
    fail(block.takes.back().line, "somebody has written shared memory behind what was taken here");
  }
  fill_with(cluster.nan, block.shared, cluster.memory_stride);
  forbid(block.shared, cluster.memory_stride);
}

void check_taken(const std::byte* at, std::size_t n_bytes, const char* word, const Line& line) {
  for (const Take& take : running->block->takes) {
    if (at >= take.first && at + n_bytes <= take.first + take.n_bytes) return;
  }
  fail(line, std::string(word) + " writes what is not, or not wholly, in one piece of this block's shared memory");
}

std::byte* take(int n, std::size_t n_bytes, std::size_t alignment, const Line& line) {
  const Unwatched unwatched;
  Block& block = *running->block;
  const auto number = static_cast<std::size_t>(n);
  if (number < block.takes.size()) {
    const Take& taken = block.takes[number];
    if (taken.n_bytes != n_bytes || taken.line.line() != line.line()) {
      fail(line, "take: threads take different pieces; another has taken " + std::to_string(taken.n_bytes) + " bytes at " +
                     to_string(taken.line));
    }
    return taken.first;
  }
  if (!std::has_single_bit(alignment) || alignment < kLeastAlignment || alignment > kMaxAlignment)
    fail(line, "take: an alignment of " + std::to_string(alignment) + "; 128, 256, 512 or 1024 can be had");
  // Where the piece lies on a device, without red zones.
  const std::size_t limit = block.cluster->grid.config.shared_bytes, at = round_up(block.plain_bytes, alignment);
  if (at + n_bytes > limit || n_bytes > limit) {
    fail(line, "take: " + std::to_string(n_bytes) + " bytes behind " + std::to_string(at) + "; the launch gives a block " +
                   std::to_string(limit));
  }
  const std::byte* const end = number == 0 ? block.shared : block.takes.back().first + block.takes.back().n_bytes;
  std::byte* const first = block.shared + round_up(static_cast<std::size_t>(end - block.shared) + kRedZone, alignment);
  if (number >= kMaxTakes || first + n_bytes + kRedZone > block.shared + block.cluster->memory_stride)
    fail(line, "take: more pieces than the emulator has red zones for");
  block.plain_bytes = at + round_up(n_bytes);
  block.takes.push_back({first, n_bytes, line});
  allow(first, n_bytes);
  return first;
}

std::byte* remote(std::byte* own, int rank, const Line& line) {
  const Unwatched unwatched;
  Block& block = *running->block;
  Cluster& cluster = *block.cluster;
  if (rank < 0 || rank >= static_cast<int>(cluster.blocks.size())) {
    fail(line, "remote: rank " + std::to_string(rank) + " in a cluster of " + std::to_string(cluster.blocks.size()));
  }
  return cluster.blocks[static_cast<std::size_t>(rank)].shared + (own - block.shared);
}

int cluster_rank() { return running->block->rank; }

}  // namespace tree_attn::emulated::runtime
