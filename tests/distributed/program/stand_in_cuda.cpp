// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A backend in the place of cuda, for tests of what a decode on GPUs asks before it begins: it has STAND_IN_GPUS
/// GPUs, and its kernels run under the emulator.
#include "gpu/backend/backends.hpp"
#include "gpu/backend/blocks.hpp"
#include "gpu/backend/one_shot_session.hpp"

#include <cstdlib>

namespace tree_attn::cuda {
namespace {

class StandIn final : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }
  std::string missing() const override { return gpus().empty() ? "cudaGetDevice: no CUDA-capable device is detected" : ""; }
  bool needs_gpu() const override { return true; }
  std::vector<std::string> gpus() const override {
    const char* const n = std::getenv("STAND_IN_GPUS");
    return std::vector<std::string>(n == nullptr ? 0 : static_cast<std::size_t>(std::atoi(n)), "Stand-in GPU");
  }
  bool has_windows() const override { return kernels_.has_windows(); }
  void use_gpu(int index) const override { kernels_.use_gpu(index); }
  std::string refusal(const AttentionShape& shape) const override { return kernels_.refusal(shape); }
  ErrorTerms error_terms(const AttentionShape& shape) const override { return kernels_.error_terms(shape); }
  AttentionShape stored(const AttentionShape& shape) const override { return kernels_.stored(shape); }
  using Backend::memory;
  MemoryNeed memory(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t n,
                    std::int64_t capacity) const override {
    return kernels_.memory(shape, leaves, n, capacity);
  }
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

std::unique_ptr<DeviceBlocks> make_blocks(std::int64_t n_elements, std::int64_t d_v, DeviceStream* stream) {
  return emulated::make_blocks(n_elements, d_v, stream);
}

std::unique_ptr<OneShotSession> open_one_shot(const KvCache& cache, double scale, const OneShotOptions& options) {
  return emulated::open_one_shot(cache, scale, options);
}

}  // namespace tree_attn::cuda
