// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans over NCCL, with the stand-in and emulated devices: the bits and the counts of host memory (section 5.3).
#include "distributed/interface/combiner.hpp"
#include "tests/distributed/nccl/nccl_ranks.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/device_tensor.hpp"
#include "tests/support/one_shot_runs.hpp"
#include "tests/support/sanitized.hpp"

#include <atomic>
#include <random>

namespace tree_attn::test {
namespace {

/// Cuts of n keys at multiples of 64: even, and uneven with empty shards.
std::vector<std::vector<KeyRange>> cuts(int p, std::int64_t n) {
  std::vector<std::int64_t> uneven(static_cast<std::size_t>(p), 0);
  uneven[static_cast<std::size_t>(p / 2)] = n;
  if (p > 2) uneven[0] = 64, uneven[static_cast<std::size_t>(p / 2)] = n - 64;
  return {coarse_ranges(n, p, kLeafKeys), ranges_of_lengths(uneven)};
}

}  // namespace

TEST_CASE("nccl: every algorithm has the bits and counts of host memory, canonical ones the bits of one rank") {
  constexpr std::int64_t kKeys = 500;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const auto workload = normal_workload(
        5, {.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = kKeys, .dtype = dtype},
        std::vector<std::int64_t>{kKeys, 130});
    EmulatedGroup alone(1);
    const DecodeOutput one =
        decode(alone, find_algorithm("gather"), *workload, {Topology::pretend(1, 1), {{0, kKeys}}}, emulated::backend())[0]
            .output;
    for (const int p : dtype == DType::F32 && kIsSanitized ? std::vector{3, 5}
                       : dtype == DType::F32               ? std::vector{1, 2, 3, 5, 8}
                                                           : std::vector{4}) {
      EmulatedGroup over_nccl(p, true), over_threads(p);
      for (const std::vector<KeyRange>& ranges : cuts(p, kKeys)) {
        const Layout layout{mixed_grouping(p), ranges};
        for (const Algorithm& algorithm : algorithms()) {
          INFO(algorithm.name << ", " << name_of(dtype) << ", " << layout.text());
          const std::vector<RankResult> ours = decode(over_nccl, algorithm, *workload, layout, emulated::backend()),
                                        theirs = decode(over_threads, algorithm, *workload, layout, emulated::backend());
          for (std::size_t rank = 0; rank < ours.size(); ++rank) {
            CHECK(same_bits(ours[rank].output, theirs[rank].output));
            CHECK(same_bits(ours[rank].output, algorithm.keeps_bits ? one : ours[0].output));
            CHECK(ours[rank].traffic == theirs[rank].traffic);
          }
        }
      }
    }
  }
}

TEST_CASE("nccl: the library's AllReduce drops NaN from a maximum, and no output") {
  // Key 70 scores NaN with its query heads: in entry 0 among shards with keys, in entry 1 all other shards are empty.
  // Entry 2 has scores of 128, so that a shift that is not the maximum underflows.
  constexpr std::int64_t kKeys = 200;
  std::mt19937 random(11);
  Tensor q = normal_tensor(random, {3, 4, 1, 64}), k = normal_tensor(random, {3, 2, kKeys, 64}),
         v = normal_tensor(random, {3, 2, kKeys, 64});
  for (std::int64_t entry = 0; entry < 2; ++entry) k.set(entry, 1, 70, 3, std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t c = 0; c < 64; ++c) {
    for (std::int64_t a = 0; a < kKeys; ++a) {
      // Entry 1: scores of -inf outside the shard of key 70, so that all lse but one are -inf.
      if (a < 64 || a >= 128) k.set(1, 1, a, c, c == 0 ? -std::numeric_limits<float>::infinity() : 0.0f);
      k.set(2, 0, a, c, 4.0f), k.set(2, 1, a, c, 4.0f);
    }
    for (std::int64_t h = 0; h < 4; ++h) q.set(1, h, 0, 0, 1.0f), q.set(2, h, 0, c, 4.0f);
  }
  const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
  const std::vector<KeyRange> ranges = ranges_of_lengths(std::vector<std::int64_t>{64, 64, 72});
  const Layout layout{Topology::pretend(3, 3), ranges};
  EmulatedGroup over_threads(3);
  const DecodeOutput expected =
      decode(over_threads, find_algorithm("gather"), *workload, layout, emulated::backend())[0].output;
  CHECK(std::count_if(expected.lse.begin(), expected.lse.end(), [](float lse) { return lse != lse; }) == 4);
  for (const char* name : {"paper", "packed"}) {
    CAPTURE(name);
    std::vector<DecodeOutput> outputs(3);
    run_nccl(layout.topology, 60, "", [&](const Ranks& ranks, NcclTransport& transport) {
      OpenRank rank(*workload, ranges, transport, name, {.library_reduces = true});
      outputs[static_cast<std::size_t>(ranks.rank())] = rank.step();
      CHECK(transport.traffic().messages == 0);
      CHECK(transport.traffic().collectives == (name == std::string("paper") ? 3 : 2));
    });
    for (const DecodeOutput& output : outputs) {
      CHECK(same_bits(output, outputs[0]));
      for (const Comparison& each : {compare(output.lse, expected.lse, 1e-3, NonFinite::Match),
                                     compare(output.out, expected.out, 1e-4, NonFinite::Match)})
        CHECK_MESSAGE(each.ok, each.message);
    }
  }
}

