// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Grids, clusters, blocks and warps: what a running kernel consists of.
#pragma once

#include "tests/gpu/soft_gpu/kernel.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace tree_attn::soft_gpu {

/// As the environment sets it, SOFT_GPU_...: see README.md.
struct Settings {
  int major, n_multiprocessors;
  unsigned seed;
  double limit_seconds;  ///< of a launch
};
const Settings& settings();

/// Extent of a grid, or the index of a block or thread.
using Extent = std::array<std::uint32_t, 3>;
constexpr std::uint32_t count(const Extent& extent) { return extent[0] * extent[1] * extent[2]; }
constexpr Extent index_of(std::uint32_t i, const Extent& of) { return {i % of[0], i / of[0] % of[1], i / of[0] / of[1]}; }

struct Grid;
struct Block;

/// An array as cuTensorMapEncodeTiled() describes it; the 128 bytes of a tensor map begin with it.
struct TensorMap {
  static constexpr std::uint32_t kMark = 0x6D617073;
  std::uint32_t mark, rank, element_bytes, swizzle_bytes;  ///< 0: not swizzled
  std::uint64_t address;
  std::uint32_t extent[5];
  std::uint64_t stride[4];  ///< bytes between positions of axis i + 1
  std::uint16_t box[5];
};
static_assert(sizeof(TensorMap) <= 128);

/// An mbarrier. Its eight bytes of shared memory hold kMark as long as nothing else is stored there.
struct PhaseBarrier {
  static constexpr std::uint64_t kMark = 0x7265697272616270;
  std::uint32_t expected, pending;
  std::int64_t bytes = 0;  ///< that are still to come
  std::uint32_t phase = 0;
};

/// Condition for which a group of lanes waits: other lanes, or a number that counts what has happened and has to change.
struct Wait {
  bool is_for_lanes = false;
  const std::uint32_t* count = nullptr;
  std::uint32_t before = 0;
  bool is_over() const { return !is_for_lanes && (count == nullptr || *count != before); }
};

/// Lanes of a warp that are at the same instruction.
struct Group {
  std::uint32_t pc, lanes;
  Wait wait;
};

/// A copy that its thread has started and that has not arrived.
struct Copy {
  std::byte* to;
  const std::byte* from;            ///< nullptr: zeros
  std::uint32_t n_bytes, n_copied;  ///< the rest becomes zero
  int lane;
  std::uint32_t group;
  void arrive() const;
};

/// A product of a warpgroup that has been started.
struct Product {
  const Op* op;
  std::uint64_t a, b;  ///< descriptors
  std::uint32_t group;
  std::array<std::array<std::uint32_t, 32>, 4> registers{};  ///< in place of a
};
/// Products that are added to the same registers, which hold no numbers meanwhile.
struct Products {
  const Location* at;
  std::vector<std::array<std::uint32_t, 32>> sums;
  std::vector<Product> under_way;
};

struct Warp {
  Block* block = nullptr;
  Grid* grid = nullptr;
  std::byte* base[2] = {};  ///< registers and constants
  std::uint32_t lanes = 0;  ///< of the group that runs
  std::uint32_t mask = 0;   ///< of the instruction: those whose guard holds
  std::uint32_t pc = 0, limit = 0;
  Wait wait;
  int left = 0;  ///< instructions until another warp has its turn
  std::uint32_t first_thread = 0, alive = 0, all = 0;
  std::uint32_t cluster_generation = 0;  ///< that its arrival at the cluster's barrier belongs to
  std::vector<Group> groups;             ///< that do not run
  std::vector<Copy> copies;              ///< of cp.async
  std::array<std::uint32_t, 32> copy_group{};
  std::vector<Products> products;   ///< of wgmma
  std::uint32_t product_group = 0;  ///< of the next product
  bool are_sums_fenced = false;     ///< since the last wait for products
  std::unique_ptr<std::byte[]> registers;
  const Op* op = nullptr;
  int now = 0;  ///< the lane that an instruction has come to, for messages

