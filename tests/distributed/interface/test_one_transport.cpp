// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Programs that open their ranks themselves: several objects over one transport, another algorithm over the same
/// keys, and keys that move to other ranks.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/settings.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/device_tensor.hpp"
#include "tests/support/message.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sequences.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test::one_transport_test {
namespace {

constexpr double kTimeout = 60;
constexpr std::int64_t kKeys = 500, kMore = 200;
const AttentionShape kShape{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8};

const Sequences& inputs() {
  static const Sequences all(kShape, 2, kKeys + kMore, std::mt19937(31));
  return all;
}
/// Sequences of n and n / 3 keys.
void fill(Attention& attention, std::int64_t n) { inputs().append(attention, 0, n), inputs().append(attention, 1, n / 3); }

/// The setup of p ranks in an order of leaves.
AttentionSetup setup_of(LeafOrder order, int p, const Backend& backend = cpu_backend()) {
  AttentionSetup setup{.found_backend = &backend};
  if (order == LeafOrder::kContiguous) setup.ranges = even_ranges(448, p, kLeafKeys), setup.ranges.back().end = kOpenEnd;
  return setup;
}
/// Ranges that hold n keys on p ranks, in an order of leaves.
std::vector<KeyRange> ranges_of(LeafOrder order, std::int64_t n, int p) {
  if (order == LeafOrder::kDealt) return dealt_ranges(p);
  std::vector<KeyRange> ranges = even_ranges(n / kLeafKeys * kLeafKeys, p, kLeafKeys);
  ranges.back().end = kOpenEnd;
  return ranges;
}

DecodeOutput alone(LeafOrder order, std::int64_t n, const Backend& backend = cpu_backend(), AttentionShape shape = kShape,
                   const KvScales& scales = {}) {
  AttentionSetup setup = setup_of(order, 1, backend);
  setup.scales = scales;
  Attention attention(shape, setup);
  fill(attention, n);
  return attention.step(inputs().q).copy();
}

std::vector<int> numbers_of_ranks() { return kIsSanitized ? std::vector{3} : std::vector{1, 2, 3, 5}; }

/// Devices for p threads, for as long as it lives.
struct Devices {
  explicit Devices(int p, emulated::Settings settings = emulated::settings()) : scope((settings.n_devices = p, settings)) {}
  emulated::SettingsScope scope;
};

}  // namespace

TEST_CASE("facade: objects over one transport of the program have the bits of one rank, and their messages are on it") {
  for (const Backend* backend : {&cpu_backend(), &find_backend("emulated")}) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      const std::array want{alone(order, 300, *backend), alone(order, kKeys, *backend)};
      for (const int p : numbers_of_ranks()) {
        if (backend != &cpu_backend() && p > 3) continue;
        const Devices devices(p);
        run_threads(Topology::pretend(p, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
          if (backend != &cpu_backend()) backend->use_gpu(ranks.rank());
          const AttentionSetup setup = setup_of(order, p, *backend);
          std::array<std::unique_ptr<Attention>, 2> layers;
          for (auto& layer : layers) layer = std::make_unique<Attention>(transport, kShape, setup);
          fill(*layers[0], 300), fill(*layers[1], kKeys);
          for (const std::size_t i : {0, 1, 1, 0}) {
            transport.clear_traffic();
            CHECK(same_bits(layers[i]->step(inputs().q).copy(), want[i]));
            CHECK((ranks.all_sum(transport.traffic().bytes) > 0) == (p > 1));
            CHECK(&layers[i]->transport() == &transport);
          }
        });
      }
    }
  }
}

TEST_CASE("facade: a backend that the program has found is taken, whatever the name says") {
  AttentionSetup setup{.backend = "none", .found_backend = &find_backend("emulated")};
  Attention attention(kShape, setup);
  CHECK((attention.platform().make_blocks != nullptr));
  CHECK(attention.cache().is_on_device());
  setup.found_backend = &cpu_backend();
  CHECK_FALSE(Attention(kShape, setup).cache().is_on_device());
}

TEST_CASE("facade: transports, nodes and plans that differ between ranks are named") {
  run_threads(Topology::pretend(3, 3), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    const bool is_odd = ranks.rank() == 1;
    const std::string differ = "Attention: ranks 0 and 1 differ in ";
    ThreadTransport pairs(ranks, Topology::pretend(3, 2));
    CHECK(
        message<InputError>([&] { Attention(is_odd ? pairs : transport, kShape); }).starts_with(differ + "hash of nodes ("));
    CHECK(message<InputError>([&] {
            is_odd ? Attention(ranks, kShape) : Attention(transport, kShape);
          }).starts_with(differ + "latency in a node ("));
    AttentionSetup slow, own;
    slow.plan.network.between.latency_us = own.plan.network.between.latency_us = 1e3;
    CHECK(message<InputError>([&] {
            Attention(transport, kShape, is_odd ? slow : AttentionSetup());
          }).starts_with(differ + "latency ("));
    Attention(ranks, kShape, is_odd ? own : AttentionSetup());  // which has the network of its transport
    for (const AttentionSetup& setup : {AttentionSetup{.ranks_per_node = 3}, AttentionSetup{.shares_memory = true}})
      CHECK(message<InputError>([&] { Attention(transport, kShape, setup); }) ==
            "Attention: nodes and shared memory are those of the transport");
  });
}

