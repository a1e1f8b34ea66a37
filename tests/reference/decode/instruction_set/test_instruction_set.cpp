// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The bits of a decode are the same for every instruction set that it is compiled for.
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

namespace {

/// The output of decode_digest, compiled for an instruction set.
std::string digests(const std::string& instruction_set) {
  std::FILE* const pipe = ::popen(("\"" TREE_ATTN_DECODE_DIGEST + instruction_set + "\"").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  CHECK(::pclose(pipe) == 0);
  return text;
}

bool has_v3() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"); }
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

/// "as_configured" is the library as built: for this machine, or for any x86-64 with TREE_ATTN_NATIVE=OFF.
TEST_CASE("instruction set: decodes compiled for x86-64, x86-64-v3, x86-64-v4 and as configured have the same bits") {
  const std::string want = digests("x86-64");
  REQUIRE(want.find("tiny values") != std::string::npos);
  CHECK(digests("as_configured") == want);
  if (has_v3()) CHECK(digests("x86-64-v3") == want);
  if (has_v4()) CHECK(digests("x86-64-v4") == want);
  MESSAGE("compared with x86-64: as configured"
          << (has_v3() ? ", x86-64-v3" : "")
          << (has_v4() ? ", x86-64-v4" : "; not x86-64-v4, this processor has no AVX-512"));
}
