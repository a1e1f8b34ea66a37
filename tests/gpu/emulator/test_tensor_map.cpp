// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Boxes of an array: where their elements land, what lies outside it, and which rules the copy checks.
#include "tests/gpu/emulator/emulator_test.hpp"

namespace tree_attn::emulated::tensor_map_test {
namespace {

constexpr int kRows = 16, kBoxElements = kRows * kBoxColumns, kBoxBytes = kRows * kBoxRowBytes;

TensorMap map_of(const TensorArray& array) {
  TensorMap map;
  encode_tensor_map(array, &map);
  return TensorMap(map);  // a copy: the place of the result may be a temporary, which g++ 12 does not align
}

/// Fetches one box and writes it out as it lies in shared memory.
void fetch(const TensorMap map, int column, int row, int head, int entry, int shift, int n_bytes, std::uint16_t* out) {
  Arena arena;
  const Shared<BFloat16> box = arena.take<BFloat16>(kBoxElements + shift, kBoxAlignment);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_fence_init();
    barrier_arrive_expect(barrier, n_bytes);
    bulk_copy_tensor<BFloat16>(box + shift, map, column, row, head, entry, barrier, CacheHint::EvictFirst);
  }
  __syncthreads();
  barrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxElements; i += static_cast<int>(blockDim.x)) {
    const BFloat16 x = box[shift + i];
    out[i] = x.bits;
  }
}

/// [2 entries, 3 heads, 20 positions, 72 elements] with gaps between all of them; element i of the buffer has the bits i.
struct Fixture {
  TensorArray array{.dtype = DType::BF16, .extent = {2, 3, 20, 72}, .stride = {6000, 1800, 88}, .rows = kRows};
  DeviceBuffer<std::uint16_t> buffer{6000 + 2 * 1800 + 19 * 88 + 72, MemoryUse::Input};
  DeviceBuffer<std::uint16_t> out{kBoxElements};
  Launch config{.block = {32}, .shared_bytes = kBoxBytes + 1024 + 128};

  Fixture() {
    std::vector<std::uint16_t> elements(static_cast<std::size_t>(buffer.size()));
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<std::uint16_t>(i);
    buffer.upload(elements);
    array.data = buffer.data();
  }
  std::string error(int column, int row, int shift = 0, int n_bytes = kBoxBytes) {
    return error_of(fetch, config, map_of(array), column, row, 0, 0, shift, n_bytes, out.data());
  }
};

TEST_CASE("emulator: compute capability 8 has neither tensor maps nor bulk copies") {
  Fixture f;
  const TensorMap map = map_of(f.array);
  const SettingsScope scope({.major = 8});
  CHECK(has(error_in([&] { map_of(f.array); }), "encode_tensor_map: compute capability 8 has no tensor maps"));
  CHECK(has(error_of(fetch, f.config, map, 0, 0, 0, 0, 0, kBoxBytes, f.out.data()),
            "compute capability 8 has no bulk copies"));
}

TEST_CASE("emulator: a box arrives swizzled, and what lies outside the array arrives as zeros") {
  Fixture f;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const SettingsScope scope({.seed = seed});
    // Inside; over the end of the rows; over the last position; before the first; heads and entries that are not there.
    const int places[][4] = {{0, 0, 0, 0},  {0, 4, 2, 1},    {8, 3, 1, 0}, {64, 0, 0, 1}, {0, 9, 2, 1},
                             {64, 9, 1, 1}, {-16, -3, 0, 0}, {0, 0, 3, 0}, {0, 0, 0, -1}, {3, 0, 0, 0}};
    for (const auto& [column, row, head, entry] : places) {
      launch(fetch, f.config, {}, map_of(f.array), column, row, head, entry, 0, kBoxBytes, f.out.data());
      const auto got = f.out.download();
      int n_wrong = 0;
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kBoxColumns; ++c) {
          const bool inside = head >= 0 && head < 3 && entry >= 0 && entry < 2 && row + r >= 0 && row + r < 20 &&
                              column + c >= 0 && column + c < 72;
          const int expected = inside ? entry * 6000 + head * 1800 + (row + r) * 88 + column + c : 0;
          n_wrong += got[static_cast<std::size_t>(r * 64 + (c / 8 ^ r % 8) * 8 + c % 8)] != expected;
        }
      }
      CAPTURE(column);
      CAPTURE(row);
      CHECK(n_wrong == 0);
    }
  }
}

TEST_CASE("emulator: a box goes to a multiple of 1024 bytes, and its barrier expects all of its bytes") {
  Fixture f;
  CHECK(f.error(0, 0) == "");
  CHECK(has(f.error(0, 0, 64), "bulk_copy_tensor: the address is not a multiple of 1024"));
  // Also the bytes that lie outside the array.
  CHECK(has(f.error(64, 9, 0, kBoxBytes - 128), "2048 bytes, of which the barrier expects 1920"));
}

enum class Pair { kRight, kUnasked, kOneRankMore, kWithoutItself, kNotFree };

