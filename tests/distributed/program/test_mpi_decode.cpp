// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode` under mpirun: the same bytes however the keys are cut, checks that pass and checks that fail.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace {

const std::string kOtherCanonical = "leaders,gather,ring,ring-state";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Digests of the runs of a report.
std::set<std::string> digests(const std::string& path) {
  std::set<std::string> found;
  const nlohmann::json report = nlohmann::json::parse(Scratch::read(path));
  for (const auto& each : report["runs"]) found.insert(each["output_digest"].get<std::string>());
  return found;
}

/// Where the keys are cut: ranks, keys of each, ranks that pose as a node.
struct Cut {
  int n_ranks;
  std::string shards, ranks_per_node;
};

Words options_of(const Cut& cut) {
  Words options;
  if (!cut.shards.empty()) options = options + Words{"--shards", cut.shards};
  if (!cut.ranks_per_node.empty()) options = options + Words{"--ranks-per-node", cut.ranks_per_node};
  return options;
}

/// Decodes a file; the bytes of OUT, once all canonical algorithms are known to agree on them.
std::string decode(const Scratch& scratch, const std::string& in, const Cut& cut,
                   const std::string& algorithm = "two-level") {
  CAPTURE(cut.n_ranks);
  CAPTURE(cut.shards);
  CAPTURE(cut.ranks_per_node);
  const Words arguments = Words{"decode",
                                in,
                                scratch.path("out"),
                                "--algorithm",
                                algorithm,
                                "--compare",
                                kOtherCanonical + ",two-level",
                                "--report",
                                scratch.path("report")} +
                          options_of(cut);
  check_silent_success(run(cut.n_ranks == 1 ? alone(arguments) : ranks(cut.n_ranks, arguments)));
  CHECK(digests(scratch.path("report")).size() == 1);
  return Scratch::read(scratch.path("out"));
}

std::vector<float> out_of(const Scratch& scratch, const FileWorkload& workload, const std::string& name) {
  std::vector<std::int64_t> shape{workload.q.shape[0], workload.q.shape[1], workload.q.shape[2]};
  if (name == "out") shape.push_back(workload.v.shape[3]);
  return tensor<float>(scratch.path("out"), name, shape);
}

}  // namespace

TEST_CASE("decode: OUT has the same bytes for every number of ranks, cut, pretended node and canonical algorithm") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 2, 2, 1000, 16, 24);
  workload.lengths = {1000, 0, 437};
  workload.write(scratch.path("in"), "BF16");
  const std::string bytes = decode(scratch, scratch.path("in"), {1, "", ""});

  // They are the right ones, with F32's rounding.
  const Truth truth = work_out(workload);
  check_near(out_of(scratch, workload, "out"), truth.out, 1e-5);
  check_near(out_of(scratch, workload, "lse"), truth.lse, 1e-5);

  for (const Cut& cut :
       {Cut{2, "", ""}, Cut{2, "64,936", ""}, Cut{2, "1000,0", "1"}, Cut{3, "", ""}, Cut{3, "64,896,40", "2"},
        Cut{3, "0,0,1000", "1"}, Cut{5, "", "2"}, Cut{5, "0,64,512,0,424", "3"}, Cut{5, "192,192,192,192,232", ""}}) {
    CHECK((decode(scratch, scratch.path("in"), cut) == bytes));
  }
  // OUT is that of --algorithm, not of --compare.
  CHECK((decode(scratch, scratch.path("in"), {3, "320,320,360", "2"}, "gather") == bytes));

  // Every type that holds the input exactly gives the same bytes too.
  for (const std::string dtype : {"F64", "F32", "F16"}) {
    CAPTURE(dtype);
    workload.write(scratch.path("in"), dtype);
    CHECK((decode(scratch, scratch.path("in"), {1, "", ""}) == bytes));
  }
}

