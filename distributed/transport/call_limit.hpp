// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The deadline of a program that owns its job: it ends calls of MPI that block, too.
#pragma once

#include "distributed/transport/deadline.hpp"

#include <string>
#include <thread>

namespace tree_attn {

/// Ends this process with one line on standard error and status 2. Allocates nothing, since the line may say that memory is
/// used up.
[[noreturn]] void end_process(const std::string& line);

/// Seconds by which this rank lets lower ranks speak first, of which the launcher ends all others: one line for a job.
double turn_of(int rank);

/// Ends the process if a call of MPI that blocks takes longer than the limit: "rank 1 has been in MPI_Init_thread for 30 s".
/// A thread of its own sees that; it lives during such calls alone and uses no MPI.
class CallLimit : public Deadline {
 public:
  using Deadline::Deadline;
  void begin_call(const char* call) override { begin_call(call, 0); }
  /// @param at_least seconds that the call may take
  void begin_call(const char* call, double at_least);
  void end_call() override { thread_ = {}; }

 private:
  std::jthread thread_;
};

}  // namespace tree_attn
