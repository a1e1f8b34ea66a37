// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reading tensor files: every bad file is refused for its own reason, every unusual but legal one is read.
///
/// The files are those of tests/data/safetensors_bad.json. Files that are too large, and paths that are not files, are made
/// here.
#include "tree_attn/reference/data/safetensors.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

namespace {

using namespace tree_attn;

/// The expected reason for each case that must be refused.
const std::map<std::string, std::string> kReasons = {
    {"empty_file", "file too short: 0 bytes, needs 8"},
    {"seven_bytes", "file too short: 7 bytes, needs 8"},
    {"length_only", "header of 60 bytes, file has 0 left"},
    {"length_zero", "header is empty"},
    {"length_swallows_data", "header is not JSON, byte "},
    {"length_too_small", "header is not JSON, byte "},
    {"length_1000_small_file", "header runs past end of file: header of 1000 bytes, file has 73 left"},
    {"length_wraps_with_8", "header too large: 18446744073709551608 bytes, at most 100000000"},
    {"length_big_endian", "header too large: "},
    {"length_high_bytes", "header too large: 18446742974197923900 bytes"},
    {"git_lfs_pointer", "header too large: 2336927755350992246 bytes, at most 100000000; not a safetensors file?"},
    {"pickle", "not a safetensors file?"},
    {"zip", "not a safetensors file?"},
    {"gguf", "not a safetensors file?"},
    {"overlong_utf8", "header is not UTF-8: byte 3"},
    {"lone_surrogate", "header is not JSON, byte "},
    {"utf8_bom", "header starts with a byte order mark instead of {"},
    {"open_brace_only", "unexpected end of input"},
    {"array_header", "header is not an object"},
    {"trailing_comma", "header is not JSON, byte 58: syntax error while parsing object key - unexpected '}'"},
    {"single_quotes", "header is not JSON, byte 2: syntax error"},
    {"nul_padding", "header is not JSON, byte "},
    {"duplicate_tensor_split", "duplicate key \"w\""},
    {"duplicate_escaped", "duplicate key \"a\""},
    {"duplicate_field_shape", "tensor \"w\": duplicate field \"shape\""},
    {"duplicate_metadata", "duplicate key \"__metadata__\""},
    {"metadata_list", "__metadata__ is not an object"},
    {"missing_dtype", "tensor \"w\": dtype missing"},
    {"missing_shape", "tensor \"w\": shape missing"},
    {"missing_offsets", "tensor \"w\": data_offsets missing"},
    {"tensor_is_number", "tensor \"w\" is not an object"},
    {"tensor_is_null", "tensor \"w\" is not an object"},
    {"dtype_unknown", "tensor \"w\": unknown dtype \"F33\""},
    {"dtype_lower_case", "tensor \"w\": unknown dtype \"f32\""},
    {"dtype_number", "tensor \"w\": dtype is not a string"},
    {"shape_string", "tensor \"w\": shape is not a list"},
    {"shape_negative", "tensor \"w\": shape has a negative size: -2"},
    {"shape_minus_zero", "tensor \"w\": shape has a size that is not an unsigned integer: -0"},
    {"shape_exponent", "tensor \"w\": shape has a size that is not an integer: 4e0"},
    {"shape_leading_zero", "header is not JSON, byte "},
    {"shape_over_u64", "tensor \"w\": size out of range: shape has 18446744073709551616"},
    {"offsets_one", "tensor \"w\": data_offsets needs two numbers, has 1"},
    {"offsets_negative", "tensor \"w\": negative offset in data_offsets: -16"},
    {"offsets_string", "tensor \"w\": data_offsets is not a pair of numbers"},
    {"shape_product_wraps_to_4", "tensor \"w\": size out of range: shape has 4611686018427387905"},
    {"shape_max", "tensor \"w\": size out of range: shape has 18446744073709551614"},
    {"bytes_overflow", "tensor \"w\": size out of range: shape has 9223372036854775807"},
    {"bits_overflow", "tensor \"w\": size out of range: shape has 1152921504606846976"},
    {"zero_after_overflow", "tensor \"w\": size out of range: shape has 9223372036854775808, sizes must be below 2^48"},
    {"reversed_range", "tensor \"w\": range ends before it starts: data_offsets [16, 0]"},
    {"past_end", "file ends 2 bytes early: tensor \"w\" has data_offsets [0, 16], data is 14 bytes"},
    {"no_data", "file ends 16 bytes early"},
    {"trailing_data", "file has 5 bytes that no tensor covers"},
    {"hole_at_start", "data has bytes 0..16 that no tensor covers, before tensor \"w\""},
    {"overlap_part", "tensors \"a\" and \"b\" overlap: data_offsets [0, 16] and [8, 24]"},
    {"overlap_many", "tensors \"w0\" and \"w1\" overlap"},
    {"name_percent", "tensor \"%s%n\": shape [2, 2] of F32 takes 16 bytes, data_offsets [0, 4] hold 4"},
    {"name_long", "tensor \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\": shape [2, 2]"},
    {"directory", "is a directory"},
    {"no_permission", "cannot open: Permission denied"},
    {"fifo", "is not a regular file"},
    {"tool_missing_tensor", "tensor \"k\" not found; file has: q, v"},
    {"tool_wrong_rank", "tensor \"q\": 1 axis, expected 4 (b, n_h, l, d_h)"},
    {"tool_dtype_unsupported", "tensor \"k\": dtype I64 not supported (F64, F32, F16, BF16, F8_E4M3)"},
};

/// Cases with several tensors or ranks, which are tested with the program.
const std::set<std::string> kElsewhere = {"tool_head_dim_differs", "tool_lengths_differ", "tool_heads_do_not_divide",
                                          "differs_between_ranks"};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

nlohmann::json cases() {
  return nlohmann::json::parse(Scratch::read(std::string(TREE_ATTN_TEST_DATA) + "/safetensors_bad.json"))["cases"];
}

}  // namespace

