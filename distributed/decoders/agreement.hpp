// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the ranks of a decode must have alike (section 5.3).
#pragma once

#include "tree_attn/distributed/decoders/open_shard.hpp"
#include "tree_attn/distributed/plan/plan_options.hpp"
#include "tree_attn/distributed/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
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

/// Compares values over all ranks. Collective: one reduction of a hash, and an all-gather if ranks differ.
/// @param function that begins the line @param what the rank waits for, as Ranks::all_gather()
/// @throws InputError, the same line on every rank, with two ranks and the values that they have different; TransportError
void require_equal(Transport& transport, std::string_view function, std::string_view what, std::span<const Field> fields);

/// What ranks compare of the options of their plans.
std::vector<Field> fields_of(const PlanOptions& options);

/// Compares what Algorithm::open() is called with over all ranks. Ranks that differ would merge states of different keys, or
/// wait for messages that no rank sends. As require_equal().
void require_agreement(std::string_view algorithm, Transport& transport, const OpenShard& shard,
                       std::span<const KeyRange> ranges, const PlanOptions& options);

}  // namespace tree_attn
