// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What follows from the facts of all ranks: what works, what is slow, what fails, and what to do about it.
#pragma once

#include "tree_attn/distributed/job/facts.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// Whether a decode can run.
enum class Severity {
  kFine,
  kWarning,  ///< it runs, and may be slow or wrong in a way that the facts do not decide
  kFailure   ///< it ends with status 2
};

/// What fails, or would: a decode with this option. Peer access is what one-shot needs unless its windows lie on the host.
enum class Need { kNothing, kGpu, kNccl, kOneShot, kPeerAccess };

/// One line about all ranks.
struct Verdict {
  Severity severity = Severity::kFine;
  Need need = Need::kNothing;
  std::string subject;  ///< "GPUs", "NCCL", in a column of its own
  std::string text;     ///< what is so, with names and values
  std::string remedy;   ///< what to do; "" if nothing is to be done
};

/// The text of a verdict in one line: the option that fails, what is so, and what to do. As `info` prints it, and as an
/// error of decode.
std::string line(const Verdict& verdict);

/// Judges the facts of all ranks. A pure function: it reads no file and asks no library.
///
/// | subject | fails with | warns of |
/// | --- | --- | --- |
/// | backends | a backend that was not built in, or that the processor cannot run | |
/// | ranks | | different builds of the program, different MPI libraries |
/// | cores | | more ranks on a machine than cores that they may use |
/// | shared memory | | too little of /dev/shm for MPI or NCCL; a limit of locked memory where there is InfiniBand |
/// | GPUs | no driver, a rank without a GPU, a driver older than CUDA, no kernel for a GPU | a newer minor version of CUDA, different GPUs |
/// | peer access | two GPUs of a machine that cannot reach each other | ranks that see their own GPU only |
/// | NCCL | no library, a library that is too old, different versions, two ranks on one GPU | |
/// | interface | several machines and no interface but lo, none of NCCL_SOCKET_IFNAME, one address on two machines | different interfaces |
/// | one-shot | a rank without a GPU, two ranks on one GPU | |
///
/// @param facts of all ranks, by rank; at least one @throws std::invalid_argument if there is none
/// @returns verdicts in the order of the table; every subject that applies has at least one
std::vector<Verdict> judge(std::span<const RankFacts> facts);

/// The line of the first verdict that makes a decode with one of these options fail; nothing if there is none.
std::optional<std::string> first_failure(std::span<const Verdict> verdicts, std::span<const Need> needs);

/// The verdicts, each with its severity and subject in columns of their own, in lines of at most 140 characters.
std::string table(std::span<const Verdict> verdicts);

/// Whether NCCL's bootstrap may use an interface. NCCL_SOCKET_IFNAME is a list of prefixes with commas between them; after
/// `^` of those that are excluded, after `=` of whole names.
bool is_chosen(const std::string& socket_ifname, const std::string& interface);
/// The interface that NCCL's bootstrap takes: the first that NCCL_SOCKET_IFNAME chooses; without it the first whose name
/// begins with "ib", then the first but docker's, virbr and lo, then docker's, then lo. Null if there is none.
const InterfaceFacts* bootstrap_interface(const RankFacts& rank);

}  // namespace tree_attn
