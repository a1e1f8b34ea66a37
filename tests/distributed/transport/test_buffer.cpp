// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that is kept from request to request.
#include "distributed/transport/buffer.hpp"

#include <doctest/doctest.h>

namespace tree_attn::test {
namespace {

int n_allocated, n_freed;

/// Memory that is counted.
Memory allocate_and_count(std::size_t n_bytes) {
  ++n_allocated;
  return {new std::byte[n_bytes], [](std::byte* bytes) {
            ++n_freed;
            delete[] bytes;
          }};
}

}  // namespace

TEST_CASE("Buffer: a request that fits gets the same memory, with what was written there. Nothing asked for, nothing held") {
  Buffer buffer;
  CHECK(buffer.first<float>(0).data() == nullptr);
  const std::span<float> written = buffer.first<float>(1000);
  written[0] = 3, written[999] = 5;
  for (const std::size_t n : {1000u, 3u, 0u, 999u}) {
    CHECK(buffer.first<float>(n).size() == n);
    CHECK(buffer.first<float>(n).data() == written.data());
  }
  // The same bytes for another type.
  CHECK(buffer.first<std::byte>(4000).data() == std::as_bytes(written).data());
  CHECK((written[0] == 3 && written[999] == 5));
}

TEST_CASE("Buffer: memory comes from the function that it is given, a few times as requests grow by one, and goes back") {
  n_allocated = n_freed = 0;
  {
    Buffer buffer(allocate_and_count);
    for (std::size_t n = 1 << 20; n < (1 << 20) + 2000; ++n) {
      const std::span<std::byte> bytes = buffer.first<std::byte>(n);
      REQUIRE(bytes.size() == n);
      bytes[n - 1] = std::byte{1};  // the last one is there, too
    }
    CHECK(n_allocated == 2);
    CHECK(n_freed == 1);
    // It has grown by a half, and not by more.
    buffer.first<std::byte>((1 << 20) * 3 / 2);
    CHECK(n_allocated == 2);
    buffer.first<std::byte>((1 << 20) * 3 / 2 + 1);
    CHECK(n_allocated == 3);
  }
  CHECK(n_freed == 3);
}

}  // namespace tree_attn::test
