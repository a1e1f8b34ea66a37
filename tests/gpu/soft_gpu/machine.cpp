// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs grids: which warp has its turn, where lanes part and meet, when copies arrive, what an address is.
#include "tests/gpu/soft_gpu/machine.hpp"

#include <cxxabi.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace tree_attn::soft_gpu {

const Settings& settings() {
  static const Settings all = [] {
    // Every block of a launch takes registers and shared memory: the allocator keeps what they give back.
    mallopt(M_TRIM_THRESHOLD, 1 << 30), mallopt(M_MMAP_THRESHOLD, 1 << 30);
    const auto number = [](const char* name, double otherwise) {
      const char* const text = std::getenv(name);
      return text != nullptr ? std::atof(text) : otherwise;
    };
    return Settings{static_cast<int>(number("SOFT_GPU_MAJOR", 9)), static_cast<int>(number("SOFT_GPU_MULTIPROCESSORS", 132)),
                    static_cast<unsigned>(number("SOFT_GPU_SEED", 0)), number("SOFT_GPU_SECONDS", 120)};
  }();
  return all;
}

// ---- Addresses

std::pair<Block*, std::uint32_t> Warp::shared(std::uint64_t address, std::uint32_t n, std::uint32_t alignment) {
  Block* of = block;
  const auto offset = static_cast<std::uint32_t>(address & (kSharedSpan - 1));
  if (address >= kSharedSpan) {
    const std::uint64_t rank = address / kSharedSpan - 1;
    if (rank >= block->cluster->blocks.size()) throw Fault("address ", hex(address), " is of no block of the cluster");
    of = block->cluster->blocks[rank].get();
    if (of->n_alive == 0) throw Fault("address ", hex(address), " is of block ", rank, " of the cluster, which has ended");
  }
  if (offset < kSharedBegin || offset + n > of->shared.size())
    throw Fault("address ", hex(address), ": ", n, " bytes at ", static_cast<std::int64_t>(offset) - kSharedBegin, " of ",
                of->shared.size() - kSharedBegin, " bytes of shared memory");
  if (offset % alignment != 0) throw Fault("address ", hex(address), " is no multiple of ", alignment);
  return {of, offset};
}

std::byte* Warp::at(Space space, int lane, std::uint64_t address, std::uint32_t n, const Op& of_op, bool is_store) {
  if (n <= 16 && (n & (n - 1)) == 0 && (address & (n - 1)) != 0)
    throw Fault("address ", hex(address), " is no multiple of ", n);
  constexpr std::uint64_t kWindow = std::uint64_t{1} << 40;
  if (space == Space::Generic) {
    const std::uint64_t window = address & ~(kWindow - 1);
    space = window == kParamWindow ? Space::Param : Space::Global;
  }
  switch (space) {
    case Space::Shared: {
      const auto [of, offset] = shared(address, n, 1);
      if (is_store && of == block) block->stored(offset, n, thread(lane));
      return &of->shared[offset];
    }
    case Space::Param: {
      const std::uint64_t offset = address & (kWindow - 1);
      if (offset + n > grid->parameters.size() || is_store)
        throw Fault("address ", hex(address), " is no parameter to read");
      return &grid->parameters[offset];
    }
    default: break;
  }
  Range& recent = grid->recent[of_op.cache];
  if (!recent.holds(address, n)) {
    const auto found = memory::find(address);
    if (!found || !found->holds(address, n))
      throw Fault(std::string(is_store ? "store" : "load"), " of ", n, " bytes at ", hex(address), ", ",
                  memory::around(address));
    recent = *found;
  }
  return recent.host(address);
}

void Block::stored(std::uint32_t at, std::uint32_t n, std::uint32_t thread) {
  for (std::uint32_t word = at / 8; word <= (at + n - 1) / 8; ++word) unfenced[word] = (thread + 1) | n_fences[thread] << 11;
}
void Block::check_fenced(std::uint32_t at, std::uint32_t n) const {
  for (std::uint32_t word = at / 8; word <= (at + n - 1) / 8; ++word) {
    const std::uint32_t thread = (unfenced[word] & 0x7FF) - 1;
    if (unfenced[word] != 0 && unfenced[word] >> 11 == (n_fences[thread] & 0x1FFFFF))
      throw Fault("a bulk copy to, or a product of, shared memory where thread ", thread,
                  " has stored without a fence of the async proxy since");
  }
}
PhaseBarrier& Block::phase_barrier(std::uint32_t at) {
  const auto found = phase_barriers.find(at);
  if (found == phase_barriers.end()) throw Fault("no mbarrier has been initialised there");
  std::uint64_t mark;
  std::memcpy(&mark, &shared[at], 8);
  if (mark != PhaseBarrier::kMark) throw Fault("the mbarrier there has been overwritten");
  return found->second;
}
void Block::arrive(std::uint32_t at, std::uint32_t n_arrivals, std::int64_t n_bytes) {
  PhaseBarrier& barrier = phase_barrier(at);
  barrier.bytes += n_bytes;
  if (n_arrivals > barrier.pending)
    throw Fault("more arrivals at an mbarrier than the ", barrier.expected, " that it expects");
  if (std::abs(barrier.bytes) >= 1 << 20) throw Fault("an mbarrier waits for ", barrier.bytes, " bytes");
  barrier.pending -= n_arrivals;
  if (barrier.pending == 0 && barrier.bytes == 0) barrier.pending = barrier.expected, ++barrier.phase;
}
void Copy::arrive() const {
  if (n_copied > 0) std::memcpy(to, from, n_copied);
  if (n_bytes > n_copied) std::memset(to + n_copied, 0, n_bytes - n_copied);
}

