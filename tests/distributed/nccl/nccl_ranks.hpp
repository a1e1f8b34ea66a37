// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Threads as ranks whose messages go over the stand-in for NCCL, between emulated devices.
#pragma once

#include "distributed/transport/nccl_transport.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/settings.hpp"
#include "gpu/platform/launch.hpp"
#include "tests/support/decoding.hpp"

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn::test {

/// An environment variable, until the end of a scope. An empty value removes it.
class VariableScope {
 public:
  VariableScope(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  VariableScope(const VariableScope&) = delete;
  VariableScope& operator=(const VariableScope&) = delete;
  ~VariableScope() { set(before_); }

 private:
  void set(const std::string& value) const {
    if (value.empty())
      ::unsetenv(name_);
    else
      ::setenv(name_, value.c_str(), 1);
  }
  const char* name_;
  std::string before_;
};

/// Threads that say of themselves what processes would.
class AsProcesses final : public ThreadRanks {
 public:
  explicit AsProcesses(const ThreadRanks& threads) : ThreadRanks(threads) {}
  bool is_one_process() const override { return false; }
};

/// Kind of the ranks of the transport.
enum class Kind { kProcesses, kThreads };

/// Runs a function on every rank, each with an emulated device of its own and a transport over the stand-in. No rank has
/// device 0, the device of a thread that chooses none: a rank that queues or allocates there is a fault.
/// @param fault as TREE_ATTN_NCCL_FAULT takes it @param kind processes, whose steps are graphs
inline void run_nccl(const Topology& topology, double timeout, const std::string& fault,
                     const std::function<void(const Ranks&, NcclTransport&)>& body, Kind kind = Kind::kProcesses) {
  const VariableScope library(kNcclVariable, TREE_ATTN_NCCL_STAND_IN), wanted("TREE_ATTN_NCCL_FAULT", fault);
  emulated::Settings settings = emulated::settings();
  settings.n_devices = 1 + topology.size();
  const emulated::SettingsScope devices(settings);
  emulated::has_context(0) = false;
  run_threads(topology, timeout, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                emulated::backend().use_gpu(1 + ranks.rank());
                // Rank 0 alone listens.
                const AsProcesses processes(ranks);
                const Ranks& shown = kind == Kind::kThreads ? ranks : processes;
                NcclTransport transport(shown, topology, platform_of(emulated::backend()),
                                        ranks.rank() == 0 ? "eth7 10.0.0.1" : "");
                body(shown, transport);
              }));
  CHECK(!emulated::has_context(0));
}

/// Ranks as the decoder tests use them.
class EmulatedGroup : public RankGroup {
 public:
  /// @param over_nccl the ranks of run_nccl(); else threads whose messages go over host memory
  explicit EmulatedGroup(int size, bool over_nccl = false) : RankGroup(size), over_nccl_(over_nccl) {}
  std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) override {
    std::vector<RankResult> results(static_cast<std::size_t>(size()));
    const auto on_rank = [&](const Ranks& ranks, Transport& transport) {
      RankResult& mine = results[static_cast<std::size_t>(ranks.rank())];
      mine.output = body(transport);
      mine.traffic = transport.traffic();
    };
    if (over_nccl_) {
      run_nccl(topology, 60, "", on_rank);
    } else {
      const emulated::SettingsScope defaults({});
      run_threads(topology, 60, ThreadBody(on_rank));
    }
    return results;
  }

 private:
  bool over_nccl_;
};

/// Shard, cache and decoder of one rank of a workload, on its emulated device.
struct OpenRank {
  OpenRank(TensorWorkload& of, const std::vector<KeyRange>& ranges, Transport& transport, std::string_view algorithm,
           const PlanOptions& options = {})
      : workload(of),
        shard(open_shard(emulated::backend(), of.query(0), of.shard(transport.topology().range_of(transport.rank(), ranges)),
                         of.lengths(), of.scale)),
        decoder(find_algorithm(algorithm).open(transport, shard, ranges, options)) {}
  DecodeOutput step() { return decoder->step({workload.query(0), workload.lengths()}).copy(); }

  TensorWorkload& workload;
  OpenShard shard;
  std::unique_ptr<Decoder> decoder;
};

}  // namespace tree_attn::test
