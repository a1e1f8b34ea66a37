// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The settings of the process, from the environment.
#include "tree_attn/gpu/platform/emulator/settings.hpp"

#include <cstdlib>

namespace tree_attn::emulated {
namespace {

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

Settings& settings() {
  static Settings process = [] {
    Settings start;
    start.seed = number_from_environment("TREE_ATTN_EMULATOR_SEED", 0);
    start.major = static_cast<int>(number_from_environment("TREE_ATTN_EMULATOR_MAJOR", 9));
    start.shared_bytes = 1024 * number_from_environment("TREE_ATTN_EMULATOR_SHARED_KIB", 0);
    return start;
  }();
  return process;
}

}  // namespace tree_attn::emulated
