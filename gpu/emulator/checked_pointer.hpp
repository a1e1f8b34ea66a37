// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A pointer into shared memory that knows its piece, and tells the shadow of every access and its line.
///
/// It does what a kernel does with a `T*`: index, add, subtract, compare, follow. A reference `tile[i]` turns into a number
/// when it is read; write `const float x = tile[i]`, for `auto` would keep the reference.
#pragma once

#include "gpu/emulator/runtime.hpp"

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tree_attn::emulated {
namespace runtime {

/// Memory that arena.take() returned.
struct Allocation {
  const std::byte* first = nullptr;
  std::size_t n_bytes = 0;
};

/// @throws DeviceError for an access outside the piece, a race, or a read of what no thread has written
void access_shared(const void* at, std::size_t n_bytes, Access access, const Allocation& allocation, const Line& line);

/// An index with the line it stands on.
struct Index {
  template <std::integral I>
  Index(I i, const Line& where = Line::current()) : value(static_cast<std::int64_t>(i)), line(where) {}
  std::int64_t value;
  Line line;
};

}  // namespace runtime

/// See below.
template <class T>
class CheckedPointer;

/// One number of shared memory: read when it is converted, written when it is assigned to.
template <class T>
class CheckedReference {
 public:
  CheckedReference(T* at, const runtime::Allocation& allocation, const Line& line)
      : at_(at), allocation_(allocation), line_(line) {}
  CheckedReference(const CheckedReference&) = default;

  operator T() const {
    runtime::access_shared(at_, sizeof(T), runtime::Access::kRead, allocation_, line_);
    return *at_;
  }
  CheckedReference& operator=(const T& value) {
    runtime::access_shared(at_, sizeof(T), runtime::Access::kWrite, allocation_, line_);
    *at_ = value;
    return *this;
  }
  CheckedReference& operator=(const CheckedReference& other) { return *this = static_cast<T>(other); }
  CheckedReference& operator+=(const T& value) { return *this = static_cast<T>(static_cast<T>(*this) + value); }
  CheckedReference& operator-=(const T& value) { return *this = static_cast<T>(static_cast<T>(*this) - value); }
  CheckedReference& operator*=(const T& value) { return *this = static_cast<T>(static_cast<T>(*this) * value); }
  CheckedReference& operator/=(const T& value) { return *this = static_cast<T>(static_cast<T>(*this) / value); }
  CheckedReference& operator|=(const T& value) { return *this = static_cast<T>(static_cast<T>(*this) | value); }
  CheckedReference& operator&=(const T& value) { return *this = static_cast<T>(static_cast<T>(*this) & value); }
  CheckedReference& operator++() { return *this += T(1); }
  CheckedReference& operator--() { return *this -= T(1); }
  CheckedPointer<T> operator&() const { return CheckedPointer<T>(at_, allocation_, line_); }

 private:
  T* at_;
  runtime::Allocation allocation_;
  Line line_;
};

/// A pointer to T, or to const T, in shared memory.
template <class T>
class CheckedPointer {
 public:
  CheckedPointer() = default;
  CheckedPointer(T* at, const runtime::Allocation& allocation, const Line& line)
      : at_(at), allocation_(allocation), line_(line) {}
  operator CheckedPointer<const T>() const requires(!std::is_const_v<T>) { return {at_, allocation_, line_}; }

  /// A number that may be written gives a reference, a const one its value.
  decltype(auto) operator[](const runtime::Index& i) const { return (*this + i).follow(i.line); }
  /// The line is that of the last sum: an operator* has no room for another.
  decltype(auto) operator*() const { return follow(line_); }

  CheckedPointer operator+(const runtime::Index& i) const { return {at_ + i.value, allocation_, i.line}; }
  CheckedPointer operator-(const runtime::Index& i) const { return {at_ - i.value, allocation_, i.line}; }
  CheckedPointer& operator+=(const runtime::Index& i) { return *this = *this + i; }
  CheckedPointer& operator-=(const runtime::Index& i) { return *this = *this - i; }
  CheckedPointer& operator++() { return ++at_, *this; }
  CheckedPointer& operator--() { return --at_, *this; }
  CheckedPointer operator++(int) { return {at_++, allocation_, line_}; }
  CheckedPointer operator--(int) { return {at_--, allocation_, line_}; }
  std::int64_t operator-(const CheckedPointer& other) const { return at_ - other.at_; }
  bool operator==(const CheckedPointer& other) const { return at_ == other.at_; }
  auto operator<=>(const CheckedPointer& other) const { return at_ <=> other.at_; }
  friend CheckedPointer operator+(const runtime::Index& i, const CheckedPointer& p) { return p + i; }

  /// The plain pointer, after a check of the n bytes there.
  T* checked(std::size_t n_bytes, runtime::Access access, const Line& line) const {
    runtime::access_shared(at_, n_bytes, access, allocation_, line);
    return at_;
  }
  /// Pointer to this address with another element type.
  template <class U>
  CheckedPointer<U> as() const {
    return {reinterpret_cast<U*>(at_), allocation_, line_};
  }
  /// Pointer to the corresponding address in another block of the cluster.
  CheckedPointer in_block(int rank, const Line& line) const {
    const auto move = [&](const void* own) {
      return runtime::remote(static_cast<std::byte*>(const_cast<void*>(own)), rank, line);
    };
    return {reinterpret_cast<T*>(move(at_)), {move(allocation_.first), allocation_.n_bytes}, line};
  }

 private:
  decltype(auto) follow(const Line& line) const {
    if constexpr (std::is_const_v<T>) {
      return std::remove_const_t<T>(*checked(sizeof(T), runtime::Access::kRead, line));
    } else {
      return CheckedReference<T>(at_, allocation_, line);
    }
  }

  T* at_ = nullptr;
  runtime::Allocation allocation_;
  Line line_;
};

namespace runtime {

/// Overloads of the functions that shared.hpp declares for plain pointers.
template <Access access, class T>
T* plain(const CheckedPointer<T>& at, int n_bytes, const Line& line) {
  return at.checked(static_cast<std::size_t>(n_bytes), access, line);
}
template <class T>
CheckedPointer<T> pointer_to(std::byte* at, std::int64_t n, const Line& line) {
  return {reinterpret_cast<T*>(at), {at, static_cast<std::size_t>(n) * sizeof(T)}, line};
}

}  // namespace runtime
}  // namespace tree_attn::emulated
