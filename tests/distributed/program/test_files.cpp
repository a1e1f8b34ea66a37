// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bad tensor files through `oracle` and `decode`: one line that names the file, and nothing written.
#include "tests/distributed/program/command.hpp"
#include "tests/distributed/program/file_workload.hpp"
#include "tests/support/sweep.hpp"

TEST_CASE("files: q, k, v and what belongs to them are refused with their numbers where they do not fit") {
  const Scratch scratch;
  FileWorkload::draw(2, 4, 2, 1, 8, 16, 16).write(scratch.path("good"), "F32");
  std::vector<Ending> all;
  const auto refuse = [&](const Words& commands, const std::string& in, const std::string& part, const Words& options = {}) {
    for (const std::string& command : commands) all.push_back({alone(Words{command, in, "out"} + options), part});
  };
  const Words both{"oracle", "decode"};

  // What the header shows.
  const Entry q{"q", {2, 4, 1, 16}}, k{"k", {2, 2, 8, 16}}, v{"v", {2, 2, 8, 16}}, q_of_eight{"q", q.shape, "BF16"},
      k_of_eight{"k", k.shape, "F8_E4M3"}, v_of_eight{"v", v.shape, "F8_E4M3"};
  struct Header {
    std::string name;
    std::vector<Entry> tensors;
    std::string part;
  };
  const std::string logit_of_heads = "\"sink\" must be F64, F32, F16 or BF16 of shape [4], a logit for every",
                    axes_of_mask = "tensor \"mask\" must be BOOL, U8 or F32 of shape [2 or 1, 4 or 1, 1, 8]",
                    scales_of_keys = "tensor \"k_scale\" must be F32 of shape [2, 2], one for each head";
  for (const auto& [name, tensors, part] :
       {Header{"without_k", {q, v}, "without_k: tensor \"k\" not found; file has: q, v"},
        Header{"without_v", {q, k}, "without_v: tensor \"v\" not found"},
        Header{"batch", {q, {"k", {3, 2, 8, 16}}, v}, "batch: attention: batch of q (2) and k (3) differ"},
        Header{"lengths", {q, k, v, {"lengths", {2}}}, "lengths: tensor \"lengths\" must be I64"},
        Header{"sink", {q, k, v, {"sink", {3}}}, logit_of_heads},
        Header{"sink_of_eight", {q, k, v, {"sink", {4}, "F8_E4M3"}}, logit_of_heads},
        Header{"mask", {q, k, v, {"mask", {1, 2, 1, 8}}}, axes_of_mask},
        Header{"wide_q", {q, k_of_eight, v_of_eight}, "must have the same type; q may be BF16 where k is F8_E4M3"},
        Header{"scales", {q_of_eight, k_of_eight, v_of_eight, {"k_scale", {4}}}, scales_of_keys},
        Header{"whole", {q_of_eight, k_of_eight, v_of_eight, {"k_scale", {2, 2}, "I32"}}, scales_of_keys}}) {
    write_zeros(scratch.path(name), tensors);
    refuse(both, name, part);
  }
  write_zeros(scratch.path("zeta"), {q, k, v, {"zeta", {2, 4, 1, 8}}});
  refuse({"oracle"}, "zeta", "zeta: attention: ");
  // What else is wrong with a file is tested with its reader.
  refuse(both, "no_such_file", "no_such_file: cannot open: No such file or directory");
  scratch.write("no_tensors", "not a tensor file");
  refuse(both, "no_tensors", "no_tensors: header too large: ");
  std::filesystem::create_directory(scratch.path("folder"));
  refuse(both, "folder", "folder: is a directory");

  // What the data show.
  const auto spoil = [&](const std::string& name, const std::string& dtype, const auto& change) {
    FileWorkload bad = FileWorkload::draw(2, 4, 2, 1, 8, 16, 16);
    change(bad);
    bad.write(scratch.path(name), dtype);
    return name;
  };
  refuse(both,
         spoil("too_long", "F32",
               [](FileWorkload& bad) {
                 bad.lengths = {8, 9};
               }),
         "too_long: attention: length 9 of batch entry 1 is not in [0, 8]");
  for (const float scale : {0.0f, -1.0f, 1e31f, std::numeric_limits<float>::quiet_NaN()})
    refuse(both,
           spoil("scale" + std::to_string(scale), "F8_E4M3",
                 [&](FileWorkload& bad) {
                   bad.v_scale = {1, 1, 1, scale};
                 }),
           "at 3; scales are from 2^-100 to 2^100");

  // Options that only the file shows to be wrong.
  write_zeros(scratch.path("sinks"), {q, k, v, {"sink", {4}}});
  write_zeros(scratch.path("masked"), {q, k, v, {"mask", {1, 4, 1, 8}}});
  write_zeros(scratch.path("keys"), {q, k});
  write_zeros(scratch.path("eight"), {q_of_eight, k_of_eight, v_of_eight});
  spoil("keys_of_eight", "F8_E4M3", [](FileWorkload& bad) { bad.v = {}, bad.v_scale = {1, 1, 1, 1}; });
  const auto decode = [&](const std::string& in, const Words& options, const std::string& part) {
    refuse({"decode"}, in, part, options);
  };
  decode("good", {"--expect", "expected"}, "good: tensor \"expected\" not found; file has: k, q, v");
  decode("good", {"--expect", "k"}, "good: tensor \"k\" has shape [2, 2, 8, 16], but the output has [2, 4, 1, 16]");
  decode("good", {"--steps", "2"}, "good: --steps 2 needs as many query positions in q, which has l = 1");
  decode("good", {"--shards", "9"}, "--shards: 9 is not in 0 .. 8");
  decode("sinks", {"--backend", "emulated", "--algorithm", "one-shot"},
         "its kernel has no window and no learned sinks; use two-level");
  decode("masked", {"--backend", "emulated"}, "--backend emulated: no kernel adds the tensor \"mask\"; use --backend cpu");
  refuse(both, "good", "--value-dim takes values from the keys, but there is a tensor \"v\"", {"--value-dim", "16"});
  refuse(both, "keys", "--value-dim 17: keys have 16 components", {"--value-dim", "17"});
  refuse(both, "keys_of_eight", "leave \"v_scale\" out", {"--value-dim", "8"});

  const std::size_t n_files = scratch.names().size();
  check_endings(all, {.folder = scratch.folder().string()});
  CHECK(scratch.names().size() == n_files);
}