TEST_CASE("facade: another algorithm over the same keys has its own messages, and the bits of an object of its own") {
  for (const Backend* backend : {&cpu_backend(), &find_backend("emulated")}) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      std::vector<const Algorithm*> all;
      for (const Algorithm& each : algorithms()) all.push_back(&each);
      if (backend != &cpu_backend() && order == LeafOrder::kContiguous) all.push_back(&find_algorithm("one-shot"));
      const int p = backend == &cpu_backend() ? 4 : 2;
      const Devices devices(p);
      run_threads(Topology::pretend(p, 2), kTimeout, [&](ThreadTransport& transport) {
        if (backend != &cpu_backend()) backend->use_gpu(transport.rank());
        AttentionSetup setup = setup_of(order, p, *backend);
        Attention attention(transport, kShape, setup);
        fill(attention, kKeys);
        const auto step = [&](Attention& of) {
          transport.clear_traffic();
          return of.step(inputs().q).copy();
        };
        for (const Algorithm* algorithm : all) {
          CAPTURE(algorithm->name);
          setup.algorithm = std::string(algorithm->name);
          Attention own(transport, kShape, setup);
          fill(own, kKeys);
          const DecodeOutput want = step(own);
          const Traffic sent = transport.traffic().since({});
          attention.use(algorithm->name);
          CHECK(same_bits(step(attention), want));
          CHECK((transport.traffic().since({}) == sent));
          // Keys may come and go in between.
          attention.truncate(0, 130), inputs().append(attention, 0, kKeys);
          CHECK(same_bits(step(attention), want));
          // Ranks that have other keys are told so, also where keys have moved, here to the same ranks.
          for (const bool moves : {false, true}) {
            if (moves && algorithm->refusal == nullptr) attention.reshard(ranges_of(order, 448, p));
            CHECK(same_bits(step(attention), want));
            CHECK((transport.traffic().since({}) == sent));
            attention.truncate(0, transport.rank() == 1 ? kKeys - 1 : kKeys);
            CHECK(
                message<InputError>([&] { attention.step(inputs().q); }).starts_with("Decoder::step: ranks 0 and 1 differ"));
            inputs().append(attention, 0, kKeys);
          }
        }
        // Refused on all ranks alike, which then go on with the one before.
        attention.use("two-level");
        const DecodeOutput want = step(attention);
        CHECK(message<InputError>([&] { attention.use("none"); }).starts_with("--algorithm none: unknown"));
        if (order == LeafOrder::kDealt)
          CHECK(message<InputError>([&] { attention.use("one-shot"); }) ==
                "Attention::use: one-shot takes no dealt order of leaves");
        attention.start(inputs().q);
        CHECK(message<InputError>([&] { attention.use("gather"); }) == "Attention::use: a step is under way");
        CHECK(same_bits(attention.finish().copy(), want));
      });
    }
  }
}

TEST_CASE("facade: keys move to other ranks and back, each is held once, and no bit changes") {
  const AttentionShape eight{.dtype = DType::F8_E4M3,
                             .value_dtype = DType::F8_E4M3,
                             .batch = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .value_dim = 8};
  const KvScales scales{{0.01f, 0.03f, 0.02f, 0.01f}, {0.02f, 0.05f, 0.03f, 0.02f}};
  for (const Backend* backend : {&cpu_backend(), &find_backend("emulated")}) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      for (const bool is_eight : {false, true}) {
        const AttentionShape& shape = is_eight ? eight : kShape;
        const KvScales& of = is_eight ? scales : KvScales{};
        const std::array want{alone(order, kKeys, *backend, shape, of), alone(order, kKeys + kMore, *backend, shape, of)};
        for (const int p : numbers_of_ranks()) {
          if (backend != &cpu_backend() && p != 3) continue;
          CAPTURE(p);
          CAPTURE(name_of(order));
          const Devices devices(p);
          run_threads(Topology::pretend(p, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
            if (backend != &cpu_backend()) backend->use_gpu(ranks.rank());
            AttentionSetup setup = setup_of(order, p, *backend);
            setup.scales = of;
            Attention attention(transport, shape, setup);
            fill(attention, kKeys);
            for (const int n : {1, p, std::max(1, p - 1), p}) {
              transport.clear_traffic();
              attention.reshard(ranges_of(order, kKeys, n));
              // Only ranks that hold keys before or after have sent any; a key that stays is not sent.
              const std::int64_t sent = ranks.all_sum(transport.traffic().bytes),
                                 of_all = (kKeys + kKeys / 3) * shape.bytes_per_position() / shape.batch;
              CHECK((sent < of_all && (p == 1 || n == p || sent > 0)));
              CHECK(same_bits(attention.step(inputs().q).copy(), want[0]));
              for (std::int64_t entry : {0, 1})
                CHECK(ranks.all_sum(attention.cache().lengths()[static_cast<std::size_t>(entry)]) ==
                      attention.lengths()[static_cast<std::size_t>(entry)]);
              const std::int64_t n_holders = ranks.all_sum(attention.cache().longest() > 0);
              CHECK(n_holders == n);
              std::int64_t mine = 0;
              for (std::int64_t a = 0; a < kKeys + kMore; ++a) mine += attention.holds(a);
              CHECK(ranks.all_sum(mine) == kKeys + kMore);
              // Those to come go where the ranges say.
              fill(attention, kKeys + kMore);
              CHECK(same_bits(attention.step(inputs().q).copy(), want[1]));
              attention.truncate(0, kKeys), attention.truncate(1, kKeys / 3);
            }
          });
        }
      }
    }
  }
}

