// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The decode of another library, compiled from its sources: its time in a graph, beside a read in the same process.
///
/// Run: time_flashinfer [--shape NAME;NAME], time_xqa or time_flashmla
/// Which library it is, the file that is linked says: peer_flashinfer.cu, peer_xqa.cu, peer_flashmla.cu. Its result is held
/// against a sum in double before it is timed. It keeps no bits. Prints one line of JSON per shape, as
/// tests/bench/time_ladder/peers.py does.
#include "tests/bench/on_a_card/peer.hpp"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"
#include "tests/bench/time_ladder/shapes.hpp"

namespace tree_attn::cuda {
namespace {

/// Tolerance of an element, about 1 at most: a unit in the last place of BF16, and what weights of BF16 lose.
constexpr double kTolerance = 0.02;

/// @returns whether the result is wrong
bool time_shape(const Shape& shape, Stream stream) {
  const int n_sets = n_sets_past_l2(shape.n_bytes());
  const Input input(shape, n_sets, stream);
  DeviceBuffer<BFloat16> out(shape.n_rows() * shape.value_dim);
  DeviceBuffer<unsigned char> workspace(static_cast<std::int64_t>(kPeerWorkspace));
  const auto step_of = [&](int i) {
    const DecodeParams& params = input.params[static_cast<std::size_t>(i)];
    return PeerStep{params.q.data,
                    params.k.data,
                    params.v.data,
                    out.data(),
                    static_cast<int>(shape.n_keys()),
                    static_cast<int>(shape.heads),
                    static_cast<int>(shape.kv_heads),
                    static_cast<int>(shape.key_dim),
                    static_cast<int>(shape.value_dim),
                    static_cast<float>(score_scale(shape.key_dim) / kLog2E),
                    workspace.data(),
                    static_cast<void*>(stream)};
  };
  if (!peer_takes(step_of(0))) return false;
  const auto well = [](int status) { check(static_cast<cudaError_t>(status), "a decode of another library"); };
  const auto run = [&](int i) { well(queue_peer(step_of(i))); };
  out.fill(0xFF), workspace.fill(0);
  check(cudaDeviceSynchronize(), "poisoning the output");
  well(plan_peer(step_of(0)));
  run(0);
  const std::vector<BFloat16> rows = out.download();
  double worst = 0;
  for (const std::int64_t index : {std::int64_t{0}, shape.n_rows() - 1}) {
    const Row want = reference_row(shape, index);
    for (std::size_t j = 0; j < want.z.size(); ++j) {
      const double found = static_cast<double>(widen(rows[static_cast<std::size_t>(index * shape.value_dim) + j]));
      const double off = std::abs(found - want.z[j]);
      worst = off <= worst ? worst : off;  // NaN is not less than anything
    }
  }
  JsonLine line("peer");
  line.add("shape", shape.name).add("peer", kPeer);
  if (!(worst <= kTolerance)) {
    line.add("note", "WRONG: off by " + std::to_string(worst));
    return true;
  }
  line.add("graph_seconds", time_in_graph(stream, n_sets, run, guess_of(stream, n_sets, run)));
  line.add("read_seconds", time_of_read(
                               shape.n_bytes(), n_sets, [&](int i) { return input.cache(i); }, stream, 0.1));
  return false;
}

int time_all(const Options& asked) {
  const OwnedStream stream;
  int n_wrong = 0;
  for (const Shape& shape : shapes_of(asked)) {
    const bool takes = shape.dtype == DType::BF16 && shape.batch() == 1 && shape.n_queries == 1 &&
                       shape.n_keys() <= 1 << 16 && shape.softcap == 0;
    if (takes) n_wrong += time_shape(shape, stream);
  }
  return n_wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv, "time_peer [--shape NAME;NAME]", tree_attn::cuda::time_all);
}
