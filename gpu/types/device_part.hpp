// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A part of the multiprocessors of a device, for tests whose ranks share one.
#pragma once

namespace tree_attn {

/// While it exists, kernels of this host thread are planned for some of the multiprocessors of its device, and a
/// OneShotSession accepts peers of its process on the same device. The caller ensures that the kernels do run there, beside
/// those of the peers: on a GPU by a green context that is current.
class DevicePart {
 public:
  explicit DevicePart(int n_multiprocessors) { of_thread_ = n_multiprocessors; }
  DevicePart(const DevicePart&) = delete;
  DevicePart& operator=(const DevicePart&) = delete;
  ~DevicePart() { of_thread_ = 0; }
  /// Multiprocessors of this host thread; 0: it has the whole device.
  static int n_multiprocessors() { return of_thread_; }

 private:
  static inline thread_local int of_thread_ = 0;
};

}  // namespace tree_attn
