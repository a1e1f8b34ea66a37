// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that ends: every allocation of an operation fails in turn, on the host and on the device. The operation
/// throws, the object is as it was, nothing is lost, and the operation passes once there is memory.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/settings.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/device_tensor.hpp"
#include "tests/support/sequences.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test {
namespace {

/// Scope in which the n-th allocation fails. The emulator is no program under test, so with it the memory of the device
/// alone.
class Failing {
 public:
  Failing(bool on_device, int n) {
    if (on_device)
      emulated::runtime::n_allocations_left = n;
    else
      n_left_here = n;
  }
  ~Failing() { emulated::runtime::n_allocations_left = -1, n_left_here = -1; }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

/// A setup, and what is decoded with it.
struct Kind {
  std::string name;
  AttentionSetup setup;
  AttentionShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8};
  SeenRule rule{};
  DType given = DType::F32;  ///< in which keys, values and queries come
  bool on_device = false;    ///< whether memory of the device ends
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const bool on_device : {false, true}) {
    const std::string backend = on_device ? "emulated" : "cpu";
    const auto add = [&](const std::string& name, const auto& change) {
      Kind kind{.name = backend + name, .setup = {.backend = backend}, .on_device = on_device};
      change(kind);
      all.push_back(kind);
    };
    add(", dealt", [](Kind&) {});
    add(", contiguous, BF16", [](Kind& kind) {
      kind.setup.ranges = {{0, kOpenEnd}}, kind.given = kind.shape.dtype = kind.shape.value_dtype = DType::BF16;
    });
    add(", a window", [](Kind& kind) { kind.setup.ranges = {{0, kOpenEnd}}, kind.rule = {true, 90, 3}; });
    add(", pages", [](Kind& kind) { kind.setup.pages = {.n_pages = 30}, kind.setup.ranges = {{0, kOpenEnd}}; });
    add(", pages of a window, F8", [](Kind& kind) {
      kind.setup.pages = {.n_pages = 12, .window = 40, .sinks = 3}, kind.rule = {false, 40, 3};
      kind.shape.dtype = kind.shape.value_dtype = DType::F8_E4M3, kind.given = DType::BF16;
    });
    add(", two threads", [](Kind& kind) { kind.setup.n_threads = 2; });
  }
  return all;
}

/// Two objects over the same inputs, of which one runs out of memory.
class Twins {
 public:
  explicit Twins(const Kind& kind)
      : kind_(kind), in_(kind.shape, 2, 900, std::mt19937(6600), kind.given), well_(kind.shape, kind.setup) {
    // Opened again and again. What fails leaves nothing behind.
    until_it_passes([&] { tried_.emplace(kind.shape, kind.setup); }, [&] { CHECK(!tried_.has_value()); },
                    !kind.on_device && kind.setup.n_threads == 1);
  }
  void append(std::int64_t entry, std::int64_t n, bool on_device = false) {
    const std::int64_t at = well_.lengths()[static_cast<std::size_t>(entry)];
    const TensorView k = in_.k.view().entry(entry).positions(at, at + n),
                     v = in_.v.view().entry(entry).positions(at, at + n);
    std::optional<DeviceTensor> there_k, there_v;
    if (on_device && kind_.on_device) there_k.emplace(copy_of(k)), there_v.emplace(copy_of(v));
    const bool is_there = there_k.has_value();
    change([&](Attention& attention) {
      attention.append(entry, is_there ? there_k->view() : k, is_there ? there_v->view() : v);
    });
  }
  void truncate(std::int64_t entry, std::int64_t n) {
    change([&](Attention& attention) { attention.truncate(entry, n); });
  }
  void share(std::int64_t from, std::int64_t to, std::int64_t n) {
    change([&](Attention& attention) { attention.share(from, to, n); });
  }
  void step(bool on_device = false) {
    std::optional<DeviceTensor> there;
    if (on_device && kind_.on_device) there.emplace(in_.q);
    const TensorView q = there ? there->view() : in_.q.view();
    const DecodeOutput want = well_.step(q, kind_.rule).copy();
    std::optional<DecodeOutput> got;
    until_it_passes([&] { got = tried_->step(q, kind_.rule).copy(); }, [] {});
    CHECK(same_bits(*got, want));
    CHECK(same_bits(tried_->step(q, kind_.rule).copy(), want));
  }
  int n_failed = 0;

