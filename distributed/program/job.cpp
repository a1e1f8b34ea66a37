// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Starts the ranks of a job as processes or threads, reports their errors, and places them on devices.
#include "distributed/program/job.hpp"

#include "distributed/program/collect.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"
#include "distributed/transport/error_line.hpp"
#include "distributed/transport/mpi_session.hpp"
#include "distributed/transport/nccl_transport.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace tree_attn {
namespace {

constexpr int kBadInput = 2;

/// The value of an option that is needed before the command line is parsed. The parser reports invalid values later.
std::optional<std::string> find_value(int argc, char** argv, std::string_view name) {
  std::optional<std::string> value;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == name && i + 1 < argc) value = argv[i + 1];
    if (word.starts_with(name) && word.substr(name.size()).starts_with('=')) value = word.substr(name.size() + 1);
  }
  return value;
}

/// The value of --timeout, which already applies to MPI_Init.
double find_timeout(int argc, char** argv) {
  const std::optional<std::string> text = find_value(argc, argv, "--timeout");
  double seconds = 0;
  return text && is_positive_or_inf(*text).empty() && CLI::detail::lexical_cast(*text, seconds) ? seconds : kTimeout;
}

/// Opens /dev/null on the standard descriptors that the parent closed, in the wrong direction so that reads and writes fail.
/// Otherwise the next file or socket opened would get their numbers and receive the output.
void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY);
  }
}

/// One line on standard error.
void complain(const std::string& line) { std::fprintf(stderr, "tree_attn: %s\n", readable(line, 900).c_str()); }

/// Runs work, and reports an error in one line. All ranks have agreed on an InputError, and rank 0 prints it; any other
/// exception, also while that is printed, is of one rank, which ends the job.
/// @param abandon prints the line of an error and ends all ranks
/// @returns the exit status
template <class Work, class Abandon>
int guard(bool is_root, const Work& work, const Abandon& abandon) {
  try {
    try {
      return work();
    } catch (const InputError& error) {
      if (is_root) complain(error.what());
    }
  } catch (const std::exception& error) {
    abandon(error);
  }
  return kBadInput;
}

using Body = std::function<int(const Ranks&)>;

/// The ranks are threads of this process, one per device of --devices, or one; MPI is not started.
int run_threads_of(int argc, char** argv, const Body& body) {
  const std::optional<std::string> list = find_value(argc, argv, "--devices");
  const auto work = [&] {
    int n_ranks = 1, status = 0;
    try {
      if (list) n_ranks = static_cast<int>(devices_of(*list).size());
    } catch (const InputError&) {
      // The parser says so.
    }
    run_threads(Topology::pretend(n_ranks, n_ranks), find_timeout(argc, argv),
                ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                  const int mine = body(ranks);
                  if (ranks.rank() == 0) status = mine;
                }));
    return status;
  };
  return guard(true, work,
               [&](const std::exception& error) { complain(error_line(error, list ? "--devices " + *list : "")); });
}

/// The ranks are the processes of an MPI job.
int run_processes(int argc, char** argv, const Body& body) {
  MpiSession session(&argc, &argv, find_timeout(argc, argv));
  const Ranks& ranks = session.ranks();
  const LaunchedJob& launch = session.launch();
  const auto work = [&] {
    if (const auto line = foreign_launcher(launch, ranks.size(), mpi_library())) {
      if (launch.rank == (launch.knows_size ? 0 : 1)) complain(*line);
      return kBadInput;
    }
    const bool is_one = !launch.knows_size && ranks.size() == 1 && find_value(argc, argv, "--devices");
    return is_one ? run_threads_of(argc, argv, body) : body(ranks);
  };
  return guard(ranks.rank() == 0, work, [&](const std::exception& error) { session.abandon(error); });
}

/// NCCL writes its log to standard output, where our tables go, unless a variable names another file. It empties what it
/// opens: where standard error is a file, the log stays where it is.
void send_log_of_nccl_to_standard_error() {
  struct stat of {};
  const bool is_file = ::fstat(STDERR_FILENO, &of) == 0 && S_ISREG(of.st_mode);
  if (std::getenv("NCCL_DEBUG") != nullptr && !is_file) ::setenv("NCCL_DEBUG_FILE", "/dev/stderr", 0);
}

/// Lets this rank decode on its GPU, gpu_of_rank(), or with --devices on an emulated device of its own.
/// @throws InputError if it cannot
void use_gpu(const RankOptions& options, const Backend& backend, int rank, const Topology& machines) {
  const int n_gpus = static_cast<int>(backend.gpus().size());
  if (n_gpus == 0) {
    // Without a GPU that it needs, the backend says itself what is missing.
    if (!options.devices.empty() && !backend.needs_gpu()) backend.use_gpu(rank);
    return;
  }
  const int gpu = gpu_of_rank(options.devices, rank, machines, n_gpus);
  if (gpu < 0)
    refuse("--devices: there is no device ", options.devices[static_cast<std::size_t>(rank)], ", this machine has ", n_gpus);
  try {
    backend.use_gpu(gpu);
  } catch (const std::runtime_error& error) {  // of the device
    refuse("--backend ", options.backend, ": GPU ", gpu, ": ", error.what());
  }
}

