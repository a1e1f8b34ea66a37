// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fuzzes the options of `decode`: any arguments are refused, or make a shape within its limits.
///
/// Input: one byte, the number of ranks; then the arguments, one per line.
#include "distributed/program/decode_options.hpp"
#include "tests/fuzz/check.hpp"

#include <cstdint>
#include <sstream>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tree_attn;
  if (size == 0) return 0;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes) + 1, size - 1));
  std::vector<std::string> arguments;
  for (std::string line; std::getline(lines, line);)
    arguments.insert(arguments.begin(), line);  // CLI11 takes the last first

  CLI::App command;
  DecodeOptions options;
  add_decode_options(command, options);
  try {
    command.parse(std::move(arguments));
    options.in.clear();  // files have a fuzzer of their own
    const int n_ranks = 1 + bytes[0] % 16;
    const DecodeTask task = resolve(options, Topology::pretend(n_ranks, n_ranks), cpu_backend());
    const WorkloadShape& shape = task.workload->shape();
    FUZZ_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
    FUZZ_CHECK(shape.bytes_per_position() >= 0 && shape.n_rows() >= 0);
    require_neighbours("fuzz_options", task.ranges);
    FUZZ_CHECK(std::ssize(task.ranges) == n_ranks && task.ranges.front().begin == 0);
  } catch (const CLI::ParseError&) {
    // The parser's own words, which main() makes readable.
  } catch (const InputError& error) {
    FUZZ_CHECK(readable(error.what(), 1000) == error.what());
  }
  return 0;
}
