// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the ranks of a decode must have alike (section 5.3).
#pragma once

#include "tree_attn/distributed/decoders/open_shard.hpp"
#include "tree_attn/distributed/plan/plan_options.hpp"
#include "tree_attn/distributed/transport/ranks.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tree_attn {

/// A name, and a value that ranks compare and print. Numbers keep all their digits.
struct Field {
  std::string_view name;
  std::array<char, 48> value{};  ///< a text, followed by zeros

  Field(std::string_view of, std::string_view text) : name(of) {
    std::copy_n(text.begin(), std::min(text.size(), value.size()), value.begin());
  }
  template <class Number>
  requires std::is_arithmetic_v<Number> Field(std::string_view of, Number number) : name(of) {
    std::to_chars(value.data(), value.data() + value.size(), +number);
  }
};

/// Compares values over all ranks. Collective: one reduction of a hash, and all-gathers if ranks differ.
/// @param function that all ranks have called, and that begins the line
/// @param what the rank waits for, as Ranks::all_gather() @param refusal of this rank, see Ranks::all_equal()
/// @throws InputError, the same line on every rank: the refusal of a rank; or two ranks, and the functions that they have
///   called, or the values that they have different; TransportError
void require_equal(const Ranks& ranks, std::string_view function, std::string_view what, std::span<const Field> fields,
                   const std::optional<std::string>& refusal = {});

/// Lists what ranks compare of the options of their plans.
std::vector<Field> fields_of(const PlanOptions& options);

/// All that decides what the ranks of a decoder send to each other, and how they compute. Ranks that differ would merge
/// states of different keys, or wait for messages that no rank sends.
struct DecoderSetup {
  std::string_view algorithm;
  const AttentionShape& shape;
  std::span<const KeyRange> ranges;
  LeafOrder order;
  double scale;
  const KvScales& scales;
  PageRule pages;
  std::int64_t most_queries;
  const PlanOptions& options;
};

/// Lists what ranks compare before they open a decoder.
std::vector<Field> fields_of(const DecoderSetup& setup);

}  // namespace tree_attn
