// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Estimates of memory, in double: sizes of empty tensors may be beyond what 64 bits hold.
#include "distributed/measure/memory.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "reference/data/input_error.hpp"

namespace tree_attn {
namespace {

/// Query rows that read the same key/value head of one batch entry.
double group_of(const ProblemShape& shape) {
  if (shape.batch == 0 || shape.kv_heads == 0) return 0;
  return static_cast<double>(shape.heads / shape.kv_heads) * static_cast<double>(shape.n_queries);
}

double rows_of(const ProblemShape& shape) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.heads) * static_cast<double>(shape.n_queries);
}

}  // namespace

std::string axes_text(const ProblemShape& shape) {
  return "b = " + std::to_string(shape.batch) + ", n_h = " + std::to_string(shape.heads) +
         ", n_kv = " + std::to_string(shape.kv_heads) + ", l = " + std::to_string(shape.n_queries) +
         ", N = " + std::to_string(shape.n_keys) + ", d_h = " + std::to_string(shape.head_dim) +
         ", d_v = " + std::to_string(shape.value_dim);
}

double available_memory() {
  double available = std::numeric_limits<double>::infinity();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:")) available = std::strtod(line.c_str() + line.find(':') + 1, nullptr) * 1024;
  }
  std::ifstream container("/sys/fs/cgroup/memory.max");
  if (double limit = 0; container >> limit) available = std::min(available, limit);
  return available;
}

void require_memory(const std::string& subject, double bytes) {
  const double available = available_memory();
  if (bytes <= available) return;
  std::array<char, 120> why{};
  std::snprintf(why.data(), why.size(), " needs about %.1f GiB of memory on one machine, which has %.1f GiB left",
                bytes / 0x1p30, available / 0x1p30);
  throw InputError(subject + why.data());
}

double decode_bytes(const ProblemShape& shape, Run run) {
  constexpr double kFloat = sizeof(float), kOfOneQuery = 256;
  const double d_h = static_cast<double>(shape.head_dim), d_v = static_cast<double>(shape.value_dim),
               state = (d_v + 2) * kFloat;
  const double n_subtrees = static_cast<double>(std::max<std::size_t>(1, cover(run.begin, run.end).size()));
  const double n_levels = static_cast<double>(std::bit_width(static_cast<std::uint64_t>(run.size())) + 1);
  return rows_of(shape) * (2 * (n_subtrees + 1) * state + d_h * kFloat) +
         group_of(shape) * (n_levels * state + d_h * kFloat + kOfOneQuery) +
         static_cast<double>(kLeafKeys) * (d_h + d_v) * kFloat +
         3 * static_cast<double>(shape.batch) * sizeof(std::int64_t);
}

double oracle_bytes(const ProblemShape& shape, int n_results) {
  constexpr double kDouble = sizeof(double), kScores = 0x1p23, kPiece = 256;
  const double d_h = static_cast<double>(shape.head_dim), d_v = static_cast<double>(shape.value_dim);
  const double n_keys = static_cast<double>(shape.n_keys);
  const double block = std::min(group_of(shape), std::max(1.0, kScores / std::max(1.0, n_keys)));
  return rows_of(shape) * (d_v + 1) * n_results * kDouble + block * (2 * n_keys + d_h + d_v + 4) * kDouble +
         std::min(n_keys, kPiece) * std::max(d_h, d_v) * kDouble +
         2 * static_cast<double>(shape.batch) * sizeof(std::int64_t);
}

void check_memory(const std::string& subject, const Bench& bench, const Topology& machines, const MemoryUse& use) {
  const ProblemShape& shape = bench.problem.shape();
  const auto bytes_of_keys = [&](std::int64_t n) {
    return static_cast<double>(n) * static_cast<double>(shape.bytes_per_position());
  };
  double needed = 0;
  for (const int rank : machines.node(machines.node_of(bench.ranks.rank()))) {
    const Run run = bench.runs[static_cast<std::size_t>(bench.transport.topology().place_of(rank))];
    needed += decode_bytes(shape, run) + bytes_of_keys(run.size()) * ((use.keys_in_memory ? 1 : 0) + use.kv_shards_in_flight);
    if (rank == 0 && use.oracle) needed += oracle_bytes(shape, 3) + (use.keys_in_memory ? bytes_of_keys(shape.n_keys) : 0);
  }
  require_memory(subject, needed);
}

}  // namespace tree_attn