// ---- Lanes

bool Warp::meet(std::uint32_t members) {
  members &= all;
  if ((members & ~alive) != 0) throw Fault("lanes ", hex(members & ~alive), " that should take part have ended");
  if ((mask & members) == members) return true;
  hold({true}, true);
  return false;
}

void Warp::hold(const Wait& what, bool again) {
  if (lanes != mask) groups.push_back({pc, lanes & ~mask, {}});
  lanes = mask, wait = what, limit = 0;
  if (again) --pc;
}

void Warp::part(std::uint32_t others) {
  groups.push_back({pc - 1, others, {}});
  lanes &= ~others, mask &= ~others, limit = 0;
}

void Warp::branch(std::uint32_t target) {
  if (mask == lanes) {
    pc = target;
  } else {
    groups.push_back({target, mask, {}}), lanes &= ~mask;
  }
  if (!groups.empty()) limit = 0;
}

void Warp::exit() {
  if (!products.empty()) throw Fault("the warp ends before a wait for its products");
  alive &= ~mask, lanes &= ~mask;
  const auto n = static_cast<std::uint32_t>(std::popcount(mask));
  block->n_alive -= n, block->cluster->n_alive -= n;
  if (lanes == 0) limit = 0;
}

bool Warp::can_run() const {
  return (lanes != 0 && wait.is_over()) ||
         std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.wait.is_over(); });
}

/// Lanes at the same instruction go on together. The group that is furthest behind runs until it reaches another one, so
/// that what parted at a branch meets where its sides meet; now and then another group has its turn, since the lanes of a
/// warp may wait for each other.
bool Warp::regroup() {
  if (lanes != 0) groups.push_back({pc, lanes, wait});
  lanes = 0, wait = {};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::size_t j = groups.size() - 1; j > i; --j) {
      const Wait &one = groups[i].wait, &other = groups[j].wait;
      if (groups[i].pc != groups[j].pc || one.is_for_lanes != other.is_for_lanes || one.count != nullptr ||
          other.count != nullptr)
        continue;
      groups[i].lanes |= groups[j].lanes, groups[i].wait = {};
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
  std::uint32_t ready[32], n_ready = 0;
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    if (groups[i].wait.is_over()) ready[n_ready++] = i;
  }
  if (n_ready == 0) return false;
  std::uint32_t chosen = *std::min_element(ready, ready + n_ready,
                                           [&](std::uint32_t i, std::uint32_t j) { return groups[i].pc < groups[j].pc; });
  if (n_ready > 1 && grid->draw(64) == 0) chosen = ready[grid->draw(n_ready)];
  pc = groups[chosen].pc, lanes = groups[chosen].lanes, limit = ~0U;
  groups.erase(groups.begin() + chosen);
  for (const Group& group : groups) limit = group.pc > pc && group.wait.is_over() ? std::min(limit, group.pc) : limit;
  return true;
}

void Warp::run(int n) {
  left = n, limit = 0;
  if (!regroup()) return;
  // Lanes are not bound to each other: now and then some run ahead of the rest, to the next branch or place where they meet.
  if (const std::uint32_t behind = lanes & static_cast<std::uint32_t>(grid->random() * 0x9E3779B9);
      grid->draw(4) == 0 && behind != 0 && behind != lanes)
    groups.push_back({pc, behind, {}}), lanes &= ~behind, limit = ~0U;
  const Op* const ops = grid->kernel.ops.data();
  while (left-- > 0) {
    op = &ops[pc++];
    mask = lanes, now = std::countr_zero(mask);
    if (op->guard != kNowhere) mask &= op->is_negated ? ~predicate(op->guard) : predicate(op->guard);
    if (mask != 0) op->run(*this, *op);
    if (pc >= limit && !regroup()) break;
  }
}

// ---- Grids

