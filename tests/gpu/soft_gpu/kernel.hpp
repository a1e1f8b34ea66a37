// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A kernel as the machine runs it: PTX, decoded once into one operation per instruction.
#pragma once

#include "tests/gpu/soft_gpu/memory.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn::soft_gpu {

struct Warp;
struct Op;

/// A type of PTX, as it is written: u32, bf16, pred. Those of the same width name the same lanes.
using Type = std::string_view;
bool is_type(std::string_view word);
/// Bytes of a lane in memory; of predicates, whose 32 lanes are the bits of one word, and where no type is named, 4.
int bytes_of(Type type);

/// Location of an operand: bytes from the beginning of a warp's registers, or, if the lowest bit is set, of the constants.
using Location = std::uint32_t;
constexpr Location kNowhere = ~Location{0};  ///< what is not written: _

/// State spaces of an address. Addresses of parameter memory lie in a window of the generic ones.
enum class Space : std::uint8_t { Generic, Global, Shared, Param };
constexpr std::uint64_t kParamWindow = 0x7300'0000'0000;
/// First address of shared memory, all of it dynamic, and number of addresses of a block: block i of the cluster from (i +
/// 1) kSharedSpan on, and the own one from 0 on as well.
constexpr std::uint32_t kSharedBegin = 1024, kSharedSpan = 1 << 24;

/// An instruction. `run` is called with the lanes whose guard holds.
struct Op {
  void (*run)(Warp&, const Op&) = nullptr;
  const Location* at = nullptr;  ///< operands, those of vectors one after the other
  std::int64_t offset = 0;       ///< of an address; of a branch, the operation where it goes; of some, a constant
  Location guard = kNowhere;
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
    std::vector<Location> at;  ///< one, or the elements of a vector
    Type type;                 ///< of a register
    bool is_address = false;   ///< in brackets
    bool is_label = false;
    bool is_special = false;  ///< %tid.x and its kind
    std::int64_t offset = 0;  ///< of an address; the value of a constant
    std::string_view name;
  };
  std::vector<Operand> operand;
  bool has(std::string_view part) const;
  /// The i-th of its words that are types; empty if there is none.
  Type type(int i = 0) const;
};

/// A kernel: how it is launched, and its operations.
struct Kernel {
  std::string name;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> parameters;  ///< offset and bytes of each
  std::uint32_t parameter_bytes = 0, register_bytes = 0, n_accesses = 0, most_threads = 1024;
  std::vector<Op> ops;
  std::vector<std::string> text;     ///< of each operation, for messages
  std::vector<std::byte> constants;  ///< 32 lanes each
  std::vector<std::vector<Location>> operands;
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
