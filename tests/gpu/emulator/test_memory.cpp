// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory: NaN before it is written, pieces and buffers with ends, copies that are late.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <cmath>
#include <utility>

namespace tree_attn::emulated {
namespace {

TEST_CASE("emulator: a fresh buffer holds NaNs, whatever it is read as") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const SettingsScope scope({.seed = seed});
    const DeviceBuffer<float> floats(3);
    const DeviceBuffer<double> doubles(3);
    const DeviceBuffer<Half> halves(3);
    const DeviceBuffer<BFloat16> bfloats(3);
    CHECK(std::isnan(floats.download()[2]));
    CHECK(std::isnan(doubles.download()[2]));
    CHECK(std::isnan(widen(halves.download()[2])));
    CHECK(std::isnan(widen(bfloats.download()[2])));
    CHECK(reinterpret_cast<std::uintptr_t>(floats.data()) % 256 == 0);
  }
}

void look(int n, float* out) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(n);
  *out = piece[n - 1];
}

TEST_CASE("emulator: fresh shared memory is NaN, or an error to read") {
  DeviceBuffer<float> out(1);
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  CHECK(has(error_of(look, {.shared_bytes = 128}, 5, out.data()), "no thread has written"));
#else
  launch(look, {.shared_bytes = 128}, {}, 5, out.data());
  CHECK(std::isnan(out.download()[0]));
#endif
}

void take_differently() {
  Arena arena;
  arena.take<float>(threadIdx.x == 0 ? 1 : 2);
}
void take_aligned(int alignment, std::uint64_t* out) {
  Arena arena;
  arena.take<float>(1);
  const auto piece = arena.take<float>(256, alignment);
  const auto next = arena.take<float>(1);
  out[0] = static_cast<std::uint64_t>(
      reinterpret_cast<std::uintptr_t>(runtime::plain<runtime::Access::kBoundsOnly>(piece, 4, Line::current())));
  out[1] = static_cast<std::uint64_t>(
      reinterpret_cast<std::uintptr_t>(runtime::plain<runtime::Access::kBoundsOnly>(next, 4, Line::current())));
}

TEST_CASE("emulator: pieces of shared memory lie as on a device, fit the launch, are the same for all") {
  const DeviceBuffer<std::uint64_t> out(2);
  for (const int alignment : {128, 256, 1024}) {
    CAPTURE(alignment);
    // One element, up to the alignment, 1 KiB, one element.
    const auto bytes = static_cast<std::size_t>(alignment) + 1024 + 4;
    launch(take_aligned, {.shared_bytes = bytes}, {}, alignment, out.data());
    CHECK(out.download()[0] % static_cast<std::uint64_t>(alignment) == 0);
    CHECK(out.download()[1] % 128 == 0);
    CHECK(has(error_of(take_aligned, {.shared_bytes = bytes - 4}, alignment, out.data()), "the launch gives a block"));
  }
  CHECK(has(error_of(take_differently, {.block = {2}, .shared_bytes = 256}), "threads take different pieces"));
  CHECK(has(error_of(take_aligned, {.shared_bytes = 4096}, 192, out.data()), "an alignment of 192"));
  CHECK(has(error_of(take_aligned, {.shared_bytes = 8192}, 2048, out.data()), "an alignment of 2048"));
}

void load(const float* from, int what) {
  if (what == 0) load16_global(from);
  if (what == 1) load_once(from);
  if (what == 2) load_fresh(from);
}

TEST_CASE("emulator: loads of global memory stay inside one buffer") {
  const DeviceBuffer<float> buffer = ascending(64), other = ascending(64);
  CHECK(error_of(load, {}, buffer.data() + 60, 0).empty());
  CHECK(has(error_of(load, {}, buffer.data() + 64, 0), "reads bytes 256 to 272 of a buffer of 256"));
  CHECK(has(error_of(load, {}, buffer.data() + 62, 0), "load16_global"));
  CHECK(error_of(load, {}, buffer.data() + 63, 1).empty());
  CHECK(has(error_of(load, {}, buffer.data() + 64, 1), "load_once"));
  CHECK(has(error_of(load, {}, buffer.data() - 1, 2), "load_fresh"));
  const float host = 0;
  CHECK(has(error_of(load, {}, &host, 1), "no buffer"));
  const float* freed = nullptr;
  {
    const DeviceBuffer<float> gone = ascending(64);
    freed = gone.data();
    CHECK(error_of(load, {}, freed, 1).empty());
  }
  CHECK(has(error_of(load, {}, freed, 1), "no buffer"));
}

void reach(float* buffer, int what) {
  if (what == 0) store_fresh(buffer, 1);
  if (what == 1) load_fresh(buffer);
  if (what == 2) load_once(buffer);
  if (what == 3) load16_global(buffer);
  if (what == 4) store_fresh(buffer, 1), load_fresh(buffer);
}
void hand_on(const float* from, float* to) { *to = load_fresh(from); }

TEST_CASE("emulator: a buffer is used for what it was allocated for") {
  const DeviceBuffer<float> persistent(4), input(4, MemoryUse::Input), scratch(4, MemoryUse::Scratch);
  for (const int what : {0, 1, 2, 3, 4}) CHECK(error_of(reach, {}, persistent.data(), what).empty());
  for (const int what : {1, 2, 3}) CHECK(error_of(reach, {}, input.data(), what).empty());
  CHECK(has(error_of(reach, {}, input.data(), 0), "store_fresh writes a buffer of input"));
  for (const int what : {0, 4}) CHECK(error_of(reach, {}, scratch.data(), what).empty());
  CHECK(has(error_of(reach, {}, scratch.data(), 2), "load_once is for memory that no kernel writes"));
  CHECK(has(error_of(reach, {}, scratch.data(), 3), "load16_global is for memory that no kernel writes"));
  CHECK(has(error_of(reach, {}, persistent.data() + 4, 0), "store_fresh writes bytes 16 to 20 of a buffer of 16"));
}

