// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times of copies without arithmetic, and how many clusters a device holds.
///
/// Run: time_copies [--quick]
/// A walk over keys and values can be no faster than the copies that it starts, so these are timed alone: contiguous runs
/// per warp, each way to copy, with 64 to 192 KiB in flight per multiprocessor, on all multiprocessors and on the largest
/// multiple of 16 heads. Beside them the kernel that only reads, on the same bytes. All ways must sum up the same words.
/// It prints one line of JSON per measurement; `./run bench --backend cuda` makes tables of them.
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/copy_kernels.cuh"
#include "tests/bench/time_ladder/input.cuh"
#include "tests/bench/time_ladder/program.hpp"

#include <string>

namespace tree_attn::cuda {
namespace {

constexpr std::int64_t kHeads = 16;

/// Times every way on the keys and values of 16 heads of BF16. @returns how many have read other words than were written
int time_ways(const std::string& name, std::int64_t n_keys, Stream stream) {
  const std::int64_t n_elements = kHeads * n_keys * kDim, n_bytes = 2 * n_elements;  // of keys, and of values
  const int n_sets = n_sets_past_l2(2 * n_bytes);
  DeviceBuffer<unsigned char> memory(n_sets * 2 * n_bytes);
  launch(fill_elements<BFloat16>, {.grid = {1024}, .block = {256}}, stream, reinterpret_cast<BFloat16*>(memory.data()),
         memory.size() / 16, kSeedK);
  const auto streams_of = [&](int i) {
    const unsigned char* const keys = memory.data() + 2 * n_bytes * i;
    return CopyStreams{keys, keys + n_bytes, n_bytes};
  };
  const double read = time_of_read(
      2 * n_bytes, n_sets, [&](int i) { return streams_of(i).keys; }, stream);

  // What the copies of the first set must sum up.
  unsigned want = 0;
  for (std::int64_t element = 0; element < 2 * n_elements; element += kCopyBytes / 2) {
    const std::uint64_t eight = eight_elements(kSeedK, element / 8);
    want += pack(narrow<BFloat16>(number_of(eight, 0, DType::BF16)), narrow<BFloat16>(number_of(eight, 1, DType::BF16)));
  }
  DeviceBuffer<unsigned> sum(1);
  const int all = device().n_multiprocessors, even = all / static_cast<int>(kHeads) * static_cast<int>(kHeads);
  int n_wrong = 0;
  for (const CopyWay way : {CopyWay::CpAsync, CopyWay::Bulk, CopyWay::TensorMaps}) {
    for (const int kib : {64, 96, 128, 160, 192}) {
      if (!has_copies(way, kib)) continue;
      for (const int n_blocks : {even, all}) {
        const auto run = [&](int i) { launch_copies({way, kib, n_blocks}, streams_of(i), sum.data(), stream); };
        sum.fill(0);
        check(cudaDeviceSynchronize(), "clearing the sum");
        run(0);
        const bool is_right = sum.download()[0] == want;
        n_wrong += !is_right;
        JsonLine line("copies");
        line.add("shape", name).add("way", name_of(way)).add("kib_in_flight", kib).add("n_blocks", n_blocks);
        line.add("bytes", 2 * n_bytes);
        if (is_right)
          line.add("graph_seconds", time_of(stream, n_sets, run).graph).add("read_seconds", read);
        else
          line.add("note", "WRONG: other words than were written");
      }
    }
  }
  return n_wrong;
}

__global__ void nothing() {}

/// Clusters that fit on the device at once, by blocks per cluster and shared memory per block.
void count_clusters() {
  for (const int kib : {40, 220}) {
    for (const int n_blocks : {2, 4, 8, 16}) {
      const Launch config{.grid = {64 * static_cast<unsigned>(n_blocks)},
                          .block = {256},
                          .shared_bytes = static_cast<std::size_t>(kib) * 1024,
                          .cluster = n_blocks};
      JsonLine line("clusters");
      line.add("n_blocks", n_blocks).add("shared_kib", kib).add("n_clusters", n_resident_clusters(nothing, config));
    }
  }
}

int time_all(const Options& asked) {
  const OwnedStream stream;
  if (device().major >= 9) count_clusters();
  int n_wrong = is_rehearsal() ? time_ways("BF16, 16/16 heads, 512 keys", 1 << 9, stream)
                               : time_ways("BF16, 16/16 heads, 8k keys", 1 << 13, stream);
  if (!asked.has("--quick") && !is_rehearsal()) n_wrong += time_ways("BF16, 16/16 heads, 64k keys", 1 << 16, stream);
  return n_wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv, "time_copies [--quick]", tree_attn::cuda::time_all);
}
