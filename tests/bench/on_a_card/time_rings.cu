// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times of copies as the tensor kernel makes them, without arithmetic: rings per warp, with the hint of the engine
/// (section 6).
///
/// Run: time_rings
/// A warp fills the ring that it reads, through tensor maps, a leaf of keys and then its values. Rings of a block: one of 12
/// tiles, four of 3, and eight of 3 half tiles, 192 KiB each time. Leaves: a contiguous run for each warp; interleaved over
/// all warps; or four at a time by a ticket, drawn ahead. With and without the hint that lines leave L2 first, on all
/// multiprocessors and on the largest multiple of 16 heads, for 64k and 1M keys of 16 heads. Beside them the kernel that
/// only reads. All must sum up the same words. Prints one line of JSON per measurement.
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/copy_kernels.cuh"
#include "tests/bench/time_ladder/input.cuh"
#include "tests/bench/time_ladder/program.hpp"
#include "tests/bench/time_ladder/shapes.hpp"

#include <string>

namespace tree_attn::cuda {

/// Assignment of leaves to warps.
enum class LeafOrderOfCopies { Contiguous, Interleaved, Ticket };
constexpr const char* kOrders[] = {"contiguous", "interleaved", "ticket"};
constexpr int kLeavesOfTicket = 4;

/// The leaves of a warp, one after the other. All lanes have the same.
class LeavesOfWarp {
 public:
  __device__ LeavesOfWarp(LeafOrderOfCopies order, int n_leaves, int warp, int n_warps, unsigned* ticket)
      : order_(order), n_leaves_(n_leaves), n_warps_(n_warps), ticket_(ticket) {
    const std::int64_t n = n_leaves;
    if (order == LeafOrderOfCopies::Contiguous) {
      at_ = static_cast<int>(n * warp / n_warps), end_ = static_cast<int>(n * (warp + 1) / n_warps);
    } else if (order == LeafOrderOfCopies::Interleaved) {
      at_ = warp, end_ = n_leaves;
    } else {
      next_ = draw(), take_next();
    }
  }
  __device__ bool has() const { return at_ < end_; }
  __device__ int leaf() const { return at_; }
  __device__ void advance() {
    at_ += order_ == LeafOrderOfCopies::Interleaved ? n_warps_ : 1;
    if (order_ == LeafOrderOfCopies::Ticket && at_ == end_) take_next();
  }

 private:
  __device__ int n_tickets() const { return (n_leaves_ + kLeavesOfTicket - 1) / kLeavesOfTicket; }
  /// Each warp draws once more than it has tickets; the last draw of all makes the counter 0.
  __device__ int draw() const {
    unsigned drawn = 0;
    if (lane_of_warp() == 0) drawn = atomicInc(ticket_, static_cast<unsigned>(n_tickets() + n_warps_ - 1));
    return static_cast<int>(warp_uniform(drawn));
  }
  __device__ void take_next() {
    at_ = next_ * kLeavesOfTicket, end_ = next_ < n_tickets() ? min(at_ + kLeavesOfTicket, n_leaves_) : at_;
    if (has()) next_ = draw();
  }

  LeafOrderOfCopies order_;
  int n_leaves_, n_warps_;
  unsigned* ticket_;
  int at_ = 0, end_ = 0, next_ = 0;
};

namespace {

/// Grid: blocks; block: a warp per ring.
/// @tparam kTileBoxes boxes of 64 rows x 64 elements of a tile: 2, or 1 for half tiles
/// @param n_leaves of keys, and of values @param ticket 0, as the launch leaves it @param sum as launch_copies() adds to it
template <int kRings, int kStages, int kTileBoxes>
__global__ void __launch_bounds__(kWarp* kRings, 1)
    copy_by_rings(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, int n_leaves,
                  LeafOrderOfCopies order, CacheHint hint, unsigned* ticket, unsigned* sum) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kBox = kCopyTileRows * kBoxColumns, kTile = kTileBoxes * kBox, kTilesOfRows = 2 / kTileBoxes;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Arena arena;
  const Shared<BFloat16> ring = arena.take<BFloat16>(std::int64_t{kRings} * kStages * kTile, 1024) + warp * kStages * kTile;
  const Shared<Barrier> full = arena.take<Barrier>(kRings * kStages) + warp * kStages;
  if (lane_of_warp() == 0) {
    for (int stage = 0; stage < kStages; ++stage) barrier_init(full + stage, 1);
    barrier_fence_init();
  }
  __syncwarp();

