// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Values as names and texts, gathered from all ranks at once.
#include "distributed/transport/agreement.hpp"

#include "reference/data/fnv1a.hpp"
#include "reference/data/input_error.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace tree_attn {

void require_equal(const Ranks& ranks, std::string_view function, std::string_view what, std::span<const Field> fields,
                   const std::optional<std::string>& refusal) {
  if (ranks.size() == 1) return;
  // Equal ranks take no memory.
  auto hash = fnv1a(std::as_bytes(std::span(function)));
  for (const Field& field : fields) hash = fnv1a(std::as_bytes(std::span(field.value)), hash);
  if (ranks.all_equal(hash, what, refusal)) return;
  using Value = decltype(Field::value);
  std::vector<Value> mine(fields.size()), all(fields.size() * static_cast<std::size_t>(ranks.size()));
  std::ranges::transform(fields, mine.begin(), &Field::value);
  const auto text = [](const Value& value) { return std::string(value.begin(), std::ranges::find(value, '\0')); };
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
