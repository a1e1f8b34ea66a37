// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Time that a model of a computation takes, on a real machine.
#include "tests/support/model_backend.hpp"

#include <chrono>
#include <thread>

void tree_attn::test::pass_time(double seconds, const std::function<void()>& progress) {
  if (progress) progress();
  if (!(seconds > 0)) return;
  const std::chrono::duration<double> time(seconds);
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < time) {
    if (progress) progress();
    std::this_thread::yield();
  }
}
