// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The instructions of PTX that access memory or synchronise threads (PTX ISA 9.0, sections 9.7.9 and 9.7.13
/// to 9.7.15).
#include "tests/gpu/soft_gpu/instructions.hpp"
#include "tests/gpu/soft_gpu/tensor_sums.hpp"

#include <atomic>
#include <concepts>
#include <thread>

namespace tree_attn::soft_gpu {
namespace {

// ---- Addresses: Op::kind holds the space, whether registers of 64 bits hold the address, and one more bit for the
// instruction.
constexpr std::uint8_t kSpace = 7, kIsWide = 8, kFlag = 16;

std::uint32_t word(Warp& w, Location at, int lane) { return w.of<std::uint32_t>(at)[lane]; }
std::uint64_t address(Warp& w, const Op& op, Location at, int lane) {
  const std::uint64_t base = (op.kind & kIsWide) != 0 ? w.of<std::uint64_t>(at)[lane] : word(w, at, lane);
  return base + static_cast<std::uint64_t>(op.offset);
}
Space space_of(const Op& op) { return static_cast<Space>(op.kind & kSpace); }
std::uint8_t kind_of_address(const Statement& s, std::size_t i, bool flag) {
  static constexpr std::pair<std::string_view, Space> kSpaces[] = {{"global", Space::Global},
                                                                   {"shared", Space::Shared},
                                                                   {"shared::cta", Space::Shared},
                                                                   {"shared::cluster", Space::Shared},
                                                                   {"param", Space::Param}};
  auto kind = static_cast<std::uint8_t>(flag ? kFlag : 0);
  for (const auto& [name, space] : kSpaces) kind |= s.has(name) ? static_cast<std::uint8_t>(space) : 0;
  return static_cast<std::uint8_t>(kind | (bytes_of(s.operand.at(i).type) == 8 || s.operand[i].type.empty() ? kIsWide : 0));
}

/// Memory holds elements of type M, registers those of type R, which may be wider.
template <class M, class R>
void load(Warp& w, const Op& op) {
  R d[4][32];
  w.for_lanes([&](int lane) {
    const std::byte* const from = w.at(space_of(op), lane, address(w, op, op.at[op.n], lane), op.n * sizeof(M), op, false);
    for (std::size_t k = 0; k < op.n; ++k) {
      M element;
      std::memcpy(&element, from + k * sizeof(M), sizeof(M));
      d[k][lane] = static_cast<R>(element);
    }
  });
  for (int k = 0; k < op.n; ++k) w.put(op.at[k], d[k]);
  // What a strong load waits for may be for another warp, or another grid, to do.
  if ((op.kind & kFlag) != 0 && w.grid->draw(4) == 0) w.left = 0, std::this_thread::yield();
}
template <class M, class R>
void store(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    std::byte* const to = w.at(space_of(op), lane, address(w, op, op.at[0], lane), op.n * sizeof(M), op, true);
    for (std::size_t k = 0; k < op.n; ++k) {
      const M element = static_cast<M>(w.of<R>(op.at[1 + k])[lane]);
      std::memcpy(to + k * sizeof(M), &element, sizeof(M));
    }
  });
}
/// st.async: 8 bytes to a block of the cluster, which complete on an mbarrier beside them. They arrive at once.
void store_async(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    const auto [block, at] = w.shared(word(w, op.at[0], lane), 8, 8);
    const auto [of_barrier, barrier_at] = w.shared(word(w, op.at[2], lane), 8, 8);
    if (of_barrier != block) throw Fault("a store to one block that completes on another");
    std::memcpy(&block->shared[at], &w.of<std::uint64_t>(op.at[1])[lane], 8);
    block->arrive(barrier_at, 0, -8);
  });
}
template <bool is_load>
Run accessing(const Statement& s, Op& op) {
  if (s.has("async")) return !is_load && s.operand.size() == 3 && bytes_of(s.type()) == 8 ? store_async : nullptr;
  const auto& value = s.operand.at(is_load ? 0 : 1);
  op.kind = kind_of_address(s, is_load ? 1 : 0, s.has("relaxed") || s.has("acquire"));
  op.n = static_cast<std::uint8_t>(value.at.size());
  const Type type = s.type();
  const Type in_register = !value.type.empty() ? bits(value.type) : bytes_of(type) == 1 ? "b16" : bits(type);
  if (type == "b128") return is_load ? load<B128, B128> : store<B128, B128>;
  const auto with = [=]<class M>() -> Run {
    return for_type(in_register, []<class R>() -> Run {
      if constexpr (std::integral<M> && std::integral<R> && sizeof(M) <= sizeof(R))
        return is_load ? load<M, R> : store<M, R>;
      return nullptr;
    });
  };
  if (type == "u8") return with.template operator()<std::uint8_t>();
  return for_type(type == "f32" || type == "f64" ? bits(type) : type, with);
}