/// Refuses several ranks on one GPU, by its identity, where the driver names it. Collective. @throws InputError on all ranks
void require_own_gpus(std::span<const int> devices, const Ranks& ranks, const Topology& machines) {
  std::array<char, 64> mine{};
  gpu_identity(devices, ranks.rank(), machines).copy(mine.data(), mine.size() - 1);
  std::vector<std::string> uuids;
  for (const auto& uuid : ranks.all_gather(mine, "the GPUs of all ranks")) uuids.emplace_back(uuid.data());
  if (const std::vector<std::string> shared = shared_gpus(uuids); !shared.empty())
    refuse("one GPU, ", shared[0], ": start one rank per GPU, or let them take turns with --share-gpus");
}

}  // namespace

int run_job(int argc, char** argv, const std::function<int(const Ranks&)>& body) try {
  open_standard_descriptors();
  send_log_of_nccl_to_standard_error();
  // A closed pipe and a limit of file sizes are then write errors, reported in one line.
  std::signal(SIGPIPE, SIG_IGN), std::signal(SIGXFSZ, SIG_IGN);
  // MPI starts before the command line is read where a launcher has started ranks: one that is refused tells the others.
  const LaunchedJob job = find_launched_job();
  const bool is_one = job.size == 1 && job.knows_size && find_value(argc, argv, "--devices");
  if (!job.launcher.empty() && !is_one) return run_processes(argc, argv, body);
  return run_threads_of(argc, argv, body);
} catch (const std::exception& error) {
  // Before the first rank has a name.
  complain(error_line(error, ""));
  return kBadInput;
}

RankLayout layout_of(const RankOptions& options, const Ranks& ranks) {
  ranks.doing("while reading the input");
  const Topology machines = ranks.topology(0);
  const CoreShare cores = share_cores(ranks, machines);
  RankLayout layout{machines, options.ranks_per_node == 0 ? machines : ranks.topology(options.ranks_per_node), cores,
                    options.threads.value_or(cores.threads_per_rank), built_backend(options.backend)};
  run_on_all(ranks, [&] {
    // The rank chooses its GPU before it asks whether the backend can be used: the question makes a context on the current
    // GPU, which is GPU 0 for every rank that has not chosen one. find_backend() names what was not built in.
    if (layout.backend != nullptr) use_gpu(options, *layout.backend, ranks.rank(), machines);
    layout.backend = &find_backend(options.backend, layout.n_threads);
  });
  return layout;
}

std::vector<int> devices_of(const std::string& list) {
  constexpr unsigned kMost = 4096;
  constexpr std::size_t kMostRanks = 256;  // the facts of n ranks take n^2 time
  const std::string the_list = "\"" + readable(list) + "\": ";
  // Takes a number off the front of the text.
  const auto number = [&](std::string_view& text) {
    unsigned device = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device);
    const bool has_leading_zero = text.starts_with('0') && end > text.data() + 1;
    if (error != std::errc() || device >= kMost || has_leading_zero)
      refuse(the_list, "expected devices 0 to ", kMost - 1, ", such as 0-7 or 0,2,3");
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return static_cast<int>(device);
  };
  std::vector<int> devices;
  for (const std::string& item : items_of(list)) {
    std::string_view text = item;
    const int first = number(text);
    int last = first;
    if (text.starts_with('-')) text.remove_prefix(1), last = number(text);
    if (!text.empty()) refuse(the_list, "expected a comma after device ", last);
    if (last < first) refuse(the_list, first, "-", last, " is empty");
    for (int device = first; device <= last; ++device) {
      if (std::ranges::count(devices, device) > 0) refuse(the_list, "device ", device, " is listed twice");
      if (devices.size() == kMostRanks) refuse(the_list, "more than ", kMostRanks, " devices; use mpirun for so many ranks");
      devices.push_back(device);
    }
  }
  return devices;
}

int gpu_of_rank(std::span<const int> devices, int rank, const Topology& machines, int n_gpus) {
  if (n_gpus == 0) return -1;
  if (devices.empty()) return machines.local_rank(rank) % n_gpus;
  const int gpu = devices[static_cast<std::size_t>(rank)];
  return gpu < n_gpus ? gpu : -1;
}

OpenTransport open_transport(const RankOptions& options, const Ranks& ranks, const RankLayout& layout) {
  if (layout.backend->needs_gpu() && !options.share_gpus) require_own_gpus(options.devices, ranks, layout.machines);
  const bool is_nccl = options.transport == "nccl", is_shared = options.transport == "shared";
  OpenTransport opened;
  opened.transport =
      is_nccl ? std::make_unique<NcclTransport>(ranks, layout.topology, platform_of(*layout.backend), bootstrap_interface())
      : is_shared ? ranks.open_shared_transport(layout.topology)
                  : ranks.open_transport(layout.topology);
  PlanOptions& plan = opened.plan;
  plan.network = opened.transport->network();
  // Then messages cost processor time alone.
  if (layout.cores.ranks_outnumber_cores) plan.radix = plan.node_radix = 2, plan.network.links_per_node = 0;
  if (options.radix) plan.radix = *options.radix;
  plan.library_reduces = opened.transport->device() != nullptr;
  return opened;
}

}  // namespace tree_attn
