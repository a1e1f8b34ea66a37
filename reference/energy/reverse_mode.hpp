// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reverse-mode differentiation: a tape, and one sweep back along it (section 5.2).
///
/// A program that computes a scalar is a list of steps y = f(x) or y = f(x, x'). While it runs, each step notes its operands
/// and its slopes. With the *adjoint* of a number, how fast the result grows with it, the chain rule read backwards is
///
///     adjoint(x) += df/dx * adjoint(y),      from the last step to the first.
///
/// One sweep gives the slopes in all variables at once. It does at most two multiplications and two additions a step, so the
/// gradient costs a small multiple of the program itself, however many variables there are: the paper's reason for computing
/// attention as the gradient of an energy. Forward mode carries the slopes in all d_v variables along through every step,
/// and costs d_v times as much.
///
/// The energy of a `Reverse<double>` is the code of energy(), taped; that of a `Reverse<Counted>` says what tape and sweep
/// cost.
#pragma once

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace tree_attn {

/// A number whose computation is taped. Numbers made from a Real are constants and leave no trace.
///
/// One tape a thread and a Real: variables() starts it afresh, and with that every number computed before is stale.
template <class Real>
class Reverse {
 public:
  Reverse(Real value = Real(0)) : value_(value) {}  ///< a constant
  template <class Number>
  requires std::is_arithmetic_v<Number> Reverse(Number value)
      : value_(static_cast<double>(value)) {}  ///< a constant: Eigen writes 0 and 1

  Real value() const { return value_; }  ///< the number

  /// Starts a new tape with these variables. @param[in] x values [n]
  template <class Column>
  static Eigen::Matrix<Reverse, Eigen::Dynamic, 1> variables(const Column& x) {
    tape().clear();
    Eigen::Matrix<Reverse, Eigen::Dynamic, 1> variable(x.size());
    for (Eigen::Index j = 0; j < x.size(); ++j) variable(j) = push(x(j), {});
    return variable;
  }

  /// The slopes of `result` in the variables, which are the first steps of the tape: the sweep back.
  ///
  /// Edges: a constant has gradient 0; a NaN or Inf slope meets its adjoint as IEEE arithmetic has it.
  /// @param[in] result number computed since variables()
  /// @param n_variables how many variables there are
  /// @returns [n_variables]
  static Eigen::Matrix<Real, Eigen::Dynamic, 1> gradient(const Reverse& result, Eigen::Index n_variables) {
    std::vector<Real> adjoint(tape().size(), Real(0));
    if (result.place_ != kConstant) adjoint[result.place_] = Real(1);
    for (std::size_t i = tape().size(); i-- > 0;) {
      for (const Operand& x : tape()[i]) {
        if (x.index != kConstant) adjoint[x.index] += x.slope * adjoint[i];
      }
    }
    return Eigen::Map<const Eigen::Matrix<Real, Eigen::Dynamic, 1>>(adjoint.data(), n_variables);
  }

  friend Reverse operator+(const Reverse& a, const Reverse& b) {
    return step(a.value_ + b.value_, {a.place_, Real(1)}, {b.place_, Real(1)});
  }
  friend Reverse operator-(const Reverse& a, const Reverse& b) {
    return step(a.value_ - b.value_, {a.place_, Real(1)}, {b.place_, Real(-1)});
  }
  friend Reverse operator*(const Reverse& a, const Reverse& b) {
    return step(a.value_ * b.value_, {a.place_, b.value_}, {b.place_, a.value_});
  }
  friend Reverse operator/(const Reverse& a, const Reverse& b) {
    const Real y = a.value_ / b.value_;
    return step(y, {a.place_, Real(1) / b.value_}, {b.place_, -y / b.value_});
  }
  friend Reverse exp(const Reverse& a) {
    using std::exp;
    const Real y = exp(a.value_);
    return step(y, {a.place_, y}, {});
  }
  friend Reverse log(const Reverse& a) {
    using std::log;
    return step(log(a.value_), {a.place_, Real(1) / a.value_}, {});
  }
  friend Reverse operator-(const Reverse& a) { return step(-a.value_, {a.place_, Real(-1)}, {}); }

  Reverse& operator+=(const Reverse& b) { return *this = *this + b; }
  Reverse& operator-=(const Reverse& b) { return *this = *this - b; }
  Reverse& operator*=(const Reverse& b) { return *this = *this * b; }
  Reverse& operator/=(const Reverse& b) { return *this = *this / b; }

  friend bool operator==(const Reverse& a, const Reverse& b) { return a.value_ == b.value_; }
  friend auto operator<=>(const Reverse& a, const Reverse& b) { return a.value_ <=> b.value_; }

 private:
  static constexpr std::size_t kConstant = static_cast<std::size_t>(-1);

  /// An operand of a step: its index on the tape, and the slope of the step in it.
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
    y.place_ = tape().size();
    tape().push_back(operands);
    return y;
  }

  /// The result of a step, which is a constant if its operands are.
  static Reverse step(const Real& value, const Operand& x, const Operand& x2) {
    if (x.index == kConstant && x2.index == kConstant) return value;
    return push(value, {x, x2});
  }

  Real value_;
  std::size_t place_ = kConstant;
};

}  // namespace tree_attn

namespace Eigen {

/// Tells Eigen that a taped number stands wherever its value does.
template <class Value>
struct NumTraits<tree_attn::Reverse<Value>> : NumTraits<Value> {
  using Real = tree_attn::Reverse<Value>;        ///< itself: not complex
  using NonInteger = tree_attn::Reverse<Value>;  ///< itself: not whole
  using Nested = tree_attn::Reverse<Value>;      ///< held by value
  enum { RequireInitialization = 1 };            ///< has a constructor
};

}  // namespace Eigen
