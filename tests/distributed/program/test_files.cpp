// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bad tensor files through `oracle` and `decode`: one line that names the file, and nothing written.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/sweep.hpp"

TEST_CASE("files: q, k, v, zeta and lengths that do not fit are refused with their numbers") {
  const Scratch scratch;
  const FileWorkload good = FileWorkload::draw(2, 4, 2, 1, 8, 16, 16);
  std::vector<Words> commands;
  std::vector<std::string> parts;
  const auto add = [&](const std::string& name, const std::string& part) {
    for (const std::string command : {"oracle", "decode"}) {
      if (command == "decode" && name.starts_with("zeta")) continue;  // decode does not look at it
      commands.push_back(alone({command, name, "out"}));
      parts.push_back(name + ": " + part);
    }
  };
  const auto add_problem = [&](const std::string& name, const std::string& part, const auto& spoil) {
    FileWorkload bad = good;
    spoil(bad);
    bad.write(scratch.path(name), "F32");
    add(name, part);
  };
  add_problem("batch", "attention: batch of q (2) and k (3) differ",
              [](FileWorkload& bad) { bad.k = FileWorkload::draw(3, 4, 2, 1, 8, 16, 16).k; });
  add_problem("too_long", "attention: length 9 of batch entry 1 is not in [0, 8]", [](FileWorkload& bad) {
    bad.lengths = {8, 9};
  });
  add_problem("zeta", "attention: ", [](FileWorkload& bad) { bad.zeta = FileWorkload::draw(2, 4, 2, 1, 8, 8, 8).q; });

  // Lengths of a type of their own, and a tensor of the three is missing. What else does not fit is tested with the oracle
  // and with the reader of workloads.
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const std::string f32 = stored(std::vector<double>(512), "F32");
  const std::vector<std::int64_t> shape{2, 4, 4, 16};
  for (const bool has_keys : {true, false}) {
    tree_attn::SafetensorsWriter writer;
    for (const char* name : {"q", "k", "v"})
      if (has_keys || *name != 'k') writer.add(name, "F32", shape, bytes(f32));
    if (has_keys) writer.add("lengths", "F32", std::vector<std::int64_t>{2}, bytes(f32).subspan(0, 8));
    writer.write(scratch.path(has_keys ? "float_lengths" : "without_k"));
  }
  add("without_k", "tensor \"k\" not found; file has: q, v");
  add("float_lengths", "tensor \"lengths\" must be I64");
  good.write(scratch.path("good"), "F32");
  add("no_such_file", "cannot open: No such file or directory");
  // What else is wrong with a file is tested with its reader.
  scratch.write("no_tensors", "not a tensor file");
  add("no_tensors", "header too large: ");
  std::filesystem::create_directory(scratch.path("folder"));
  add("folder", "is a directory");

  // Options that only the file shows to be wrong.
  for (const auto& [options, part] : std::vector<std::pair<Words, std::string>>{
           {{"--expect", "expected"}, "good: tensor \"expected\" not found; file has: k, q, v"},
           {{"--expect", "k"}, "good: tensor \"k\" has shape [2, 2, 8, 16], but the output has [2, 4, 1, 16]"},
           {{"--steps", "2"}, "good: --steps 2 needs as many query positions in q, which has l = 1"},
           {{"--shards", "9"}, "--shards: 9 is not in 0 .. 8"}}) {
    commands.push_back(alone(Words{"decode", "good", "out"} + options));
    parts.push_back(part);
  }

  const std::size_t n_files = scratch.names().size();
  const std::vector<Result> results = run_all(commands, {.folder = scratch.folder().string()});
  for (std::size_t i = 0; i < results.size(); ++i) check_one_line(results[i], parts[i]);
  CHECK(scratch.names().size() == n_files);
}

TEST_CASE("files: a tensor that asks for another attention is refused by its name, and others are named") {
  const Scratch scratch;
  const auto write = [&](const std::string& file, const Words& names) {
    std::string header;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string at = std::to_string(16 * i), end = std::to_string(16 * i + 16);
      header += (i == 0 ? "{\"" : ",\"") + names[i] + R"(":{"dtype":"F32","shape":[1,1,2,2],"data_offsets":[)" + at + "," +
                end + "]}";
    }
    scratch.write(file, with_length(header + "}", std::string(16 * names.size(), '\0')));
  };
  const Words qkv{"q", "k", "v"};
  std::vector<Words> commands;
  const Words others{"attention_mask", "alibi_slopes", "page_table"};
  for (const std::string& other : others) {
    write(other, qkv + Words{other});
    commands.push_back(alone({"oracle", other, "out"}));
    commands.push_back(ranks(2, {"decode", other, "out"}));
  }
  const Around around{.folder = scratch.folder().string()};
  const std::vector<Result> refused = run_all(commands, around);
  for (std::size_t i = 0; i < refused.size(); ++i)
    check_one_line(refused[i], others[i / 2] + ": tensor \"" + others[i / 2] + "\" asks for an attention that is not");
  CHECK(scratch.names().size() == others.size());

  // In one line on rank 0, which does not grow without limit; zeta is an input, and --expect names one.
  write("more", qkv + Words{"zeta", "weights", "line\\nbreak", "masks"});
  const std::string line = "tree_attn: more: ignored: ";
  check_success(run(alone({"oracle", "more", "out"}), around), {line + "weights, line\\x0abreak, masks"});
  check_success(run(ranks(2, {"decode", "more", "out"}), around), {line + "weights, line\\x0abreak, masks"});
  check_success(run(alone({"decode", "more", "--expect", "weights"}), around), {line + "line\\x0abreak, masks"});
  Words many = qkv;
  for (int i = 0; i < 1000; ++i) many.push_back("tensor" + std::to_string(i));
  write("many", many);
  const Result result = run(alone({"decode", "many"}), around);
  CHECK(result.status == 0);
  REQUIRE(lines_of_ours(result.err).size() == 1);
  CHECK(result.err.starts_with("tree_attn: many: ignored: tensor0, tensor1, "));
  CHECK(result.err.size() < 260);
  write("plain", qkv + Words{"zeta"});
  check_silent_success(run(alone({"decode", "plain"}), around));
}

