// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What follows from the facts of all ranks: what works, what fails, and what to do about it.
#pragma once

#include "tree_attn/distributed/job/facts.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// Whether a decode can run.
enum class Severity { kFine, kWarning, kFailure };

/// What fails, or would: a decode with this option. Peer access is what one-shot needs unless its windows lie on the host.
enum class Need { kNothing, kGpu, kNccl, kPeerAccess };

/// One line about all ranks.
struct Verdict {
  Severity severity = Severity::kFine;
  Need need = Need::kNothing;
  std::string subject;  ///< "GPUs", "NCCL", in a column of its own
  std::string text;     ///< what is so, with names and values, and what to do
};

/// The text of a verdict, after the option that fails: as `info` prints it, and as an error of decode.
std::string line(const Verdict& verdict);

/// Judges the facts of all ranks: backends, GPUs, peer access, NCCL, interface, one-shot and its windows, and MPI, in this
/// order. Six faults end a decode that needs what is missing: no driver, a rank without a GPU, no kernel for a GPU, GPUs of
/// a machine that do not reach each other, no usable NCCL, different versions of NCCL.
/// @param facts of all ranks, by rank @throws std::invalid_argument if there is none
std::vector<Verdict> judge(std::span<const RankFacts> facts);

/// The line of the first verdict that makes a decode with one of these options fail; nothing if there is none.
std::optional<std::string> first_failure(std::span<const Verdict> verdicts, std::span<const Need> needs);

/// The verdicts, each with its severity and subject in columns of their own, in lines of at most 140 characters.
std::string table(std::span<const Verdict> verdicts);

}  // namespace tree_attn