  LeavesOfWarp leaves(order, n_leaves, static_cast<int>(blockIdx.x) * kRings + warp, static_cast<int>(gridDim.x) * kRings,
                      ticket);
  int n_started = 0, tile = 0;  // of a leaf: those of its keys, then those of its values
  const auto start = [&](int stage) {
    if (!leaves.has()) return;
    if (elect_one()) {
      barrier_arrive_expect(full + stage, kTile * 2);
      TREE_ATTN_UNROLL
      for (int box = 0; box < kTileBoxes; ++box) {
        const int column = (tile % kTilesOfRows * kTileBoxes + box) * kBoxColumns;
        bulk_copy_tensor<BFloat16>(ring + stage * kTile + box * kBox, tile < kTilesOfRows ? keys : values, column,
                                   leaves.leaf() * kCopyTileRows, 0, 0, full + stage, hint);
      }
    }
    ++n_started;
    if (++tile == 2 * kTilesOfRows) tile = 0, leaves.advance();
  };
  for (int stage = 0; stage < kStages; ++stage) start(stage);
  std::uint32_t firsts = 0;
  for (int i = 0, stage = 0, parity = 0; i < n_started; ++i) {
    barrier_wait(full + stage, parity);
    // Every 16 rows are kCopyBytes; the first half of a row has their first word.
    if (i % kTilesOfRows == 0 && lane_of_warp() < kCopyTileRows / 16)
      firsts += load16(ring + stage * kTile + lane_of_warp() * 16 * kBoxColumns).word[0];
    __syncwarp();
    start(stage);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  if (lane_of_warp() < kCopyTileRows / 16) atomicAdd(sum, firsts);
#endif
}

constexpr double kSeconds = 0.1;  ///< of a measurement

/// Source of the copies, and their expected result.
struct Copied {
  std::string shape;
  CopyStreams streams;
  int n_sets;
  double read;
  unsigned want;
};

/// @returns whether it has read other words than were written
template <int kRings, int kStages, int kTileBoxes>
bool time_ring(const Copied& copied, const char* rings, LeafOrderOfCopies order, CacheHint hint, int n_blocks,
               Stream stream) {
  DeviceBuffer<unsigned> words(2);
  const std::int64_t n_bytes = copied.streams.n_bytes;
  const auto run = [&](int i) {
    const unsigned char* const keys = copied.streams.keys + 2 * n_bytes * i;
    const Launch config{.grid = {static_cast<unsigned>(n_blocks)},
                        .block = {kWarp * kRings},
                        .shared_bytes = std::size_t{kRings} * kStages * kTileBoxes * 8192 + 1024 + 128};
    TensorMap of_keys, of_values;
    encode_tensor_map(array_of(keys, n_bytes), &of_keys), encode_tensor_map(array_of(keys + n_bytes, n_bytes), &of_values);
    launch(copy_by_rings<kRings, kStages, kTileBoxes>, config, stream, of_keys, of_values,
           static_cast<int>(n_bytes / kCopyTileBytes), order, hint, words.data(), words.data() + 1);
  };
  words.fill(0);
  check(cudaDeviceSynchronize(), "clearing the words");
  run(0);
  const bool is_right = words.download()[1] == copied.want;
  JsonLine line("rings");
  line.add("shape", copied.shape).add("rings", rings).add("order", kOrders[static_cast<int>(order)]);
  line.add("evict_first", hint == CacheHint::EvictFirst ? 1 : 0).add("n_blocks", n_blocks).add("bytes", 2 * n_bytes);
  if (is_right) {
    const double guess = guess_of(stream, copied.n_sets, run);
    line.add("graph_seconds", time_in_graph(stream, copied.n_sets, run, guess, kSeconds)).add("read_seconds", copied.read);
  } else {
    line.add("note", "WRONG: other words than were written");
  }
  return !is_right;
}

/// @returns how many have read other words than were written
int time_rings(std::int64_t n_keys, Stream stream) {
  constexpr std::int64_t kHeads = 16;
  const std::int64_t n_elements = kHeads * n_keys * kDim, n_bytes = 2 * n_elements;  // of keys, and of values
  const int n_sets = n_sets_past_l2(2 * n_bytes);
  DeviceBuffer<unsigned char> memory(n_sets * 2 * n_bytes);
  launch(fill_elements<BFloat16>, {.grid = {1024}, .block = {256}}, stream, reinterpret_cast<BFloat16*>(memory.data()),
         memory.size() / 16, kSeedK);
  Copied copied{one_sequence(DType::BF16, kHeads, kHeads, n_keys).name, {memory.data(), nullptr, n_bytes}, n_sets, 0, 0};
  copied.read = time_of_read(
      2 * n_bytes, n_sets, [&](int i) { return memory.data() + 2 * n_bytes * i; }, stream, kSeconds);
  for (std::int64_t element = 0; element < 2 * n_elements; element += kCopyBytes / 2) {
    const std::uint64_t eight = eight_elements(kSeedK, element / 8);
    copied.want +=
        pack(narrow<BFloat16>(number_of(eight, 0, DType::BF16)), narrow<BFloat16>(number_of(eight, 1, DType::BF16)));
  }
  const int all = device().n_multiprocessors, even = all / static_cast<int>(kHeads) * static_cast<int>(kHeads);
  int n_wrong = 0;
  for (const auto order : {LeafOrderOfCopies::Contiguous, LeafOrderOfCopies::Interleaved, LeafOrderOfCopies::Ticket}) {
    for (const CacheHint hint : {CacheHint::EvictFirst, CacheHint::Normal}) {
      for (const int n_blocks : {even, all}) {
        n_wrong += time_ring<4, 3, 2>(copied, "4 x 3", order, hint, n_blocks, stream);
        n_wrong += time_ring<1, 12, 2>(copied, "1 x 12", order, hint, n_blocks, stream);
        n_wrong += time_ring<8, 3, 1>(copied, "8 x 3 half tiles", order, hint, n_blocks, stream);
      }
    }
  }
  return n_wrong;
}

int time_all(const Options&) {
  const OwnedStream stream;
  if (device().major < 9) {
    JsonLine("rings").add("note", "this device has no tensor maps");
    return 0;
  }
  if (is_rehearsal()) return time_rings(512, stream) > 0 ? 1 : 0;
  return time_rings(1 << 16, stream) + time_rings(1 << 20, stream) > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) { return tree_attn::run_program(argc, argv, "time_rings", tree_attn::cuda::time_all); }