TEST_CASE("decode: --threads changes no bit of any algorithm, with and without mpirun") {
  const Scratch scratch;
  // Large enough that threads share a step.
  const auto digests_of = [&](int n_ranks, const std::string& threads) {
    const Words arguments{"decode",
                          "--seq-len",
                          "5000",
                          "--heads",
                          "4",
                          "--kv-heads",
                          "2",
                          "--head-dim",
                          "64",
                          "--threads",
                          threads,
                          "--compare",
                          "paper,packed,fused," + kOtherCanonical,
                          "--report",
                          scratch.path("report"),
                          "--verify"};
    check_silent_success(run(n_ranks == 1 ? alone(arguments) : ranks(n_ranks, arguments)));
    std::map<std::string, std::string> found;
    const nlohmann::json report = nlohmann::json::parse(Scratch::read(scratch.path("report")));
    for (const auto& each : report["runs"]) {
      CHECK(each["threads"] == std::stoi(threads));
      found[each["algorithm"]] = each["output_digest"];
    }
    return found;
  };
  std::string of_gather;
  for (const int n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    std::map<std::string, std::string> of_one = digests_of(n_ranks, "1");
    CHECK(of_one.size() == tree_attn::algorithms().size());
    CHECK((of_gather.empty() || of_one["gather"] == of_gather));
    of_gather = of_one["gather"];
    for (const char* threads : {"2", "3"}) CHECK(digests_of(n_ranks, threads) == of_one);
  }
}

TEST_CASE("decode: a cut inside a leaf is refused where bits are promised, and taken where they are not") {
  const auto cut = [](int n_ranks, const std::string& backend, const std::string& shards, const Words& options) {
    return ranks(n_ranks, Words{"decode", "--seq-len", "777", "--heads", "4", "--head-dim", "64", "--backend", backend,
                                "--shards", shards, "--verify"} +
                              options);
  };
  std::vector<Words> refused, taken;
  for (const std::string backend : {"cpu", "emulated"}) {
    for (const std::string algorithm : {"two-level", "leaders", "gather", "ring", "ring-state"})
      refused.push_back(cut(3, backend, "100,0,677", {"--algorithm", algorithm}));
    refused.push_back(cut(3, backend, "100,0,677", {"--algorithm", "paper", "--compare", "packed,gather"}));
    refused.push_back(cut(2, backend, "700,77", {"--dtype", "f32"}));
    for (const std::string dtype : {"f32", "bf16"}) {
      taken.push_back(cut(3, backend, "100,0,677", {"--algorithm", "paper", "--compare", "packed,fused", "--dtype", dtype}));
      // The last key may be anywhere, and ranks without keys at either end of the sequence.
      taken.push_back(cut(4, backend, "0,640,137,0", {"--compare", kOtherCanonical, "--dtype", dtype}));
    }
  }
  refused.push_back(cut(3, "emulated", "100,0,677", {"--algorithm", "one-shot"}));
  const std::vector<Result> results = run_all(refused);
  for (std::size_t i = 0; i < results.size(); ++i) {
    check_one_line(results[i], "--shards: key " + std::string(i % 7 == 6 ? "700" : "100") +
                                   " is inside a leaf of 64 keys; " +
                                   (i % 7 == 5   ? "gather"
                                    : i % 7 == 6 ? "two-level"
                                                 : ""));
    CHECK(results[i].err.find(" keeps its bits where shards are cut at multiples of 64") != std::string::npos);
  }
  for (const Result& result : run_all(taken)) check_silent_success(result);
}

TEST_CASE("decode: a batch entry has the same bytes in company, alone, and in a shorter file") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 2, 1, 1, 700, 16, 16);
  workload.lengths = {700, 129, 437};
  workload.write(scratch.path("in"), "F16");
  decode(scratch, scratch.path("in"), {3, "", "2"});
  const std::vector<float> out = out_of(scratch, workload, "out"), lse = out_of(scratch, workload, "lse");
  for (std::int64_t b = 0; b < 3; ++b) {
    const std::int64_t length = workload.lengths[static_cast<std::size_t>(b)];
    for (const std::int64_t n_keys : {std::int64_t{700}, length}) {
      CAPTURE(b);
      CAPTURE(n_keys);
      const FileWorkload one = workload.entry(b, n_keys);
      one.write(scratch.path("one"), "F16");
      decode(scratch, scratch.path("one"), {b == 2 && n_keys == 700 ? 2 : 1, "", ""});
      const auto same = [&](const std::vector<float>& ours, const std::vector<float>& all) {
        return std::equal(ours.begin(), ours.end(), all.begin() + static_cast<std::ptrdiff_t>(ours.size()) * b);
      };
      CHECK(same(out_of(scratch, one, "out"), out));
      CHECK(same(out_of(scratch, one, "lse"), lse));
    }
  }
}

