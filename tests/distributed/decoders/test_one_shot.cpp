// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the bits of `gather` on any number of emulated devices, the bytes that are stored, a rank
/// that is missing, and what is refused.
#include "tree_attn/gpu/backend/one_shot_session.hpp"
#include "tree_attn/gpu/engine/peers.hpp"
#include "tree_attn/gpu/platform/device_traffic.hpp"
#include "tree_attn/gpu/platform/emulator/stream.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/tests/support/one_shot_runs.hpp"
#include "tree_attn/tests/support/sanitized.hpp"
#include "tree_attn/tests/support/sweep.hpp"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

namespace tree_attn::test::one_shot {

/// Shards of several leaves, more query tiles than blocks, and a last range that doubles on the way, so that all ranks open
/// new windows. Types, queries, cuts, seeds and devices in turn. Every third run has 20 steps of few rows, during which
/// the counter of steps wraps.
/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: no bit differs from gather, on 1 to 8 devices, in three steps and in twenty") {
  constexpr std::pair<DType, int> kRows[]{{DType::F32, 1}, {DType::BF16, 3}, {DType::BF16, 11}, {DType::F32, 4}};
  constexpr int kMajors[]{9, 8, 12};
  int n = 0;
  for (int p = 1; p <= 8; ++p) {
    if (kIsSanitized && p != 2 && p != 5) continue;
    for (int i = 0; i < (takes_all_cases() ? 30 : 3); ++i, ++n) {
      const auto& [dtype, group] = kRows[(n + n / 4) % 4];
      Run run{.p = p,
              .cut = static_cast<Cut>(n % 3),
              .dtype = dtype,
              .group = group,
              .seed = static_cast<std::uint64_t>(n % 5),
              .major = kMajors[(n + n / 3) % 3]};
      if (i % 3 == 2) run.steps = 20, run.batch = run.kv_heads = 1, run.n_multiprocessors = 1, run.steps_done = 0U - 10;
      CHECK(opens_new_windows(run, 510));
      check_run(run, 510);
    }
  }
}

TEST_CASE("one-shot: windows in host memory serve devices that do not reach each other, with the same bits and counts") {
  for (const int p : {2, 5}) {
    if (kIsSanitized && p > 2) continue;
    check_run({.p = p, .cut = Cut::kUneven, .group = 2, .windows_on_host = true}, 700);
  }
  // Rows with owners, in windows that double on the way.
  Run large = with_owners(3);
  large.cut = Cut::kEven, large.windows_on_host = true;
  CHECK(opens_new_windows(large, 510));
  check_run(large, 510);
}

/// Ranks without keys send too: if one did not, the others would overwrite what it has not read.
TEST_CASE("one-shot: ranks without keys, one of which is slow") {
  const Run run{.p = 4, .steps = 6, .cut = Cut::kEmpty, .seed = 1, .slow_rank = 2};
  CHECK(ranges_of(run, 300)[2].empty());
  check_run(run, 300);
}

