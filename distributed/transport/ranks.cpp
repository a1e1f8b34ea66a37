// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reductions of one value and agreement on errors, by gathering.
#include "tree_attn/distributed/transport/ranks.hpp"

#include "tree_attn/reference/data/input_error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tree_attn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// Bytes of an error that a rank can report to the others, including the terminating 0.
constexpr std::size_t kLineBytes = 1024;

template <class Number>
std::vector<Number> of_all(const Ranks& ranks, Number x) {
  return ranks.all_gather(std::span<const Number>(&x, 1), "all ranks to agree");
}

}  // namespace

double Ranks::all_max(double x) const {
  const std::vector<double> all = of_all(*this, x);
  return std::ranges::any_of(all, [](double each) { return std::isnan(each); }) ? kNaN : std::ranges::max(all);
}
std::uint64_t Ranks::all_max(std::uint64_t x) const { return std::ranges::max(of_all(*this, x)); }
std::uint64_t Ranks::all_min(std::uint64_t x) const { return std::ranges::min(of_all(*this, x)); }
std::int64_t Ranks::all_sum(std::int64_t x) const {
  const std::vector<std::int64_t> all = of_all(*this, x);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::uint64_t Ranks::broadcast_from_root(std::uint64_t x) const {
  broadcast(std::as_writable_bytes(std::span(&x, 1)), 0, "rank 0");
  return x;
}

void Ranks::throw_if_any_failed(const std::optional<std::string>& error) const {
  const std::vector<std::uint8_t> failed = of_all(*this, std::uint8_t{error.has_value()});
  const auto found = std::find(failed.begin(), failed.end(), 1);
  if (found == failed.end()) return;

  // Broadcast the error of the first rank that failed.
  const auto first = static_cast<int>(found - failed.begin());
  std::string line(kLineBytes, '\0');
  if (rank_ == first) error->copy(line.data(), kLineBytes - 1);
  broadcast(std::as_writable_bytes(std::span(line)), first, "the line of rank " + std::to_string(first));
  line.resize(line.find('\0'));

  // Name that rank unless all ranks have the same error.
  const bool same = error && error->substr(0, kLineBytes - 1) == line;
  const bool all_the_same = all_min(std::uint64_t{same}) != 0;
  throw InputError(all_the_same ? line : "rank " + std::to_string(first) + ": " + line);
}

Topology Ranks::topology(int ranks_per_node) const {
  require(ranks_per_node >= 0, "Ranks::topology: nodes of ", ranks_per_node, " ranks");
  return ranks_per_node > 0 ? Topology::pretend(size_, ranks_per_node) : Topology(find_nodes());
}

}  // namespace tree_attn
