// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reverse-mode differentiation with a tape and one backward sweep (section 5.2).
///
/// A program that computes a scalar is a list of steps y = f(x) or y = f(x, x'). While it runs, each step records its
/// operands and its partial derivatives on the tape. The *adjoint* of a variable is the derivative of the result with
/// respect to it. The chain rule, applied backwards, is
///
///     adjoint(x) += df/dx * adjoint(y),      from the last step to the first.
///
/// One sweep gives the derivatives with respect to all variables. It does at most two multiplications and two additions per
/// step, so a gradient costs a small multiple of the program itself, independent of the number of variables. This is the
/// paper's reason for computing attention as the gradient of an energy. Forward mode carries the derivatives with respect to
/// all d_v variables through every step and costs d_v times as much.
///
/// energy() on `Reverse<double>` records a tape. On `Reverse<Counted>` it also counts the operations of the program and of
/// the sweep.
#pragma once

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace tree_attn {

/// A scalar whose computation is recorded. A Reverse made from a Real is a constant and records nothing.
///
/// There is one tape per thread and Real. variables() starts it anew, which invalidates every Reverse computed before.
template <class Real>
class Reverse {
 public:
  Reverse(Real value = Real(0)) : value_(value) {}  ///< a constant
  template <class Number>
  requires std::is_arithmetic_v<Number> Reverse(Number value)
      : value_(static_cast<double>(value)) {}  ///< a constant; Eigen uses 0 and 1

  Real value() const { return value_; }  ///< its value

  /// Starts a new tape with the variables x. @param[in] x values [n]
  template <class Column>
  static Eigen::Matrix<Reverse, Eigen::Dynamic, 1> variables(const Column& x) {
    tape().clear();
    Eigen::Matrix<Reverse, Eigen::Dynamic, 1> variable(x.size());
    for (Eigen::Index j = 0; j < x.size(); ++j) variable(j) = push(x(j), {});
    return variable;
  }

  /// The derivatives of `result` with respect to the variables, which are the first steps of the tape: the backward sweep.
  ///
  /// Edges: a constant has gradient 0; NaN and Inf derivatives are multiplied by adjoints as in IEEE arithmetic.
  /// @param[in] result computed since variables()
  /// @param n_variables number of variables
  /// @returns [n_variables]
  /// @throws std::invalid_argument if the tape has fewer steps, or the result is not on it
  static Eigen::Matrix<Real, Eigen::Dynamic, 1> gradient(const Reverse& result, Eigen::Index n_variables) {
    const std::size_t n_steps = tape().size();
    if (n_variables < 0 || static_cast<std::size_t>(n_variables) > n_steps)
      throw std::invalid_argument("Reverse::gradient: " + std::to_string(n_variables) + " variables on a tape of " +
                                  std::to_string(n_steps) + " steps");
    if (result.index_ != kConstant && result.index_ >= n_steps)
      throw std::invalid_argument("Reverse::gradient: the result is step " + std::to_string(result.index_) +
                                  " of a tape of " + std::to_string(n_steps) + ": it was computed before variables()");
    std::vector<Real> adjoint(n_steps, Real(0));
    if (result.index_ != kConstant) adjoint[result.index_] = Real(1);
    for (std::size_t i = tape().size(); i-- > 0;) {
      for (const Operand& x : tape()[i]) {
        if (x.index != kConstant) adjoint[x.index] += x.slope * adjoint[i];
      }
    }
    return Eigen::Map<const Eigen::Matrix<Real, Eigen::Dynamic, 1>>(adjoint.data(), n_variables);
  }

  friend Reverse operator+(const Reverse& a, const Reverse& b) {
    return step(a.value_ + b.value_, {a.index_, Real(1)}, {b.index_, Real(1)});
  }
  friend Reverse operator-(const Reverse& a, const Reverse& b) {
    return step(a.value_ - b.value_, {a.index_, Real(1)}, {b.index_, Real(-1)});
  }
  friend Reverse operator*(const Reverse& a, const Reverse& b) {
    return step(a.value_ * b.value_, {a.index_, b.value_}, {b.index_, a.value_});
  }
  friend Reverse operator/(const Reverse& a, const Reverse& b) {
    const Real y = a.value_ / b.value_;
    return step(y, {a.index_, Real(1) / b.value_}, {b.index_, -y / b.value_});
  }
  friend Reverse exp(const Reverse& a) {
    using std::exp;
    const Real y = exp(a.value_);
    return step(y, {a.index_, y}, {});
  }
  friend Reverse log(const Reverse& a) {
    using std::log;
    return step(log(a.value_), {a.index_, Real(1) / a.value_}, {});
  }
  friend Reverse operator-(const Reverse& a) { return step(-a.value_, {a.index_, Real(-1)}, {}); }

  Reverse& operator+=(const Reverse& b) { return *this = *this + b; }
  Reverse& operator-=(const Reverse& b) { return *this = *this - b; }
  Reverse& operator*=(const Reverse& b) { return *this = *this * b; }
  Reverse& operator/=(const Reverse& b) { return *this = *this / b; }

  friend bool operator==(const Reverse& a, const Reverse& b) { return a.value_ == b.value_; }
  friend auto operator<=>(const Reverse& a, const Reverse& b) { return a.value_ <=> b.value_; }

 private:
  static constexpr std::size_t kConstant = std::numeric_limits<std::size_t>::max();

  /// An operand of a step: its index on the tape, and the derivative of the step with respect to it.
  struct Operand {
    std::size_t index = kConstant;
    Real slope = Real(0);
  };
  using Step = std::array<Operand, 2>;

  static std::vector<Step>& tape() {
    thread_local std::vector<Step> steps;
    return steps;
  }

  /// Appends a step.
  static Reverse push(const Real& value, const Step& operands) {
    Reverse y(value);
    y.index_ = tape().size();
    tape().push_back(operands);
    return y;
  }

  /// The result of a step; a constant if all operands are constants.
  static Reverse step(const Real& value, const Operand& x, const Operand& x2) {
    if (x.index == kConstant && x2.index == kConstant) return value;
    return push(value, {x, x2});
  }

  Real value_;
  std::size_t index_ = kConstant;
};

}  // namespace tree_attn

namespace Eigen {

/// Tells Eigen that a Reverse may be used wherever its Value is.
template <class Value>
struct NumTraits<tree_attn::Reverse<Value>> : NumTraits<Value> {
  using Real = tree_attn::Reverse<Value>;        ///< itself: not complex
  using NonInteger = tree_attn::Reverse<Value>;  ///< itself: not an integer type
  using Nested = tree_attn::Reverse<Value>;      ///< held by value
  enum { RequireInitialization = 1 };            ///< has a constructor
};

}  // namespace Eigen
