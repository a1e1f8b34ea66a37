// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every mode of the emulator is shown every bug: it catches what it must, and lets kernels pass that are right.
#include "gpu/emulator/settings.hpp"
#include "gpu/types/device_error.hpp"
#include "tests/gpu/emulator/seeded_bugs/seeded_bugs.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

using namespace tree_attn::emulated;

#if defined(TREE_ATTN_EMULATOR_SHADOW)
constexpr Mode kMode = kShadow;
#elif defined(TREE_ATTN_EMULATOR_THREAD)
constexpr Mode kMode = kThread;
#elif defined(__SANITIZE_ADDRESS__)
constexpr Mode kMode = kAddress;
#else
constexpr Mode kMode = kPlain;
#endif
/// A sanitizer ends the process that it finds fault with.
#if defined(TREE_ATTN_EMULATOR_THREAD) || defined(__SANITIZE_ADDRESS__)
constexpr bool kDies = true;
#else
constexpr bool kDies = false;
#endif

/// Seeds until a bug is seen; those that this mode need not see have fewer. Which one sees it also depends on when the
/// threads of the host run.
constexpr std::uint64_t kSeeds = 32, kSeedsOfUnseen = 3;

/// Runs a bug in this process. @returns the report of the emulator; empty if there is none
std::string seen_here(const SeededBug& bug, std::uint64_t seed) {
  const SettingsScope scope({.seed = seed});
  try {
    return bug.is_right(bug.bug) ? "" : "wrong result";
  } catch (const tree_attn::DeviceError& error) {
    return std::string("DeviceError: ") + error.what();
  }
}

/// seen_here() in a process of its own, which a sanitizer may end.
std::string seen_by_child(const SeededBug& bug, std::uint64_t seed) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = "TREE_ATTN_SEEDED_BUG=" + std::to_string(&bug - kSeededBugs) +
                              " TREE_ATTN_EMULATOR_SEED=" + std::to_string(seed) +
                              " TSAN_OPTIONS=halt_on_error=1:symbolize=0 ASAN_OPTIONS=symbolize=0 '" + program +
                              "' --no-skip --test-case='seeded bugs: one child' 2>&1";
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char part[4096];
  while (const std::size_t n = std::fread(part, 1, sizeof part, pipe)) output.append(part, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  for (const char* const sign :
       {"ThreadSanitizer: data race", "AddressSanitizer: ", "runtime error: ", "DeviceError: ", "wrong result"}) {
    if (const std::size_t at = output.find(sign); at != std::string::npos)
      return output.substr(at, output.find('\n', at) - at);
  }
  FAIL("a child has ended with " << status << " and neither a report nor an error:\n" << output);
  return "";
}

TEST_CASE("seeded bugs: one child" * doctest::skip()) {
  const char* const index = std::getenv("TREE_ATTN_SEEDED_BUG");
  if (index == nullptr) return;
  const std::string seen = seen_here(kSeededBugs[std::atoi(index)], settings().seed);
  INFO(seen);
  CHECK(seen.empty());
}

TEST_CASE("seeded bugs: kernels without a bug pass") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const SettingsScope scope({.seed = seed});
    for (const auto is_right : {pipeline_is_right, one_shot_is_right}) CHECK(is_right(Bug::kNone));
  }
}

TEST_CASE("seeded bugs: each is caught by the modes of the table") {
  for (const SeededBug& bug : kSeededBugs) {
    const bool is_due = (bug.seen_by & kMode) != 0;
    std::string seen;
    for (std::uint64_t seed = 0; seen.empty() && seed < (is_due ? kSeeds : kSeedsOfUnseen); ++seed)
      seen = kDies ? seen_by_child(bug, seed) : seen_here(bug, seed);
    const std::string line = std::string(bug.name) + ": " + (seen.empty() ? "not seen" : seen);
    MESSAGE(line);
    CAPTURE(line);
    if (is_due) CHECK_FALSE(seen.empty());
    CHECK(bug.seen_by != 0);
  }
}

}  // namespace