/// An address of own shared memory as that of another block.
void map_shared(Warp& w, const Op& op) {
  std::uint32_t d[32] = {};
  w.for_lanes([&](int lane) {
    const std::uint32_t rank = word(w, op.at[2], lane);
    if (rank >= w.grid->shape.cluster) throw Fault("rank ", rank, " of ", w.grid->shape.cluster);
    d[lane] = (rank + 1) * kSharedSpan | (word(w, op.at[1], lane) & (kSharedSpan - 1));
  });
  w.put(op.at[0], d);
}
Run mapping(const Statement& s, Op&) { return s.has("shared::cluster") && s.type() == "u32" ? map_shared : nullptr; }

template <auto f>
void atomic(Warp& w, const Op& op) {
  std::uint32_t d[32] = {};
  w.for_lanes([&](int lane) {
    std::atomic_ref counter(
        *reinterpret_cast<std::uint32_t*>(w.at(space_of(op), lane, address(w, op, op.at[1], lane), 4, op, true)));
    d[lane] = counter.load();
    while (!counter.compare_exchange_weak(d[lane], f(d[lane], word(w, op.at[2], lane)))) {
    }
  });
  w.put(op.at[0], d);
}
Run atomics(const Statement& s, Op& op) {
  op.kind = kind_of_address(s, 1, false);
  if (s.type() != "u32") return nullptr;
  if (s.has("inc")) return atomic<[](std::uint32_t a, std::uint32_t b) { return a >= b ? 0 : a + 1; }>;
  return s.has("add") ? atomic<[](std::uint32_t a, std::uint32_t b) { return a + b; }> : nullptr;
}

// ---- Lanes of a warp