  template <class T>
  T* of(Location at) {
    return reinterpret_cast<T*>(base[at & 1] + (at & ~Location{1}));
  }
  std::uint32_t& predicate(Location at) { return *of<std::uint32_t>(at); }
  /// Gives the lanes of the instruction their results.
  template <class T>
  void put(Location at, const T* values) {
    if (at == kNowhere) return;
    T* const to = of<T>(at);
    if (mask == ~0U) {
      std::memcpy(to, values, 32 * sizeof(T));
    } else {
      for (int lane = 0; lane < 32; ++lane) to[lane] = (mask >> lane & 1) != 0 ? values[lane] : to[lane];
    }
  }
  void put_predicate(Location at, std::uint32_t values) {
    if (at != kNowhere) predicate(at) = (predicate(at) & ~mask) | (values & mask);
  }
  /// Calls each(lane) for every lane of the instruction.
  template <class Each>
  void for_lanes(const Each& each) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) each(now = std::countr_zero(rest));
  }
  std::uint32_t thread(int lane) const { return first_thread + static_cast<std::uint32_t>(lane); }

  /// Address on the host of n bytes that a lane accesses. @throws Fault
  std::byte* at(Space space, int lane, std::uint64_t address, std::uint32_t n, const Op& op, bool is_store);
  /// The block of the cluster whose shared memory holds an address, and where. @throws Fault
  std::pair<Block*, std::uint32_t> shared(std::uint64_t address, std::uint32_t n, std::uint32_t alignment);

  /// Tests whether all these lanes are at this instruction; if not, those that are wait there. @throws Fault if one has
  /// ended
  bool meet(std::uint32_t members);
  /// The lanes of the instruction wait, and, if `again`, execute it anew afterwards.
  void hold(const Wait& what, bool again);
  /// These lanes execute the instruction by themselves.
  void part(std::uint32_t others);
  void branch(std::uint32_t target);
  void exit();

  bool can_run() const;
  /// Executes up to n instructions.
  void run(int n);

 private:
  bool regroup();
};

struct Block {
  Grid* grid;
  struct Cluster* cluster;
  std::uint32_t rank;  ///< in its cluster
  Extent index;
  std::vector<std::byte> shared;
  /// For every 8 bytes, the thread that has stored there, plus 1, and how many proxy fences it had executed: the async proxy
  /// may only write there after another.
  std::vector<std::uint32_t> unfenced;
  std::vector<std::uint32_t> n_fences;  ///< of every thread
  std::map<std::uint32_t, PhaseBarrier> phase_barriers;
  struct {
    std::uint32_t n_arrived = 0, generation = 0;
  } barriers[16];
  std::vector<std::unique_ptr<Warp>> warps;
  std::uint32_t n_alive = 0;

  void stored(std::uint32_t at, std::uint32_t n, std::uint32_t thread);
  /// @throws Fault if bytes that the async proxy takes have been stored without a fence since
  void check_fenced(std::uint32_t at, std::uint32_t n) const;
  PhaseBarrier& phase_barrier(std::uint32_t at);
  void arrive(std::uint32_t at, std::uint32_t n_arrivals, std::int64_t n_bytes);
};

/// A bulk copy under way, whole: of a tensor the rows of its box.
struct BulkCopy {
  std::vector<Copy> pieces;
  Block* block;           ///< whose mbarrier it completes on
  std::uint32_t barrier;  ///< where that is
  std::int64_t n_bytes;
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<BulkCopy> copies;
  std::uint32_t n_arrived = 0, generation = 0, n_alive = 0, n_threads = 0;
};

/// Launch configuration of a kernel.
struct LaunchShape {
  Extent grid{1, 1, 1}, block{1, 1, 1};
  std::uint32_t cluster = 1, dynamic_shared = 0;
  bool is_cooperative = false;
};

/// A launch that runs.
struct Grid {
  Grid(const Kernel& of, const LaunchShape& as, std::vector<std::byte> arguments, unsigned seed)
      : kernel(of), shape(as), parameters(std::move(arguments)), random(seed) {}
  const Kernel& kernel;
  const LaunchShape& shape;
  std::vector<std::byte> parameters;
  std::minstd_rand random;
  std::vector<Range> recent;  ///< of every access of the kernel, the allocation that it found last
  std::vector<std::unique_ptr<Cluster>> clusters;

  std::uint32_t draw(std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); }
  /// Runs all of it, so many clusters at once. @throws Fault with the place
  void run(std::uint32_t n_resident);

 private:
  void start_cluster(std::uint32_t first_block);
  void deliver(Cluster& cluster, std::size_t i);
  std::string places() const;

  std::vector<Warp*> running;
};

}  // namespace tree_attn::soft_gpu
