// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.13: two nodes of two devices: NCCL's two levels.
///
/// Expected: Four devices add their vectors. Inside a node each device collects one half; between nodes only that half
/// travels, to the device of the same place; then the node shares the finished halves. The order is ((0 + 1) + (2 + 3)), so
/// that all four have equal bits.
///
/// Run: ./run exercise 9.13
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

/// The windows of all devices.
struct Windows {
  Packet* of[4];
};

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_13_two_levels.hpp"
#else

// Change from here ...
/// out_i = (x0_i + x1_i) + (x2_i + x3_i), i < 2 h, h a multiple of 3. Device `me` is place me % 2 of node me / 2 and
/// finishes half me % 2. window[d] is that of device d, [3][h / 3] packets: stage 0 is from the other device of its node,
/// stage 1 from the other node, stage 2 from the other device of its node again. One warp. Words: Packet, store_packet(),
/// load_packet(), wait_until(), load_once(), store_fresh(), load_fresh().
inline __global__ void two_levels(int me, const float* own, int h, Windows window, float* out) {
  // One level, and the wrong sum.
  (void)me, (void)window;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * h; i += 32) store_fresh(out + i, load_once(own + i));
}
// ... to here.

#endif

int main() {
  for (const int h : {3, 48, 150}) {
    under_seeds(
        6,
        [&] {
          Devices devices(4);
          std::vector<DeviceBuffer<float>> own, out;
          std::vector<DeviceBuffer<Packet>> windows;
          std::vector<std::vector<float>> x;
          Windows all;
          for (int d = 0; d < 4; ++d) {
            devices.use(d);
            x.push_back(numbers(2 * h, 17 + unsigned(d)));
            for (float& each : x.back()) each /= 7;
            own.push_back(on_device(x.back()));
            out.emplace_back(2 * h), windows.emplace_back(h, MemoryUse::Window);
            out.back().fill(0xFF), windows.back().fill(0), synchronise(Stream{});
            all.of[d] = windows.back().data();
          }
          const std::int64_t before = traffic().bytes_to_peers;
          for (int d = 0; d < 4; ++d) {
            devices.use(d);
            launch(two_levels, {.block = {32}}, devices.stream(d), d, own[std::size_t(d)].data(), h, all,
                   out[std::size_t(d)].data());
          }
          devices.wait();
          expect_equal(traffic().bytes_to_peers - before, 4 * 16 * h, "every device sends three times h / 3 packets: bytes");
          std::vector<float> want;
          for (std::size_t i = 0; i < x[0].size(); ++i) want.push_back((x[0][i] + x[1][i]) + (x[2][i] + x[3][i]));
          for (std::size_t d = 0; d < 4; ++d)
            expect_bits(out[d].download(), want,
                        "the bits of " + std::to_string(2 * h) + " sums on device " + std::to_string(d));
        },
        4);
  }
  return result();
}
