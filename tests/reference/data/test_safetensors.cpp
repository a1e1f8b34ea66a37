// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reading tensor files: names, order, alignment, hash and limits; damaged files are harmless.
#include "reference/data/safetensors.hpp"
#include "tests/support/ending.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <sstream>

using namespace tree_attn;

TEST_CASE("safetensors: names are compared at full length, tensors come in the order of their data") {
  const Scratch scratch;
  const auto entry = [](const std::string& name, int begin) {
    return "\"" + name + R"(":{"dtype":"F32","shape":[1,1,1,2],"data_offsets":[)" + std::to_string(begin) + "," +
           std::to_string(begin + 8) + "]}";
  };
  // One leading blank: the data starts at an odd address.
  std::string header =
      " {" + entry("b", 8) + "," + entry("a\\u0000b", 16) + "," + entry("a", 0) + R"(,"__metadata__":{"k":"v"}})";
  header.resize(header.size() / 2 * 2 + 1, ' ');
  const float elements[] = {1, 2, 3, 4, 5, 6};
  const std::string path =
      scratch.write("order", with_length(header, {reinterpret_cast<const char*>(elements), sizeof elements}));
  const SafetensorsFile file = SafetensorsFile::open(path);

  CHECK(file.path() == path);
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "a");
  CHECK(file.tensors()[1].name == "b");
  CHECK(file.tensors()[2].name == std::string("a\0b", 3));
  CHECK(file.find("c") == nullptr);
  CHECK(file.find("") == nullptr);
  CHECK(file.find("a")->begin == 0);
  CHECK(file.find(std::string_view("a\0b", 3))->begin == 16);

  const TensorView view = view4(file, "b", "b, n_h, l, d_h");
  CHECK(reinterpret_cast<std::uintptr_t>(view.data) % 2 == 1);
  CHECK(view.shape == std::array<std::int64_t, 4>{1, 1, 1, 2});
  float row[2];
  load_row(view, 0, 0, 0, row);
  CHECK(row[0] == 3);
  CHECK(row[1] == 4);
}

TEST_CASE("safetensors: a header full of metadata takes a small multiple of its size in memory") {
  const Scratch scratch;
  constexpr int kKeys = 1'000'000;
  std::ostringstream header;
  header << R"({"__metadata__":{)" << std::hex;
  for (int i = 0; i < kKeys; ++i) header << (i == 0 ? "\"" : ",\"") << i << R"(":"")";
  header << "}}";
  const std::string path = scratch.write("metadata", with_length(header.str()));
  const long header_kib = static_cast<long>(header.str().size() / 1024);

  // In a child process, because the peak is that of the whole lifetime.
  const auto peak_kib = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
  };
  const long grown = std::stol(test::ending_of([&] {
                                 const long before = peak_kib();
                                 const bool taken = refusal(path).empty();
                                 std::fprintf(stderr, "%ld", taken ? peak_kib() - before : -1);
                               }).err);
  MESSAGE("header of " << header_kib << " KiB, memory grew by " << grown << " KiB");
  CHECK(grown >= header_kib);                             // it was read
  CHECK((test::kIsSanitized || grown < 5 * header_kib));  // a sanitizer keeps several times as much
}

TEST_CASE("safetensors: an entry of the metadata is found by its key, and nothing else is") {
  const Scratch scratch;
  const auto open = [&](const std::string& header, const std::string& data = "") {
    return SafetensorsFile::open(scratch.write("file", with_length(header, data)));
  };
  const std::string tensor = R"("config":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  const auto file = open(R"({"__metadata__":{"a":"1","config":"{\"x\": \"\u0041\"}","config2":""},)" + tensor + "}", "x");
  CHECK(file.metadata("config") == R"({"x": "A"})");
  CHECK(file.metadata("config2") == "");
  CHECK(file.metadata("a") == "1");
  CHECK_FALSE(file.metadata("conf").has_value());
  CHECK_FALSE(file.metadata("dtype").has_value());
  CHECK_FALSE(open("{" + tensor + "}", "x").metadata("config").has_value());
  CHECK_FALSE(open(R"({"__metadata__":{}})").metadata("config").has_value());
  CHECK_FALSE(open("{}").metadata("config").has_value());
}

TEST_CASE("safetensors: the hash distinguishes files by header and by size") {
  const Scratch scratch;
  const auto hash_of = [&](const std::string& bytes) {
    return SafetensorsFile::open(scratch.write("hash", bytes)).header_hash();
  };
  const auto file_of = [](const std::string& name, int n) {
    return with_length("{\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(n) + R"(],"data_offsets":[0,)" +
                           std::to_string(n) + "]}}",
                       std::string(n, 'x'));
  };
  CHECK(hash_of(file_of("q", 4)) == hash_of(file_of("q", 4)));
  CHECK(hash_of(file_of("q", 4)) != hash_of(file_of("k", 4)));
  CHECK(hash_of(file_of("q", 4)) != hash_of(file_of("q", 5)));
  // FNV-1a of 18 bytes, computed independently: ranks with different builds must agree.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : with_length("{}") + std::string("\x0a\0\0\0\0\0\0\0", 8))
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  CHECK(hash_of(with_length("{}")) == hash);
}

TEST_CASE("safetensors: no prefix of a file is accepted, and changed header bytes are harmless") {
  const Scratch scratch;
  const std::string header = R"({"__metadata__":{"é":"\ud83d\ude00"},)"
                             R"("q":{"dtype":"F32","shape":[1,2,1,2],"data_offsets":[0,16]},)"
                             R"("n":{"dtype":"I64","shape":[],"data_offsets":[16,24]}} )";
  const std::string whole = with_length(header, std::string(24, 'x'));
  CHECK(refusal(scratch.write("whole", whole)) == "");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string path = scratch.write("prefix", whole.substr(0, n));
    check_refused(path, refusal(path), "");
  }

  // Change each byte in place, read the file, and restore the byte.
  const std::string path = scratch.write("changed", whole);
  std::fstream changed(path, std::ios::in | std::ios::out | std::ios::binary);
  int n_taken = 0, n_refused = 0;
  unsigned sum = 0;
  for (std::size_t at = 0; at < 8 + header.size(); ++at) {
    const auto put = [&](int byte) { changed.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte)).flush(); };
    for (int byte = 0; byte < 256; ++byte) {
      put(byte);
      const std::string message = refusal(path, [&](const SafetensorsFile& file) {
        for (const TensorInfo& tensor : file.tensors()) {
          const std::byte* data = file.data(tensor);
          for (std::uint64_t i = 0; i < tensor.end - tensor.begin; ++i) sum += std::to_integer<unsigned>(data[i]);
        }
      });
      ++(message.empty() ? n_taken : n_refused);
      if (!message.empty() && !message.starts_with(path + ": ")) FAIL(message);
    }
    put(whole[at]);
  }
  CHECK(Scratch::read(path) == whole);
  MESSAGE(n_taken << " accepted, " << n_refused << " refused, sum " << sum);
  CHECK(n_taken > 0);
  CHECK(n_refused > n_taken);
}