TEST_CASE("files: a tensor that asks for another attention is refused by its name, and others are named") {
  const Scratch scratch;
  const auto write = [&](const std::string& file, const Words& names) {
    std::vector<Entry> tensors;
    for (const std::string& name : Words{"q", "k", "v"} + names) tensors.push_back({name, {1, 1, 2, 2}});
    write_zeros(scratch.path(file), tensors);
  };
  const Around around{.folder = scratch.folder().string()};
  std::vector<Ending> refused;
  for (const std::string other : {"attention_mask", "alibi_slopes", "page_table"}) {
    write(other, {other});
    for (const Words& command : {alone({"oracle", other, "out"}), ranks(2, {"decode", other, "out"})})
      refused.push_back({command, other + ": tensor \"" + other + "\" asks for an attention that is not"});
  }
  check_endings(refused, around);
  CHECK(scratch.names().size() == 3);

  // In one line on rank 0, which does not grow without limit; zeta is an input, and --expect names one.
  write("more", {"zeta", "weights", "line\nbreak", "masks"});
  const std::string line = "tree_attn: more: ignored: ";
  check_success(run(alone({"oracle", "more", "out"}), around), {line + "weights, line\\x0abreak, masks"});
  check_success(run(ranks(2, {"decode", "more", "out"}), around), {line + "weights, line\\x0abreak, masks"});
  check_success(run(alone({"decode", "more", "--expect", "weights"}), around), {line + "line\\x0abreak, masks"});
  Words many;
  for (int i = 0; i < 1000; ++i) many.push_back("tensor" + std::to_string(i));
  write("many", many);
  const Result result = run(alone({"decode", "many"}), around);
  CHECK(result.status == 0);
  REQUIRE(lines_of_ours(result.err).size() == 1);
  CHECK(result.err.starts_with("tree_attn: many: ignored: tensor0, tensor1, "));
  CHECK(result.err.size() < 260);
  write("plain", {"zeta"});
  check_silent_success(run(alone({"decode", "plain"}), around));
}

