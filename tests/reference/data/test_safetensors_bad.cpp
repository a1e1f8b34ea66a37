// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reading tensor files: every bad file is refused for its own reason, every unusual but legal one is read.
///
/// The files are those of tests/data/safetensors_bad.json. Files that are too large, and paths that are not files, are made
/// here.
#include "reference/data/safetensors.hpp"
#include "reference/data/safetensors_header.hpp"
#include "tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

namespace {

using namespace tree_attn;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

TEST_CASE("safetensors: every bad file is refused for its own reason, every legal one is read") {
  const Scratch scratch;
  int n_refused = 0, n_read = 0, n_elsewhere = 0;
  const auto list = nlohmann::json::parse(Scratch::read(std::string(TREE_ATTN_TEST_DATA) + "/safetensors_bad.json"));
  for (const auto& bad : list["cases"]) {
    const std::string name = bad["name"];
    CAPTURE(name);
    if (!bad.contains("hex")) {
      ++n_elsewhere;
      continue;
    }
    const std::string path = scratch.write(name, from_hex(bad["hex"]));
    const std::string message = refusal(path, [&](const SafetensorsFile& file) {
      if (name == "tool_missing_tensor") file.at("k");
      if (name == "tool_wrong_rank") view4(file, "q", "b, n_h, l, d_h");
      if (name == "tool_dtype_unsupported") view4(file, "k", "b, n_kv, N, d_h");
    });
    if (bad["expected"] == "reject") {
      check_refused(path, message, bad["error_says"]);
      ++n_refused;
    } else {
      CHECK(message == "");
      ++n_read;
    }
  }
  MESSAGE(n_refused << " refused, " << n_read << " read");
  CHECK(n_refused >= 75);
  CHECK(n_read >= 11);
  CHECK(n_elsewhere == 10);  // six of them below, four with the program

  // The limit of an axis holds beside an axis of 0 too.
  constexpr std::int64_t kTooLong = std::int64_t{1} << 48;
  CHECK(bytes_of_tensor(8, {0, kTooLong - 1}) == 0);
  CHECK(!bytes_of_tensor(8, {0, kTooLong}));
}

TEST_CASE("safetensors: a million overlapping tensors are refused without comparing all pairs") {
  std::string header = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    header += (i == 0 ? "\"w" : ",\"w") + std::to_string(i) + R"(":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  }
  const Scratch scratch;
  const std::string path = scratch.write("overlap_many", with_length(header + "}", std::string(16, '\0')));
  const auto start = std::chrono::steady_clock::now();
  check_refused(path, refusal(path), R"(tensors "w0" and "w1" overlap)");
  // This takes one or two seconds, and half a minute under sanitizers. Comparing all pairs would take most of an hour.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(5));
}

TEST_CASE("safetensors: names in messages are truncated and escaped") {
  const Scratch scratch;
  const std::string name = scratch.write(
      "name",
      with_length("{\"" + std::string(1'000'000, 'a') + R"(":{"dtype":"F32","shape":[2,2],"data_offsets":[0,4]}})", "1234"));
  check_refused(name, refusal(name), "tensor \"" + std::string(60, 'a') + "...\": shape [2, 2]");
  CHECK(readable("\xff\xC3", 8) == "\\xff\\xc3");
  CHECK(readable("") == "");
  // A surrogate and an overlong form are not characters.
  CHECK(readable("\xED\xA0\x80\xE0\x80\x80") == "\\xed\\xa0\\x80\\xe0\\x80\\x80");

  // The path is shown in full, but escaped too, so that the message stays on one line.
  const std::string path = scratch.write("two\nlines", "");
  CHECK(refusal(path).find("two\\x0alines: file too short") != std::string::npos);
  // Many long names still give one readable line.
  std::string header = "{";
  for (int i = 10; i < 99; ++i) {
    header += (i == 10 ? "\"" : ",\"") + std::to_string(i) + std::string(50, 'n') +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  const std::string many = scratch.write("many", with_length(header + "}"));
  check_refused(many, refusal(many, [](const SafetensorsFile& file) { file.at("k"); }), "(89 in all)");
}

TEST_CASE("safetensors: a path that is not a readable file is refused without waiting") {
  const Scratch scratch;
  const std::string folder = scratch.path("folder"), pipe = scratch.path("pipe"), closed = scratch.write("closed", "x");
  REQUIRE(::mkdir(folder.c_str(), 0755) == 0);
  REQUIRE(::mkfifo(pipe.c_str(), 0644) == 0);
  REQUIRE(::chmod(closed.c_str(), 0) == 0);
  REQUIRE(::chmod(scratch.folder().c_str(), 0755) == 0);
  check_refused(folder, refusal(folder), "is a directory");
  check_refused(pipe, refusal(pipe), "is not a regular file");
  check_refused("/dev/null", refusal("/dev/null"), "is not a regular file");
  check_refused(scratch.path("none"), refusal(scratch.path("none")), "cannot open: No such file or directory");
  const AsNobody nobody;
  if (nobody.is_root()) {
    MESSAGE("skipped no_permission: root may open every file");
  } else {
    check_refused(closed, refusal(closed), "cannot open: Permission denied");
  }
}

TEST_CASE("safetensors: a tensor of more than 2 GiB is read to its end") {
  constexpr std::uint64_t kBytes = 2147483656;
  const Scratch scratch;
  const std::string head = with_length(R"({"w":{"dtype":"U8","shape":[2147483656],"data_offsets":[0,2147483656]}})");
  const std::string path = scratch.write("ok_over_2gib", head);
  std::filesystem::resize_file(path, head.size() + kBytes);  // sparse
  const SafetensorsFile file = SafetensorsFile::open(path);
  CHECK(file.at("w").shape == std::vector<std::int64_t>{kBytes});
  CHECK(file.data(file.at("w"))[kBytes - 1] == std::byte{0});
}