TEST_CASE("decode: no keys, no batch entries, and NaN behind lengths") {
  const Scratch scratch;
  const FileWorkload no_keys = FileWorkload::draw(2, 2, 1, 1, 0, 8, 4);
  no_keys.write(scratch.path("in"), "F32");
  decode(scratch, scratch.path("in"), {3, "", "2"});
  CHECK(out_of(scratch, no_keys, "out") == std::vector<float>(2 * 2 * 4));
  CHECK(out_of(scratch, no_keys, "lse") == std::vector<float>(2 * 2, -std::numeric_limits<float>::infinity()));

  const FileWorkload no_batch = FileWorkload::draw(0, 2, 1, 1, 100, 8, 4);
  no_batch.write(scratch.path("in"), "F32");
  decode(scratch, scratch.path("in"), {2, "", ""});
  CHECK(out_of(scratch, no_batch, "out").empty());
  for (const char* option : {"--batch", "--seq-len"}) {
    check_silent_success(run(
        ranks(2, {"decode", option, "0", "--compare", "leaders,paper,packed,fused,gather,ring,ring-state", "--verify"})));
  }

  FileWorkload workload = FileWorkload::draw(2, 2, 1, 2, 200, 8, 8);
  workload.lengths = {77, 0};
  workload.write(scratch.path("in"), "F32");
  const std::string clean = decode(scratch, scratch.path("in"), {3, "", ""});
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t a = workload.lengths[static_cast<std::size_t>(b)]; a < 200; ++a) {
      for (std::int64_t c = 0; c < 8; ++c)
        workload.k.at(b, 0, a, c) = workload.v.at(b, 0, a, c) = std::numeric_limits<double>::quiet_NaN();
    }
  }
  workload.write(scratch.path("in"), "F32");
  CHECK((decode(scratch, scratch.path("in"), {3, "", ""}) == clean));
  check_silent_success(run(ranks(3, {"decode", scratch.path("in"), "--compare", "paper,packed,fused", "--verify"})));
}

