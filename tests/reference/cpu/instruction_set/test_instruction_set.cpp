// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The bits of a decode are the same for every instruction set that this processor runs.
#include "tree_attn/reference/cpu/leaf_kernel.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

namespace {

struct Printed {
  std::string text;
  int status = 0;
};

/// What decode_digest prints with TREE_ATTN_INSTRUCTION_SET=`instruction_set`.
Printed digests(const std::string& instruction_set) {
  const std::string command = "TREE_ATTN_INSTRUCTION_SET='" + instruction_set + "' '" TREE_ATTN_DECODE_DIGEST "' 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Printed printed;
  char part[4096];
  for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) printed.text.append(part, n);
  printed.status = ::pclose(pipe);
  return printed;
}

}  // namespace

TEST_CASE("instruction set: decodes have the same bits with all that this processor runs") {
  const Printed widest = digests("");
  CHECK(widest.status == 0);
  std::string compared;
  for (const tree_attn::LeafKernel* kernel : tree_attn::leaf_kernels()) {
    const std::string name(kernel->name);
    INFO(name);
    const Printed printed = digests(name);
    CHECK(printed.status == 0);
    // The program ran the loops that were asked for, and all of its cases.
    const std::string first = "instruction set " + name + "\n";
    REQUIRE(printed.text.starts_with(first));
    REQUIRE(printed.text.find("tiny values") != std::string::npos);
    CHECK(printed.text.substr(first.size()) == widest.text.substr(widest.text.find('\n') + 1));
    compared += (compared.empty() ? "" : ", ") + name;
  }
  MESSAGE("compared: " << compared);
}

TEST_CASE("instruction set: one that does not exist is refused, with those that do") {
  const Printed printed = digests("x86-64-v9");
  CHECK(printed.status != 0);
  CHECK(printed.text.find("TREE_ATTN_INSTRUCTION_SET is 'x86-64-v9'; this processor runs ") != std::string::npos);
}