TEST_CASE("emulator: scratch memory is NaN when a launch begins, or an error to read, unless it continues the last") {
  DeviceBuffer<float> out(1), scratch(2, MemoryUse::Scratch), persistent(1);
  for (const DeviceBuffer<float>* kept : {&persistent, &scratch}) {
    launch(reach, {}, {}, kept->data(), 0);
    launch(hand_on, {.continues = true}, {}, kept->data(), out.data());
    CHECK(out.download()[0] == 1);
  }
  launch(hand_on, {}, {}, persistent.data(), out.data());
  CHECK(out.download()[0] == 1);
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  const std::string unwritten = "load_fresh reads scratch memory that this launch has not written";
  CHECK(has(error_of(hand_on, {}, scratch.data(), out.data()), unwritten));
  CHECK(has(error_of(hand_on, {}, scratch.data(), out.data()), "test_memory.cpp:"));
  CHECK(has(error_of(hand_on, {}, scratch.data(), out.data()), "block (0, 0, 0), thread (0, 0, 0)"));
  launch(reach, {}, {}, scratch.data(), 0);
  CHECK(has(error_of(hand_on, {.continues = true}, scratch.data() + 1, out.data()), unwritten));
#else
  launch(hand_on, {}, {}, scratch.data(), out.data());
  CHECK(std::isnan(out.download()[0]));
#endif
}

void copy(const float* from, int n_bytes, int shift, float* out) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(8);
  copy_async16(piece + shift, from, n_bytes);
  copy_async_commit();
  if (kMayLook) {
    const float early = piece[0];
    out[4] = early;
  }
  copy_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[i] = piece[shift + i];
}

TEST_CASE("emulator: an asynchronous copy is late, and fills up with zeros") {
  const DeviceBuffer<float> in = ascending(64), out(5);
  for (const int n : {0, 1, 2, 3, 4}) {
    // A copy of nothing may start anywhere, as long as it is aligned.
    const float* const from = n == 0 ? in.data() + 64 : in.data() + 60;
    launch(copy, {.shared_bytes = 32}, {}, from, 4 * n, 4 * (n % 2), out.data());
    const auto got = out.download();
    if (kMayLook && n % 2 == 0) CHECK(std::isnan(got[4]));
    for (int i = 0; i < 4; ++i) CHECK(got[static_cast<std::size_t>(i)] == static_cast<float>(i < n ? 60 + i : 0));
  }
  CHECK(has(error_of(copy, {.shared_bytes = 32}, in.data(), 17, 0, out.data()), "0 to 16"));
  CHECK(has(error_of(copy, {.shared_bytes = 32}, in.data() + 1, 16, 0, out.data()), "multiple of 16"));
  CHECK(has(error_of(copy, {.shared_bytes = 32}, in.data(), 16, 1, out.data()), "multiple of 16"));
  CHECK(!error_of(copy, {.shared_bytes = 32}, in.data(), 16, 8, out.data()).empty());
  CHECK(has(error_of(copy, {.shared_bytes = 32}, in.data() + 64, 4, 0, out.data()), "copy_async16 reads bytes 256 to 260"));
}

void writes_at(int at) {
  Arena arena;
  arena.take<int>(8);
  const Shared<int> piece = arena.take<int>(8);
  piece[at] = 1;
}

TEST_CASE("emulator: what is written before or behind a piece of shared memory is found when the block ends") {
  CHECK(error_of(writes_at, {.shared_bytes = 256}, 7) == "");
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  CHECK(has(error_of(writes_at, {.shared_bytes = 256}, -1), "bytes -4 to 0 of a piece of shared memory of 32"));
  CHECK(has(error_of(writes_at, {.shared_bytes = 256}, 8), "bytes 32 to 36 of a piece of shared memory of 32"));
#endif
  if (!kMayLook) return;  // ASan and the shadow mode stop the write itself
  CHECK(has(error_of(writes_at, {.shared_bytes = 256}, -1), "written shared memory just before what was taken here"));
  CHECK(has(error_of(writes_at, {.shared_bytes = 256}, 8), "written shared memory behind what was taken here"));
}

TEST_CASE("emulator: a buffer that was moved from has no elements") {
  DeviceBuffer<float> from = ascending(3), to(5);
  to = std::move(from);
  CHECK(from.size() == 0);
  CHECK(from.download().empty());
  CHECK(to.download() == std::vector<float>{0, 1, 2});
}

enum class Move { kStore, kLoad, kLoadMatrices };

void misaligned(Move move) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(8);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) piece[i] = 0;
  }
  __syncthreads();
  std::uint32_t matrices[1][4];
  switch (move) {
    case Move::kStore: store16(piece + 1, Bytes16{}); break;
    case Move::kLoad: load16(piece + 1); break;
    case Move::kLoadMatrices: load_matrices_x4(matrices, [&](int) { return piece + 1; }); break;
  }
}

TEST_CASE("emulator: 16 bytes of shared memory lie at a multiple of 16") {
  for (const auto& [move, word] :
       {std::pair{Move::kStore, "store16"}, {Move::kLoad, "load16"}, {Move::kLoadMatrices, "load_matrices_x4"}}) {
    const std::string error = error_of(misaligned, {.block = {32}, .shared_bytes = 32}, move);
    CHECK(has(error, std::string(word) + ": the address is not a multiple of 16"));
  }
}

}  // namespace
}  // namespace tree_attn::emulated
