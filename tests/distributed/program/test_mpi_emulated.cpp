// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --backend emulated`: the kernels behind the same command line, with the same promises.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace {

const std::string kAll = "leaders,paper,packed,fused,gather,ring,ring-state";

/// Four heads of 64 over 777 keys, which are neither a multiple of a leaf nor of anything else.
Words small(const std::string& dtype, const std::string& kv_heads) {
  return {"decode",     "--backend", "emulated", "--seq-len", "777",        "--heads", "4",
          "--head-dim", "64",        "--dtype",  dtype,       "--kv-heads", kv_heads};
}

/// A decode of made-up input, and what the report says of it.
struct Job {
  std::string dtype, kv_heads;
  int n_ranks;
  Words options;
};

/// Runs all of them, some at a time. @returns the digests of each job by algorithm
std::vector<std::map<std::string, std::string>> digests_of(const std::vector<Job>& jobs) {
  const Scratch scratch;
  std::vector<Words> commands;
  for (const Job& job : jobs) {
    const Words report{"--verify", "--report", scratch.path("report" + std::to_string(commands.size()))};
    commands.push_back(ranks(job.n_ranks, small(job.dtype, job.kv_heads) + job.options + report));
  }
  const std::vector<Result> results = run_all(commands);
  std::vector<std::map<std::string, std::string>> digests(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::string typed;
    for (const std::string& word : commands[i]) typed += word + " ";
    CAPTURE(typed);
    check_silent_success(results[i]);
    if (results[i].status != 0) continue;
    const nlohmann::json report = nlohmann::json::parse(Scratch::read(scratch.path("report" + std::to_string(i))));
    for (const auto& each : report["runs"]) {
      CHECK(each["backend"] == "emulated");
      CHECK(each["same_bits_on_all_ranks"] == true);
      digests[i][each["algorithm"]] = each["output_digest"];
    }
  }
  return digests;
}

/// Digests of the algorithms that promise the same bits.
std::set<std::string> canonical(const std::map<std::string, std::string>& digests) {
  std::set<std::string> found;
  for (const auto& [algorithm, digest] : digests) {
    if (tree_attn::find_algorithm(algorithm).keeps_bits) found.insert(digest);
  }
  return found;
}

