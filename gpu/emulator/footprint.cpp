// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Footprints as bit sets: one for reads, one for writes, one for atomics.
#include "gpu/emulator/footprint.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

namespace tree_attn::emulated::runtime {

void Touched::note(std::size_t at, std::size_t n_bytes, Reach reach, const char* word, const Line& line) {
  if (n_bytes == 0) return;
  Bits& bits = bits_[reach == Reach::kWrite ? kWrites : reach == Reach::kAtomic ? kAtomics : kReads];
  if (bits.of.empty()) bits.of.resize(n_words_), bits.where = std::string(word) + " at " + to_string(line);
  const std::size_t end = (at + n_bytes + 1) / 2;
  for (std::size_t i = at / 2; i < end;) {
    const std::size_t n = std::min(end - i, 64 - i % 64);
    bits.of[i / 64] |= (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1) << i % 64;
    i += n;
  }
}

std::string Touched::conflict(const Touched& other, const std::string& other_name) const {
  // Reads do not conflict with reads, nor atomics with atomics.
  static constexpr std::tuple<Kind, Kind> kPairs[] = {{kWrites, kWrites},  {kWrites, kReads},   {kReads, kWrites},
                                                      {kWrites, kAtomics}, {kAtomics, kWrites}, {kReads, kAtomics},
                                                      {kAtomics, kReads}};
  static constexpr const char* kDoes[] = {"reads", "writes", "changes by an atomic"};
  for (const auto& [own, others] : kPairs) {
    const Bits &a = bits_[own], &b = other.bits_[others];
    if (a.of.empty() || b.of.empty()) continue;
    const auto meet = [&](std::size_t bit) {
      return bit < 64 * n_words_ && ((a.of[bit / 64] & b.of[bit / 64]) >> bit % 64 & 1) != 0;
    };
    for (std::size_t i = 0; i < n_words_; ++i) {
      const std::uint64_t both = a.of[i] & b.of[i];
      if (both == 0) continue;
      const std::size_t first = 64 * i + static_cast<std::size_t>(std::countr_zero(both));
      std::size_t end = first;
      while (meet(end)) ++end;
      return std::string(kDoes[own]) + " bytes " + std::to_string(2 * first) + " to " + std::to_string(2 * end) +
             " of a buffer (" + a.where + ") that " + other_name + " " + kDoes[others] + " (" + b.where + ")";
    }
  }
  return "";
}

Touched& Footprint::of(std::uintptr_t buffer, std::size_t n_bytes) {
  return buffers_.try_emplace(buffer, n_bytes).first->second;
}

void Footprint::forget(std::uintptr_t buffer) { buffers_.erase(buffer); }

std::string Footprint::conflict(const Footprint& other, const std::string& other_name) const {
  for (const auto& [buffer, touched] : buffers_) {
    const auto found = other.buffers_.find(buffer);
    if (found == other.buffers_.end()) continue;
    if (const std::string how = touched.conflict(found->second, other_name); !how.empty()) return how;
  }
  return "";
}

}  // namespace tree_attn::emulated::runtime