bool meets(Warp& w, Location members) {
  const std::uint32_t of_first = word(w, members, std::countr_zero(w.mask));
  w.for_lanes([&](int lane) {
    if (word(w, members, lane) != of_first || (of_first >> lane & 1) == 0)
      throw Fault("lane ", lane, " is not among the members ", hex(of_first));
  });
  return w.meet(of_first);
}
/// Lane i takes what lane j brings: by idx, or, of kind 1, bfly.
void shuffle(Warp& w, const Op& op) {
  if (!meets(w, op.at[5])) return;
  std::uint32_t d[32] = {}, is_inside = 0;
  w.for_lanes([&](int i) {
    const int b = static_cast<int>(word(w, op.at[3], i) & 31), c = static_cast<int>(word(w, op.at[4], i)),
              segment = c >> 8 & 31;
    int j = op.kind == 1 ? i ^ b : (i & segment) | (b & ~segment);
    const bool is_in = j <= ((i & segment) | (c & 31 & ~segment));
    if (!is_in) j = i;
    if ((w.mask >> j & 1) == 0) throw Fault("lane ", i, " takes from lane ", j, ", which does not take part");
    d[i] = word(w, op.at[2], j), is_inside |= static_cast<std::uint32_t>(is_in) << i;
  });
  w.put(op.at[0], d), w.put_predicate(op.at[1], is_inside);
}
Run shuffling(const Statement& s, Op& op) {
  return op.kind = s.has("bfly"), s.type() == "b32" && s.operand.size() == 6 ? shuffle : nullptr;
}
/// Votes; kinds 0 to 2 are all, any and ballot.
void vote(Warp& w, const Op& op) {
  if (!meets(w, op.at[2])) return;
  const std::uint32_t ayes = w.predicate(op.at[1]) & w.mask;
  std::uint32_t d[32];
  std::fill(d, d + 32, ayes);
  if (op.kind == 2) return w.put(op.at[0], d);
  w.put_predicate(op.at[0], (op.kind == 0 ? ayes == w.mask : ayes != 0) ? ~0U : 0);
}
Run voting(const Statement& s, Op& op) { return op.kind = s.has("all") ? 0 : s.has("any") ? 1 : 2, vote; }
/// Elects a lane. The manual leaves open which; it is equal for equal members.
void elect(Warp& w, const Op& op) {
  if (!meets(w, op.at[2])) return;
  std::uint32_t left = w.mask, d[32];
  for (std::uint32_t n = settings().seed % static_cast<std::uint32_t>(std::popcount(w.mask)); n > 0; --n) left &= left - 1;
  std::fill(d, d + 32, static_cast<std::uint32_t>(std::countr_zero(left)));
  w.put(op.at[0], d), w.put_predicate(op.at[1], left & (0 - left));
}

// ---- Barriers of blocks and clusters

/// Whole warps meet: all of the block, or as many threads as the instruction says.
template <bool kCounts>
void barrier(Warp& w, const Op& op) {
  if (!w.meet(w.all)) return;
  Block& block = *w.block;
  const std::uint32_t number = word(w, op.at[0], std::countr_zero(w.mask));
  if (number >= std::size(block.barriers)) throw Fault("barrier ", number);
  const std::uint32_t all = count(w.grid->shape.block);
  const std::uint32_t n = kCounts ? word(w, op.at[1], std::countr_zero(w.mask)) : all;
  if (n == 0 || n % 32 != 0 || n > all) throw Fault("a barrier of ", n, " threads of ", all);
  auto& [n_arrived, generation] = block.barriers[number];
  n_arrived += static_cast<std::uint32_t>(std::popcount(w.mask));
  if (n_arrived < n) return w.hold({false, &generation, generation}, false);
  n_arrived = 0, ++generation;
}
void cluster_arrive(Warp& w, const Op&) {
  if (!w.meet(w.all)) return;
  Cluster& cluster = *w.block->cluster;
  w.cluster_generation = cluster.generation;
  cluster.n_arrived += static_cast<std::uint32_t>(std::popcount(w.mask));
  if (cluster.n_arrived == cluster.n_threads) cluster.n_arrived = 0, ++cluster.generation;
}
void cluster_wait(Warp& w, const Op&) {
  if (w.meet(w.all) && w.block->cluster->generation == w.cluster_generation)
    w.hold({false, &w.block->cluster->generation, w.cluster_generation}, false);
}
Run barriers(const Statement& s, Op&) {
  if (s.has("cluster")) return s.has("arrive") ? cluster_arrive : cluster_wait;
  if (s.has("warp")) return [](Warp& w, const Op& op) { meets(w, op.at[0]); };
  return s.operand.size() == 1 ? barrier<false> : s.operand.size() == 2 ? barrier<true> : nullptr;
}

// ---- mbarriers, and what the thread has stored before the async proxy comes

