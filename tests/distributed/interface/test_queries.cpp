// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The number of queries belongs to a step: one cache and one decoder take any, over any number of ranks.
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/settings.hpp"
#include "gpu/platform/launch.hpp"
#include "tests/support/query_steps.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <doctest/doctest.h>

#include <atomic>

namespace tree_attn::test::queries {
namespace {

constexpr double kTimeout = 120;

/// The steps over p threads, each with an emulated device of its own. @returns those with other bits, on all ranks
int differences(int p, const Run& run, const std::vector<DecodeOutput>& want) {
  emulated::Settings settings = emulated::settings();
  settings.n_devices = p;
  const emulated::SettingsScope devices(settings);
  std::atomic<int> n_other = 0;
  const bool has_nodes = run.is_open && find_algorithm(run.algorithm).refusal == nullptr;
  run_threads(Topology::pretend(p, has_nodes ? 2 : p), kTimeout, [&](ThreadTransport& transport) {
    run.backend.use_gpu(transport.rank());
    n_other += differences(
        transport, run, want, [](std::size_t) {}, [](std::size_t) {});
  });
  return n_other;
}

std::vector<int> numbers_of_ranks() { return kIsSanitized ? std::vector{3} : std::vector{1, 2, 3, 4, 5}; }

}  // namespace

TEST_CASE("queries: a prompt in chunks, single queries and drafts over one cache have the bits of fresh caches") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      const std::vector<DecodeOutput> want = fresh(cpu_backend(), dtype, order);
      for (const Algorithm& algorithm : algorithms()) {
        if (!algorithm.keeps_bits) continue;
        for (const int p : numbers_of_ranks()) {
          const std::int64_t most_queries = p % 2 == 0 ? kMostQueries : 0;
          CAPTURE(algorithm.name);
          CAPTURE(p);
          CAPTURE(name_of(order));
          CHECK(differences(p, {algorithm.name, cpu_backend(1 + p % 2), dtype, order, most_queries, p % 3 == 0}, want) == 0);
        }
      }
    }
  }
}

TEST_CASE("queries: on a device too, and where its kernels exchange") {
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    const std::vector<DecodeOutput> want = fresh(emulated::backend(), DType::BF16, order);
    for (const std::string_view algorithm : {"two-level", "ring", "one-shot"}) {
      for (const int p : numbers_of_ranks()) {
        if (!find_algorithm(algorithm).takes_dealt && order == LeafOrder::kDealt) continue;
        const bool is_slow = find_algorithm(algorithm).kv_shards_in_flight > 0 || order == LeafOrder::kDealt;
        if (is_slow && !takes_all_cases() && p != 3) continue;
        const std::int64_t most_queries = p % 2 == 0 ? kMostQueries : 0;
        CAPTURE(algorithm);
        CAPTURE(p);
        CAPTURE(name_of(order));
        CHECK(differences(p, {algorithm, emulated::backend(), DType::BF16, order, most_queries, p % 3 == 0}, want) == 0);
      }
    }
  }
}

TEST_CASE("queries: a device gives memory for the most queries when a session is opened, and none in a step") {
  const std::vector<DecodeOutput> want = fresh(emulated::backend(), DType::BF16);
  for (const std::string_view algorithm : {"two-level", "one-shot"}) {
    for (const std::int64_t most_queries : {std::int64_t{0}, kMostQueries}) {
      CAPTURE(algorithm);
      CAPTURE(most_queries);
      std::vector<std::int64_t> n_allocated(kSteps.size());
      run_threads(Topology::pretend(1, 1), kTimeout, [&](ThreadTransport& transport) {
        const auto count = [&](std::int64_t sign, std::size_t i) {
          n_allocated[i] += sign * emulated::traffic().n_allocations;
        };
        CHECK(differences(
                  transport, {algorithm, emulated::backend(), DType::BF16, LeafOrder::kContiguous, most_queries}, want,
                  [&](std::size_t i) { count(-1, i); }, [&](std::size_t i) { count(1, i); }) == 0);
      });
      // Without a reserve the first step is the largest.
      CHECK((n_allocated[0] == 0) == (most_queries > 0));
      CHECK(std::ranges::count(n_allocated, 0) == std::ssize(kSteps) - (most_queries > 0 ? 0 : 1));
    }
  }
}

}  // namespace tree_attn::test::queries