 private:
  /// Runs an operation on both. Whenever it fails, the other object is as it was.
  template <class Change>
  void change(const Change& change) {
    const bool has_keys = std::ranges::any_of(well_.lengths(), [](std::int64_t n) { return n > 0; });
    const DecodeOutput before = well_.step(in_.q, kind_.rule).copy();
    const std::vector<std::int64_t> lengths(well_.lengths().begin(), well_.lengths().end());
    until_it_passes([&] { change(*tried_); },
                    [&] {
                      CHECK(std::ranges::equal(tried_->lengths(), lengths));
                      // Not always: what a step does hides what an operation has left undone.
                      if (has_keys && n_failed % 2 == 0) CHECK(same_bits(tried_->step(in_.q, kind_.rule).copy(), before));
                    });
    change(well_);
  }
  template <class Operation, class Check>
  void until_it_passes(const Operation& operation, const Check& check, bool counts_live = false) {
    for (const bool on_device : {false, true}) {
      if (on_device != kind_.on_device) continue;
      for (int n = 0;; ++n) {
        REQUIRE(n < 2000);
        const int before = n_live_here;
        try {
          const Failing failing(on_device, n);
          operation();
          return;
        } catch (const std::exception& error) {
          const std::string line = error.what();
          CHECK((line.find("bad_alloc") != std::string::npos || line.find("out of memory") != std::string::npos));
        }
        if (counts_live) CHECK(n_live_here == before);
        ++n_failed;
        check();
      }
    }
  }

  const Kind& kind_;
  Sequences in_;
  Attention well_;
  std::optional<Attention> tried_;
};

}  // namespace

TEST_CASE("memory: every allocation of an open, an append, a step and a growth fails in turn, and nothing is lost") {
  const emulated::SettingsScope defaults({});
  int n_of_opens = 0;
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    Twins twins(kind);
    n_of_opens += twins.n_failed;  // none on a device without pages, where append and step take memory
    twins.append(0, 70), twins.append(1, 5);
    const int n_appended = twins.n_failed;
    twins.step();
    CHECK(twins.n_failed > n_appended);
    // Positions that wait on the host for a step of a device, which fails.
    twins.append(0, 1), twins.append(1, 1), twins.step(), twins.step(true);
    twins.append(0, 1), twins.append(1, 1), twins.append(1, 90, true), twins.step();
    // Growth, several times; then cuts, and prefixes that are shared.
    const int n_before = twins.n_failed;
    twins.append(0, 300), twins.step(), twins.append(1, 130), twins.step(true), twins.append(0, 60), twins.step();
    if (kind.setup.pages.n_pages == 0) CHECK(twins.n_failed > n_before);
    twins.append(0, 1), twins.truncate(1, 0), twins.step();
    if (kind.setup.pages.n_pages > 0) twins.append(0, 1), twins.share(0, 1, 433), twins.step(), twins.append(1, 3);
    twins.append(0, 1), twins.append(1, 400), twins.step();
  }
  CHECK(n_of_opens > 0);
}

TEST_CASE("memory: a cache whose growth fails has the capacity that it had") {
  const emulated::SettingsScope defaults({});
  const AttentionShape shape{.batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 16, .value_dim = 8};
  for (const Backend* const backend : {&cpu_backend(), &emulated::backend()}) {
    const bool on_device = !backend->has_threads();
    const auto cache = backend->make_cache(shape, KeyRange{0, kOpenEnd}, 64);
    for (const int n : {0, 1}) {  // keys, values
      const Failing failing(on_device, n);
      CHECK_THROWS(cache->reserve(200));
      CHECK(cache->capacity() == 64);
    }
    cache->reserve(200);
    CHECK(cache->capacity() == 200);
  }
}