void phase_init(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    const auto [block, at] = w.shared(address(w, op, op.at[0], lane), 8, 8);
    const std::uint32_t expected = word(w, op.at[1], lane);
    if (block != w.block || expected == 0 || expected >= 1U << 20) throw Fault("an mbarrier of ", expected, " arrivals");
    block->phase_barriers[at] = {expected, expected};
    std::memcpy(&block->shared[at], &PhaseBarrier::kMark, 8);
    block->stored(at, 8, w.thread(lane));
  });
}
void phase_arrive(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    const auto [block, at] = w.shared(address(w, op, op.at[1], lane), 8, 8);
    block->arrive(at, 1, (op.kind & kFlag) != 0 ? word(w, op.at[2], lane) : 0);
  });
}
/// Waits, as the manual allows try_wait, or now and then says at once that the phase has not ended.
void phase_wait(Warp& w, const Op& op) {
  const int first = std::countr_zero(w.mask);
  const std::uint64_t where = address(w, op, op.at[1], first);
  const auto [block, at] = w.shared(where, 8, 8);
  const std::uint32_t parity = word(w, op.at[2], first);
  // Lanes that wait for another barrier, or phase, come to it by themselves.
  std::uint32_t others = 0;
  w.for_lanes([&](int lane) {
    const bool is_same = address(w, op, op.at[1], lane) == where && word(w, op.at[2], lane) == parity;
    others |= static_cast<std::uint32_t>(!is_same) << lane;
  });
  if (others != 0) w.part(others);
  if (block != w.block) throw Fault("a wait for an mbarrier of another block");
  const std::uint32_t& phase = block->phase_barrier(at).phase;
  const bool has_ended = (phase & 1) != parity;
  if (!has_ended && w.grid->draw(16) != 0) return w.hold({false, &phase, phase}, true);
  w.put_predicate(op.at[0], has_ended ? ~0U : 0);
}
Run phase_barriers(const Statement& s, Op& op) {
  const bool is_init = s.has("init"), has_result = s.operand.at(0).at[0] != kNowhere;
  op.kind = kind_of_address(s, is_init ? 0 : 1, s.has("expect_tx"));
  if (is_init) return phase_init;
  if (s.has("arrive")) return has_result ? nullptr : phase_arrive;
  return s.has("try_wait") && s.has("parity") ? phase_wait : nullptr;
}
void fence_proxy(Warp& w, const Op&) {
  w.for_lanes([&](int lane) { ++w.block->n_fences[w.thread(lane)]; });
}
Run fences(const Statement& s, Op&) { return s.has("proxy") ? fence_proxy : nothing; }

// ---- Asynchronous copies

constexpr std::byte kUnknown{0xFF};  // what is there until a copy arrives: NaN

