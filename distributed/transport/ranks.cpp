// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reductions of one value, agreement on errors, and values as texts, gathered from all ranks at once.
#include "distributed/transport/ranks.hpp"

#include "reference/data/fnv1a.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace tree_attn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// Bytes of an error that a rank can report to the others, including the terminating 0.
constexpr std::size_t kLineBytes = 1024;

constexpr std::string_view kAgree = "all ranks to agree";
constexpr std::uint64_t kSign = std::uint64_t{1} << 63;

/// Numbers in the order of the doubles, with NaN above all of them.
std::uint64_t ordered(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  return std::isnan(x) ? ~std::uint64_t{0} : (bits & kSign) != 0 ? ~bits : bits | kSign;
}
double from_ordered(std::uint64_t x) {
  return x == ~std::uint64_t{0} ? kNaN : std::bit_cast<double>((x & kSign) != 0 ? x & ~kSign : ~x);
}

/// The end of the text of a value.
const char* end_of(const decltype(Field::value)& value) { return std::ranges::find(value, '\0'); }

}  // namespace

void Ranks::check() const {
  if (gave_up_)
    throw TransportError(TransportError::Kind::kLibrary, line_of("rank ", rank_, " has given up before", remedy_), rank_);
}

void Ranks::gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  std::vector<std::byte> of_all(mine.size() * static_cast<std::size_t>(size_));
  all_gather(mine, of_all, what);
  if (rank_ == 0) std::ranges::copy(of_all, all.begin());
}

void Ranks::all_reduce(std::span<std::uint64_t> numbers, Reduction reduction, std::string_view what) const {
  // A few numbers of a few ranks take no memory: by them a rank tells that it has none.
  const std::size_t n = numbers.size() * static_cast<std::size_t>(size_);
  std::array<std::uint64_t, 64> few;
  std::vector<std::uint64_t> many(n > few.size() ? n : 0);
  const std::span all(n > few.size() ? many.data() : few.data(), n);
  all_gather(std::as_bytes(numbers), std::as_writable_bytes(all), what);
  std::copy_n(all.begin(), numbers.size(), numbers.begin());
  for (std::size_t i = numbers.size(); i < all.size(); ++i) {
    std::uint64_t& x = numbers[i % numbers.size()];
    x = reduction == Reduction::kTotal ? x + all[i]
        : reduction == Reduction::kMax ? std::max(x, all[i])
                                       : std::min(x, all[i]);
  }
}

bool Ranks::all_equal(std::uint64_t x, std::string_view what, const std::optional<std::string>& error) const {
  std::uint64_t numbers[] = {x, ~x};
  if (error) numbers[0] = numbers[1] = ~std::uint64_t{0};  // beside any x they are not equal
  all_reduce(numbers, Reduction::kMax, what);
  if (numbers[0] == ~numbers[1]) return true;
  throw_if_any_failed(error);
  return false;
}

std::uint64_t Ranks::all_max(std::uint64_t x) const {
  all_reduce({&x, 1}, Reduction::kMax, kAgree);
  return x;
}
std::uint64_t Ranks::all_min(std::uint64_t x) const {
  all_reduce({&x, 1}, Reduction::kMin, kAgree);
  return x;
}
double Ranks::all_max(double x) const { return from_ordered(all_max(ordered(x))); }
std::int64_t Ranks::all_sum(std::int64_t x) const {
  auto sum = static_cast<std::uint64_t>(x);
  all_reduce({&sum, 1}, Reduction::kTotal, kAgree);
  return static_cast<std::int64_t>(sum);
}

std::uint64_t Ranks::broadcast_from_root(std::uint64_t x) const {
  broadcast(std::as_writable_bytes(std::span(&x, 1)), 0, "rank 0");
  return x;
}

void Ranks::throw_if_any_failed(const std::optional<std::string>& error) const {
  const auto first = static_cast<int>(all_min(static_cast<std::uint64_t>(error ? rank_ : size_)));
  if (first == size_) return;

  // Broadcast the error of the first rank that failed.
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

Field::Field(std::string_view of, std::string_view text, std::string_view option) : name(of), remedy(option) {
  constexpr std::size_t kCut = 28;
  std::ranges::copy(text.substr(0, text.size() > value.size() ? kCut : text.size()), value.begin());
  if (text.size() <= value.size()) return;
  char* const end = std::ranges::copy(std::string_view("... "), value.data() + kCut).out;
  std::to_chars(end, value.data() + value.size(), fnv1a(std::as_bytes(std::span(text))), 16);
}

std::uint64_t hash_of(std::span<const Field> fields) {
  constexpr std::byte kEnd{};
  std::uint64_t hash = kFnvStart;
  for (const Field& field : fields)
    hash = fnv1a({&kEnd, 1}, fnv1a(std::as_bytes(std::span(field.value.data(), end_of(field.value))), hash));
  return hash;
}

void require_equal(const Ranks& ranks, std::string_view function, std::string_view what, std::span<const Field> fields,
                   const std::optional<std::string>& refusal) {
  if (ranks.size() == 1) return;
  // Equal ranks take no memory.
  if (ranks.all_equal(fnv1a(std::as_bytes(std::span(function)), hash_of(fields)), what, refusal)) return;
  using Value = decltype(Field::value);
  std::vector<Value> mine(fields.size()), all(fields.size() * static_cast<std::size_t>(ranks.size()));
  std::ranges::transform(fields, mine.begin(), &Field::value);
  const auto text = [](const Value& value) { return std::string(value.begin(), end_of(value)); };
  // Other functions have other fields.
  const std::vector<Value> functions = ranks.all_gather(Field("", function).value, what);
  if (const auto other = std::ranges::find_if(functions, [&](const Value& each) { return each != functions[0]; });
      other != functions.end())
    throw InputError("rank 0 has called " + text(functions[0]) + ", and rank " + std::to_string(other - functions.begin()) +
                     " " + text(*other));
  ranks.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), what);
  for (std::size_t rank = 1; rank * mine.size() < all.size(); ++rank) {
    std::string line, remedies;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto &first = all[i], &second = all[rank * mine.size() + i];
      if (first == second) continue;
      line += (line.empty() ? "" : ", ") + std::string(fields[i].name) + " (" + text(first) + " and " + text(second) + ")";
      if (!fields[i].remedy.empty()) remedies += "; " + std::string(fields[i].remedy) + " has one on all";
    }
    if (!line.empty())
      throw InputError(std::string(function) + ": ranks 0 and " + std::to_string(rank) + " differ in " + line + remedies);
  }
}

}  // namespace tree_attn
