// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The floating-point environment that the arithmetic of this library needs, whatever the program around it has set.
///
/// Libraries that are built with -Ofast set the flush of subnormals to zero when they are loaded, and programs set rounding
/// modes. Both change bits of all arithmetic of the thread: elements of F8_E4M3 and F16 pass through subnormal floats.
#pragma once

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tree_attn {

/// Sets the default environment while it lives, for this thread: rounding to nearest, subnormal numbers, no traps. Public
/// functions begin with one, threads of the library too. Where the default is set already it costs the reading of the
/// control registers, and then leaves flags of exceptions that arithmetic raises; else the caller's come back with its
/// modes.
class FloatEnvironment {
 public:
  FloatEnvironment() { enter(); }
  ~FloatEnvironment() { leave(); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  /// Calls a function of the caller in the environment of the caller; what that changes in it remains.
  template <class Function>
  void call_back(const Function& function) {
    struct Outside {
      FloatEnvironment& inside;
      explicit Outside(FloatEnvironment& ours) : inside(ours) { inside.leave(); }
      ~Outside() { inside.enter(); }
    } const outside(*this);
    function();
  }

#if defined(__x86_64__)
  /// Tests whether this thread has the default environment.
  static bool is_default() {
    std::uint16_t x87;
    __asm__ __volatile__("fnstcw %0" : "=m"(x87));
    return (_mm_getcsr() & ~kFlags) == kDefault && (x87 & 0x0F3F) == 0x033F;  // masks, precision and rounding
  }

 private:
  static constexpr unsigned kFlags = 0x003F, kDefault = 0x1F80;
  using Saved = std::fenv_t;
  static void save(Saved& saved) { std::fegetenv(&saved); }
  static void restore(const Saved& saved) { std::fesetenv(&saved); }
  static void set_default() {
    std::fesetenv(FE_DFL_ENV);
    _mm_setcsr(kDefault);  // older libraries leave the flush to zero
  }
#elif defined(__aarch64__)
  /// Tests whether this thread has the default environment.
  static bool is_default() {
    Saved control;
    save(control);
    return control == 0;
  }

 private:
  using Saved = std::uint64_t;  // FPCR: modes and traps; fesetenv() leaves some of its bits
  static void save(Saved& saved) { __asm__ __volatile__("mrs %0, fpcr" : "=r"(saved)); }
  static void restore(const Saved& saved) { __asm__ __volatile__("msr fpcr, %0" : : "r"(saved)); }
  static void set_default() { restore(0); }
#else
  /// Tests whether this thread is known to have the default environment.
  static bool is_default() { return false; }

 private:
  using Saved = std::fenv_t;
  static void save(Saved& saved) { std::fegetenv(&saved); }
  static void restore(const Saved& saved) { std::fesetenv(&saved); }
  static void set_default() { std::fesetenv(FE_DFL_ENV); }
#endif

  void enter() {
    is_changed_ = !is_default();
    if (!is_changed_) return;
    save(callers_);
    set_default();
  }
  void leave() {
    if (is_changed_) restore(callers_);
  }

  Saved callers_;  ///< if it differs from the default
  bool is_changed_ = false;
};

}  // namespace tree_attn