/// OUT of a file, by the kernels.
std::string out_of(const Scratch& scratch, const std::string& in, int n_ranks, const Words& options = {}) {
  const Words command =
      Words{"decode", scratch.path(in), scratch.path("out"), "--backend", "emulated", "--verify"} + options;
  check_silent_success(run(n_ranks == 1 ? alone(command) : ranks(n_ranks, command)));
  return Scratch::read(scratch.path("out"));
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("emulated: all algorithms are within the bound, and those that keep bits do so for every number of ranks") {
  for (const std::string dtype : {"f32", "f16", "bf16"}) {
    for (const std::string kv_heads : {"4", "1"}) {
      std::vector<Job> jobs;
      for (const int n_ranks : {1, 2, 3, 5}) jobs.push_back({dtype, kv_heads, n_ranks, {"--compare", kAll}});
      jobs.push_back({dtype, kv_heads, 3, {"--compare", kAll, "--ranks-per-node", "2"}});
      jobs.push_back({dtype, kv_heads, 3, {"--compare", kAll, "--shards", "128,0,649"}});
      // The last of three steps is the one step of a single one.
      jobs.push_back({dtype, kv_heads, 2, {"--compare", kAll, "--steps", "3", "--order", "contiguous"}});
      std::set<std::string> found;
      for (const auto& digests : digests_of(jobs)) {
        CHECK(digests.size() == tree_attn::algorithms().size());
        found.merge(canonical(digests));
      }
      CAPTURE(dtype);
      CAPTURE(kv_heads);
      CHECK(found.size() == 1);
    }
  }
}

TEST_CASE("emulated: the program says which kernel was picked, and for how many keys") {
  for (const auto& [dtype, picked] :
       std::vector<std::pair<std::string, std::string>>{{"f32", "F32 on scalar"}, {"bf16", "BF16 on tensor"}}) {
    const Result result = run(ranks(2, {"decode", "--seq-len", "700", "--heads", "4", "--head-dim", "64", "--dtype", dtype,
                                        "--backend", "emulated", "--shards", "384,316"}));
    CHECK(result.status == 0);
    CHECK(result.out.find("kernel: short-end of " + picked + " cores: 4 blocks of ") != std::string::npos);
    CHECK(result.out.find("(384 keys of rank 0)") != std::string::npos);
  }
}

TEST_CASE("emulated: a file of every type, with lengths of its own and nothing in use among them") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 4, 1, 300, 16, 24);
  workload.lengths = {300, 0, 137};
  const Truth truth = work_out(workload);
  std::map<std::string, std::string> bytes;
  for (const std::string dtype : {"F64", "F32", "F16", "BF16"}) {
    CAPTURE(dtype);
    workload.write(scratch.path("in"), dtype);
    bytes[dtype] = out_of(scratch, "in", 1);
    check_near(tensor<float>(scratch.path("out"), "out", {3, 4, 1, 24}), truth.out, 1e-5);
    check_near(tensor<float>(scratch.path("out"), "lse", {3, 4, 1}), truth.lse, 1e-5);
    CHECK((out_of(scratch, "in", 3, {"--shards", "64,192,44", "--ranks-per-node", "2"}) == bytes[dtype]));
    CHECK((out_of(scratch, "in", 3, {"--algorithm", "ring"}) == bytes[dtype]));
  }
  // F64 becomes F32 on its way to the device, and these numbers lose nothing.
  CHECK((bytes["F64"] == bytes["F32"]));

  // Grouped queries, several of them, and a batch entry that has its bytes alone too.
  FileWorkload grouped = FileWorkload::draw(2, 4, 1, 3, 200, 16, 16);
  grouped.lengths = {200, 65};
  grouped.write(scratch.path("in"), "BF16");
  const std::string whole = out_of(scratch, "in", 1);
  const Truth of_grouped = work_out(grouped);
  const std::vector<float> out = tensor<float>(scratch.path("out"), "out", {2, 4, 3, 16});
  check_near(out, of_grouped.out, 1e-5);
  CHECK((out_of(scratch, "in", 2, {"--shards", "64,136"}) == whole));
  grouped.entry(1, 200).write(scratch.path("in"), "BF16");
  out_of(scratch, "in", 2);
  const std::vector<float> alone = tensor<float>(scratch.path("out"), "out", {1, 4, 3, 16});
  CHECK(std::equal(alone.begin(), alone.end(), out.begin() + static_cast<std::ptrdiff_t>(alone.size())));
}

TEST_CASE("emulated: no keys, no batch entries, and NaN behind lengths") {
  const Scratch scratch;
  const FileWorkload no_keys = FileWorkload::draw(2, 2, 1, 1, 0, 8, 4);
  no_keys.write(scratch.path("in"), "F16");
  out_of(scratch, "in", 3, {"--compare", kAll});
  CHECK(tensor<float>(scratch.path("out"), "out", {2, 2, 1, 4}) == std::vector<float>(2 * 2 * 4));
  CHECK(tensor<float>(scratch.path("out"), "lse", {2, 2, 1}) ==
        std::vector<float>(2 * 2, -std::numeric_limits<float>::infinity()));

  FileWorkload::draw(0, 2, 1, 1, 100, 8, 4).write(scratch.path("in"), "F32");
  out_of(scratch, "in", 2, {"--compare", kAll});
  CHECK(tensor<float>(scratch.path("out"), "out", {0, 2, 1, 4}).empty());

  FileWorkload workload = FileWorkload::draw(2, 2, 1, 2, 200, 8, 8);
  workload.lengths = {77, 0};
  workload.write(scratch.path("in"), "BF16");
  const std::string clean = out_of(scratch, "in", 3, {"--compare", kAll});
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t a = workload.lengths[static_cast<std::size_t>(b)]; a < 200; ++a) {
      for (std::int64_t c = 0; c < 8; ++c)
        workload.k.at(b, 0, a, c) = workload.v.at(b, 0, a, c) = std::numeric_limits<double>::quiet_NaN();
    }
  }
  workload.write(scratch.path("in"), "BF16");
  CHECK((out_of(scratch, "in", 3, {"--compare", kAll}) == clean));
}

