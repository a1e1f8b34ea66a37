// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times the competitor of `one-shot`: the decode, ncclAllGather of the states, and kernels that merge them
/// (section 5.3).
///
/// Run: exchange_over_nccl [--ranks 2,4,8] [--timed N] [--keys N] [--timeout SECONDS]
/// The ranks are threads, without MPI, each on the GPU of its number. Two of them may share the only GPU of a machine, which
/// takes NCCL 2.30.3 and NCCL_MULTI_RANK_GPU_ENABLE=1. The exchange, the merges and the finish are one graph from the second
/// step on, after the graph of the decode, and every rank ends with the whole output, as with `gather`. For as many ranks as
/// a power of two, the merges are those of the canonical tree, and the output is compared with that of `gather`. Then steps
/// are timed that all ranks begin together; those of `one-shot` only where every rank has its own GPU, for on one GPU its
/// kernels would need parts of it, as in exchange_on_parts. At last a rank does not come to a step: the others abort their
/// communicators at the deadline, with messages queued. It prints one line of JSON per result.
///
/// It is compiled twice, for GPUs and for the emulator, whose times mean nothing. It has run on one H200 with one rank.
#include "distributed/transport/nccl_communicator.hpp"
#include "reference/data/input_error.hpp"
#include "tests/bench/exchange/rank_steps.hpp"

#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tree_attn::exchange {
namespace {

constexpr int kCompared = 2 * kQueries;  ///< steps: every query twice

/// The step of one rank.
class GatherOverNccl {
 public:
  GatherOverNccl(const ThreadRanks& ranks, Rank& rank)
      : ranks_(ranks),
        rank_(rank),
        communicator_(ranks, device::kIsHostMemory),
        n_rows_(rank.shape.n_rows()),
        size_(n_rows_ * state_size(rank.shape.value_dim)),
        z_(ranks.size() * size_),
        lse_(z_ + n_rows_ * rank.shape.value_dim),
        blocks_(device::make_blocks(lse_ + n_rows_, rank.shape.value_dim)),
        output_(static_cast<std::size_t>(lse_ + n_rows_ - z_)) {
    communicator_.before_abort([this]() noexcept { blocks_->stream().forget(); });
    // The canonical tree over a power of two of equal shards: neighbours first.
    for (int stride = 1; stride < ranks.size(); stride *= 2) {
      for (int i = 0; i + stride < ranks.size(); i += 2 * stride) pairs_.push_back({i * size_, (i + stride) * size_});
    }
  }

  GatherOverNccl(const GatherOverNccl&) = delete;
  GatherOverNccl& operator=(const GatherOverNccl&) = delete;
  /// Messages that are queued end before the memory that they use, and the graph that holds them before the communicator.
  ~GatherOverNccl() {
    if (std::uncaught_exceptions() > 0) communicator_.abort();
    blocks_->stream().forget();
    communicator_.before_abort([]() noexcept {});
  }

  /// @returns z and lse of all rows
  std::span<const float> step(int t) {
    const States& states = rank_.shard.session->decode({rank_.query(t), rank_.lengths});
    DeviceStream& stream = blocks_->stream();
    stream.follow_default();
    const std::int64_t own = ranks_.rank() * size_;
    stream.repeat([&] {
      blocks_->take(own, states.device(), size_);
      communicator_.group([&] {
        const nccl::Status status = communicator_.functions().ncclAllGather(
            blocks_->address(own), blocks_->address(0), static_cast<std::size_t>(size_), nccl::Type::kFloat32,
            communicator_.get(), stream.handle());
        communicator_.check("ncclAllGather", status);
      });
      blocks_->merge(pairs_, n_rows_);
      blocks_->finish({0, 0}, z_, lse_, n_rows_);
    });
    wait(stream);
    blocks_->download(z_, output_);
    return output_;
  }

 private:
  /// A peer that is gone would be waited for without end.
  void wait(DeviceStream& stream) {
    const std::size_t end = stream.mark();
    communicator_.wait_until([&] { return stream.has_passed(end); }, "ncclAllGather");
    stream.keep_marks(0);
  }

