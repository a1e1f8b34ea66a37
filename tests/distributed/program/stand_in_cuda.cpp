// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A backend in the place of cuda, for tests of what a decode on GPUs asks before it begins: it has STAND_IN_GPUS
/// GPUs, and its kernels run under the emulator.
///
/// Another process has the GPU STAND_IN_BUSY for itself. At the end of the process, the file STAND_IN_CONTEXTS lists the
/// GPUs that it has used.
#include "gpu/backend/backends.hpp"
#include "gpu/backend/blocks.hpp"
#include "gpu/backend/one_shot_session.hpp"
#include "gpu/emulator/launch.hpp"
#include "gpu/types/device_error.hpp"

#include <cstdlib>
#include <fstream>

namespace tree_attn::cuda {
namespace {

class StandIn final : public Backend {
 public:
  StandIn() = default;
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  ~StandIn() override {
    const char* const path = std::getenv("STAND_IN_CONTEXTS");
    if (path == nullptr) return;
    std::ofstream file(path);
    file << "GPUs:";
    for (int gpu = 0; gpu < emulated::kMaxDevices; ++gpu) {
      if (emulated::has_context(gpu)) file << " " << gpu;
    }
  }
  std::string_view name() const override { return "cuda"; }
  std::string missing() const override {
    if (gpus().empty()) return "cudaGetDevice: no CUDA-capable device is detected";
    emulated::device();
    return "";
  }
  bool needs_gpu() const override { return true; }
  std::vector<std::string> gpus() const override {
    const char* const n = std::getenv("STAND_IN_GPUS");
    return std::vector<std::string>(n == nullptr ? 0 : static_cast<std::size_t>(std::atoi(n)), "Stand-in GPU");
  }
  bool has_windows() const override { return kernels_.has_windows(); }
  void use_gpu(int index) const override {
    if (const char* const busy = std::getenv("STAND_IN_BUSY"); busy != nullptr && std::atoi(busy) == index)
      throw DeviceError("cudaSetDevice: CUDA-capable device(s) is/are busy or unavailable");
    kernels_.use_gpu(index);
  }
  std::string refusal(const AttentionShape& shape) const override { return kernels_.refusal(shape); }
  ErrorTerms error_terms(const AttentionShape& shape) const override { return kernels_.error_terms(shape); }
  std::string_view arithmetic(const AttentionShape& shape) const override { return kernels_.arithmetic(shape); }
  AttentionShape stored(const AttentionShape& shape) const override { return kernels_.stored(shape); }
  using Backend::make_cache;
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, const OwnedLeaves& leaves,
                                      std::int64_t capacity) const override {
    return kernels_.make_cache(shape, leaves, capacity);
  }

 private:
  const Backend& kernels_ = emulated::backend();
};

}  // namespace

const Backend& backend() {
  static const StandIn stand_in;
  return stand_in;
}

std::unique_ptr<DeviceBlocks> make_blocks(std::int64_t n_elements, std::int64_t d_v, DeviceStream* stream, void* memory) {
  return emulated::make_blocks(n_elements, d_v, stream, memory);
}

std::unique_ptr<OneShotSession> open_one_shot(const KvCache& cache, double scale, const OneShotOptions& options) {
  return emulated::open_one_shot(cache, scale, options);
}

}  // namespace tree_attn::cuda
