// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The block that a decode step uploads: where its arrays lie, and that one copy takes them.
#include "tree_attn/gpu/backend/step_input.hpp"
#include "tree_attn/tests/support/device_params.hpp"

#include <cstdint>
#include <span>

namespace tree_attn::test {
namespace {

/// The bytes of all arrays, in the order of StepArrays.
std::vector<std::span<unsigned char>> bytes_of_arrays(const device::StepArrays& arrays, const AttentionShape& shape) {
  const auto bytes = [](auto* first, std::int64_t n) {
    return std::span(reinterpret_cast<unsigned char*>(first), static_cast<std::size_t>(n) * sizeof *first);
  };
  return {bytes(arrays.q, shape.n_rows() * shape.head_dim * static_cast<std::int64_t>(bytes_of(shape.dtype))),
          bytes(arrays.appended, shape.bytes_per_position()), bytes(arrays.lengths, shape.batch),
          bytes(arrays.rows, shape.batch), bytes(arrays.lists, shape.batch)};
}

std::vector<unsigned char> on_host(std::span<unsigned char> on_device) {
  const auto n = static_cast<std::int64_t>(on_device.size());
  device::DeviceBuffer<unsigned char> copy(n);
  copy.queue_copy_in(device::Stream{}, on_device.data(), 0, 0, 0, n, 1);
  return copy.download();
}

std::int64_t aligned(std::size_t n_bytes) { return static_cast<std::int64_t>((n_bytes + 15) / 16 * 16); }

}  // namespace

TEST_CASE("step input: its arrays begin at multiples of 16 bytes, share none, and are uploaded by one copy") {
  // Rows of 26 and 14 bytes, which end between multiples of 16, as the lengths of an odd batch do.
  const AttentionShape ragged{DType::BF16, DType::BF16, 3, 6, 2, 1, 13, 7};
  AttentionShape even{DType::F32, DType::F32, 4, 2, 2, 2, 64, 64}, none = even;
  none.batch = 0;
  for (const AttentionShape& shape : {ragged, even, none}) {
    CAPTURE(shape.batch);
    device::StepInput input(shape);
    const auto uploaded = [&](bool has_lists) {
      const std::int64_t n = device::traffic().n_uploads, n_bytes = device::traffic().bytes_uploaded;
      const device::OwnedStream stream;
      input.queue_upload(stream, has_lists);
      device::synchronise(stream);
      CHECK(device::traffic().n_uploads - n == (shape.batch > 0 ? 1 : 0));
      return device::traffic().bytes_uploaded - n_bytes;
    };
    const auto set = [&](int first) {
      for (const std::span<unsigned char> array : bytes_of_arrays(input.on_host(), shape))
        std::ranges::fill(array, static_cast<unsigned char>(first++));
    };
    const auto arrays = bytes_of_arrays(input.on_device(), shape);
    const auto check = [&](const std::vector<int>& values) {
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        CAPTURE(i);
        CHECK(reinterpret_cast<std::uintptr_t>(arrays[i].data()) % 16 == 0);
        CHECK(on_host(arrays[i]) == std::vector<unsigned char>(arrays[i].size(), static_cast<unsigned char>(values[i])));
      }
    };
    std::int64_t n_bytes = 0;
    for (std::size_t i = 0; i < 4; ++i) n_bytes += aligned(arrays[i].size());
    set(1);
    CHECK(uploaded(true) == n_bytes + static_cast<std::int64_t>(arrays[4].size()));
    check({1, 2, 3, 4, 5});
    // The contiguous order has no lists.
    set(11);
    CHECK(uploaded(false) == n_bytes);
    check({11, 12, 13, 14, 5});
    // The host finds what it has written.
    int value = 11;
    for (const std::span<unsigned char> array : bytes_of_arrays(input.on_host(), shape)) {
      CHECK(std::ranges::all_of(array, [&](unsigned char byte) { return byte == value; }));
      ++value;
    }
  }
}

}  // namespace tree_attn::test
