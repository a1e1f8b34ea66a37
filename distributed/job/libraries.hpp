// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Asks libraries that may not be there, the driver of the GPUs and NCCL, what they are. They are loaded, not linked.
#pragma once

#include "tree_attn/distributed/job/facts.hpp"

#include <vector>

namespace tree_attn {

/// The driver of the GPUs, libcuda.so.1, and the GPUs that it shows to this process. Needs no CUDA to build.
struct FoundGpus {
  DriverFacts driver;
  std::vector<GpuFacts> gpus;
};
FoundGpus find_gpus();

/// The library NCCL that a decode would load, see wanted_nccl(): its version, whether it can be used or not.
NcclFacts ask_nccl();

}  // namespace tree_attn