void Grid::start_cluster(std::uint32_t first_block) {
  auto cluster = std::make_unique<Cluster>();
  const std::uint32_t n_threads = count(shape.block);
  for (std::uint32_t rank = 0; rank < shape.cluster; ++rank) {
    auto block = std::make_unique<Block>();
    block->grid = this, block->cluster = cluster.get(), block->rank = rank;
    block->index = index_of(first_block + rank, shape.grid);
    block->shared.assign(kSharedBegin + shape.dynamic_shared, std::byte{0xFF});
    block->unfenced.assign(block->shared.size() / 8 + 1, 0);
    block->n_fences.assign(n_threads, 0);
    for (std::uint32_t first = 0; first < n_threads; first += 32) {
      auto warp = std::make_unique<Warp>();
      warp->block = block.get(), warp->grid = this, warp->first_thread = first;
      warp->all = warp->alive = warp->lanes = n_threads - first >= 32 ? ~0U : (1U << (n_threads - first)) - 1;
      // Not set: nvcc writes every register before it reads it, and most of these are of paths that a warp does not take.
      warp->registers = std::make_unique_for_overwrite<std::byte[]>(kernel.register_bytes);
      warp->base[0] = warp->registers.get();
      warp->base[1] = const_cast<std::byte*>(kernel.constants.data());
      running.push_back(warp.get());
      block->warps.push_back(std::move(warp));
    }
    block->n_alive = n_threads, cluster->n_alive += n_threads;
    cluster->blocks.push_back(std::move(block));
  }
  cluster->n_threads = cluster->n_alive;
  clusters.push_back(std::move(cluster));
}

void Grid::deliver(Cluster& cluster, std::size_t i) {
  const BulkCopy copy = std::move(cluster.copies[i]);
  cluster.copies.erase(cluster.copies.begin() + static_cast<std::ptrdiff_t>(i));
  for (const Copy& piece : copy.pieces) piece.arrive();
  copy.block->arrive(copy.barrier, 0, -copy.n_bytes);
}

void Grid::run(std::uint32_t n_resident) {
  const auto begin = std::chrono::steady_clock::now();
  const std::uint32_t n_blocks = count(shape.grid);
  recent.assign(kernel.n_accesses + 1, {});
  Warp* now = nullptr;
  try {
    for (std::uint32_t next = 0, turn = 1;; ++turn) {
      while (next < n_blocks && clusters.size() < n_resident) start_cluster(std::exchange(next, next + shape.cluster));
      if (running.empty()) break;

      // Give one of the warps that can run its turn.
      const auto n = static_cast<std::uint32_t>(running.size()), first = draw(n);
      std::uint32_t i = 0;
      while (i < n && !running[(first + i) % n]->can_run()) ++i;
      if (i < n) {
        now = running[(first + i) % n];
        Cluster& cluster = *now->block->cluster;
        now->run(static_cast<int>(32 + draw(2048)));
        if (now->alive == 0) std::swap(running[(first + i) % n], running.back()), running.pop_back();
        if (cluster.n_alive == 0) {
          if (!cluster.copies.empty()) throw Fault("the block has ended while a copy to it is under way");
          std::erase_if(clusters, [&](const auto& one) { return one.get() == &cluster; });
        }
      }
      now = nullptr;

      // Let a copy arrive, at any time; at the latest when all wait.
      bool has_arrived = false;
      const std::uint32_t patience = i < n ? 4 : 1;
      for (const auto& cluster : clusters) {
        if (cluster->copies.empty() || draw(patience) != 0) continue;
        deliver(*cluster, draw(static_cast<std::uint32_t>(cluster->copies.size()))), has_arrived = true;
      }
      if (i == n && !has_arrived) throw Fault("no thread can go on");
      if (turn % 256 == 0 &&
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > settings().limit_seconds)
        throw Fault("no end within ", static_cast<int>(settings().limit_seconds), " s");
    }
  } catch (const Fault& fault) {
    char* const readable =
        kernel.name.starts_with("_Z") ? abi::__cxa_demangle(kernel.name.c_str(), nullptr, nullptr, nullptr) : nullptr;
    const std::string what = joined(fault.what(), "\n  in ", readable != nullptr ? readable : kernel.name.c_str());
    std::free(readable);
    if (now == nullptr || now->op == nullptr) throw Fault(what, places());
    const auto& [x, y, z] = now->block->index;
    throw Fault(what, "\n  block (", x, ", ", y, ", ", z, "), thread ", now->thread(now->now), ", line ", now->op->line,
                " of the PTX: ", kernel.text[static_cast<std::size_t>(now->op - kernel.ops.data())]);
  }
}

/// Names the places of the threads of a grid that does not end.
std::string Grid::places() const {
  std::map<std::uint32_t, std::uint32_t> n_at;
  const auto add = [&](const Group& group) {
    // What waits for a barrier of the block or cluster has executed its instruction.
    const bool is_past = !group.wait.is_over() && !kernel.text[group.pc].starts_with("mbarrier") && !group.wait.is_for_lanes;
    n_at[group.pc - is_past] += static_cast<std::uint32_t>(std::popcount(group.lanes));
  };
  for (const Warp* warp : running) {
    if (warp->lanes != 0) add({warp->pc, warp->lanes, warp->wait});
    for (const Group& group : warp->groups) add(group);
  }
  std::string text;
  for (const auto& [pc, n] : n_at)
    text += joined("\n  ", n, " threads at line ", kernel.ops[pc].line, " of the PTX: ", kernel.text[pc]);
  return text;
}

}  // namespace tree_attn::soft_gpu
