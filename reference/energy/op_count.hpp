// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A scalar type that counts its operations: the cost of an energy and of its gradient (section 5.2).
///
/// Time depends on the machine; the number of operations depends only on the formula. energy<Counted>() runs the code of
/// energy() and leaves its cost in operation_count(). Additions, subtractions, multiplications, divisions, exp and log each
/// count as one operation. Comparisons, copies and changes of sign are free.
#pragma once

#include <Eigen/Core>

#include <cmath>
#include <cstdint>

namespace tree_attn {

/// The operations of this thread so far. Assign 0 to reset the counter.
inline std::int64_t& operation_count() {
  thread_local std::int64_t count = 0;
  return count;
}

/// A double that counts its operations. Values and edges are those of double.
class Counted {
 public:
  Counted(double value = 0) : value_(value) {}  ///< a constant; not counted
  double value() const { return value_; }       ///< its value

  friend Counted operator+(Counted a, Counted b) { return ++operation_count(), a.value_ + b.value_; }
  friend Counted operator-(Counted a, Counted b) { return ++operation_count(), a.value_ - b.value_; }
  friend Counted operator*(Counted a, Counted b) { return ++operation_count(), a.value_ * b.value_; }
  friend Counted operator/(Counted a, Counted b) { return ++operation_count(), a.value_ / b.value_; }
  friend Counted exp(Counted a) { return ++operation_count(), std::exp(a.value_); }
  friend Counted log(Counted a) { return ++operation_count(), std::log(a.value_); }
  friend Counted operator-(Counted a) { return -a.value_; }

  Counted& operator+=(Counted b) { return *this = *this + b; }
  Counted& operator-=(Counted b) { return *this = *this - b; }
  Counted& operator*=(Counted b) { return *this = *this * b; }
  Counted& operator/=(Counted b) { return *this = *this / b; }

  friend bool operator==(Counted a, Counted b) { return a.value_ == b.value_; }
  friend auto operator<=>(Counted a, Counted b) { return a.value_ <=> b.value_; }

 private:
  double value_;
};

/// Runs f and returns the number of operations on Counted values in this thread.
template <class Function>
std::int64_t count_operations(Function f) {
  operation_count() = 0;
  f();
  return operation_count();
}

}  // namespace tree_attn

namespace Eigen {

/// Tells Eigen that a Counted may be used wherever a double is.
template <>
struct NumTraits<tree_attn::Counted> : NumTraits<double> {
  using Real = tree_attn::Counted;        ///< itself: not complex
  using NonInteger = tree_attn::Counted;  ///< itself: not an integer type
  using Nested = tree_attn::Counted;      ///< held by value
  enum { RequireInitialization = 1 };     ///< has a constructor
};

}  // namespace Eigen
