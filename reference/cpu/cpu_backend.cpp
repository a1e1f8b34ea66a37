// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CPU backend (section 6).
#include "reference/cpu/cpu_cache.hpp"
#include "reference/decode/backend.hpp"

#include <map>
#include <mutex>
#include <stdexcept>

namespace tree_attn {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int n_threads) : n_threads_(n_threads) {}
  std::string_view name() const override { return "cpu"; }
  std::string missing() const override {
    try {
      leaf_kernel();
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }
  std::vector<std::string> gpus() const override { return {}; }
  bool has_threads() const override { return true; }
  bool has_masks() const override { return true; }
  std::string refusal(const AttentionShape&) const override { return ""; }
  ErrorTerms error_terms(const AttentionShape&) const override { return {}; }
  AttentionShape stored(const AttentionShape& shape) const override { return stored_on_host(shape); }

  using Backend::make_cache;
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, const OwnedLeaves& leaves,
                                      std::int64_t capacity) const override {
    return std::make_unique<CpuCache>(shape, leaves, capacity, n_threads_);
  }

 private:
  int n_threads_;
};

}  // namespace

const Backend& cpu_backend(int n_threads) {
  require(n_threads >= 1, "cpu_backend: ", n_threads, " threads, at least 1 is needed");
  static std::mutex mutex;
  static std::map<int, CpuBackend> backends;
  const std::lock_guard lock(mutex);
  return backends.try_emplace(n_threads, n_threads).first->second;
}

}  // namespace tree_attn
