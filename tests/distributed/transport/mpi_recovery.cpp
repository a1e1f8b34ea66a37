// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decoding goes on after a TransportError, on the same communicator: no result is wrong, then or before.
#include "distributed/transport/mpi_ranks.hpp"
#include "tests/support/check_ranks.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/mpi_test_session.hpp"

#include <chrono>
#include <memory>
#include <thread>
#include <tuple>

namespace tree_attn::test {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kKeysPerRank = 64;

std::int64_t n_keys() { return kKeysPerRank * session().ranks().size(); }

/// A decode whose queries change from step to step, and its expected outputs.
struct Decode {
  /// Messages of 1 KiB are sent at once, those of 8 KiB wait for their receiver.
  Decode(unsigned seed, bool is_long) {
    const Axes axes = is_long ? Axes{.heads = 16, .kv_heads = 16, .head_dim = 128, .value_dim = 128, .n_keys = n_keys()}
                              : Axes{.head_dim = 64, .value_dim = 64, .n_keys = n_keys()};
    for (unsigned step = 0; step < kSteps; ++step) steps.push_back(normal_workload(seed + step, axes));
  }
  std::vector<std::unique_ptr<TensorWorkload>> steps;  ///< the first has the keys and values of all
};

/// Objects that one rank has open.
struct Open {
  Open(const Algorithm& algorithm, OpenShard& shard, bool shares_memory, double timeout)
      : ranks(session().ranks().comm(), timeout),
        transport(shares_memory ? ranks.open_shared_transport(ranks.topology(0)) : ranks.open_transport(ranks.topology(0))),
        decoder(algorithm.open(*transport, shard, ranges())) {}
  static std::vector<KeyRange> ranges() { return even_ranges(n_keys(), session().ranks().size(), kLeafKeys); }
  DecodeOutput step(const Decode& decode, int step) {
    return decoder->step({decode.steps[static_cast<std::size_t>(step)]->query(0), decode.steps[0]->lengths()}).copy();
  }

  MpiRanks ranks;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Decoder> decoder;
};

OpenShard open_shard_of(const Decode& decode) {
  TensorWorkload& workload = *decode.steps[0];
  const KeyRange own = Open::ranges()[static_cast<std::size_t>(session().ranks().rank())];
  return open_shard(cpu_backend(), workload.query(0), workload.shard(own), workload.lengths(), workload.scale);
}

std::vector<DecodeOutput> outputs_of(const Algorithm& algorithm, const Decode& decode, OpenShard& shard,
                                     bool shares_memory) {
  Open open(algorithm, shard, shares_memory, 60);
  std::vector<DecodeOutput> outputs;
  for (int step = 0; step < kSteps; ++step) outputs.push_back(open.step(decode, step));
  return outputs;
}

/// Failure of one rank in one step, while the others decode.
enum class Failure {
  kThrows,  ///< it ends with an error of its own
  kLeaves,  ///< it ends without one
  kIsLate   ///< it decodes after the others have given up
};

/// Decodes until the ranks give up. @returns whether any step had other bits than expected
bool fails(const Algorithm& algorithm, const Decode& decode, const std::vector<DecodeOutput>& expected, OpenShard& shard,
           bool shares_memory, Failure failure, int failing_rank, int failing_step) {
  constexpr double kTimeout = 0.2;
  constexpr std::chrono::milliseconds kUntilAllGaveUp{600};
  const bool has_failure = session().ranks().rank() == failing_rank;
  try {
    Open open(algorithm, shard, shares_memory, kTimeout);
    for (int step = 0; step < kSteps; ++step) {
      if (has_failure && step == failing_step) {
        if (failure == Failure::kLeaves) return false;
        if (failure == Failure::kThrows) throw std::runtime_error("an error of its own");
        std::this_thread::sleep_for(kUntilAllGaveUp);
      }
      if (!same_bits(open.step(decode, step), expected[static_cast<std::size_t>(step)])) return true;
    }
  } catch (const std::runtime_error&) {
  }
  return false;
}

}  // namespace

TEST_CASE("mpi recovery: after an error new ranks on the same communicator decode, and no output is wrong") {
  const MpiRanks& all = session().ranks();
  if (all.size() != 2 && all.size() != 4 && all.size() != 8) return;
  const Decode decodes[]{{11, false}, {31, true}}, others[]{{51, false}, {71, true}};
  int n_wrong = 0, n_wrong_before = 0;
  std::mt19937 random(97);  // the same on all ranks
  const auto draw = [&random](std::size_t below) { return static_cast<int>(random() % below); };
  for (int i = 0; i < 6; ++i) {  // each takes the time of a deadline
    const bool shares_memory = draw(2) == 0, is_long = draw(2) == 0;
    const auto failure = static_cast<Failure>(i % 3);
    const int failing_rank = draw(static_cast<std::size_t>(all.size())), failing_step = draw(kSteps);
    const Decode &decode = decodes[is_long], &other = others[is_long];
    const Algorithm& algorithm = algorithms()[static_cast<std::size_t>(draw(algorithms().size()))];
    OpenShard shard = open_shard_of(decode), other_shard = open_shard_of(other);
    const std::vector<DecodeOutput> expected = outputs_of(algorithm, decode, shard, shares_memory),
                                    of_other = outputs_of(algorithm, other, other_shard, shares_memory);
    n_wrong_before += fails(algorithm, other, of_other, other_shard, shares_memory, failure, failing_rank, failing_step);
    // What the others left in flight is not to be found in this memory.
    const std::vector<std::vector<float>> fill(64, std::vector<float>(std::size_t{1} << (8 + i % 8), 1e30f));
    other_shard.session->decode({other.steps[1]->query(0), other.steps[0]->lengths()});
    all.barrier();
    // Messages of before do not reach a communicator of some ranks either, which may take a context that these have freed.
    MPI_Comm half = MPI_COMM_NULL;
    MPI_Comm_split(all.comm(), all.rank() % 2, 0, &half);
    check_reductions(MpiRanks(half, 60));
    MPI_Comm_free(&half);

    // The other keys over ranks that are new, then those of before.
    for (const auto& [again, keys, outputs] :
         {std::tuple(&decode, &shard, &expected), std::tuple(&other, &other_shard, &of_other)}) {
      Open open(algorithm, *keys, shares_memory, 60);
      for (int step = 0; step < kSteps; ++step)
        n_wrong += !same_bits(open.step(*again, step), (*outputs)[static_cast<std::size_t>(step)]);
    }
  }
  CHECK(n_wrong == 0);
  CHECK(n_wrong_before == 0);
}

}  // namespace tree_attn::test
