// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Threads as ranks whose messages go over the stand-in for NCCL, between emulated devices.
#pragma once

#include "tree_attn/distributed/transport/nccl_transport.hpp"
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
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
class AsProcesses final : public Ranks {
 public:
  explicit AsProcesses(const ThreadRanks& threads) : Ranks(threads.rank(), threads.size()), threads_(threads) {}
  using Ranks::all_gather;
  bool is_one_process() const override { return false; }
  Deadline& deadline() const override { return threads_.deadline(); }
  void barrier() const override { threads_.barrier(); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override {
    threads_.all_gather(mine, all, what);
  }
  void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const override {
    threads_.broadcast(bytes, root, what);
  }
  std::unique_ptr<Transport> open_transport(Topology topology) const override {
    return threads_.open_transport(std::move(topology));
  }
  std::unique_ptr<Transport> open_shared_transport(Topology topology) const override {
    return threads_.open_shared_transport(std::move(topology));
  }

 protected:
  std::vector<int> find_nodes() const override {
    throw std::logic_error("AsProcesses: the nodes are those of the topology");
  }
  void announce(std::string_view phrase) const override { threads_.doing(phrase); }

 private:
  const ThreadRanks& threads_;
};

/// What ranks are for the transport.
enum class Kind { kProcesses, kThreads };

/// Runs a function on every rank, each with an emulated device of its own and a transport over the stand-in.
/// @param fault as TREE_ATTN_NCCL_FAULT takes it @param first_device of rank 0; the others have those after it
/// @param kind processes, whose steps are graphs
inline void run_nccl(const Topology& topology, double timeout, const std::string& fault,
                     const std::function<void(const Ranks&, NcclTransport&)>& body, int first_device = 0,
                     Kind kind = Kind::kProcesses) {
  const VariableScope library(kNcclVariable, TREE_ATTN_NCCL_STAND_IN), wanted("TREE_ATTN_NCCL_FAULT", fault);
  emulated::Settings settings = emulated::settings();
  settings.n_workers = 1, settings.n_devices = first_device + topology.size();
  const emulated::SettingsScope devices(settings);
  run_threads(topology, timeout, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                emulated::backend().use_gpu(first_device + ranks.rank());
                // Rank 0 alone listens.
                const AsProcesses processes(ranks);
                const Ranks& shown = kind == Kind::kThreads ? static_cast<const Ranks&>(ranks) : processes;
                NcclTransport transport(shown, topology, platform_of(emulated::backend()),
                                        ranks.rank() == 0 ? "eth7 10.0.0.1" : "");
                body(shown, transport);
              }));
}

/// These ranks as the decoder tests use them.
class NcclGroup : public RankGroup {
 public:
  using RankGroup::RankGroup;
  std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) override {
    std::vector<RankResult> results(static_cast<std::size_t>(size()));
    run_nccl(topology, 60, "", [&](const Ranks& ranks, NcclTransport& transport) {
      RankResult& mine = results[static_cast<std::size_t>(ranks.rank())];
      mine.output = body(transport);
      mine.traffic = transport.traffic();
    });
    return results;
  }
  bool has_oracle() const override { return true; }
};

/// The same over host memory.
class ThreadGroup : public RankGroup {
 public:
  using RankGroup::RankGroup;
  std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) override {
    const emulated::SettingsScope one_worker({.n_workers = 1});
    std::vector<RankResult> results(static_cast<std::size_t>(size()));
    run_threads(topology, 60, [&](ThreadTransport& transport) {
      RankResult& mine = results[static_cast<std::size_t>(transport.rank())];
      mine.output = body(transport);
      mine.traffic = transport.traffic();
    });
    return results;
  }
  bool has_oracle() const override { return true; }
};

}  // namespace tree_attn::test