TEST_CASE("one-shot: the bytes that kernels store into windows of other devices are those predicted, and what it counts") {
  for (const Cut cut : {Cut::kEven, Cut::kUneven, Cut::kEmpty}) {
    for (const int p : {1, 2, 5}) {
      const Traffic stored = check_run({.p = p, .cut = cut}, 1000);
      CHECK(stored.messages == p * (p - 1));
      CHECK((stored.bytes > 0) == (p > 1));
    }
  }
  // A state of 2 + 16 floats is six packets of 16 bytes; a rank without keys sends one packet for each of 4 rows.
  const std::vector<KeyRange> few{{0, 64}, {64, 256}, {256, 256}};
  const auto check_bytes = [&few](int from, int to, std::int64_t n_rows, std::int64_t states, std::int64_t rows) {
    const StoredBytes bytes = one_shot_bytes(few, from, to, n_rows, 16);
    CHECK(bytes.states == states);
    CHECK(bytes.rows == rows);
  };
  check_bytes(0, 1, 4, 4 * 6 * 16, 0);
  check_bytes(1, 0, 4, 2 * 4 * 6 * 16, 0);
  check_bytes(2, 1, 4, 4 * 16, 0);
  // Of 1000 rows the three ranks own 334, 333 and 333. A finished row of 16 + 1 floats is six packets too.
  check_bytes(1, 0, 1000, 16 * 334 * 2 * 6, 16 * 333 * 6);
  check_bytes(2, 1, 1000, 16 * 333, 16 * 333 * 6);
  // Four slots per row: one, two, and one of the rank without keys. Both halves, of all rows or of those of an owner.
  CHECK(one_shot_window_bytes(few, 4, 16) == 2 * 4 * 4 * 6 * 16);
  CHECK(one_shot_window_bytes(few, 1000, 16) == (2 * 4 * 334 * 6 + 1000 * 6) * 16);
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: predicted are one store per pair of ranks and the windows, and two rounds where rows have owners") {
  for (const int p : {1, 2, 8, 16}) {
    for (const std::int64_t group : {1, 500}) {
      const Run run{.p = p, .group = group};
      INFO(text(run));
      const WorkloadShape shape = shape_of(run, 64 * p);
      const std::int64_t n_rows = 4 * group, owned = (n_rows + p - 1) / p;
      const Prediction predicted =
          predict(find_algorithm("one-shot"), shape, Topology::pretend(p, p), ranges_of(run, 64 * p), {}, kPaperCluster);
      // A state of 18 floats is six packets, a finished row of 17 too. One rank has owners as well, and sends nothing.
      const bool has_owners = n_rows * 18 * 4 > 128 * 1024;
      CHECK(has_owners == (group == 500));
      CHECK(predicted.rounds == (p == 1 ? 0 : has_owners ? 2 : 1));
      CHECK(predicted.messages == p * (p - 1) * (has_owners ? 2 : 1));
      CHECK(predicted.bytes == (has_owners ? 2 : p) * (p - 1) * n_rows * 6 * 16);
      CHECK(predicted.bytes_between_nodes == 0);
      CHECK(predicted.collectives == 1);
      CHECK(predicted.merge_steps == p - 1);
      const std::int64_t packets = 2 * p * (has_owners ? owned : n_rows) * 6 + (has_owners ? n_rows * 6 : 0);
      CHECK(predicted.peak_elements == 64 * 4 * 2 * 16 + n_rows * 16 + n_rows * (18 + 17) + packets * 4);
      CHECK(predicted.peak_kv_bytes == 64 * 4 * 2 * 16 * 4);
    }
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: beyond 128 KiB of states rows have owners, and no bit differs") {
  const std::vector<Run> runs{
      {.cut = Cut::kUneven, .dtype = DType::F32},
      {.cut = Cut::kEmpty, .dtype = DType::BF16},
  };
  for (Run run : runs) {
    if (kIsSanitized && run.dtype == DType::F32) continue;
    run.p = 3, run.steps = 2, run.group = 33, run.seed = 2, run.slow_rank = 1, run.head_dim = 256;
    CHECK(Peers::of(closed(ranges_of(run, 250), 252), 0, 2 * 2 * 33, 256).has_owners);
    CHECK(check_run(run, 250).messages == 2 * 3 * 2);
  }
}

/// @param stays whether the decoder of that rank stays, as that of a device which hangs; otherwise it ends
static void check_missing_rank(bool stays) {
  const auto start = std::chrono::steady_clock::now();
  std::set<std::string> errors;
  without_rank({.p = 3}, 1, 0.5, errors, [stays](Transport&, std::latch& others) {
    if (stays) others.wait();
  });
  // Any row may be the first that has waited too long. The first rank to give up may end the wait of the other.
  CHECK(errors.size() == 2);
  int rank = 0, n_missing = 0;
  for (const std::string& error : errors) {
    CAPTURE(error);
    const std::string who = "rank " + std::to_string(rank) + ", step 2";
    const bool is_missing = error.starts_with(who + ": no states from rank 1, row ") && error.ends_with(", for 0.5 s");
    CHECK((is_missing || error == who + ", gave up: another rank failed"));
    n_missing += is_missing ? 1 : 0;
    rank += 2;
  }
  CHECK(n_missing >= 1);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("one-shot: a rank that never decodes ends the others within the deadline, in one line that names it") {
  check_missing_rank(true);
}

TEST_CASE("one-shot: the window of a rank that has failed stays until no other rank stores into it") {
  for (int i = 0; i < 3; ++i) check_missing_rank(false);
}

/// The kernels of the others wait in their second step when rank 1 throws; its error is the one that is reported.
TEST_CASE("one-shot: a rank that fails ends the kernels that wait for it, also without a time limit") {
  for (const bool windows_on_host : {false, true}) {
    for (const double timeout : {60.0, std::numeric_limits<double>::infinity()}) {
      CAPTURE(timeout);
      CAPTURE(windows_on_host);
      const auto start = std::chrono::steady_clock::now();
      std::set<std::string> followed;
      const Run run{.p = 3, .windows_on_host = windows_on_host};
      const std::string failed = without_rank(run, 1, timeout, followed, [](Transport&, std::latch&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        throw std::runtime_error("no more of this");
      });
      CHECK(failed == "rank 1: no more of this");
      CHECK(followed == std::set<std::string>{"rank 0, step 2, gave up: another rank failed",
                                              "rank 2, step 2, gave up: another rank failed"});
      REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
    }
  }
}

TEST_CASE("one-shot: an error counts the steps before new windows were opened") {
  for (const bool grows : {false, true}) {
    std::set<std::string> followed;
    const auto fails = [](Transport&, std::latch&) { throw std::runtime_error("no more of this"); };
    CHECK(without_rank({.p = 2}, 1, 60, followed, fails, grows) == "rank 1: no more of this");
    const std::string step = grows ? "3" : "2";
    CHECK(followed == std::set<std::string>{"rank 0, step " + step + ", gave up: another rank failed"});
  }
}

TEST_CASE("one-shot: two ranks on one device are refused in a line that names both") {
  const Run run{.p = 2};
  const emulated::SettingsScope scope({.n_hosts = run.p, .n_devices = run.p});
  const std::string line = message([&] {
    run_threads(Topology::pretend(run.p, run.p), kTimeout, [&](ThreadTransport& transport) {
      emulated::backend().use_gpu(1);
      RankRun rank(run, 600, transport);
      decode_steps(
          transport, rank, "one-shot", [] {}, [](int, const DecodeOutput&) {});
    });
  });
  const auto says = [&line](const char* ranks) {
    return line.find(std::string("one-shot: ranks ") + ranks + ": both on device 1") != std::string::npos;
  };
  CHECK((says("0 and 1") || says("1 and 0")));
}

/// On a GPU that is tests/gpu/exchange/on_parts.cpp.
TEST_CASE("one-shot: ranks on parts of one device have the bits of gather, and plan for their parts") {
  const Run run{.p = 3, .group = 2};
  const std::int64_t n_keys = 700;
  const std::vector<DecodeOutput> want = gather_alone(run, n_keys);
  const emulated::SettingsScope scope(
      {.seed = 1, .n_multiprocessors = 6, .n_hosts = run.p, .n_devices = 1, .has_peer_access = false});
  std::atomic<int> n_wrong = 0, n_whole = 0;
  run_threads(Topology::pretend(run.p, run.p), kTimeout, [&](ThreadTransport& transport) {
    const DevicePart part(2);
    n_whole += emulated::device().n_multiprocessors != 2;
    RankRun rank(run, n_keys, transport);
    decode_steps(
        transport, rank, "one-shot", [] {},
        [&](int t, const DecodeOutput& output) { n_wrong += !same_bits(output, want[static_cast<std::size_t>(t)]); });
  });
  CHECK(n_wrong == 0);
  CHECK(n_whole == 0);
  CHECK(emulated::device().n_multiprocessors == 6);
}

TEST_CASE("one-shot: what its kernels cannot combine is refused in a few words") {
  const Run run{.p = 2};
  const WorkloadShape shape = shape_of(run, 600);
  const Algorithm& algorithm = find_algorithm("one-shot");
  const Topology node = Topology::pretend(2, 2);
  CHECK(algorithm.refusal(node, &emulated::backend(), shape) == "");
  CHECK(algorithm.refusal(node, &cpu_backend(), shape).find("--backend cpu has none") != std::string::npos);
  CHECK(algorithm.refusal(Topology::pretend(34, 16), &emulated::backend(), shape) == "");
  // The largest node counts, for predictions too, which have no backend.
  std::vector<int> nodes(18, 1);
  nodes[0] = 0;
  for (const Topology& topology : {Topology::pretend(17, 17), Topology(nodes)}) {
    const std::string why = "a node of 17 ranks; at most 16; use two-level", line = "one-shot: " + why;
    CHECK(algorithm.refusal(topology, nullptr, shape) == why);
    CHECK_THROWS_WITH_AS(predict(algorithm, shape, topology, even_ranges(600, topology.size(), kLeafKeys)), line.c_str(),
                         std::logic_error);
  }
}

}  // namespace tree_attn::test::one_shot
