// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Alg. 3 in two levels with NCCL alone: on every rank the bits of the plain decode.
#include "gpu/platform/launch.hpp"
#include "reference/decode/plain.hpp"
#include "tests/distributed/nccl/nccl_ranks.hpp"

#include <chrono>
#include <random>
#include <thread>

namespace tree_attn {
namespace emulated {

/// Alg. 3 by NCCL alone, in distributed/exchange/plain_two_level_nccl.cu, which has no header.
void plain_two_level_nccl(const nccl::Functions& library, nccl::Comm*& comm, int rank, std::span<const int> nodes,
                          std::span<const KeyRange> ranges, float* states, std::int64_t n_rows, std::int64_t d_v, float* out,
                          float* lse, std::chrono::steady_clock::time_point deadline);

}  // namespace emulated

namespace test {
namespace {

/// Output or error of every rank, by its index in the order of the ranges.
struct PlainRun {
  std::vector<DecodeOutput> outputs;
  std::vector<std::string> errors;
};

/// Decodes on ranks that are threads, with a device each. Their ranks in the communicator are their indices.
/// @param ranges what the states cover @param states_of an index, [subtrees][n_rows][2 + d_v]
/// @param fault as TREE_ATTN_NCCL_FAULT takes it
PlainRun run_plainly(const Topology& topology, std::span<const KeyRange> ranges, std::int64_t n_rows, std::int64_t d_v,
                     const std::function<std::vector<float>(int index)>& states_of, const std::string& fault = "",
                     std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  const VariableScope chosen(kNcclVariable, TREE_ATTN_NCCL_STAND_IN), wanted("TREE_ATTN_NCCL_FAULT", fault);
  emulated::Settings settings = emulated::settings();
  settings.n_devices = topology.size();
  const emulated::SettingsScope devices(settings);
  const nccl::Functions library = NcclLibrary::load()->functions();
  const auto finish_call = [&](nccl::Comm* comm) {
    nccl::Status status = nccl::Status::kInProgress;
    for (; status == nccl::Status::kInProgress; std::this_thread::yield()) library.ncclCommGetAsyncError(comm, &status);
  };
  nccl::UniqueId id;
  library.ncclGetUniqueId(&id);
  std::vector<int> nodes;
  for (const int rank : topology.order()) nodes.push_back(topology.node_of(rank));

  const auto p = static_cast<std::size_t>(topology.size());
  PlainRun run{std::vector<DecodeOutput>(p), std::vector<std::string>(p)};
  run_threads(topology, 60, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                const int index = topology.index_of(ranks.rank());
                const auto at = static_cast<std::size_t>(index);
                emulated::backend().use_gpu(index);
                nccl::Config config;
                nccl::Comm* comm = nullptr;
                library.ncclCommInitRankConfig(&comm, topology.size(), id, index, &config);
                finish_call(comm);
                const std::vector<float> own = states_of(index);
                emulated::DeviceBuffer<float> states(std::ssize(own)), out(n_rows * d_v), lse(n_rows);
                states.upload(own);
                try {
                  emulated::plain_two_level_nccl(library, comm, index, nodes, ranges, states.data(), n_rows, d_v, out.data(),
                                                 lse.data(), std::chrono::steady_clock::now() + timeout);
                  run.outputs[at] = {out.download(), lse.download()};
                  if (!same_bits(states.download(), own)) run.errors[at] = "the states have changed";
                } catch (const std::runtime_error& error) {
                  run.errors[at] = comm == nullptr ? error.what() : "the communicator has not been aborted";
                  return;
                }
                library.ncclCommFinalize(comm);
                finish_call(comm);
                library.ncclCommDestroy(comm);
              }));
  return run;
}

/// Decodes a workload from states of the plain decode, and compares with the plain decode of all keys.
void check_against_plain(TensorWorkload& workload, const Layout& layout) {
  INFO(layout.text());
  const auto states_of = [&](KeyRange range) {
    const Shard shard = workload.shard(range);
    return plain::decode({workload.query(0), workload.lengths()}, shard.k, shard.v, range, workload.scale);
  };
  const std::int64_t n_rows = workload.shape().n_rows(), d_v = workload.shape().value_dim;
  const PlainRun run = run_plainly(layout.topology, layout.ranges, n_rows, d_v, [&](int i) {
    const Forest<float> forest = states_of(layout.ranges[static_cast<std::size_t>(i)]);
    return std::vector<float>(forest.states().begin(), forest.states().end());
  });
  Forest<float> all = states_of({0, workload.n_keys()});
  const DecodeOutput want = finish_rows(all.fold(), n_rows, d_v);
  for (std::size_t i = 0; i < run.outputs.size(); ++i) {
    CHECK(run.errors[i] == "");
    CHECK(same_bits(run.outputs[i], want));
  }
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("nccl plain: the bits of the plain decode, for any nodes and ranges, of which some are empty") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 random(4300);
  // Values that are not finite in the first entry, no keys in the second, and in the third keys that are not seen, or score
  // +inf.
  Tensor q = normal_tensor(random, {3, 4, 2, 5}), k = normal_tensor(random, {3, 2, 900, 5}),
         v = normal_tensor(random, {3, 2, 900, 3});
  v.set(0, 0, 10, 0, kNaN), v.set(0, 0, 300, 1, kInf), v.set(0, 0, 301, 1, -kInf), v.set(0, 1, 639, 2, -kInf);
  for (std::int64_t h = 0; h < 4; ++h) q.set(2, h, 0, 0, 1), q.set(2, h, 1, 0, -0.5f);
  for (std::int64_t a = 0; a < 900; ++a) k.set(2, 0, a, 0, -kInf), v.set(2, 0, a, 2, -0.0f);
  const auto workload = workload_of(std::move(q), std::move(k), std::move(v), std::vector<std::int64_t>{900, 0, 900});
  for (int p = 1; p <= 9; ++p) {
    for (const Topology& topology : groupings(p))
      check_against_plain(*workload, {topology, uneven_ranges(random, workload->n_keys(), p)});
  }
  for (const std::int64_t n : {0, 1, 65})
    check_against_plain(*normal_workload(4302, {.head_dim = 5, .value_dim = 3, .n_keys = n}),
                        {mixed_grouping(5), uneven_ranges(random, n, 5)});
}

TEST_CASE("nccl plain: an error says what failed, and aborts the communicator") {
  const auto errors_of = [](const std::string& fault) {
    const std::vector<KeyRange> ranges = even_ranges(256, 4, kLeafKeys);
    const auto start = std::chrono::steady_clock::now();
    const PlainRun run = run_plainly(
        Topology::pretend(4, 2), ranges, 2, 1, [](int) { return std::vector<float>(6, 1); }, fault,
        std::chrono::milliseconds(300));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(3));
    return run.errors;
  };
  CHECK(errors_of("") == std::vector<std::string>(4));
  const std::string injected = "unhandled system error: stand-in: injected", late = "NCCL operation in progress: ";
  CHECK(errors_of("call 1 1")[1] == "ncclSend: " + injected);
  CHECK(errors_of("call 2 2")[2] == "ncclRecv: " + injected);
  CHECK(errors_of("async 2 1")[2].ends_with("network error: stand-in: the connection to a peer was lost"));
  CHECK(errors_of("silent 3 1") == std::vector<std::string>(4, "the output: " + late));
}

}  // namespace test
}  // namespace tree_attn
