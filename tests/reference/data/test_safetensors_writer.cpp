// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Writing tensor files: written tensors are read back unchanged, and a failed write leaves no file.
#include "reference/data/safetensors.hpp"
#include "tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

namespace {

using namespace tree_attn;

/// Limits the size of files of this process during its lifetime, to simulate a full disk.
class DiskOf {
 public:
  explicit DiskOf(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~DiskOf() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE("writer: every dtype, empty tensors, scalars and odd names are read back unchanged") {
  const std::vector<std::string> dtypes = {
      "BOOL", "F4",  "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
      "I16",  "U16", "F16",     "BF16",    "I32", "U32", "F32",     "C64",     "F64",     "I64",         "U64"};
  const std::vector<std::vector<std::int64_t>> shapes = {{4}, {2, 3, 4}, {0}, {3, 0, 5}, {1, 1, 2, 2}};
  const std::vector<std::string> names = {"", "q", "naïve \"\\ / ключ 😀", std::string("a\0b", 3), "../../etc/passwd\n\x7f"};

  SafetensorsWriter writer;
  struct Wanted {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Wanted> wanted;  // a map does not move its strings
  const auto add = [&](const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape) {
    const std::int64_t n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::string bytes;
    for (std::int64_t i = 0; i < n * bits_of_dtype(dtype) / 8; ++i) bytes += static_cast<char>(wanted.size() * 31 + i);
    writer.add(name, dtype, shape, bytes_of((wanted[name] = {dtype, shape, bytes}).bytes));
  };
  add("odd", "U8", {3});
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    CHECK(bits_of_dtype(dtypes[i]) > 0);
    for (std::size_t j = 0; j < shapes.size(); ++j) add(dtypes[i] + "/" + std::to_string(j), dtypes[i], shapes[j]);
  }
  for (const std::string& name : names) add(name, "F32", {2});
  add("scalar", "F64", {});

  const Scratch scratch;
  const std::string path = scratch.path("out.safetensors");
  writer.write(path);
  CHECK(scratch.names() == std::vector<std::string>{"out.safetensors"});
  const SafetensorsFile file = SafetensorsFile::open(path);
  CHECK(file.tensors().size() == wanted.size());
  for (const TensorInfo& tensor : file.tensors()) {
    CAPTURE(tensor.name);
    const auto& [dtype, shape, bytes] = wanted.at(tensor.name);
    CHECK((tensor.dtype == dtype && tensor.shape == shape));
    REQUIRE(tensor.end - tensor.begin == bytes.size());
    CHECK(std::memcmp(file.data(tensor), bytes.data(), bytes.size()) == 0);
    // Wide elements come first, so each tensor starts at a multiple of its element size.
    if (bits_of_dtype(tensor.dtype) % 8 == 0) {
      CHECK(reinterpret_cast<std::uintptr_t>(file.data(tensor)) % (static_cast<unsigned>(bits_of_dtype(tensor.dtype)) / 8) ==
            0);
    }
  }
  // Equal tensors give equal bytes, without names of files or processes.
  writer.write(scratch.path("again"));
  CHECK(Scratch::read(path) == Scratch::read(scratch.path("again")));
}

TEST_CASE("writer: a file without tensors") {
  const Scratch scratch;
  SafetensorsWriter().write(scratch.path("none"));
  CHECK(Scratch::read(scratch.path("none")) == std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  CHECK(SafetensorsFile::open(scratch.path("none")).tensors().empty());
}

TEST_CASE("writer: a failed write reports the reason and leaves no file") {
  const Scratch scratch;
  const std::string bytes(1 << 16, 'x');
  SafetensorsWriter writer;
  writer.add("w", "U8", std::array<std::int64_t, 1>{1 << 16}, bytes_of(bytes));
  const auto check_fails = [&](const std::string& path, const std::string& reason) {
    const std::string message = test::message<InputError>([&] { writer.write(path); });
    CHECK(message == path + ": " + reason);
  };

  const std::string kept = scratch.write("kept", "as it was");
  check_fails(scratch.path("none/out"), "cannot write: No such file or directory");
  {
    const DiskOf disk(1 << 12);
    check_fails(kept, "cannot write: File too large");
    check_fails(scratch.path("new"), "cannot write: File too large");
  }
  CHECK(scratch.names().size() == 1);
  CHECK(Scratch::read(kept) == "as it was");
}

TEST_CASE("writer: tensors that do not fit their description are refused when they are added") {
  SafetensorsWriter writer;
  const std::string bytes(8, 'x');
  const auto add = [&](std::string_view name, std::string_view dtype, std::vector<std::int64_t> shape) {
    writer.add(name, dtype, shape, bytes_of(bytes));
  };
  add("w", "F32", {2});
  CHECK_THROWS_AS(add("w", "F32", {2}), std::invalid_argument);
  CHECK_THROWS_AS(add("__metadata__", "F32", {2}), std::invalid_argument);
  CHECK_THROWS_AS(add("\xff", "F32", {2}), std::invalid_argument);
  CHECK_THROWS_AS(add("x", "f32", {2}), std::invalid_argument);
  CHECK_THROWS_AS(add("x", "F32", {3}), std::invalid_argument);
  CHECK_THROWS_AS(add("x", "F32", {-1, -2}), std::invalid_argument);
  CHECK_THROWS_AS(add("x", "F32", {std::int64_t{1} << 62, 4}), std::invalid_argument);
  const Scratch scratch;
  writer.write(scratch.path("out"));
  CHECK(SafetensorsFile::open(scratch.path("out")).tensors().size() == 1);
}