TEST_CASE("facade: over threads too, an object that ends with its step under way ends the others over its messages") {
  const DecodeOutput want = alone(LeafOrder::kDealt, kKeys);
  for (const bool ends : {true, false}) {
    run_threads(Topology::pretend(3, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      Attention left(transport, kShape), apart(ranks, kShape);
      auto ended = std::make_unique<Attention>(transport, kShape);
      for (Attention* each : {&left, &apart, ended.get()}) fill(*each, kKeys);
      ended->start(inputs().q);
      if (ranks.rank() == 0) ended->progress();
      if (!ends) CHECK(same_bits(ended->finish().copy(), want));
      CHECK((transport.in_flight() > 0) == ends);
      ended.reset();
      CHECK(transport.in_flight() == 0);
      for (Attention* each : {&left, &apart}) {
        if (ends)
          CHECK(message<TransportError>([&] { each->step(inputs().q); }) ==
                "rank " + std::to_string(ranks.rank()) + " has given up before; start the threads of all ranks again");
        else
          CHECK(same_bits(each->step(inputs().q).copy(), want));
      }
    });
  }
}

TEST_CASE("facade: an object that ends after a start() that has taken the whole step leaves the others their messages") {
  const auto check = [](const Backend& backend, std::string_view algorithm) {
    const DecodeOutput want = alone(LeafOrder::kContiguous, kKeys, backend);
    const Devices devices(2);
    run_threads(Topology::pretend(2, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      if (&backend != &cpu_backend()) backend.use_gpu(ranks.rank());
      AttentionSetup setup = setup_of(LeafOrder::kContiguous, 2, backend);
      Attention left(transport, kShape, setup);
      setup.algorithm = algorithm;
      auto ended = std::make_unique<Attention>(transport, kShape, setup);
      for (Attention* each : {&left, ended.get()}) fill(*each, kKeys);
      const DeviceTensor there(inputs().q);
      ended->start(&backend == &cpu_backend() ? inputs().q.view() : there.view());
      ended.reset();
      CHECK(same_bits(left.step(inputs().q).copy(), want));
    });
  };
  check(cpu_backend(), "ring");
  check(find_backend("emulated"), "two-level");  // with queries on the device
}

TEST_CASE("facade: what cannot move is refused, and stays") {
  for (const int p : {1, 3}) {
    run_threads(Topology::pretend(p, p), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      Attention attention(transport, kShape, setup_of(LeafOrder::kContiguous, p));
      fill(attention, kKeys);
      const DecodeOutput want = attention.step(inputs().q).copy();
      const auto refused = [&](const std::vector<KeyRange>& ranges, const std::string& line) {
        CHECK(message([&] { attention.reshard(ranges); }) == "Attention::reshard: " + line);
        CHECK(same_bits(attention.step(inputs().q).copy(), want));
      };
      refused({{0, 448}}, "a sequence has 500 positions, but the ranges of all ranks end at 448");
      refused({{64, kOpenEnd}}, "the ranges begin at 64 instead of 0");
      if (p == 3) refused({{0, 64}, {64, 150}, {150, kOpenEnd}}, "a range begins at 150, inside a leaf of 64 keys");
      CHECK(message([&] { attention.reshard({}); }).starts_with("spread_over: 0 ranges over "));
      attention.start(inputs().q);
      CHECK(message([&] {
              attention.reshard(std::array{KeyRange{0, kOpenEnd}});
            }) == "Attention::reshard: a step is under way");
      CHECK(same_bits(attention.finish().copy(), want));

      Attention paged(transport, kShape, {.pages = {.n_pages = 12}});
      CHECK(message([&] { paged.reshard(dealt_ranges(p)); }) == "Attention::reshard: keys in pages stay where they are");
      // Ranks that have other keys: all learn it, and nothing has moved.
      if (p == 1) return;
      attention.truncate(0, ranks.rank() == 1 ? kKeys - 1 : kKeys);
      CHECK(message<InputError>([&] {
              attention.reshard(std::array{KeyRange{0, kOpenEnd}});
            }).starts_with("reshard: ranks 0 and 1 differ in the longest sequence (500 and 499), the hash of lengths ("));
      inputs().append(attention, 0, kKeys);
      CHECK(same_bits(attention.step(inputs().q).copy(), want));
    });
  }
}

}  // namespace tree_attn::test::one_transport_test