/// The first of two blocks fetches a box for both, once the other has said that it awaits one.
void fetch_for_two(Pair pair, const TensorMap map, std::uint16_t* out) {
  Arena arena;
  const Shared<BFloat16> box = arena.take<BFloat16>(kBoxElements, kBoxAlignment);
  const Shared<Barrier> full = arena.take<Barrier>(1), is_free = arena.take<Barrier>(1);
  if (threadIdx.x == 0) barrier_init(full, 1), barrier_init(is_free, 2), barrier_fence_init();
  cluster_sync();
  const bool is_first = cluster_rank() == 0;
  if (threadIdx.x == 0) {
    if (pair != Pair::kUnasked || is_first) barrier_arrive_expect(full, kBoxBytes);
    if (pair != Pair::kNotFree || is_first) barrier_arrive_at(is_free, 0);
    if (is_first) {
      barrier_wait(is_free, 0);
      bulk_copy_tensor_to<BFloat16>(pair == Pair::kOneRankMore     ? 7
                                    : pair == Pair::kWithoutItself ? 2
                                                                   : 3,
                                    box, map, 0, 0, 0, 0, full);
    }
  }
  barrier_wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxElements; i += static_cast<int>(blockDim.x)) {
    const BFloat16 x = box[i];
    out[static_cast<int>(blockIdx.x) * kBoxElements + i] = x.bits;
  }
  cluster_sync();
}

TEST_CASE("emulator: a box goes to several blocks of a cluster, each of which expects its bytes") {
  Fixture f;
  DeviceBuffer<std::uint16_t> both(2 * kBoxElements);
  f.config.grid = {2}, f.config.cluster = 2, f.config.shared_bytes += 256;
  launch(fetch, Fixture().config, {}, map_of(f.array), 0, 0, 0, 0, 0, kBoxBytes, f.out.data());
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const SettingsScope scope({.seed = seed});
    const std::int64_t before = traffic().bytes_bulk;
    launch(fetch_for_two, f.config, {}, Pair::kRight, map_of(f.array), both.data());
    CHECK(traffic().bytes_bulk - before == kBoxBytes);
    for (int i = 0; i < 2 * kBoxElements; ++i)
      REQUIRE(both.download()[static_cast<std::size_t>(i)] == f.out.download()[static_cast<std::size_t>(i % kBoxElements)]);
  }
  const auto error = [&](Pair pair) { return error_of(fetch_for_two, f.config, pair, map_of(f.array), both.data()); };
  CHECK(has(error(Pair::kUnasked), "2048 bytes, of which the barrier expects 0"));
  CHECK(has(error(Pair::kOneRankMore), "rank 2 in a cluster of 2"));
  CHECK(has(error(Pair::kWithoutItself), "barrier_wait"));
  CHECK(has(error(Pair::kNotFree), "barrier_wait"));
}

TEST_CASE("emulator: a box reads inside a buffer, and the type that the map was made for") {
  Fixture f;
  f.array.extent[2] = 21;
  f.array.stride[0] = 6000 + 1800;
  f.array.extent[0] = 1;
  CHECK(f.error(0, 4) == "");
  CHECK(
      has(error_of(fetch, f.config, map_of({f.buffer.data() + 6000 + 3600, DType::BF16, {1, 1, 21, 72}, {0, 0, 88}, kRows}),
                   0, 5, 0, 0, 0, kBoxBytes, f.out.data()),
          "bulk_copy_tensor reads bytes"));
  f.array.dtype = DType::F16;
  CHECK(has(f.error(0, 0), "the map is of F16, the kernel asks for BF16"));
}

TEST_CASE("tensor map: an array that the copy engine cannot address is refused") {
  const TensorArray good = Fixture().array;
  const auto why = [](const TensorArray& array) { return error_in([&] { map_of(array); }); };
  const auto with = [&](auto change) {
    TensorArray array = good;
    change(array);
    return why(array);
  };
  CHECK(why(good) == "");
  CHECK(with([](auto& a) { a.dtype = DType::F32; }) ==
        "encode_tensor_map: elements of F32; a tensor map takes F16, BF16 and F8_E4M3");
  CHECK(has(with([](auto& a) { a.data = static_cast<const char*>(a.data) + 8; }), "multiple of 16 bytes"));
  CHECK(has(with([](auto& a) { a.extent[2] = 0; }), "0 positions"));
  CHECK(has(with([](auto& a) { a.extent[3] = (std::int64_t{1} << 31) + 1; }), "elements of a row"));
  CHECK(has(with([](auto& a) { a.stride[2] = 76; }), "a stride of 76 elements between positions"));
  CHECK(has(with([](auto& a) { a.stride[0] = std::int64_t{1} << 39; }), "between entries"));
  CHECK(has(with([](auto& a) { a.rows = 257; }), "257 rows"));
  CHECK(has(with([](auto& a) { a.rows = 0; }), "0 rows"));
  // With one head, the distance to the next is not used.
  CHECK(with([](auto& a) { a.extent[1] = 1, a.stride[1] = 3; }) == "");
}

TEST_CASE("tensor map: it is written to a multiple of 64 bytes") {
  const TensorArray array = Fixture().array;
  alignas(128) std::byte memory[2 * sizeof(TensorMap)];
  for (int at = 0; at <= 128; at += 16) {
    CAPTURE(at);
    const std::string why = error_in([&] { encode_tensor_map(array, reinterpret_cast<TensorMap*>(memory + at)); });
    CHECK(why ==
          (at % 64 == 0 ? "" : "encode_tensor_map: a map at " + std::to_string(at % 64) + " bytes past a multiple of 64"));
  }
}

}  // namespace
}  // namespace tree_attn::emulated::tensor_map_test
