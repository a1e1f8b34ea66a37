// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The host side of a kernel: memory on the device, streams, launches.
///
/// | word | meaning |
/// | --- | --- |
/// | `DeviceBuffer<T>` | n numbers of device memory for a MemoryUse, freed at the end; `upload`, `upload_rows`, `download` |
/// | `Stream` | where launches queue; a default one ranges them in order |
/// | `Launch` | grid, block, bytes of dynamic shared memory, blocks per cluster, whether it continues or overlaps the last |
/// | `launch(kernel, Launch, stream, args...)` | starts a kernel; a status that is not well is a DeviceError |
/// | `make_tensor_map(TensorArray)` | the TensorMap that a kernel passes to bulk_copy_tensor() |
/// | `DeviceTraffic& traffic()` | allocations and bytes copied so far |
/// | `kName`, `kIsHostMemory` | the platform's name as a backend, and where its memory is |
/// | `gpu_names()` | GPUs that were found |
/// | `Device device()` | the current one: name, number of multiprocessors, shared memory a block may have, major version |
#pragma once

#include "gpu/platform/platform.hpp"

#if defined(__CUDACC__) || defined(TREE_ATTN_FOR_CUDA)
#include "gpu/platform/cuda/launch.hpp"
#else
#include "gpu/platform/emulator/launch.hpp"
#endif