  const ThreadRanks& ranks_;
  Rank& rank_;
  NcclCommunicator communicator_;
  std::int64_t n_rows_, size_, z_, lse_;  ///< elements of a block of states; places of the output
  std::unique_ptr<DeviceBlocks> blocks_;  ///< states of all ranks, by rank, then the output
  std::vector<DeviceBlocks::Pair> pairs_;
  std::vector<float> output_;
};

/// @returns outputs of the gather over NCCL that differ, over all ranks and steps
std::int64_t count_differences_of_gather(const Ranks& all, const std::vector<DecodeOutput>& want) {
  std::atomic<std::int64_t> n_wrong = 0;
  all.run(all.asked.timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    Rank rank(all.asked.n_keys, all.range(transport));
    GatherOverNccl gather(ranks, rank);
    for (int t = 0; t < kCompared; ++t) {
      const std::span<const float> output = gather.step(t);
      const std::size_t n_z = want[0].out.size();
      n_wrong += differs(want, t, output.first(n_z), output.subspan(n_z));
    }
  });
  return n_wrong;
}

/// The last rank leaves out a step: all ranks end within the time limit, by ncclCommAbort().
/// @returns whether that was so, but for the time
bool miss_a_rank(const Ranks& all) {
  constexpr int kUntil = 4;  // a replay of the graph
  Clock::time_point left;
  const std::string line = line_without_last(all, std::min(all.asked.timeout, device::kIsHostMemory ? 1.0 : 3.0), left,
                                             [&](const ThreadRanks& ranks, ThreadTransport& transport) {
                                               Rank rank(all.asked.n_keys, all.range(transport));
                                               GatherOverNccl gather(ranks, rank);
                                               for (int t = 0; t < kUntil; ++t) gather.step(t);
                                               if (ranks.rank() == all.n - 1) {
                                                 left = Clock::now();
                                                 ranks.barrier();
                                               }
                                               gather.step(kUntil);
                                             });
  return line.find(" waited ") != std::string::npos;
}

/// @returns the exit status: 1 if anything is wrong
int run_all(const Asked& asked) {
  const std::vector<DecodeOutput> want = outputs_of_gather(asked.n_keys);
  bool all_right = true;
  for (const int n : asked.counts) {
#if !defined(TREE_ATTN_FOR_CUDA)
    emulated::Settings settings = emulated::settings();
    settings.n_devices = n;
    const emulated::SettingsScope devices(settings);
#endif
    const int n_devices = device::n_devices();
    if (n > n_devices && !(n == 2 && n_devices == 1)) {
      JsonLine("ranks").add("ranks", n).add("note", "there are GPUs for " + std::to_string(n_devices));
      continue;
    }
    JsonLine("ranks").add("ranks", n).add("devices", std::min(n, n_devices));
    const Ranks all{"ranks", n, asked, [&](int rank) {
                      device::backend().use_gpu(rank % n_devices);
                      return nullptr;
                    }};
    const auto tell = [&](const char* what, std::int64_t n_wrong) {
      JsonLine("bits").add("ranks", n).add("what", what).add("steps", kCompared).add("wrong", n_wrong);
      all_right = all_right && n_wrong == 0;
    };
    if ((n & (n - 1)) == 0) tell("ncclAllGather", count_differences_of_gather(all, want));
    if (n <= n_devices) tell("one-shot", count_differences(all, kCompared, {}, want));
    time_steps(all, "decode, ncclAllGather, merge",
               [&](const ThreadRanks& ranks, ThreadTransport&, Rank& rank, Together& times) {
                 GatherOverNccl gather(ranks, rank);
                 times.run(ranks, [&](int t) { gather.step(t); });
               });
    if (n <= n_devices) time_one_shot(all);
    time_decode(all);
    if (n > 1 && n == asked.counts.front()) all_right = miss_a_rank(all) && all_right;
  }
  return all_right ? 0 : 1;
}

}  // namespace
}  // namespace tree_attn::exchange

int main(int argc, char** argv) {
  using namespace tree_attn::exchange;
  // Kernels that wait for each other must not wait until one of them is loaded.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return tree_attn::run_program(argc, argv, "exchange_over_nccl [--ranks 2,4,8] [--timed N] [--keys N] [--timeout SECONDS]",
                                [](const tree_attn::Options& options) {
                                  return run_all({options, "--ranks", 10});
                                });
}