/// @tested{eq_cov, eq. (cov)}
TEST_CASE("emulated: moments ride along, in F32") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 4, 1, 2, 300, 16, 8);
  workload.lengths = {300, 0};
  workload.write(scratch.path("in"), "BF16");
  const Truth truth = work_out(workload);
  const auto named = [&](const std::string& name) {
    return tensor<float>(scratch.path("out"), name,
                         name == "entropy" ? std::vector<std::int64_t>{2, 4, 2} : std::vector<std::int64_t>{2, 4, 2, 8});
  };
  check_silent_success(run(alone({"decode", scratch.path("in"), scratch.path("out"), "--moments", "2"})));
  const std::vector<float> variance = named("variance"), entropy = named("entropy");
  const auto doubles = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  std::set<std::string> bytes;
  for (const Words& options : {Words{}, Words{"--shards", "128,0,172"}, Words{"--algorithm", "ring"}})
    bytes.insert(out_of(scratch, "in", 3, Words{"--moments", "2"} + options));
  CHECK(bytes.size() == 1);
  out_of(scratch, "in", 3, {"--moments", "2", "--algorithm", "paper"});
  check_near(named("out"), truth.out, 1e-5);
  check_near(named("variance"), doubles(variance), 1e-5);
  check_near(named("entropy"), doubles(entropy), 1e-5);
}

TEST_CASE("emulated: shapes that no kernel takes are refused with their numbers, and nothing is written") {
  const Scratch scratch;
  FileWorkload::draw(1, 1, 1, 1, 10, 8, 577).write(scratch.path("in"), "F32");
  const std::vector<std::pair<Words, std::string>> all{
      {{"--seq-len", "777", "--head-dim", "600"}, "--backend emulated: no kernel supports d_h 600, d_v 600: more than 576"},
      // Moments make a value d_v + d_v + d_h long.
      {{"--seq-len", "777", "--head-dim", "193", "--moments", "2"},
       "--backend emulated: no kernel supports d_h 193, d_v 579: more than 576"},
      {{"in", "out"}, "--backend emulated: no kernel supports d_h 8, d_v 577: more than 576"}};
  std::vector<Words> commands;
  for (const auto& [options, why] : all) {
    commands.push_back(alone(Words{"decode"} + options + Words{"--backend", "emulated"}));
    commands.push_back(ranks(3, Words{"decode"} + options + Words{"--backend", "emulated"}));
  }
  const std::vector<Result> results = run_all(commands, {.folder = scratch.folder().string()});
  for (std::size_t i = 0; i < results.size(); ++i) check_one_line(results[i], all[i / 2].second);
  CHECK(scratch.names() == std::vector<std::string>{"in"});
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("emulated: the last of many steps has the bits of a single one, for every number of ranks and cut") {
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const std::string kv_heads : {"4", "1"}) {
      std::vector<Job> jobs;
      const auto add = [&](int n_ranks, const Words& options) {
        jobs.push_back({dtype, kv_heads, n_ranks, Words{"--batch", "2", "--order", "contiguous"} + options});
      };
      add(1, {"--compare", kAll});
      add(1, {"--compare", kAll, "--steps", "3", "--repeat", "2"});
      // More steps than a leaf has keys.
      add(1, {"--algorithm", "gather", "--steps", "70"});
      add(3, {"--compare", kAll, "--steps", "3", "--ranks-per-node", "2"});
      add(3, {"--compare", "ring,gather,ring-state", "--steps", "3", "--shards", "704,0,73"});
      std::set<std::string> found;
      for (const auto& digests : digests_of(jobs)) found.merge(canonical(digests));
      CHECK(found.size() == 1);
    }
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("emulated: the dealt order has the same bits for every number of ranks and steps, and other bits than chunks") {
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const std::string kv_heads : {"4", "1"}) {
      std::vector<Job> jobs;
      const auto add = [&](int n_ranks, const Words& options) {
        jobs.push_back({dtype, kv_heads, n_ranks, Words{"--batch", "2"} + options});
      };
      add(1, {"--order", "dealt", "--compare", kAll});
      add(1, {"--steps", "70", "--algorithm", "gather"});  // dealt by default
      add(2, {"--steps", "3", "--compare", kAll});
      add(3, {"--steps", "3", "--compare", kAll, "--ranks-per-node", "2"});
      add(5, {"--order", "dealt", "--compare", kAll});
      std::set<std::string> found;
      for (const auto& digests : digests_of(jobs)) found.merge(canonical(digests));
      CHECK(found.size() == 1);
      for (const auto& digests : digests_of({{dtype, kv_heads, 1, {"--batch", "2"}}})) found.merge(canonical(digests));
      CHECK(found.size() == 2);
    }
  }
}