TEST_CASE("nccl: where ranks have as many states each, the library gathers them, with the same bits. Else messages do") {
  struct Case {
    one_shot::Run run;
    bool gathers;
    const char* fault = "";
  };
  const auto dealt = [](int p) { return one_shot::Run{.p = p, .steps = 4, .order = LeafOrder::kDealt, .group = 2}; };
  std::vector<Case> cases{{dealt(2), true},
                          {dealt(4), true},
                          {dealt(8), true},
                          {dealt(4), true, "window"},    // null ones
                          {dealt(3), false},             // subtrees of other sizes
                          {dealt(4), true},              // messages of 68 KiB, which are else cut into slices
                          {dealt(4), false},             // by the radix that is asked for
                          {dealt(4), false},             // of two nodes
                          {{.p = 2, .steps = 4}, true},  // two of each rank
                          {dealt(4), false}};            // in slices of rows
  cases[5].run.group = 33, cases[5].run.value_dim = 128;
  cases[6].run.node_radix = 2;
  cases[7].run.nodes = {0, 0, 1, 1};
  cases[9].run = {
      .p = 4, .steps = 4, .cut = one_shot::Cut::kEmpty, .group = 3, .nodes = {0, 0, 1, 1}, .radix = 2, .slice_bytes = 0};
  for (const auto& [run, gathers, fault] : cases) {
    INFO(one_shot::text(run) << ", radix " << run.node_radix << ", fault " << fault);
    const std::vector<DecodeOutput> want = one_shot::gather_alone(run, 500);
    std::atomic<int> n_wrong = 0;
    run_nccl(one_shot::topology_of(run), 60, fault,
             [&, &run = run, gathers = gathers](const Ranks&, NcclTransport& transport) {
               one_shot::RankRun rank(run, 500, transport);
               rank.run.network = transport.network();
               one_shot::decode_steps(
                   transport, rank, "two-level", [&] { transport.clear_traffic(); },
                   [&](int t, const DecodeOutput& output) {
                     n_wrong += !same_bits(output, want[static_cast<std::size_t>(t)]);
                     CHECK((transport.traffic().messages == 0) == gathers);
                   });
             });
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("nccl: tensors on the device are merged and asked there, and only lengths are copied") {
  const Topology topology = Topology::pretend(4, 2);
  const Shape shape{2, 4, 3, 5};
  std::mt19937 random(6);
  std::vector<Tensor> o, lse;
  for (int rank = 0; rank < 4; ++rank)
    o.push_back(normal_tensor(random, shape, DType::BF16)),
        lse.push_back(normal_tensor(random, {2, 4, 3, 1}, DType::F32, 20));
  const auto workload = normal_workload(9, {.heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8, .n_keys = 384});
  const std::vector<KeyRange> ranges = ranges_of_lengths(std::vector<std::int64_t>{64, 192, 0, 128});
  std::vector<std::vector<DecodeOutput>> outputs[2];
  for (const bool over_nccl : {false, true}) {
    outputs[over_nccl].resize(4);
    const auto body = [&](const Ranks& ranks, Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const DeviceTensor o_there(o[rank]), lse_there(lse[rank]);
      const TensorView query = workload->query(0);
      const DeviceTensor q_there(copy_of(query));
      OpenRank own(*workload, ranges, transport, "two-level");
      const auto calls = [&] {
        ranks.barrier();  // no rank begins before rank 0 has begun to count
        for (const OutputPart part : {OutputPart::kAll, OutputPart::kHeads}) {
          Combiner combiner(transport, shape, part);
          if (over_nccl) CHECK_THROWS_AS(combiner.combine(o[rank], lse[rank]), std::invalid_argument);
          for (int call = 0; call < 3; ++call) {
            const OutputView output =
                over_nccl ? combiner.combine(o_there.view(), lse_there.view()) : combiner.combine(o[rank], lse[rank]);
            CHECK(output.on_device == over_nccl);
            outputs[over_nccl][rank].push_back(output.copy());
          }
        }
        for (int step = 0; step < 3; ++step) {
          const OutputView output = own.decoder->step({over_nccl ? q_there.view() : query, workload->lengths()});
          CHECK(output.on_device == over_nccl);
          outputs[over_nccl][rank].push_back(output.copy());
        }
        ranks.barrier();
      };
      if (rank != 0 || !over_nccl) return calls();
      const Copied copied = copied_by(calls);
      CHECK(copied.down == 0);
      CHECK(copied.up == 3 * 3 * (16 + 16));  // of the three ranks that have keys
    };
    if (over_nccl)
      run_nccl(topology, 60, "", body);
    else
      run_threads(topology, 60, ThreadBody(body));
  }
  for (std::size_t rank = 0; rank < 4; ++rank)
    for (std::size_t i = 0; i < outputs[0][rank].size(); ++i) CHECK(same_bits(outputs[1][rank][i], outputs[0][rank][i]));
}

TEST_CASE("nccl: a shard that arrives in the memory of a device is not taken for one on the host") {
  const auto workload = normal_workload(12, {.heads = 1, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = 65});
  const std::vector<KeyRange> ranges{{0, 64}, {64, 65}};
  EmulatedGroup over_threads(2);
  const DecodeOutput expected =
      decode(over_threads, find_algorithm("ring"), *workload, {Topology::pretend(2, 2), ranges}, emulated::backend())[0]
          .output;
  run_nccl(Topology::pretend(2, 2), 60, "", [&](const Ranks& ranks, NcclTransport& transport) {
    OpenRank rank(*workload, ranges, transport, "ring");
    DecodeOutput output;
    // No rank begins before rank 0 has begun to count.
    const auto step = [&] { ranks.barrier(), output = rank.step(), ranks.barrier(); };
    step();
    if (ranks.rank() != 0) return step();
    // A query of one head, room for one appended row, and the length, on each rank for each of the two shards.
    CHECK(copied_by(step).up == 4 * (64 * 4 + 2 * 64 * 4 + 2 * 16));
    CHECK(same_bits(output, expected));
  });
}

TEST_CASE("nccl: states are taken from a device after what the default stream has been given") {
  std::vector<float> states{1, 2, 3, 4, 5, 6};
  emulated::DeviceBuffer<float> on_device(6);
  const std::unique_ptr<DeviceBlocks> blocks = emulated::make_blocks(8, 1);
  blocks->upload(0, std::vector<float>(8, 0));
  on_device.queue_upload(emulated::Stream{}, std::span<const float>(states));
  blocks->stream().follow_default();
  blocks->take(1, on_device.data(), 6);
  std::vector<float> taken(8);
  blocks->download(0, taken);
  CHECK(taken == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 0});
}

}  // namespace tree_attn::test
