// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief NCCL under one class: the bits of one rank, also in the order of a stream; what cannot be is refused on all ranks.
#include "distributed/interface/attention.hpp"
#include "gpu/emulator/streams.hpp"
#include "tests/distributed/nccl/nccl_ranks.hpp"
#include "tests/support/device_tensor.hpp"
#include "tests/support/message.hpp"
#include "tests/support/sequences.hpp"

#include <random>
#include <string>

namespace tree_attn::test::nccl_attention_test {
namespace {

const AttentionShape kShape{.heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8};
constexpr std::int64_t kKeys = 200, kMore = 5;

/// Runs a function on p threads, each with an emulated device of its own; none has device 0.
void run_ranks(int p, const std::string& library, const std::function<void(const ThreadRanks&)>& body) {
  const VariableScope found(kNcclVariable, library);
  emulated::Settings settings = emulated::settings();
  settings.n_devices = 1 + p;
  const emulated::SettingsScope devices(settings);
  run_threads(Topology::pretend(p, p), 60, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                emulated::backend().use_gpu(1 + ranks.rank());
                body(ranks);
              }));
}

}  // namespace

TEST_CASE("nccl: attention over it has the bits of one rank, on the device of the object, in the order of a stream too") {
  const Sequences in(kShape, 2, kKeys + kMore, std::mt19937(1700));
  std::vector<DecodeOutput> want;
  {
    const emulated::SettingsScope defaults({});
    Attention alone(kShape, {.backend = "emulated"});
    for (std::int64_t n = kKeys; n < kKeys + kMore; ++n) {
      in.append(alone, 0, n);
      want.push_back(alone.step(in.q).copy());
    }
  }
  for (const int p : {2, 3}) {
    for (const bool has_stream : {false, true}) {
      run_ranks(p, TREE_ATTN_NCCL_STAND_IN, [&](const ThreadRanks& ranks) {
        const AttentionSetup setup{.backend = "emulated", .transport = "nccl"};
        Attention attention(ranks, kShape, setup);
        CHECK(attention.transport().name() == "nccl");
        const DeviceTensor q(in.q), k(in.k), v(in.v);
        const auto program = emulated::make_blocks(0, 1);
        if (has_stream) attention.use_stream(program->stream().handle());
        emulated::backend().use_gpu(1 + (ranks.rank() + 1) % p);  // of another rank
        const int before = emulated::current_device();
        for (std::int64_t n = kKeys; n < kKeys + kMore; ++n) {
          const std::int64_t begin = attention.lengths()[0];
          attention.append(0, k.view().positions(begin, n), v.view().positions(begin, n));
          const std::int64_t n_waits = emulated::runtime::waits_of_thread();
          const OutputView output = attention.step(q.view());
          CHECK(emulated::runtime::waits_of_thread() - n_waits == 1);  // for its messages
          program->stream().wait();
          CHECK(output.on_device);
          CHECK(same_bits(output.copy(), want[static_cast<std::size_t>(n - kKeys)]));
          CHECK(emulated::current_device() == before);
        }
        CHECK(same_bits(attention.step(in.q).copy(), want.back()));
        emulated::backend().use_gpu(1 + ranks.rank());
      });
    }
  }
}

TEST_CASE("nccl: attention over it is refused on all ranks, in one line, where it cannot be") {
  run_ranks(2, TREE_ATTN_NCCL_STAND_IN, [](const ThreadRanks& ranks) {
    const auto open = [&](const AttentionSetup& setup) {
      return message<InputError>([&] { Attention(ranks, kShape, setup); });
    };
    CHECK(open({.transport = "nccl"}) ==
          "Attention: the transport nccl sends from device memory, and the backend cpu has none");
    CHECK(open({.backend = "emulated", .transport = "tcp"}) == "Attention: a transport tcp; nccl is one");
    CHECK(open({.backend = "emulated", .transport = ranks.rank() == 0 ? "" : "nccl"})
              .starts_with("Attention: ranks 0 and 1 differ in "));
  });
  run_ranks(2, "/none", [](const ThreadRanks& ranks) {
    CHECK(message<InputError>([&] {
            Attention(ranks, kShape, {.backend = "emulated", .transport = "nccl"});
          }).starts_with("--transport nccl: "));
  });
}

}  // namespace tree_attn::test::nccl_attention_test
