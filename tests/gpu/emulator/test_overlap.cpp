// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Launches that overlap: what a kernel may touch before it waits for the launch before it.
#include "tests/gpu/emulator/emulator_test.hpp"

namespace tree_attn::emulated::overlap_test {
namespace {

enum class Touch { kRead, kWrite, kCount };

void touch(Touch what, float* buffer, unsigned* counter, bool waits) {
  launch_dependents();
  if (waits) wait_for_previous_launch();
  if (what == Touch::kRead) load_fresh(buffer);
  if (what == Touch::kWrite) store_fresh(buffer, 1);
  if (what == Touch::kCount) atomic_inc_acq_rel(counter, 9);
}

struct Fixture {
  DeviceBuffer<float> shared{1}, other{1}, input{1, MemoryUse::Input};
  DeviceBuffer<unsigned> counter{1};
  std::string run(Touch what, const DeviceBuffer<float>& buffer, bool waits = false, bool overlaps = true) {
    return error_of(touch, {.overlaps = overlaps}, what, buffer.data(), counter.data(), waits);
  }
};

TEST_CASE("emulator: a launch that overlaps reads nothing of the launch before it, until it waits") {
  Fixture f;
  const auto after_a_write = [&](Touch what, bool waits, bool overlaps) {
    CHECK(f.run(Touch::kWrite, f.shared, false, false) == "");
    return f.run(what, f.shared, waits, overlaps);
  };
  for (const Touch what : {Touch::kRead, Touch::kWrite}) {
    const std::string error = after_a_write(what, false, true);
    CHECK(has(error, "a buffer that the launch before this one may still write: no wait_for_previous_launch()"));
    CHECK(has(error, "test_overlap.cpp:"));
    CHECK(after_a_write(what, true, true) == "");
    CHECK(after_a_write(what, false, false) == "");
  }
}

TEST_CASE("emulator: a launch that overlaps writes nothing that the launch before it reads, until it waits") {
  Fixture f;
  CHECK(f.run(Touch::kRead, f.shared, false, false) == "");
  CHECK(has(f.run(Touch::kWrite, f.shared), "store_fresh writes a buffer that the launch before this one may still read"));
  CHECK(f.run(Touch::kRead, f.shared, false, false) == "");
  CHECK(f.run(Touch::kRead, f.shared) == "");
  CHECK(f.run(Touch::kWrite, f.other) == "");
  CHECK(f.run(Touch::kRead, f.input) == "");
  // The counter of the last block is memory as any other.
  CHECK(f.run(Touch::kCount, f.shared, false, false) == "");
  CHECK(has(f.run(Touch::kCount, f.shared), "atomic_inc_acq_rel writes"));
  CHECK(f.run(Touch::kCount, f.shared, true) == "");
}

TEST_CASE("emulator: a launch that overlaps reads what lies beside the bytes that the launch before it writes") {
  const DeviceBuffer<float> eight(8);
  Fixture f;
  // Sixteen bytes are one.
  for (int i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(error_of(touch, {}, Touch::kWrite, eight.data() + 2, f.counter.data(), false) == "");
    const std::string error = error_of(touch, {.overlaps = true}, Touch::kRead, eight.data() + i, f.counter.data(), false);
    CHECK(has(error, "no wait_for_previous_launch()") == (i < 4));
  }
  // Two launches before it, which write different bytes.
  for (const int first : {0, 4}) {
    CHECK(error_of(touch, {}, Touch::kWrite, eight.data() + first, f.counter.data(), false) == "");
    CHECK(error_of(touch, {.overlaps = true}, Touch::kWrite, eight.data() + 4 - first, f.counter.data(), true) == "");
    for (const int i : {0, 4}) {
      const std::string error = error_of(touch, {.overlaps = true}, Touch::kRead, eight.data() + i, f.counter.data(), false);
      CHECK(has(error, "no wait_for_previous_launch()"));
    }
  }
  // What it writes itself, it writes after the wait.
  CHECK(error_of(touch, {}, Touch::kWrite, eight.data(), f.counter.data(), false) == "");
  CHECK(has(error_of(touch, {.overlaps = true}, Touch::kWrite, eight.data() + 7, f.counter.data(), false),
            "store_fresh writes"));
}

TEST_CASE("emulator: of a chain of launches that overlap, none may have ended") {
  Fixture f;
  CHECK(f.run(Touch::kWrite, f.shared, false, false) == "");
  CHECK(f.run(Touch::kRead, f.other) == "");
  CHECK(has(f.run(Touch::kRead, f.shared), "may still write"));
  CHECK(f.run(Touch::kRead, f.other, false, false) == "");
  CHECK(f.run(Touch::kRead, f.shared) == "");
}

void some_block_waits(float* buffer) {
  if (blockIdx.x == 0) wait_for_previous_launch();
  store_fresh(buffer + blockIdx.x, 1);
}

TEST_CASE("emulator: every thread waits for itself") {
  Fixture f;
  const DeviceBuffer<float> two(2);
  CHECK(f.run(Touch::kWrite, two, false, false) == "");
  CHECK(has(error_of(some_block_waits, {.grid = {2}, .overlaps = true}, two.data()), "block (1, 0, 0)"));
}

}  // namespace
}  // namespace tree_attn::emulated::overlap_test
