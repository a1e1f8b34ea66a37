// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Floating-point environments that a program around the library may have set.
#pragma once

#include <array>
#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tree_attn::test {

/// A mode of this thread's arithmetic while it lives.
class FloatMode {
 public:
  enum Kind { kFlush, kUpward, kDownward, kTowardZero, kFlushUpward };
  static constexpr std::array kAll{kFlush, kUpward, kDownward, kTowardZero, kFlushUpward};

  explicit FloatMode(Kind kind) {
    std::fegetenv(&before_);
    if (kind == kFlush || kind == kFlushUpward) flush();
    if (kind != kFlush) std::fesetround(kind == kDownward ? FE_DOWNWARD : kind == kTowardZero ? FE_TOWARDZERO : FE_UPWARD);
  }
  ~FloatMode() { std::fesetenv(&before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

  /// The modes of this thread: of rounding, of subnormal numbers, and masks.
  static std::array<std::uint64_t, 2> now() {
#if defined(__x86_64__)
    std::uint16_t x87;
    __asm__ __volatile__("fnstcw %0" : "=m"(x87));
    return {_mm_getcsr() & ~0x3Fu, x87};
#elif defined(__aarch64__)
    std::uint64_t control;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
    return {control, 0};
#else
    return {static_cast<std::uint64_t>(std::fegetround()), 0};
#endif
  }

 private:
  /// Flushes subnormal results, and reads subnormal operands as zero.
  static void flush() {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
    std::uint64_t control;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(control | std::uint64_t{1} << 24));
#endif
  }

  std::fenv_t before_;
};

}  // namespace tree_attn::test
