// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names, help and checks of the options of a network.
#include "tree_attn/distributed/program/network_options.hpp"

#include "tree_attn/distributed/plan/step_time.hpp"
#include "tree_attn/distributed/program/list_option.hpp"
#include "tree_attn/distributed/program/number_check.hpp"

#include <utility>

namespace tree_attn {
namespace {

/// Sets two values of a list, if there is one: for links inside a node, and between nodes. @throws InputError
void set_links(const std::string& name, const std::vector<double>& values, double unit, double& inside, double& between) {
  if (values.empty()) return;
  if (values.size() != 2) {
    throw InputError(name + " lists " + std::to_string(values.size()) + (values.size() == 1 ? " value" : " values") +
                     "; it takes two, for links inside a node and between nodes");
  }
  inside = values[0] * unit, between = values[1] * unit;
}

}  // namespace

std::string is_bandwidth(const std::string& text) {
  double number = 0;
  const std::string why = is_positive(text);
  if (!why.empty() || !read_number(text, number)) return why;
  return number >= 1e-3 && number <= 1e6 ? "" : readable(text) + " is not in 0.001 to 1e6 GB/s";
}
std::string is_microseconds(const std::string& text) {
  double number = 0;
  const std::string why = is_not_negative(text);
  if (!why.empty() || !read_number(text, number)) return why;
  return number <= 1e9 ? "" : readable(text) + " is more than 1e9 us";
}

void add_network_options(CLI::App& command, NetworkOptions& options, const std::string& group, const Network* defaults) {
  const auto show = [&](CLI::Option* option, const std::vector<double>& shown) {
    option->group(group);
    if (defaults != nullptr) option->default_str(CLI::detail::join(shown, ","));
  };
  const auto add_pair = [&](const std::string& name, std::vector<double>& values, const std::string& what, auto check,
                            const std::vector<double>& shown) {
    show(add_list_option(command, name, values, what, check), shown);
  };
  const auto [inside, between, overhead] = defaults != nullptr ? *defaults : Network{};
  add_pair("--bandwidth", options.bandwidth, "GB/s of a rank inside its node and between nodes, in each direction",
           is_bandwidth, {inside.bytes_per_us / kGigabytePerSecond, between.bytes_per_us / kGigabytePerSecond});
  add_pair("--latency", options.latency, "us of a message inside a node and between nodes", is_microseconds,
           {inside.latency_us, between.latency_us});
  show(command.add_option("--overhead", options.overhead, "us that each message costs its sender, and its receiver")
           ->check(is_microseconds),
       {overhead});
}

Network network_of(const NetworkOptions& options, const Network& others) {
  Network network = others;
  auto& [inside, between, overhead_us] = network;
  set_links("--bandwidth", options.bandwidth, kGigabytePerSecond, inside.bytes_per_us, between.bytes_per_us);
  set_links("--latency", options.latency, 1, inside.latency_us, between.latency_us);
  overhead_us = options.overhead.value_or(overhead_us);
  return network;
}

}  // namespace tree_attn