/// cp.async: 16 bytes of each thread, of which some may be zeros.
void copy_async(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    const std::uint32_t n = word(w, op.at[2], lane), n_copied = word(w, op.at[3], lane);
    const std::uint64_t source = w.of<std::uint64_t>(op.at[1])[lane];
    if (n != 16 || n_copied > n || source % n != 0) throw Fault(n_copied, " of ", n, " bytes from ", hex(source));
    std::byte* const to = w.at(Space::Shared, lane, word(w, op.at[0], lane), n, op, true);
    const std::byte* const from = n_copied > 0 ? w.at(Space::Global, lane, source, n_copied, op, false) : nullptr;
    const Copy copy{to, from, n, n_copied, lane, w.copy_group[static_cast<std::size_t>(lane)]};
    std::fill(to, to + n, kUnknown);
    if (w.grid->draw(8) == 0) return copy.arrive();
    w.copies.push_back(copy);
  });
}
void copy_commit(Warp& w, const Op&) {
  w.for_lanes([&](int lane) { ++w.copy_group[static_cast<std::size_t>(lane)]; });
}
void copy_wait(Warp& w, const Op& op) {
  const std::uint32_t n_pending = word(w, op.at[0], 0);
  std::erase_if(w.copies, [&](const Copy& copy) {
    const bool is_due =
        (w.mask >> copy.lane & 1) != 0 && copy.group + n_pending < w.copy_group[static_cast<std::size_t>(copy.lane)];
    if (is_due) copy.arrive();
    return is_due;
  });
}
/// The copies of one thread that complete on an mbarrier: the bytes count whether they come from the array or are zeros.
void start_bulk(Block* block, std::vector<Copy> pieces, std::pair<Block*, std::uint32_t> barrier) {
  const auto [of_barrier, at] = barrier;
  if (of_barrier != block) throw Fault("a copy to one block that completes on another");
  std::int64_t n_bytes = 0;
  for (const Copy& piece : pieces) {
    block->check_fenced(static_cast<std::uint32_t>(piece.to - block->shared.data()), piece.n_bytes);
    std::fill(piece.to, piece.to + piece.n_bytes, kUnknown);
    n_bytes += piece.n_bytes;
  }
  block->phase_barrier(at), block->check_fenced(at, 8);
  block->cluster->copies.push_back({std::move(pieces), block, at, n_bytes});
}
void copy_bulk(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    const std::uint32_t n = word(w, op.at[2], lane);
    const std::uint64_t source = w.of<std::uint64_t>(op.at[1])[lane];
    const auto [block, at] = w.shared(word(w, op.at[0], lane), n, 16);
    if (n % 16 != 0 || source % 16 != 0 || n == 0) throw Fault(n, " bytes from ", hex(source));
    start_bulk(block, {{&block->shared[at], w.at(Space::Global, lane, source, n, op, false), n, n, lane, 0}},
               w.shared(word(w, op.at[3], lane), 8, 8));
  });
}
/// A box of a tensor: rows of vectors of 16 bytes, swizzled by the address of a vector.
void copy_tensor(Warp& w, const Op& op) {
  w.for_lanes([&](int lane) {
    TensorMap map;
    std::memcpy(&map, w.at(Space::Generic, lane, w.of<std::uint64_t>(op.at[1])[lane], 128, op, false), sizeof map);
    if (map.mark != TensorMap::kMark || map.rank != op.n) throw Fault("no tensor map of ", map.rank, " axes");
    std::int64_t corner[5] = {};
    std::uint32_t n_rows = 1;
    for (std::uint32_t i = 0; i < map.rank; ++i)
      corner[i] = w.of<std::int32_t>(op.at[2 + i])[lane], n_rows *= i > 0 ? map.box[i] : 1;
    const std::uint32_t row_bytes = map.box[0] * map.element_bytes, swizzled = map.swizzle_bytes / 16;
    const auto [own, at] = w.shared(word(w, op.at[0], lane), n_rows * row_bytes, 128);
    std::vector<Copy> pieces;
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      std::uint64_t from = map.address;
      bool is_inside = true;
      for (std::uint32_t i = 1, rest = row; i < map.rank; rest /= map.box[i], ++i) {
        const std::int64_t x = corner[i] + rest % map.box[i];
        is_inside = is_inside && x >= 0 && x < map.extent[i];
        from += static_cast<std::uint64_t>(x) * map.stride[i - 1];
      }
      for (std::uint32_t vector = 0; vector < row_bytes; vector += 16) {
        const std::int64_t x = corner[0] * map.element_bytes + vector,
                           n_inside = std::int64_t{map.extent[0]} * map.element_bytes - x;
        if (x % 16 != 0) throw Fault("a column that is no multiple of 16 bytes");
        const std::uint32_t n =
            !is_inside || x < 0 ? 0 : static_cast<std::uint32_t>(std::clamp<std::int64_t>(n_inside, 0, 16));
        std::uint32_t to = at + row * row_bytes + vector;
        if (swizzled > 1) to ^= (to >> 7 & (swizzled - 1)) << 4;
        const std::byte* const bytes =
            n > 0 ? w.at(Space::Global, lane, from + static_cast<std::uint64_t>(x), n, op, false) : nullptr;
        pieces.push_back({&own->shared[to], bytes, 16, n, lane, 0});
      }
    }
    const auto barrier = w.shared(word(w, op.at[2 + map.rank], lane), 8, 8);
    if ((op.kind & kFlag) == 0) return start_bulk(own, std::move(pieces), barrier);
    // To the same place in blocks of the cluster.
    if (own != w.block || barrier.first != w.block) throw Fault("a copy to several blocks from the memory of another");
    std::uint32_t ranks = w.of<std::uint16_t>(op.at[3 + map.rank])[lane];
    for (; ranks != 0; ranks &= ranks - 1) {
      const auto rank = static_cast<std::size_t>(std::countr_zero(ranks));
      if (rank >= own->cluster->blocks.size()) throw Fault("a copy to block ", rank, " of the cluster");
      Block* const block = own->cluster->blocks[rank].get();
      if (block->n_alive == 0) throw Fault("a copy to block ", rank, " of the cluster, which has ended");
      std::vector<Copy> there = pieces;
      for (Copy& piece : there) piece.to = block->shared.data() + (piece.to - own->shared.data());
      start_bulk(block, std::move(there), {block, barrier.second});
    }
  });
}
Run copies(const Statement& s, Op& op) {
  if (s.has("commit_group")) return copy_commit;
  if (s.has("wait_group")) return copy_wait;
  if (!s.has("bulk")) return s.has("shared") && s.operand.size() == 4 ? copy_async : nullptr;
  if (!s.has("shared::cluster") || !s.has("mbarrier::complete_tx::bytes")) return nullptr;
  if (!s.has("tensor")) return copy_bulk;
  op.n = static_cast<std::uint8_t>(s.operand[1].at.size() - 1);
  op.kind = s.has("multicast::cluster") ? kFlag : 0;
  return copy_tensor;
}