TEST_CASE("safetensors: every bad file is refused for its own reason, every legal one is read") {
  const Scratch scratch;
  int n_refused = 0, n_read = 0;
  std::set<std::string> made_here;
  for (const auto& bad : cases()) {
    const std::string name = bad["name"];
    CAPTURE(name);
    if (!bad.contains("hex")) {
      made_here.insert(name);
      continue;
    }
    const std::string path = scratch.write(name, from_hex(bad["hex"]));
    const std::string message = refusal(path, [&](const SafetensorsFile& file) {
      if (name == "tool_missing_tensor") file.at("k");
      if (name == "tool_wrong_rank") view4(file, "q", "b, n_h, l, d_h");
      if (name == "tool_dtype_unsupported") view4(file, "k", "b, n_kv, N, d_h");
    });
    if (bad["expected"] == "reject") {
      REQUIRE(kReasons.contains(name));
      check_refused(path, message, kReasons.at(name));
      ++n_refused;
    } else {
      CHECK(message == "");
      ++n_read;
    }
  }
  MESSAGE(n_refused << " refused, " << n_read << " read");
  CHECK(n_refused >= 57);
  CHECK(n_read >= 11);

  // The remaining cases have a test below, or are tested with the program.
  std::set<std::string> expected = kElsewhere;
  expected.insert({"overlap_many", "name_long", "directory", "no_permission", "fifo", "ok_over_2gib"});
  CHECK(made_here == expected);
}

TEST_CASE("safetensors: a million overlapping tensors are refused without comparing all pairs") {
  std::string header = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    header += (i == 0 ? "\"w" : ",\"w") + std::to_string(i) + R"(":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  }
  const Scratch scratch;
  const std::string path = scratch.write("overlap_many", with_length(header + "}", std::string(16, '\0')));
  const auto start = std::chrono::steady_clock::now();
  check_refused(path, refusal(path), kReasons.at("overlap_many"));
  // This takes one or two seconds, and half a minute under sanitizers. Comparing all pairs would take most of an hour.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(5));
}

TEST_CASE("safetensors: names in messages are truncated and escaped") {
  const Scratch scratch;
  const auto message_for = [&](const std::string& name) {
    const std::string path = scratch.write(
        "name", with_length("{\"" + name + R"(":{"dtype":"F32","shape":[2,2],"data_offsets":[0,4]}})", "1234"));
    const std::string message = refusal(path);
    check_refused(path, message, "");
    return message;
  };
  CHECK(message_for(std::string(1'000'000, 'a')).find(kReasons.at("name_long")) != std::string::npos);
  CHECK(message_for("a\\nb\\u001b[31m\\u0000").find("tensor \"a\\x0ab\\x1b[31m\\x00\":") != std::string::npos);
  CHECK(message_for("\\u202e\\u009b").find("tensor \"\\xe2\\x80\\xae\\xc2\\x9b\":") != std::string::npos);
  // Truncation never splits a character.
  CHECK(message_for(std::string(59, 'a') + "\xC3\xA9").find(std::string(59, 'a') + "...\"") != std::string::npos);
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
  check_refused(folder, refusal(folder), kReasons.at("directory"));
  check_refused(pipe, refusal(pipe), kReasons.at("fifo"));
  check_refused("/dev/null", refusal("/dev/null"), kReasons.at("fifo"));
  check_refused(scratch.path("none"), refusal(scratch.path("none")), "cannot open: No such file or directory");
  const AsNobody nobody;
  if (nobody.is_root()) {
    MESSAGE("skipped no_permission: root may open every file");
  } else {
    check_refused(closed, refusal(closed), kReasons.at("no_permission"));
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