TEST_CASE("memory: where one rank of two runs out of it in a step, all are told which, and the next step is right") {
  const emulated::SettingsScope defaults({});
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    Kind over_ranks = kind;
    if (!kind.setup.ranges.empty()) over_ranks.setup.ranges = {{0, 64}, {64, kOpenEnd}};
    const Sequences in(kind.shape, 2, 900, std::mt19937(6610), kind.given);
    Attention alone(kind.shape, kind.setup);
    std::vector<DecodeOutput> want;
    const std::int64_t pieces[] = {100, 1, 250};
    const auto append = [&](Attention& attention, std::int64_t n) {
      for (std::int64_t entry = 0; entry < 2; ++entry)
        in.append(attention, entry, attention.lengths()[static_cast<std::size_t>(entry)] + n);
    };
    for (const std::int64_t n : pieces) append(alone, n), want.push_back(alone.step(in.q, kind.rule).copy());

    std::atomic<int> n_failed = 0, n_wrong = 0;
    run_threads(Topology::pretend(2, 2), 60, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                  Attention attention(ranks, over_ranks.shape, over_ranks.setup);
                  const DeviceTensor there(in.q);
                  for (std::size_t i = 0; i < want.size(); ++i) {
                    append(attention, pieces[i]);
                    for (const bool from_device : {false, true}) {
                      if (from_device && !kind.on_device) continue;
                      std::optional<DecodeOutput> got;
                      for (int n = 0; !got; ++n) {
                        std::optional<Failing> failing;
                        if (ranks.rank() == 1) failing.emplace(kind.on_device, n);
                        try {
                          const OutputView output = attention.step(from_device ? there.view() : in.q.view(), kind.rule);
                          failing.reset();
                          got = output.copy();
                        } catch (const InputError& error) {
                          failing.reset();
                          n_wrong += !std::string(error.what()).starts_with("rank 1: "), ++n_failed;
                        }
                        failing.reset();
                        std::int64_t is_there = got.has_value();
                        n_wrong += ranks.all_gather(is_there, "both ranks") != std::vector<std::int64_t>(2, is_there);
                      }
                      n_wrong += !same_bits(*got, want[i]);
                    }
                  }
                }));
    CHECK(n_wrong.load() == 0);
    CHECK(n_failed.load() > 0);
  }
}

TEST_CASE("memory: where one rank runs out of it for the queries of the others, all are told, and the next step is right") {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8};
  std::mt19937 random(6611);
  const Tensor q = normal_tensor(random, {1, 2, 3, 16}), k = normal_tensor(random, {1, 2, 200, 16}),
               v = normal_tensor(random, {1, 2, 200, 8});
  std::atomic<int> n_failed = 0;
  run_threads(Topology::pretend(2, 2), 60, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                Attention attention(ranks, shape), well(ranks, shape);
                for (Attention* each : {&attention, &well}) each->append(0, k, v);
                const DecodeOutput want = well.step_by_heads(q).copy();
                std::optional<DecodeOutput> got;
                for (int n = 0; !got; ++n) {
                  std::optional<Failing> failing;
                  if (ranks.rank() == 1) failing.emplace(false, n);
                  try {
                    const OutputView output = attention.step_by_heads(q);
                    failing.reset();
                    got = output.copy();
                  } catch (const InputError& error) {
                    failing.reset();
                    CHECK(std::string(error.what()) == "rank 1: std::bad_alloc");
                    ++n_failed;
                  }
                }
                CHECK(same_bits(*got, want));
              }));
  CHECK(n_failed.load() > 0);
}

}  // namespace tree_attn::test
