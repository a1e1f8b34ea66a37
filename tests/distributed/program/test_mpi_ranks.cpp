// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Several ranks: one of them speaks, all of them end, each reads only its own shard.
#include "tests/distributed/program/file_workload.hpp"
#include "tests/distributed/program/hanging.hpp"
#include "tests/support/sanitized.hpp"

TEST_CASE("ranks: rank 0 alone prints") {
  check_outputs({{ranks(3, {"--version"}), "tree_attn " TREE_ATTN_VERSION},
                 {ranks(3, {"decode", "--help"}), "Usage:"},
                 {ranks(3, {"info"}), "ranks 3 on 1 node"},
                 {ranks(3, {"decode", "--seq-len", "256"}), "256 keys"}});
}

TEST_CASE("ranks: under a launcher that sets PMIX_RANK alone they are ranks, and none of several runs alone") {
  const Words program =
      "env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE -u PMI_RANK -u PMI_SIZE"_words + Words{kProgram};
  const Words mpi_sets = Words{"sh", "-c", "test -n \"$PMIX_RANK\""};
  if (run(ranks(1, {}, mpi_sets)).status == 0)
    check_outputs({{ranks(2, {"decode", "--seq-len", "256"}, program), "2 ranks on 1 node"},
                   {ranks(1, {"decode", "--seq-len", "256", "--devices", "0-2"}, program), "3 ranks on 1 node"}});
  // Its MPI knows nothing of the launcher.
  const Words decode{"decode", "--seq-len", "256"};
  const auto of_rank = [&](const char* rank) { return Words{"env", rank} + alone(decode); };
  check_endings({{of_rank("PMIX_RANK=1"), "a launcher with PMIx started at least 2 processes, but "}});
  const Result first = run(of_rank("PMIX_RANK=0")), third = run(of_rank("PMIX_RANK=2"));
  CHECK(first.status == 0);
  CHECK(third.status == 2);
  CHECK(lines_of_ours(third.err).empty());
}

TEST_CASE("ranks: what is wrong is said once, and all end with status 2") {
  const Scratch scratch;
  scratch.write("bad", "not a tensor file");
  std::vector<Ending> all{{{"attend"}, "unknown command"},
                          {{"decode", "--shards", "4096"}, "--shards lists 1 shard for 3 ranks"},
                          {{"decode", "--shards", "4096,1,-1"}, "--shards: -1 is not in 0 .. 4096"},
                          {{"decode", "--seq-len", "4000000000"}, "--seq-len 4000000000 with --batch 1 needs about"},
                          {{"decode", "bad", "out"}, "bad: "},
                          {{"oracle", "bad", "out"}, "bad: "},
                          {{"decode", kLayer, "missing/out"}, "missing/out: cannot write: No such file or directory"}};
  for (Ending& each : all) each.command = ranks(3, each.command);
  check_endings(all, {.folder = scratch.folder().string()});
  CHECK(scratch.names() == std::vector<std::string>{"bad"});
}

TEST_CASE("ranks: oracle under mpirun writes what it writes alone") {
  const Scratch scratch;
  FileWorkload::draw(1, 2, 1, 2, 50, 8, 8, true).write(scratch.path("in"), "F32");
  check_silent_success(run(alone({"oracle", "in", "alone"}), {.folder = scratch.folder().string()}));
  check_silent_success(run(ranks(2, {"oracle", "in", "two"}), {.folder = scratch.folder().string()}));
  CHECK((Scratch::read(scratch.path("two")) == Scratch::read(scratch.path("alone"))));
}

