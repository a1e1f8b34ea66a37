// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The host side of a kernel: memory on the device, streams, launches.
///
/// | word | meaning |
/// | --- | --- |
/// | `DeviceBuffer<T>` | n elements of device memory for a MemoryUse, freed at the end; `upload`, `upload_rows`, `download`, `fill`, `handle` |
/// | `HostBuffer<T>` | n elements of host memory for copies that are queued; pinned on a GPU; `to_write` once those copies have run |
/// | `queue_upload queue_copy queue_download` | the same copies, and copies on the device, queued on a stream |
/// | `Stream` | where launches and copies queue; a default one is the default stream |
/// | `OwnedStream synchronise` | a stream of its own, which the default stream does not wait for; waits for a stream |
/// | `Event` | `record` marks a place in a stream, `record_in_graph` one of a graph, `hold` makes another wait for it, and `has_passed` asks without waiting |
/// | `LibraryStream` | a stream as a library such as NCCL takes it: its `handle` |
/// | `Graph drop_capture` | records what is queued on a stream and queues it again: `replay`; ends a recording |
/// | `Launch` | grid, block, bytes of dynamic shared memory, blocks per cluster, whether it continues or overlaps the last, whether its blocks wait for each other |
/// | `launch(kernel, Launch, stream, args...)` | starts a kernel; a status that is not well is a DeviceError |
/// | `n_resident_clusters(kernel, Launch)` | clusters of such a launch that the device holds at once; 0 where it has none |
/// | `make_tensor_map(TensorArray)` | the TensorMap that a kernel passes to bulk_copy_tensor() |
/// | `DeviceTraffic& traffic()` | allocations, uploads, bytes copied, launches and replays so far |
/// | `bytes_to_peers()` | bytes that kernels of the current device have stored into windows of others, where they are counted |
/// | `kName`, `kIsHostMemory` | the platform's name as a backend, and where its memory is |
/// | `gpu_names()` | GPUs that were found |
/// | `n_devices set_device current_device` | the devices, and the one that this host thread allocates and launches on |
/// | `use_device` | the same for a host thread that is one rank of several |
/// | `enable_peer_access` | lets kernels of the current device reach windows (MemoryUse::Window) of another |
/// | `HostWord` | a word of host memory that kernels read while host threads write it |
/// | `OpenedWindow` | a window of another process, opened by its handle, or of another rank, mapped by a library such as NCCL |
/// | `Device device()` | the current one: name, number of multiprocessors, shared memory a block may have, major version of its kernels |
#pragma once

#include "tree_attn/gpu/platform/platform.hpp"

#if defined(__CUDACC__) || defined(TREE_ATTN_FOR_CUDA)
#include "tree_attn/gpu/platform/cuda/launch.hpp"
#else
#include "tree_attn/gpu/platform/emulator/launch.hpp"
#endif