namespace {

/// Writes a file with q, k and v of F32 without a single element, whatever their axes say.
void write_empty(const std::string& path, const std::string& q, const std::string& k, const std::string& v) {
  std::ostringstream header;
  const auto add = [&](const char* before, const char* name, const std::string& shape) {
    header << before << '"' << name << R"(":{"dtype":"F32","shape":[)" << shape << R"(],"data_offsets":[0,0]})";
  };
  add("{", "q", q);
  add(",", "k", k);
  add(",", "v", v);
  header << "}";
  std::ofstream(path, std::ios::binary) << with_length(header.str());
}

}  // namespace

TEST_CASE("files: axes without elements take no memory, or are refused with what they would take") {
  const Scratch scratch;
  const std::string tera = "1099511627776";
  write_empty(scratch.path("batch"), tera + ",0,1,1", tera + ",0,0,1", tera + ",0,0,1");
  write_empty(scratch.path("values"), "1,1,0," + tera, "1,1,0," + tera, "1,1,0," + tera);
  const std::vector<Result> refused =
      run_all({alone({"decode", "batch", "out"}), alone({"decode", "values", "out"}),
               alone({"decode", "values", "--verify"}), ranks(2, {"decode", "batch", "--ranks-per-node", "1"})},
              {.folder = scratch.folder().string()});
  for (const Result& result : refused) {
    check_one_line(result, " GiB of memory on one machine, which has ");
    CHECK(result.err.find("decoding b = ") != std::string::npos);
    CHECK(result.err.find("1099511627776") != std::string::npos);
  }
  check_one_line(run(alone({"oracle", "batch", "out"}), {.folder = scratch.folder().string()}),
                 "batch: attention over b = 1099511627776");

  // Queries of no batch entry, and batch entries of no head: hardly more than a rank takes for nothing at all.
  write_empty(scratch.path("nothing"), "0,1,1,1", "0,1,0,1", "0,1,0,1");
  write_empty(scratch.path("queries"), "0,1,16777216,1", "0,1,0,1", "0,1,0,1");
  const auto peak_mib = [&](const Words& arguments) {
    const Result result = run(alone(arguments), {.folder = scratch.folder().string()});
    check_silent_success(result);
    return result.peak_kib / 1024;
  };
  const long nothing = peak_mib({"decode", "nothing"});
  CHECK(peak_mib({"decode", "queries"}) < nothing + 32);
  CHECK(peak_mib({"decode", "queries", "--backend", "emulated"}) < nothing + 32);
  CHECK(peak_mib({"oracle", "queries", "out"}) < nothing + 32);
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("decode: values that are the first components of the keys: --value-dim has the bits of a file that repeats them") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 300, 24, 16);
  workload.lengths = {300, 70};
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t a = 0; a < 300; ++a)
        for (std::int64_t c = 0; c < 16; ++c) workload.v.at(i, h, a, c) = workload.k.at(i, h, a, c);
  int n = 0;
  for (const char* dtype : {"F32", "BF16"}) {
    workload.write(scratch.path("repeated"), dtype);
    FileWorkload alone_in_file = workload;
    alone_in_file.v = {};
    alone_in_file.write(scratch.path("keys"), dtype);
    const auto same = [&](const Words& more, int p) {
      const auto decode = [&](const char* in, const Words& how) {
        const Words words = Words{"decode", scratch.path(in), scratch.path(std::string("out-") + in)} + how + more;
        check_silent_success(run(p == 1 ? alone(words) : ranks(p, words)));
        return Scratch::read(scratch.path(std::string("out-") + in));
      };
      const std::string with_v = decode("repeated", {});
      return !with_v.empty() && with_v == decode("keys", {"--value-dim", "16"});
    };
    const std::vector<std::pair<int, Words>> runs{{1, {"--verify"}},
                                                  {3, {"--verify", "--compare", "paper,ring,gather"}},
                                                  {2, {"--order", "dealt", "--moments", "2"}},
                                                  {1, {"--backend", "emulated", "--causal"}},
                                                  {2, {"--backend", "emulated", "--steps", "3"}}};
    for (const auto& [p, more] : runs) {
      if (!tree_attn::test::takes_all_cases() && n++ % 2 == 0) continue;
      INFO(dtype << ", " << p << " ranks, " << more[0]);
      CHECK(same(more, p));
    }
  }
  const auto oracle = [&](const char* in, const Words& how) {
    check_silent_success(run(alone(Words{"oracle", scratch.path(in), scratch.path("exact")} + how)));
    return Scratch::read(scratch.path("exact"));
  };
  CHECK((oracle("repeated", {}) == oracle("keys", {"--value-dim", "16"})));

  // What is refused, in one line.
  for (const char* command : {"decode", "oracle"}) {
    const auto refused = [&](const char* in, const char* d, const char* why) {
      check_one_line(run(alone({command, scratch.path(in), scratch.path("none"), "--value-dim", d})), why);
    };
    refused("repeated", "16", "--value-dim takes values from the keys, but there is a tensor \"v\"");
    refused("keys", "25", "--value-dim 25: keys have 24 components");
    refused("keys", "0", "--value-dim");
    check_one_line(run(alone({command, scratch.path("keys"), scratch.path("none")})), "tensor \"v\" not found");
  }
  CHECK(!std::filesystem::exists(scratch.path("none")));
}
