// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory that is left, read from files as Linux writes them, and from others; and keys and values beyond it.
#include "distributed/program/memory.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/tensor_files.hpp"

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

TEST_CASE("memory: keys and values of the ranks of a machine are counted, and those that a ring has in flight") {
  // 2^40 positions of 1 KiB.
  const auto workload =
      make_workload({{.heads = 1, .kv_heads = 1, .head_dim = 128, .value_dim = 128}, std::int64_t{1} << 40}, 1, 1);
  const std::vector<KeyRange> ranges = coarse_ranges(workload->shape().n_keys, 2, kLeafKeys);
  const auto refusal = [&](const Backend& backend, int per_machine, std::string_view name, bool keys_in_memory) {
    std::string line;
    run_threads(Topology::pretend(2, 2), 60, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      const Algorithm* const algorithm = &find_algorithm(name);
      const Bench bench{transport, backend, *workload, ranges, 0, 0};
      if (ranks.rank() == 1) return;
      line = test::message<InputError>([&] {
        check_memory("S", bench, Topology::pretend(2, per_machine),
                     {.keys_in_memory = keys_in_memory, .algorithms = {&algorithm, 1}, .oracle = false});
      });
    });
    return line.substr(0, line.find(" of memory"));
  };
  CHECK(refusal(cpu_backend(), 2, "two-level", true) == "S needs about 1048576.0 GiB");
  CHECK(refusal(cpu_backend(), 1, "two-level", true) == "S needs about 524288.0 GiB");
  CHECK(refusal(cpu_backend(), 2, "ring", true) == "S needs about 3145728.0 GiB");
  CHECK(refusal(cpu_backend(), 2, "ring", false) == "S needs about 2097152.0 GiB");
  CHECK(refusal(cpu_backend(), 2, "two-level", false) == "");
}

}  // namespace tree_attn
