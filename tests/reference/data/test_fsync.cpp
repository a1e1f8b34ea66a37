// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief An output is on the disk before it has its name, so that a power failure leaves no empty file.
#include "tree_attn/reference/data/safetensors.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

std::string awaited;
std::vector<bool> is_there;  ///< whether the awaited file is, in every call of fsync()

}  // namespace

/// In place of that of the C library, in this program.
extern "C" int fsync(int descriptor) {
  if (!awaited.empty()) is_there.push_back(std::filesystem::exists(awaited));
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

TEST_CASE("output file: it is on the disk before it has its name") {
  const Scratch scratch;
  awaited = scratch.path("out");
  tree_attn::SafetensorsWriter writer;
  const float x = 1;
  writer.add("x", "F32", std::vector<std::int64_t>{1}, std::as_bytes(std::span(&x, 1)));
  writer.write(awaited);
  awaited.clear();
  CHECK(is_there == std::vector{false});
}