TEST_CASE("files: axes without elements take no memory, or are refused with what they would take") {
  const Scratch scratch;
  const Around around{.folder = scratch.folder().string()};
  constexpr std::int64_t kTera = std::int64_t{1} << 40;
  const auto write = [&](const std::string& name, const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& kv) {
    write_zeros(scratch.path(name), {{"q", q}, {"k", kv}, {"v", kv}});
  };
  write("batch", {kTera, 0, 1, 1}, {kTera, 0, 0, 1});
  write("values", {1, 1, 0, kTera}, {1, 1, 0, kTera});
  const std::vector<Result> refused =
      run_all({alone({"decode", "batch", "out"}), alone({"decode", "values", "out"}),
               alone({"decode", "values", "--verify"}), ranks(2, {"decode", "batch", "--ranks-per-node", "1"})},
              around);
  for (const Result& result : refused) {
    check_one_line(result, " GiB of memory on one machine, which has ");
    CHECK(result.err.find("decoding b = ") != std::string::npos);
    CHECK(result.err.find("1099511627776") != std::string::npos);
  }
  check_one_line(run(alone({"oracle", "batch", "out"}), around), "batch: attention over b = 1099511627776");

  // Queries of no batch entry, and batch entries of no head: hardly more than a rank takes for nothing at all.
  write("nothing", {0, 1, 1, 1}, {0, 1, 0, 1});
  write("queries", {0, 1, 16777216, 1}, {0, 1, 0, 1});
  const auto peak_mib = [&](const Words& arguments) {
    const Result result = run(alone(arguments), around);
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
  FileWorkload repeated = FileWorkload::draw(2, 4, 2, 3, 300, 24, 16);
  repeated.lengths = {300, 70};
  for (std::size_t i = 0; i < repeated.v.values.size(); ++i) repeated.v.values[i] = repeated.k.values[i / 16 * 24 + i % 16];
  FileWorkload keys = repeated;
  keys.v = {};
  int n = 0;
  for (const char* dtype : {"F32", "BF16"}) {
    repeated.write(scratch.path("repeated"), dtype);
    keys.write(scratch.path("keys"), dtype);
    const auto bytes_of = [&](int p, const Words& words) {
      check_silent_success(run(p == 1 ? alone(words) : ranks(p, words)));
      return Scratch::read(scratch.path("out"));
    };
    const std::vector<std::pair<int, Words>> runs{{1, {"decode", "--verify"}},
                                                  {3, {"decode", "--verify", "--compare", "paper,ring,gather"}},
                                                  {2, {"decode", "--order", "dealt"}},
                                                  {1, {"decode", "--backend", "emulated", "--causal"}},
                                                  {2, {"decode", "--backend", "emulated", "--steps", "3"}},
                                                  {1, {"oracle"}}};
    for (const auto& [p, words] : runs) {
      if (!tree_attn::test::takes_all_cases() && n++ % 2 == 0) continue;
      INFO(dtype << ", " << p << " ranks, " << words.back());
      const std::string out = scratch.path("out"), with_v = bytes_of(p, words + Words{scratch.path("repeated"), out});
      CHECK(!with_v.empty());
      CHECK((with_v == bytes_of(p, words + Words{"--value-dim", "16", scratch.path("keys"), out})));
    }
    ++n;  // the other half with the next type
  }
  // They are held and sent once.
  const auto ring = [&](const Words& in) { return runs_of(ranks(2, Words{"decode", "--algorithm", "ring"} + in))[0]; };
  const auto once = ring({"--value-dim", "16", scratch.path("keys")}), twice = ring({scratch.path("repeated")});
  for (const char* bytes : {"bytes_per_step", "peak_kv_bytes_per_rank"}) {
    CHECK(once[bytes] > 0);
    CHECK(once[bytes].get<std::int64_t>() * (24 + 16) == twice[bytes].get<std::int64_t>() * 24);
  }
  CHECK(once["predicted"]["bytes_per_step"] == once["bytes_per_step"]);
}
