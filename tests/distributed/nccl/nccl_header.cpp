// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Our declarations of NCCL agree with nccl.h: types, values, and how arguments are passed. Compiled, never run.
#include "distributed/transport/nccl_api.hpp"

#include <nccl.h>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
#include <nccl_device/host.h>
#endif

#include <cstddef>
#include <type_traits>

static_assert(TREE_ATTN_EXPECTED_NCCL == NCCL_VERSION_CODE, "another nccl.h was found first");

namespace tree_attn::test {

namespace {

/// Tests whether arguments of both types are passed alike: pointers; enumerations and integers of one size; structures of
/// one layout.
template <class Ours, class Theirs>
constexpr bool passes_alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>)
    return true;
  else if constexpr (std::is_enum_v<Ours>)
    return std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  else if constexpr (std::is_class_v<Ours>)
    return std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_trivially_copyable_v<Ours> && std::is_trivially_copyable_v<Theirs>;
  else
    return std::is_same_v<Ours, Theirs>;
}
template <class Ours, class Theirs>
struct CalledAlike : std::false_type {};
template <class Result, class... Arguments, class TheirResult, class... TheirArguments>
requires(sizeof...(Arguments) ==
         sizeof...(TheirArguments)) struct CalledAlike<Result (*)(Arguments...), TheirResult (*)(TheirArguments...)>
    : std::bool_constant<passes_alike<Result, TheirResult>() && (passes_alike<Arguments, TheirArguments>() && ...)> {
};

template <class Ours, class Theirs>
constexpr bool is_called_alike() {
  static_assert(CalledAlike<Ours, Theirs>::value);
  return true;
}
#define TREE_ATTN_SAME(function) is_called_alike<decltype(nccl::Functions::function), decltype(&function)>()
[[maybe_unused]] constexpr bool kSame[] = {TREE_ATTN_NCCL_REQUIRED(TREE_ATTN_SAME), TREE_ATTN_NCCL_OPTIONAL(TREE_ATTN_SAME)};
static_assert(!CalledAlike<decltype(nccl::Functions::ncclSend), decltype(&ncclAllReduce)>::value, "a control");

static_assert(static_cast<int>(nccl::Status::kSuccess) == ncclSuccess);
static_assert(static_cast<int>(nccl::Status::kUnhandledCudaError) == ncclUnhandledCudaError);
static_assert(static_cast<int>(nccl::Status::kSystemError) == ncclSystemError);
static_assert(static_cast<int>(nccl::Status::kInternalError) == ncclInternalError);
static_assert(static_cast<int>(nccl::Status::kInvalidArgument) == ncclInvalidArgument);
static_assert(static_cast<int>(nccl::Status::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(nccl::Status::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(nccl::Status::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(nccl::Type::kInt8) == ncclInt8);
static_assert(static_cast<int>(nccl::Type::kFloat32) == ncclFloat32);
static_assert(static_cast<int>(nccl::Operator::kSum) == ncclSum);
static_assert(static_cast<int>(nccl::Operator::kMax) == ncclMax);
static_assert(nccl::kSymmetricWindow == NCCL_WIN_COLL_SYMMETRIC);
static_assert(nccl::kOldestNccl == NCCL_VERSION(2, 14, 3));
static_assert(sizeof(nccl::UniqueId) == NCCL_UNIQUE_ID_BYTES);

// Our configuration is the beginning of theirs.
static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));
static_assert(nccl::Config{}.version <= NCCL_VERSION_CODE);
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(nccl::Config{}.magic == kTheirs.magic);

}  // namespace
}  // namespace tree_attn::test
