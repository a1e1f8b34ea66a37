// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory estimates, in double: the nominal sizes of empty tensors may exceed 64 bits.
#include "distributed/program/memory.hpp"

#include "reference/data/input_error.hpp"

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace tree_attn {
namespace {

/// A product in double.
double product(auto... factors) { return (static_cast<double>(factors) * ...); }

double rows_of(const WorkloadShape& shape) { return product(shape.batch, shape.heads, shape.n_queries); }

/// "3.0 GiB"
std::string gib(double bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << bytes / 0x1p30 << " GiB";
  return text.str();
}

/// The number >= 0 after this beginning of a line of a file; nothing if there is no such line, or no number in it.
std::optional<double> number_after(std::string_view beginning, const std::filesystem::path& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(beginning)) continue;
    std::istringstream rest(line.substr(beginning.size()));
    if (double number = 0; rest >> number && number >= 0) return number;
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::string axes_text(const WorkloadShape& shape) {
  return line_of("b = ", shape.batch, ", n_h = ", shape.heads, ", n_kv = ", shape.kv_heads, ", l = ", shape.n_queries,
                 ", N = ", shape.n_keys, ", d_h = ", shape.head_dim, ", d_v = ", shape.value_dim);
}

double available_memory(const std::filesystem::path& meminfo, const std::filesystem::path& container) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double of_machine = 1024 * number_after("MemAvailable:", meminfo).value_or(infinity);
  const std::optional<double> limit = number_after("", container / "memory.max");  // "max" is no limit
  if (!limit) return of_machine;

  // Pages of files can be evicted.
  const std::filesystem::path stat = container / "memory.stat";
  const double files = number_after("inactive_file ", stat).value_or(0) + number_after("active_file ", stat).value_or(0);
  const double used = std::max(0.0, number_after("", container / "memory.current").value_or(0) - files);
  return std::min(of_machine, std::max(0.0, *limit - used));
}

void require_memory(const std::string& subject, double bytes) {
  const double available = available_memory();
  require<InputError>(bytes <= available, subject, " needs about ", gib(bytes), " of memory on one machine, which has ",
                      gib(available), " left");
}

std::string refused_memory(const std::string& subject, double bytes) {
  return line_of(subject, ": ", gib(bytes), " are not given, and the machine has ", gib(available_memory()), " left");
}

double oracle_bytes(const WorkloadShape& shape, int n_results) {
  return product(rows_of(shape), shape.value_dim + 1, n_results, sizeof(double)) +
         product(2, shape.batch, sizeof(std::int64_t));
}

void check_memory(const std::string& subject, const Bench& bench, const Topology& machines, const MemoryUse& use) {
  const WorkloadShape& shape = bench.workload.shape();
  // Queries, outputs and four arrays of lengths: of the workload, the step and the cache, and those in use in the step.
  // Without queries a session still has room for one.
  const double outside = product(std::max(1.0, rows_of(shape)), sizeof(float), shape.head_dim + shape.value_dim + 1) +
                         product(4, shape.batch, sizeof(std::int64_t));
  std::int64_t longest = 0;
  for (const KeyRange& range : bench.ranges)
    longest = std::max(longest, OwnedLeaves(range, shape.order).n_keys(shape.longest()));
  int in_flight = 0;
  for (const Algorithm* algorithm : use.algorithms) in_flight = std::max(in_flight, algorithm->kv_shards_in_flight);
  if (bench.ranges.size() == 1) in_flight = 0;
  const AttentionShape stored = bench.backend.stored(shape);
  double needed = 0;
  for (const int rank : machines.node(machines.node_of(bench.transport.rank()))) {
    const OwnedLeaves leaves(bench.transport.topology().range_of(rank, bench.ranges), shape.order);
    const std::int64_t n = use.keys_in_memory && !bench.backend.needs_gpu() ? leaves.n_keys(shape.longest()) : 0;
    needed +=
        outside + (product(n, stored.held_bytes_per_position()) + product(in_flight, longest, stored.bytes_per_position()));
    if (rank == 0 && use.oracle)
      needed += oracle_bytes(shape, 3) + (use.keys_in_memory ? product(shape.n_keys, shape.bytes_per_position()) : 0);
  }
  // Positions appended to borrowed keys and values.
  if (!use.keys_in_memory && bench.workload.steps() > 1)
    needed += product(bench.workload.steps(), shape.bytes_per_position());
  require_memory(subject, needed);
}

}  // namespace tree_attn