// ---- Tensor cores

/// Matrices of 8 x 8 elements of 16 bits: lane i holds elements 2 (i % 4) and the next of row i / 4, of a transposed one of
/// column i / 4.
void spread(const std::uint16_t (&matrix)[8][8], bool is_transposed, std::uint32_t* d) {
  for (int i = 0; i < 32; ++i) {
    const int row = i / 4, column = 2 * (i % 4);
    const std::uint32_t second = is_transposed ? matrix[column + 1][row] : matrix[row][column + 1];
    d[i] = (is_transposed ? matrix[column][row] : matrix[row][column]) | second << 16;
  }
}
void load_matrices(Warp& w, const Op& op) {
  if (!w.meet(~0U)) return;
  for (int k = 0; k < op.n; ++k) {
    std::uint16_t matrix[8][8];
    std::uint32_t d[32];
    for (int row = 0; row < 8; ++row)
      std::memcpy(matrix[row], w.at(Space::Shared, 8 * k + row, address(w, op, op.at[op.n], 8 * k + row), 16, op, false),
                  16);
    spread(matrix, (op.kind & kFlag) != 0, d);
    w.put(op.at[k], d);
  }
}
Run matrix_loads(const Statement& s, Op& op) {
  op.kind = kind_of_address(s, 1, s.has("trans"));
  op.n = static_cast<std::uint8_t>(s.operand.at(0).at.size());
  return s.type() == "b16" ? load_matrices : nullptr;
}
/// Four matrices to shared memory, transposed.
void store_matrices(Warp& w, const Op& op) {
  if (!w.meet(~0U)) return;
  for (int k = 0; k < 4; ++k) {
    std::uint16_t matrix[8][8];
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t pair = word(w, op.at[1 + k], i);
      for (int half = 0; half < 2; ++half) matrix[2 * (i % 4) + half][i / 4] = static_cast<std::uint16_t>(pair >> 16 * half);
    }
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * k + row;
      std::memcpy(w.at(Space::Shared, lane, address(w, op, op.at[0], lane), 16, op, true), matrix[row], 16);
    }
  }
}
Run matrix_stores(const Statement& s, Op& op) {
  op.kind = kind_of_address(s, 0, false);
  return s.type() == "b16" && s.has("trans") && s.operand.at(1).at.size() == 4 ? store_matrices : nullptr;
}
void transpose_matrix(Warp& w, const Op& op) {
  if (!w.meet(~0U)) return;
  std::uint16_t matrix[8][8];
  std::uint32_t d[32];
  std::memcpy(matrix, w.of<std::uint32_t>(op.at[1]), sizeof matrix);
  spread(matrix, true, d);
  w.put(op.at[0], d);
}
Run matrix_moves(const Statement& s, Op&) { return s.type() == "b16" ? transpose_matrix : nullptr; }

