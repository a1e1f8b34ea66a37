// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of one platform as a backend.
#include "gpu/backend/backends.hpp"
#include "gpu/backend/session.hpp"
#include "reference/state/require.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

class KernelBackend final : public Backend {
 public:
  std::string_view name() const override { return kName; }
  std::string missing() const override {
    // An emulated device is always there.
    if constexpr (kIsHostMemory) return "";
    try {
      device();
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }
  bool needs_gpu() const override { return !kIsHostMemory; }
  std::vector<std::string> gpus() const override { return gpu_names(); }
  bool has_windows() const override { return true; }
  void use_gpu(int index) const override {
    require<std::out_of_range>(index >= 0, "Backend::use_gpu: GPU ", index);
    use_device(index);
  }
  std::string refusal(const AttentionShape& shape) const override {
    const bool is_f8 = shape.dtype == DType::F8_E4M3;
    if (is_f8 != (shape.value_dtype == DType::F8_E4M3))
      return "F8_E4M3 beside " + std::string(name_of(is_f8 ? shape.value_dtype : shape.dtype)) + "; use --backend cpu";
    const AttentionShape stored = stored_on_device(shape);
    return accepts_copied_rows(params_of(stored, 1, {}), stored.dtype);
  }
  ErrorTerms error_terms(const AttentionShape& shape) const override {
    const AttentionShape stored = stored_on_device(shape);
    const DecodeParams leaf = params_of(stored, 1, {0, kLeafKeys});
    if (!multiplies_on_tensor_cores(leaf, stored.dtype)) return {};  // the arithmetic of the CPU
    return {
        .exp_error = 2, .score_error = 1.5, .n_additions = n_additions(leaf, stored.dtype) - n_tree_additions(kLeafKeys)};
  }
  std::string_view arithmetic(const AttentionShape& shape) const override { return arithmetic_of(stored_on_device(shape)); }
  AttentionShape stored(const AttentionShape& shape) const override { return stored_on_device(shape); }

  using Backend::make_cache;
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, const OwnedLeaves& leaves,
                                      std::int64_t capacity) const override {
    return std::make_unique<DeviceCache>(shape, leaves, capacity);
  }
};

}  // namespace

const Backend& backend() {
  static const KernelBackend backend;
  return backend;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
