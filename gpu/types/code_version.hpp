// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Choice of the compiled kernels that a device can run. A version is 10 times the major plus the minor compute
/// capability.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tree_attn {

/// Dynamic shared memory that a block may have on every device of a major compute capability: 227 KiB, or on 8 and 12, to
/// which consumer devices belong, 99 KiB.
constexpr std::size_t least_shared_bytes(int major) { return (major == 8 || major == 12 ? 99 : 227) * std::size_t{1024}; }

/// Why a device cannot use the kernels of a program, in one line; empty if it can. Kernels take least_shared_bytes() of the
/// version that they were compiled for for granted, see kFitsLargestBlock; a newer device that runs them from PTX may have
/// less.
/// @param version of the device @param code version that the kernels which it would run were compiled for; 0: it runs none
/// @param shared_bytes that a block may have @param built_for versions that the program was compiled for
inline std::string why_no_kernels(const std::string& name, int version, int code, std::size_t shared_bytes,
                                  std::span<const int> built_for) {
  if (code != 0 && shared_bytes >= least_shared_bytes(code / 10)) return "";
  const auto text = [](int v) { return std::to_string(v / 10) + "." + std::to_string(v % 10); };
  std::string built;
  for (const int each : built_for) built += (built.empty() ? "" : ", ") + text(each);
  return name + ", compute capability " + text(version) + ": the program has no kernels for it, it was built for " + built;
}

}  // namespace tree_attn
