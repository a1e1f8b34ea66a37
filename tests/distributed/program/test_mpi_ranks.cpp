// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Several ranks: one of them speaks, all of them end, each reads only its own shard.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/sanitized.hpp"

namespace fs = std::filesystem;

TEST_CASE("ranks: rank 0 alone prints") {
  const std::vector<std::pair<Words, std::string>> all{{{"--version"}, "tree_attn " TREE_ATTN_VERSION},
                                                       {{"decode", "--help"}, "Usage:"},
                                                       {{"info"}, "ranks          3 on 1 node"},
                                                       {{"decode", "--seq-len", "256"}, "256 keys"}};
  std::vector<Words> commands;
  for (const auto& [arguments, once] : all) commands.push_back(ranks(3, arguments));
  const std::vector<Result> results = run_all(commands);
  for (std::size_t i = 0; i < all.size(); ++i) {
    check_silent_success(results[i]);
    const std::size_t at = results[i].out.find(all[i].second);
    CHECK(at != std::string::npos);
    CHECK(results[i].out.find(all[i].second, at + 1) == std::string::npos);
  }
}

TEST_CASE("ranks: what is wrong is said once, and all end with status 2") {
  const Scratch scratch;
  scratch.write("bad", "not a tensor file");
  const std::vector<std::pair<Words, std::string>> all{
      {{"attend"}, "unknown command"},
      {{"decode", "--shards", "4096"}, "--shards lists 1 shard for 3 ranks"},
      {{"decode", "--shards", "4096,1,-1"}, "--shards: -1 is not in 0 .. 4096"},
      {{"decode", "--seq-len", "4000000000"}, "--seq-len 4000000000 with --batch 1 needs about"},
      {{"decode", "bad", "out"}, "bad: "},
      {{"oracle", "bad", "out"}, "bad: "},
      {{"decode", kLayer, "missing/out"}, "missing/out: cannot write: No such file or directory"}};
  std::vector<Words> commands;
  for (const auto& [arguments, part] : all) commands.push_back(ranks(3, arguments));
  const std::vector<Result> results = run_all(commands, {.folder = scratch.folder().string()});
  for (std::size_t i = 0; i < all.size(); ++i) check_one_line(results[i], all[i].second);
  CHECK(scratch.names() == std::vector<std::string>{"bad"});
}

TEST_CASE("ranks: oracle under mpirun writes what it writes alone") {
  const Scratch scratch;
  FileWorkload::draw(1, 2, 1, 2, 50, 8, 8, true).write(scratch.path("in"), "F32");
  check_silent_success(run(alone({"oracle", "in", "alone"}), {.folder = scratch.folder().string()}));
  check_silent_success(run(ranks(2, {"oracle", "in", "two"}), {.folder = scratch.folder().string()}));
  CHECK((Scratch::read(scratch.path("two")) == Scratch::read(scratch.path("alone"))));
}

TEST_CASE("ranks: a file that is not the same on every rank is found before any of it is used") {
  const Scratch scratch;
  fs::create_directory(scratch.path("0"));
  fs::create_directory(scratch.path("1"));
  FileWorkload::draw(1, 2, 1, 1, 50, 8, 8).write(scratch.path("0/in"), "F32");
  const Words command = ranks(2, {"decode", "in"}, in_own_folder(scratch.folder().string()));
  check_one_line(run(command), "rank 1: in: cannot open: No such file or directory");
  FileWorkload::draw(1, 2, 1, 1, 51, 8, 8).write(scratch.path("1/in"), "F32");
  check_one_line(run(command), "rank 1: in differs from that of rank 0 in the header: all ranks need the same file");
}