/// d [16, 8] <- a [16, 16] b [16, 8] + c, with the sums of the device, which no manual promises.
template <int n_fraction>
void multiply_matrices(Warp& w, const Op& op) {
  if (!w.meet(~0U)) return;
  Number a[16][16], b[8][16];
  std::uint32_t c[16][8], d[4][32];
  for (int i = 0; i < 32; ++i) {
    const int g = i / 4, t = 2 * (i % 4);
    const auto number = [&](int at, int k) {
      return decoded(static_cast<std::uint16_t>(word(w, op.at[at + k / 2], i) >> 16 * (k % 2)), n_fraction);
    };
    for (int k = 0; k < 8; ++k) a[g + 8 * (k / 2 % 2)][t + 8 * (k / 4) + k % 2] = number(4, k);
    for (int k = 0; k < 4; ++k) b[g][t + 8 * (k / 2) + k % 2] = number(8, k);
    for (int k = 0; k < 4; ++k) c[g + 8 * (k / 2)][t + k % 2] = word(w, op.at[10 + k], i);
  }
  for (int i = 0; i < 32; ++i) {
    for (int k = 0; k < 4; ++k) {
      const int row = i / 4 + 8 * (k / 2), column = 2 * (i % 4) + k % 2;
      d[k][i] = sum_of_products(a[row], b[column], c[row][column], n_fraction, settings().major);
    }
  }
  for (int k = 0; k < 4; ++k) w.put(op.at[k], d[k]);
}
Run products(const Statement& s, Op&) {
  if (s.type(0) != "f32" || s.type(3) != "f32" || s.type(1) != s.type(2)) return nullptr;
  return s.type(1) == "f16" ? multiply_matrices<10> : s.type(1) == "bf16" ? multiply_matrices<7> : nullptr;
}

}  // namespace

const std::vector<Instruction>& memory_instructions() {
  static const std::vector<Instruction> all = {
      {"atom", "acq_rel relaxed gpu global inc add", atomics},
      {"bar", "sync warp", barriers},
      {"barrier", "aligned cluster arrive wait acquire release relaxed", barriers},
      {"cp",
       "async cg shared global bulk tensor 4d tile shared::cluster mbarrier::complete_tx::bytes multicast::cluster "
       "L2::cache_hint "
       "commit_group wait_group",
       copies},
      {"createpolicy", "fractional L2::evict_first", always<nothing>},
      {"elect", "sync", always<elect>},
      {"fence", "mbarrier_init release acq_rel gpu cluster proxy async shared::cta", fences},
      {"ld", "global shared shared::cluster param relaxed acquire gpu sys nc cg L1::no_allocate v2 v4", accessing<true>},
      {"ldmatrix", "sync aligned m8n8 x4 trans shared", matrix_loads},
      {"mapa", "shared::cluster", mapping},
      {"mbarrier", "init arrive expect_tx try_wait parity shared::cta release cluster shared::cluster", phase_barriers},
      {"mma", "sync aligned m16n8k16 row col", products},
      {"movmatrix", "sync aligned m8n8 trans", matrix_moves},
      {"shfl", "sync bfly idx", shuffling},
      {"st", "global shared relaxed release gpu sys cg v2 v4 async shared::cluster mbarrier::complete_tx::bytes",
       accessing<false>},
      {"stmatrix", "sync aligned m8n8 x4 trans shared", matrix_stores},
      {"vote", "sync all any ballot", voting},
      {"wgmma", "fence mma_async commit_group wait_group sync aligned m64n16k16 m64n32k16 m64n64k16 m64n128k16",
       warpgroup_products},
  };
  return all;
}

}  // namespace tree_attn::soft_gpu