TEST_CASE("ranks: input that differs from rank 0's, or is not there, is refused, and the line says where it differs") {
  // 200 keys of two batch entries over three shards; rank 0 has this file, another rank a spoilt one.
  const Scratch scratch;
  FileWorkload good = FileWorkload::draw(2, 2, 1, 2, 200, 8, 4);
  good.lengths = {200, 150};
  good.k.at(0, 0, 3, 1) = std::numeric_limits<double>::quiet_NaN();  // the same bytes on all ranks: no difference
  const Words shards{"--shards", "64,64,72"};
  struct Spoilt {
    int rank;
    std::string where;
    std::function<void(FileWorkload&)> spoil;
    std::string dtype = "F32";
  };
  const std::vector<Spoilt> all{{1, "hash of the header", [](FileWorkload& bad) { bad.zeta = bad.q; }},
                                {1, "hash of q", [](FileWorkload& bad) { bad.q.at(1, 1, 1, 7) += 1; }},
                                {2, "hash of lengths", [](FileWorkload& bad) { bad.lengths[1] = 10; }},
                                {1, "hash of rows of k", [](FileWorkload& bad) { bad.k.at(0, 0, 65, 0) += 1; }},
                                {2, "hash of rows of v", [](FileWorkload& bad) { bad.v.at(0, 0, 63, 3) += 1; }},
                                {1, "hash of rows of v", [](FileWorkload& bad) { bad.v.at(1, 0, 149, 0) += 1; }},
                                {2, "hash of rows of k", [](FileWorkload& bad) { bad.k.at(0, 0, 12, 5) += 1; }},
                                {1, "hash of v_scale", [](FileWorkload& bad) { bad.v_scale[1] = 2; }, "F8_E4M3"}};
  const auto folder = [&](std::size_t i) { return scratch.folder().string() + "/" + std::to_string(i); };
  std::vector<Ending> endings;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [spoilt, where, spoil, dtype] = all[i];
    FileWorkload of_others = good;
    if (dtype == "F8_E4M3") of_others.v_scale = {1, 1};
    FileWorkload bad = of_others;
    spoil(bad);
    for (int rank = 0; rank < 3; ++rank) {
      fs::create_directories(folder(i) + "/" + std::to_string(rank));
      (rank == spoilt ? bad : of_others).write(folder(i) + "/" + std::to_string(rank) + "/in", dtype);
    }
    endings.push_back({ranks(3, Words{"decode", "in", "out", "--report", "report"} + shards, in_own_folder(folder(i))),
                       "decode: ranks 0 and " + std::to_string(spoilt) + " differ in " + where + " ("});
  }
  check_endings(endings);
  for (const auto& entry : fs::recursive_directory_iterator(scratch.folder()))
    CHECK_MESSAGE((entry.is_directory() || entry.path().filename() == "in"), entry.path().string());
  fs::remove(folder(0) + "/1/in");
  check_one_line(run(endings[0].command), "rank 1: in: cannot open: No such file or directory");

  // Rows past the lengths may differ. Among those in use a difference outside the sample is found by --verify alone.
  FileWorkload other = good;
  for (std::int64_t a = 150; a < 200; ++a) other.k.at(1, 0, a, 0) = other.v.at(1, 0, a, 0) = 7;
  other.write(folder(0) + "/1/in", "F32");
  const Words verified = ranks(3, Words{"decode", "in", "--verify"} + shards, in_own_folder(folder(0)));
  const Result well = run(verified);
  CHECK(well.status == 0);
  REQUIRE(lines_of_ours(well.err).size() == 1);
  CHECK(lines_of_ours(well.err)[0].starts_with("tree_attn: warning: batch entry 0, head 0, query 0: "));  // of the NaN
  for (std::int64_t c = 0; c < 4; ++c) other.v.at(1, 0, 71, c) = 1e6;
  other.write(folder(0) + "/1/in", "F32");
  CHECK(run(verified).status == 1);
}

TEST_CASE("ranks: devices whose tensor cores add differently are refused in one line, for types that they multiply") {
  const Words each{"sh", "-c", "TREE_ATTN_EMULATOR_MAJOR=$((9 - ${OMPI_COMM_WORLD_RANK:-$PMI_RANK})) exec \"$0\" \"$@\"",
                   kProgram};
  const auto decode = [&](const char* dtype) {
    return ranks(2, Words{"decode", "--seq-len", "200", "--head-dim", "16", "--backend", "emulated", "--dtype", dtype},
                 each);
  };
  check_one_line(run(decode("bf16")),
                 "Algorithm::open: ranks 0 and 1 differ in arithmetic (mma 9.0 and mma 8.0); --portable has one on all");
  CHECK(run(decode("f32")).status == 0);
}

TEST_CASE("ranks: outputs that differ between ranks fail, in the table, the report and the status") {
  // Rank 0 keeps the state that rank 1 receives from it with another bit.
  const Scratch scratch;
  const Words decode{"decode", "--seq-len", "300", "--report", scratch.path("report")};
  const Result result = run(ranks(2, decode, with_faults({"STOP_IN=MPI_Isend", "STOP_RANK=0"})));
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(lines_of_ours(result.err) == Words{"tree_attn: check failed: two-level has different bits on different ranks"});
  CHECK(result.out.find("  NO  ") != std::string::npos);
  CHECK(Scratch::read(scratch.path("report")).find("\"same_bits_on_all_ranks\": false") != std::string::npos);
}

TEST_CASE("ranks: each reads its own shard of a file, and only the keys in use") {
  // Files with holes: all zeros, and no bytes on the disk; but a page that is read is resident.
  const Scratch scratch;
  const auto write = [&](const std::string& name, std::int64_t n_keys, std::int64_t length) {
    const std::vector<std::int64_t> axes{1, 1, n_keys, 128};
    write_zeros(scratch.path(name), {{"lengths", {1}, "I64"}, {"q", {1, 1, 1, 128}}, {"k", axes}, {"v", axes}},
                std::string(reinterpret_cast<const char*>(&length), sizeof length));
  };
  const auto peak_mib = [&](int n_ranks, const std::string& name, const std::string& backend = "cpu") {
    const Result result = run(ranks(n_ranks, {"decode", scratch.path(name), "--backend", backend}));
    check_silent_success(result);
    return result.peak_kib / 1024;
  };
  write("small", 64, 64);
  const long nothing = peak_mib(2, "small");

  // 4 GiB, 300 keys in use: well over the 2 GiB that counts of MPI and of read() stop at, and hardly a page of it.
  write("large", std::int64_t{1} << 22, 300);
  CHECK(fs::file_size(scratch.path("large")) > std::uint64_t{1} << 32);
  CHECK(peak_mib(2, "large") < nothing + 32);
  // A device copies the keys in use.
  CHECK(peak_mib(1, "large", "emulated") < peak_mib(1, "small", "emulated") + 32);
  CHECK(peak_mib(2, "large", "emulated") < peak_mib(2, "small", "emulated") + 32);

  // 256 MiB, all in use: a rank of one holds it all, one of four a quarter.
  write("middle", std::int64_t{1} << 18, std::int64_t{1} << 18);
  CHECK(peak_mib(1, "middle") > nothing + 200);
  CHECK((tree_attn::test::kIsSanitized || peak_mib(4, "middle") < nothing + 64 + 32));
}