TEST_CASE("decode: the last of many steps is the one step of a single one") {
  const Scratch scratch;
  // From a file, query i is that of step i; the last sees all keys.
  FileWorkload workload = FileWorkload::draw(2, 2, 1, 6, 150, 16, 16);
  workload.lengths = {150, 3};
  workload.write(scratch.path("many"), "F32");
  const std::string report = scratch.path("report"), out = scratch.path("out");
  check_silent_success(run(
      ranks(3, {"decode", scratch.path("many"), out, "--steps", "6", "--compare", kOtherCanonical, "--report", report})));
  CHECK(digests(report).size() == 1);
  const std::string many = Scratch::read(out);
  FileWorkload last = workload;
  last.q = FileWorkload::draw(2, 2, 1, 1, 0, 16, 16).q;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < 16; ++c) last.q.at(b, h, 0, c) = workload.q.at(b, h, 5, c);
    }
  }
  last.write(scratch.path("one"), "F32");
  CHECK((decode(scratch, scratch.path("one"), {1, "", ""}) == many));
  check_near(out_of(scratch, last, "out"), work_out(last).out, 1e-5);

  // Made-up input has no OUT; its digest tells. Bits depend on the order of leaves.
  std::set<std::string> of_both;
  for (const char* order : {"contiguous", "dealt"}) {
    std::set<std::string> found;
    for (const char* steps : {"1", "2", "70"}) {
      check_silent_success(run(ranks(2, {"decode", "--seq-len", "300", "--steps", steps, "--compare", kOtherCanonical,
                                         "--verify", "--repeat", "2", "--report", report, "--order", order})));
      found.merge(digests(report));
    }
    CHECK(found.size() == 1);
    of_both.merge(found);
  }
  CHECK(of_both.size() == 2);
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("decode: the dealt order has the same bits for every number of ranks, nodes and steps, and is verified") {
  const Scratch scratch;
  const std::string report = scratch.path("report");
  const Words shape{"decode",
                    "--seq-len",
                    "3001",
                    "--heads",
                    "4",
                    "--kv-heads",
                    "2",
                    "--head-dim",
                    "16",
                    "--batch",
                    "2",
                    "--compare",
                    "paper,packed,fused," + kOtherCanonical,
                    "--verify",
                    "--report",
                    report};
  std::set<std::string> found;
  const auto decode = [&](int n_ranks, const Words& options) {
    check_silent_success(run(n_ranks == 1 ? alone(shape + options) : ranks(n_ranks, shape + options)));
    const nlohmann::json runs = nlohmann::json::parse(Scratch::read(report))["runs"];
    for (const auto& each : runs) {
      const std::string algorithm = each["algorithm"];
      CAPTURE(algorithm);
      CHECK(each["order"] == "dealt");
      CHECK(each["same_bits_on_all_ranks"] == true);
      CHECK(each["bytes_per_step"] == each["predicted"]["bytes_per_step"]);
      CHECK(each["messages_per_step"] == each["predicted"]["messages_per_step"]);
      if (tree_attn::find_algorithm(algorithm).keeps_bits) found.insert(each["output_digest"].get<std::string>());
    }
  };
  decode(1, {"--order", "dealt"});
  decode(1, {"--steps", "5"});  // dealt by default
  decode(3, {"--steps", "5", "--order", "dealt", "--ranks-per-node", "2"});
  decode(4, {"--steps", "5", "--order", "dealt"});
  decode(4, {"--order", "dealt", "--ranks-per-node", "1", "--threads", "2"});
  CHECK(found.size() == 1);
}

TEST_CASE("decode: a file in the dealt order, read leaf by leaf") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 2, 1, 3, 400, 16, 16);
  workload.lengths = {400, 70};
  workload.write(scratch.path("in"), "F32");
  std::set<std::string> outputs;
  for (const Cut& cut : {Cut{1, "", ""}, Cut{3, "", ""}, Cut{4, "", "2"}}) {
    for (const char* steps : {"1", "3"}) {
      const Words arguments = Words{"decode",
                                    scratch.path("in"),
                                    scratch.path("out"),
                                    "--compare",
                                    kOtherCanonical,
                                    "--verify",
                                    "--order",
                                    "dealt",
                                    "--steps",
                                    steps,
                                    "--report",
                                    scratch.path("report")} +
                              options_of(cut);
      check_silent_success(run(cut.n_ranks == 1 ? alone(arguments) : ranks(cut.n_ranks, arguments)));
      CHECK(digests(scratch.path("report")).size() == 1);
      outputs.insert(steps + Scratch::read(scratch.path("out")));
    }
  }
  CHECK(outputs.size() == 2);  // one for three queries in one step, one for the last of three steps
}

TEST_CASE("decode: made-up input depends on the seed, not on the ranks") {
  const Scratch scratch;
  const auto digest = [&](int n_ranks, const std::string& seed) {
    const Words arguments{"decode",   "--seq-len",           "500", "--heads", "4", "--kv-heads", "2", "--seed", seed,
                          "--report", scratch.path("report")};
    check_silent_success(run(n_ranks == 1 ? alone(arguments) : ranks(n_ranks, arguments)));
    return *digests(scratch.path("report")).begin();
  };
  CHECK(digest(1, "7") == digest(3, "7"));
  CHECK(digest(1, "7") != digest(1, "8"));
}

