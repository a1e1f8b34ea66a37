// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ranks that a command line asks for: processes of an MPI job or threads, their nodes, devices and messages. A
/// program that decodes needs this beside Attention.
#pragma once

#include "distributed/exchange/plan_options.hpp"
#include "distributed/program/machine.hpp"
#include "distributed/transport/ranks.hpp"
#include "reference/decode/backend.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// Ranks, devices and messages as options ask for them.
struct RankOptions {
  std::string backend = "cpu", transport = "mpi";
  std::vector<int> devices;  ///< of every rank; empty: ranks are processes
  std::optional<int> threads, radix;
  int ranks_per_node = 0;
  bool share_gpus = false;  ///< lets several ranks use one GPU
  bool portable = false;    ///< AttentionShape::portable
};

/// Limit of every wait for other ranks in seconds, if --timeout does not set another.
inline constexpr double kTimeout = 60;

/// Runs `body` on every rank of the job, and ends the job. The ranks are the processes of a launcher; or, without one,
/// threads of this process: one, or one per device of --devices.
///
/// An InputError is one on which all ranks have agreed, and rank 0 prints its line; any other exception is of one rank,
/// which prints its line and ends the job. Both are status 2. --devices and --timeout are read before the body parses the
/// arguments, which ranks may have differently; the body reports values that are not valid.
/// @returns the exit status: what `body` returns on rank 0 of threads, and on this rank of processes
int run_job(int argc, char** argv, const std::function<int(const Ranks&)>& body);

/// The devices of a list such as "0-7" or "0,2,4-5", each at most once, and at most 256. @throws InputError
std::vector<int> devices_of(const std::string& list);
/// The GPU of a rank among the `n_gpus` that it sees: that of --devices, or the one whose number is the local rank on its
/// machine; ranks take turns if they outnumber the GPUs. -1: none.
int gpu_of_rank(std::span<const int> devices, int rank, const Topology& machines, int n_gpus);

/// Placement of the ranks of a job.
struct RankLayout {
  Topology machines;  ///< which ranks share a machine
  Topology topology;  ///< the nodes: those of --ranks-per-node, or the machines
  CoreShare cores;
  int n_threads;           ///< of a rank
  const Backend* backend;  ///< of --backend, on the GPU of this rank, or on an emulated device of its own
};
/// Finds the layout. Collective. @throws InputError on all ranks, as find_backend(), or if a GPU is not there or cannot be
///   used
RankLayout layout_of(const RankOptions& options, const Ranks& ranks);

/// Transport of a rank, and options of the exchange of states over it.
struct OpenTransport {
  std::unique_ptr<Transport> transport;
  PlanOptions plan;
};
/// Opens the transport of --transport. Collective. Where ranks outnumber the cores of their node, a message costs the time
/// of a core rather than latency, so the schedule with the fewest messages is the fastest: two blocks in each round, inside
/// nodes too. Between nodes --radix has the last word.
/// Before that, several ranks on one GPU are refused if the backend needs GPUs and the driver names them, unless
/// --share-gpus asks for it.
/// @throws InputError on all ranks, and as NcclTransport
OpenTransport open_transport(const RankOptions& options, const Ranks& ranks, const RankLayout& layout);

}  // namespace tree_attn
