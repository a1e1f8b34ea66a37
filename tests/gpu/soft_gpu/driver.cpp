// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The calls of the driver that this project looks up: tensor maps and green contexts.
#include "tests/gpu/soft_gpu/streams.hpp"

#include <cuda.h>

#include <cstdio>

using namespace tree_attn::soft_gpu;

struct CUdevResourceDesc_st {
  unsigned n_multiprocessors;
};

namespace {

Context* context_of(void* handle) { return static_cast<Context*>(handle); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* extent, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const auto fail = [](const auto&... why) {
    std::fprintf(stderr, "soft_gpu: cuTensorMapEncodeTiled: %s\n", joined(why...).c_str());
    return CUDA_ERROR_INVALID_VALUE;
  };
  TensorMap made{};
  if (settings().major < 9) return fail("the device has no tensor maps");
  // The type of the pointer lets the compiler fold the remainder to 0.
  const volatile std::uintptr_t map_address = reinterpret_cast<std::uintptr_t>(map);
  if (map_address % 64 != 0) return fail("a tensor map at ", map_address % 64, " bytes past a multiple of 64");
  if (type != CU_TENSOR_MAP_DATA_TYPE_UINT8 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
    return fail("a type of elements that is not known here");
  if (rank < 1 || rank > 5 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return fail("a form that is not known here");
  if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B) return fail("a swizzle that is not known here");
  made.mark = TensorMap::kMark, made.rank = rank, made.element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
  made.swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16U << swizzle;
  made.address = reinterpret_cast<std::uint64_t>(address);
  if (made.address % 16 != 0) return fail("an address that is no multiple of 16");
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (extent[i] == 0 || extent[i] > std::uint64_t{1} << 32) return fail("extent ", extent[i]);
    if (box[i] == 0 || box[i] > 256 || step[i] != 1) return fail("a box of ", box[i]);
    if (i > 0 && (stride[i - 1] % 16 != 0 || stride[i - 1] >= std::uint64_t{1} << 40)) return fail("stride ", stride[i - 1]);
    made.extent[i] = static_cast<std::uint32_t>(extent[i]), made.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i > 0) made.stride[i - 1] = stride[i - 1];
  }
  const std::uint32_t row_bytes = box[0] * made.element_bytes;
  if (row_bytes % 16 != 0 || (made.swizzle_bytes != 0 && row_bytes > made.swizzle_bytes))
    return fail("rows of ", row_bytes, " bytes in a box");
  *map = {};
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
  *resource = {};
  resource->type = type, resource->sm.smCount = static_cast<unsigned>(settings().n_multiprocessors);
  return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/// Parts are multiples of 8 multiprocessors, as on an H100.
CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* n, const CUdevResource* of, CUdevResource* rest,
                                     unsigned, unsigned least) {
  const unsigned size = (std::max(least, 1U) + 7) / 8 * 8;
  *n = std::min(*n, of->sm.smCount / size);
  for (unsigned i = 0; i < *n; ++i) parts[i] = *of, parts[i].sm.smCount = size;
  if (rest != nullptr) *rest = *of, rest->sm.smCount = of->sm.smCount - *n * size;
  return *n > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* described, CUdevResource* resources, unsigned n) {
  return *described = new CUdevResourceDesc_st{resources[0].sm.smCount}, n == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGreenCtxCreate(CUgreenCtx* made, CUdevResourceDesc described, CUdevice, unsigned) {
  auto* const context = new Context{static_cast<int>(described->n_multiprocessors), true};
  return *made = reinterpret_cast<CUgreenCtx>(context), CUDA_SUCCESS;
}
CUresult cuGreenCtxDestroy(CUgreenCtx context) { return delete context_of(context), CUDA_SUCCESS; }
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx from) {
  return *context = reinterpret_cast<CUcontext>(from), CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { return context_of_thread = context_of(context), CUDA_SUCCESS; }
CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* context) {
  Context& of = stream == nullptr ? current_context() : reinterpret_cast<Stream*>(stream)->context;
  return *context = of.is_part ? reinterpret_cast<CUgreenCtx>(&of) : nullptr, CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
