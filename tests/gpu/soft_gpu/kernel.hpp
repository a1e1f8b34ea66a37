// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A kernel as the machine runs it: PTX, decoded once into one operation per instruction.
#pragma once

#include "tree_attn/tests/gpu/soft_gpu/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn::soft_gpu {

struct Warp;
struct Op;

/// Types of PTX. Those of the same width name the same lanes.
enum class Type : std::uint8_t {
  Pred,
  B8,
  U8,
  S8,
  B16,
  U16,
  S16,
  F16,
  Bf16,
  B32,
  U32,
  S32,
  F32,
  B64,
  U64,
  S64,
  F64,
  B128,
  None
};
/// Bytes of a lane in memory; of predicates, whose 32 lanes are the bits of one word, 4.
int bytes_of(Type type);
Type type_named(std::string_view name);

/// Where an operand is: bytes from the beginning of a warp's registers, or, if the lowest bit is set, of the constants.
using Place = std::uint32_t;
constexpr Place kNowhere = ~Place{0};  ///< what is not written: _

/// State spaces of an address. Addresses of shared, local and parameter memory lie in windows of the generic ones.
enum class Space : std::uint8_t { Generic, Global, Shared, Local, Param };
constexpr std::uint64_t kSharedWindow = 0x7100'0000'0000, kLocalWindow = 0x7200'0000'0000, kParamWindow = 0x7300'0000'0000;
/// Where shared memory begins, and how many addresses a block has: block i of the cluster from (i + 1) kSharedSpan on, and
/// the own one from 0 on as well.
constexpr std::uint32_t kSharedBegin = 1024, kSharedSpan = 1 << 24;

/// An instruction. `run` is called with the lanes whose guard holds.
struct Op {
  void (*run)(Warp&, const Op&) = nullptr;
  const Place* at = nullptr;  ///< operands, those of vectors one after the other
  std::int64_t offset = 0;    ///< of an address; of a branch, the operation where it goes; of some, a constant
  Place guard = kNowhere;
  std::uint32_t line = 0;   ///< of the PTX
  std::uint32_t cache = 0;  ///< number among the accesses of the kernel
  bool is_negated = false;  ///< the guard
  std::uint8_t n = 1;       ///< elements of a vector
  std::uint8_t kind = 0;    ///< a variant, as the instruction reads it
};

/// An instruction as it is written, its operands resolved.
struct Statement {
  std::vector<std::string_view> word;  ///< its name, split at the points
  struct Operand {
    std::vector<Place> at;    ///< one, or the elements of a vector
    Type type = Type::None;   ///< of a register
    bool is_address = false;  ///< in brackets
    bool is_label = false;
    bool is_special = false;  ///< %tid.x and its kind
    std::int64_t offset = 0;  ///< of an address; the value of a constant
    std::string_view name;
  };
  std::vector<Operand> operand;
  bool has(std::string_view part) const;
  /// The type that the i-th of its words names, among the words that are types.
  Type type(int i = 0) const;
};

/// A kernel: how it is launched, and its operations.
struct Kernel {
  std::string name;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> parameters;  ///< offset and bytes of each
  std::uint32_t parameter_bytes = 0, static_shared = 0, local_bytes = 0, register_bytes = 0, n_accesses = 0;
  std::uint32_t dynamic_at = kSharedBegin;  ///< where dynamic shared memory begins
  std::uint32_t most_threads = 1024;
  /// Where shared memory ends.
  std::uint32_t shared_bytes(std::uint32_t dynamic) const {
    return std::max(kSharedBegin + static_shared, dynamic > 0 ? dynamic_at + dynamic : 0);
  }
  std::vector<Op> ops;
  std::vector<std::string> text;     ///< of each operation, for messages
  std::vector<std::byte> constants;  ///< 32 lanes each
  std::vector<std::vector<Place>> operands;
};

/// Gives an operation what runs it. @throws Fault for an instruction that the machine does not know
void decode(const Statement& statement, Op& op);

/// The PTX of a program for one architecture.
class Module {
 public:
  explicit Module(std::string_view text) : text_(text) {}
  /// Decodes a kernel. @throws Fault if it is not there, or for what is not known, with the line
  Kernel kernel(const std::string& name) const;

 private:
  std::string_view text_;
};

}  // namespace tree_attn::soft_gpu
