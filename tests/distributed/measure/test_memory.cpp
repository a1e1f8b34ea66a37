// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory that is left, read from files as Linux writes them, and from others.
#include "tree_attn/distributed/measure/memory.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <string>

namespace tree_attn {
namespace {

/// Files by name; meminfo beside those of the control group.
using Files = std::map<std::string, std::string>;

double memory_of(const Files& files) {
  const Scratch scratch;
  for (const auto& [name, text] : files) scratch.write(name, text);
  return available_memory(scratch.path("meminfo"), scratch.folder());
}

/// `files` with one of them replaced.
Files with(Files files, const std::string& name, const std::string& text) {
  files[name] = text;
  return files;
}

}  // namespace

TEST_CASE("available memory: of the machine, and what the container leaves of its limit") {
  const Files machine{{"meminfo", "MemTotal:       9000 kB\nMemAvailable:   4000 kB\nBuffers: 1 kB\n"}};
  CHECK(memory_of(machine) == 4000 * 1024);
  CHECK(memory_of(with(machine, "memory.max", "max\n")) == 4000 * 1024);
  CHECK(memory_of(with(machine, "memory.max", "1000000\n")) == 1000000);

  // 700 000 bytes are in use; of these 250 000 are pages of files.
  Files container = with(with(machine, "memory.max", "1000000\n"), "memory.current", "700000\n");
  CHECK(memory_of(container) == 300000);
  container["memory.stat"] = "anon 450000\nfile 250000\nactive_file 50000\ninactive_file 200000\n";
  CHECK(memory_of(container) == 550000);
  CHECK(memory_of(with(container, "memory.max", "100000000\n")) == 4000 * 1024);

  // Over the limit, as while it is lowered; more pages of files than memory, as between two reads.
  CHECK(memory_of(with(container, "memory.max", "400000\n")) == 0);
  CHECK(memory_of(with(container, "memory.current", "100000\n")) == 1000000);
}

TEST_CASE("available memory: files that are missing, empty or something else are no limit and no use") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(memory_of({}) == infinity);
  CHECK(memory_of({{"meminfo", "MemTotal: 9 kB\nMemAvailable: many\n"}, {"memory.max", ""}}) == infinity);
  CHECK(memory_of({{"memory.max", "1000"}}) == 1000);
  CHECK(memory_of({{"memory.max", "-1"}}) == infinity);
  for (const std::string text : {"", "\n", "some", "-5\n", "nan\n"}) {
    CAPTURE(text);
    CHECK(memory_of({{"memory.max", "1000\n"}, {"memory.current", text}, {"memory.stat", "inactive_file " + text}}) == 1000);
  }
  CHECK(available_memory() > 0);
}

}  // namespace tree_attn