TEST_CASE("decode: the same command gives the same bytes again") {
  const Scratch scratch;
  for (const std::string algorithm : {"paper", "packed", "fused", "leaders", "two-level"}) {
    CAPTURE(algorithm);
    std::set<std::string> found;
    for (int i = 0; i < 2; ++i) {
      check_success(run(ranks(3, {"decode", kLayer, scratch.path("out"), "--algorithm", algorithm})), {kLayerIgnored});
      found.insert(Scratch::read(scratch.path("out")));
    }
    CHECK(found.size() == 1);
  }
}

TEST_CASE("decode: --verify passes for every algorithm and type") {
  for (const std::string dtype : {"f32", "f16", "bf16"}) {
    CAPTURE(dtype);
    const Result result = run(ranks(
        3, {"decode", "--seq-len", "1000", "--heads", "6", "--kv-heads", "2", "--head-dim", "48", "--batch", "2", "--dtype",
            dtype, "--compare", "leaders,paper,packed,fused,gather,ring,ring-state", "--verify", "--ranks-per-node", "2"}));
    check_silent_success(result);
    CHECK(result.out.find("FAILED") == std::string::npos);
  }
}

TEST_CASE("decode: --verify fails where F32 is not enough") {
  const Scratch scratch;
  FileWorkload::draw_overflowing().write(scratch.path("in"), "F32");
  for (const Words& command :
       {alone({"decode", "in", "--verify"}), ranks(2, {"decode", "in", "--verify", "--compare", "paper"})}) {
    const Result result = run(command, {.folder = scratch.folder().string()});
    CAPTURE(result.err);
    CHECK(result.status == 1);
    CHECK(result.out.find("FAILED") != std::string::npos);
    CHECK(result.out.find("inf") != std::string::npos);
    CHECK(lines_of_ours(result.err).at(0) == "tree_attn: check failed: two-level exceeds the error bound of the oracle");
  }
}

TEST_CASE("decode: --expect holds the output against a trained transformer's own") {
  const Result good = run(ranks(3, {"decode", kLayer, "--expect", "expected", "--compare", "paper"}));
  check_silent_success(good);
  for (const char* algorithm : {"two-level", "paper"}) {
    CHECK(good.out.find(std::string(algorithm) + ": differs from \"expected\" by at most ") != std::string::npos);
  }
  for (const Words& command : {alone({"decode", kLayer, "--expect", "expected", "--tolerance", "1e-9"}),
                               ranks(2, {"decode", kLayer, "--expect", "expected", "--tolerance", "1e-9"})}) {
    const Result bad = run(command);
    CAPTURE(bad.err);
    CHECK(bad.status == 1);
    const std::vector<std::string> lines = lines_of_ours(bad.err);
    CHECK(lines.size() == 1);
    CHECK(lines.at(0) == "tree_attn: check failed: two-level differs from \"expected\" by more than --tolerance");
  }
}

/// The spoilt component is the first: what comes after it is as expected, and must not make up for it.
TEST_CASE("decode: --expect fails for what is not finite, in the tensor, in the output and in both") {
  const Scratch scratch;
  FileWorkload good = FileWorkload::draw(1, 1, 1, 1, 40, 4, 3);
  good.zeta = {{1, 1, 1, 3}, work_out(good).out};
  std::vector<FileWorkload> workloads{good};
  for (const double odd : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const auto& [in_tensor, in_output] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
      FileWorkload bad = good;
      if (in_tensor) bad.zeta->at(0, 0, 0, 0) = odd;
      if (in_output) bad.v.at(0, 0, 20, 0) = odd;
      workloads.push_back(bad);
    }
  }
  std::vector<Words> commands;
  for (std::size_t i = 0; i < workloads.size(); ++i) {
    workloads[i].write(scratch.path(std::to_string(i)), "F32");
    commands.push_back(alone({"decode", scratch.path(std::to_string(i)), "--expect", "zeta"}));
  }
  const std::vector<Result> results = run_all(commands);
  check_silent_success(results[0]);
  for (std::size_t i = 1; i < results.size(); ++i) {
    CAPTURE(i);
    CHECK(results[i].status == 1);
    CHECK(lines_of_ours(results[i].err) ==
          Words{"tree_attn: check failed: two-level differs from \"zeta\" by more than --tolerance"});
  }
}