TEST_CASE("ranks: input that differs from rank 0's is refused, and the line says where it differs") {
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
  };
  const std::vector<Spoilt> all{{1, "q", [](FileWorkload& bad) { bad.q.at(1, 1, 1, 7) += 1; }},
                                {2, "lengths", [](FileWorkload& bad) { bad.lengths[1] = 10; }},
                                {1, "row [0, 0, 64] of k", [](FileWorkload& bad) { bad.k.at(0, 0, 64, 0) += 1; }},
                                {2, "row [0, 0, 63] of v", [](FileWorkload& bad) { bad.v.at(0, 0, 63, 3) += 1; }},
                                {1, "row [1, 0, 149] of v", [](FileWorkload& bad) { bad.v.at(1, 0, 149, 0) += 1; }},
                                {2, "row [0, 0, 12] of k", [](FileWorkload& bad) { bad.k.at(0, 0, 12, 5) += 1; }}};
  const auto folder = [&](std::size_t i) { return scratch.folder().string() + "/" + std::to_string(i); };
  std::vector<Words> commands;
  for (std::size_t i = 0; i < all.size(); ++i) {
    FileWorkload bad = good;
    all[i].spoil(bad);
    for (int rank = 0; rank < 3; ++rank) {
      fs::create_directories(folder(i) + "/" + std::to_string(rank));
      (rank == all[i].rank ? bad : good).write(folder(i) + "/" + std::to_string(rank) + "/in", "F32");
    }
    commands.push_back(ranks(3, Words{"decode", "in", "out", "--report", "report"} + shards, in_own_folder(folder(i))));
  }
  const std::vector<Result> results = run_all(commands);
  for (std::size_t i = 0; i < all.size(); ++i) {
    check_one_line(results[i], "rank " + std::to_string(all[i].rank) + ": in differs from that of rank 0 in " +
                                   all[i].where + ": all ranks need the same file");
    for (const auto& entry : fs::recursive_directory_iterator(folder(i)))
      CHECK_MESSAGE((entry.is_directory() || entry.path().filename() == "in"), entry.path().string());
  }

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

TEST_CASE("ranks: outputs that differ between ranks fail, in the table, the report and the status") {
  // Rank 0 keeps the state that rank 1 receives from it with another bit.
  const Scratch scratch;
  const Words decode{"decode", "--seq-len", "300", "--report", scratch.path("report")};
  const Result result = run(ranks(2, decode, {"env", "LD_PRELOAD=" TREE_ATTN_FLIP_A_BIT, kProgram}));
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(lines_of_ours(result.err) == Words{"tree_attn: check failed: two-level has different bits on different ranks"});
  CHECK(result.out.find("  NO  ") != std::string::npos);
  CHECK(Scratch::read(scratch.path("report")).find("\"same_bits_on_all_ranks\": false") != std::string::npos);
}

TEST_CASE("ranks: each reads its own shard of a file, and only the keys in use") {
  // Files with holes: all zeros, and no bytes on the disk; but a page that is read is resident.
  const Scratch scratch;
  constexpr std::int64_t kHeadDim = 128;
  const auto write = [&](const std::string& name, std::int64_t n_keys, std::int64_t length) {
    const auto cache_bytes = static_cast<std::uint64_t>(n_keys * kHeadDim * 4),
               q_bytes = static_cast<std::uint64_t>(kHeadDim * 4);
    std::string header = "{";
    std::uint64_t at = 0;
    const auto add = [&](const std::string& key, const std::string& dtype, const std::string& shape, std::uint64_t size) {
      std::ostringstream field;
      field << (at == 0 ? "" : ",") << '"' << key << R"(":{"dtype":")" << dtype << R"(","shape":[)" << shape
            << R"(],"data_offsets":[)" << at << "," << at + size << "]}";
      header += field.str();
      at += size;
    };
    const std::string axes = "1,1," + std::to_string(n_keys) + ",128";
    add("lengths", "I64", "1", 8);
    add("q", "F32", "1,1,1,128", q_bytes);
    add("k", "F32", axes, cache_bytes);
    add("v", "F32", axes, cache_bytes);
    header += "}";
    scratch.write(name, with_length(header, std::string(reinterpret_cast<const char*>(&length), sizeof length)));
    fs::resize_file(scratch.path(name), 8 + header.size() + at);
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
