// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The model backend: the time of a decode without its keys and values (section 6).
#include "tests/support/model_backend.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

namespace tree_attn::test {
namespace {

struct Unmap {
  std::size_t size = 0;
  void operator()(const std::byte* pages) const { ::munmap(const_cast<std::byte*>(pages), size); }
};
using ZeroPages = std::unique_ptr<const std::byte, Unmap>;

/// Zeros to read. The operating system maps all of it to one page, so it takes no memory.
ZeroPages zero_pages(std::size_t n) {
  void* const pages = ::mmap(nullptr, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<const std::byte*>(pages), {n}};
}

/// Counts positions and holds no element.
class ModelCache final : public KvCache {
 public:
  ModelCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity, double bytes_per_second)
      : KvCache(shape, shape, leaves, capacity), bytes_per_second_(bytes_per_second) {}

  std::unique_ptr<DecodeSession> open(double scale, std::int64_t most_queries = 0) const override;

  double bytes_per_second() const { return bytes_per_second_; }

 protected:
  /// Zeros, which other ranks can be sent.
  Shard read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>&) const override {
    const auto n_bytes = static_cast<std::size_t>(n * shape().bytes_per_position());
    if (n_bytes > zeros_.get_deleter().size) zeros_ = zero_pages(n_bytes);
    return dense_shard(shape(), n, zeros_.get(), leaves().range().begin, false);
  }
  void allocate(std::int64_t) override {}
  void write(std::int64_t, std::int64_t, const TensorView&, const TensorView&) override {}
  void write_all(const Shard&, std::span<const std::int64_t>) override {}

 private:
  double bytes_per_second_;
  mutable ZeroPages zeros_;
};

/// A value of a subtree, a row and a column (the finaliser of SplitMix64). Magnitudes differ by up to 2^7, so that sums
/// round.
float value_of(const Subtree& subtree, std::int64_t row, std::int64_t column) {
  std::uint64_t x = static_cast<std::uint64_t>(subtree.begin()) * 0x9E3779B97F4A7C15u +
                    static_cast<std::uint64_t>(row) * 0xBF58476D1CE4E5B9u + static_cast<std::uint64_t>(column);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  const float unit = static_cast<float>(static_cast<std::int64_t>(x >> 40) - (1 << 23)) * 0x1p-23f;  // in [-1, 1)
  return unit / static_cast<float>(1 << (x & 7));
}

/// Lets the time of a step pass, and makes up the states.
class ModelSession final : public DecodeSession, public States {
 public:
  ModelSession(const ModelCache& cache, double scale, std::int64_t most_queries)
      : DecodeSession(cache, scale, most_queries),
        cache_(cache),
        forest_(cache.shape().n_rows(std::max<std::int64_t>(1, most_queries)), cache.shape().value_dim) {
    const KeyRange range = closed(cache.leaves().range(), cache.leaves().range().begin + cache.capacity());
    forest_.reserve(static_cast<std::size_t>(n_subtrees(range.begin, range.end)));
  }

  Forest<float>& host() override { return forest_; }
  const float* device() const override { return nullptr; }
  std::string describe() const override { return ""; }

 protected:
  States& run(const Step& step, const std::function<void()>& progress) override {
    const AttentionShape& shape = cache_.shape();
    const OwnedLeaves& leaves = cache_.leaves();
    double n_positions = 0;
    for (const std::int64_t length : step.lengths) n_positions += static_cast<double>(leaves.n_keys(length));
    if (shape.batch > 0) {
      const double per_entry = static_cast<double>(shape.bytes_per_position()) / static_cast<double>(shape.batch);
      pass_time(n_positions * per_entry / cache_.bytes_per_second(), progress);
    }

    // The states of a sum of as many equal weights as the subtree has keys.
    forest_.set_rows(shape.n_rows(step.q.shape[2]));
    const std::int64_t rows_per_entry = shape.heads * step.q.shape[2], d_v = shape.value_dim;
    const KeyRange range = closed(leaves.range(), step.longest());
    for (const Subtree& subtree : cover(range.begin, range.end)) {
      // A leaf in which the range ends is several subtrees, and the first has all of its keys.
      const std::int64_t begin = subtree.begin();
      const OwnedLeaves below({begin, begin % kLeafKeys > 0 ? begin : std::max(subtree.end(), begin + kLeafKeys)},
                              leaves.order());
      float* state = forest_.next();
      for (std::int64_t r = 0; r < forest_.n_rows(); ++r, state += state_size(d_v)) {
        const std::int64_t n_keys = below.n_keys(step.lengths[static_cast<std::size_t>(r / rows_per_entry)]);
        set_empty(state, d_v);
        if (n_keys == 0) continue;
        state[kShift] = 0;
        state[kSum] = static_cast<float>(n_keys);
        for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = static_cast<float>(n_keys) * value_of(subtree, r, j);
      }
      forest_.push(subtree);
    }
    return *this;
  }

 private:
  const ModelCache& cache_;
  Forest<float> forest_;
};

std::unique_ptr<DecodeSession> ModelCache::open(double scale, std::int64_t most_queries) const {
  return std::make_unique<ModelSession>(*this, scale, most_queries);
}

class ModelBackend final : public Backend {
 public:
  explicit ModelBackend(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  std::string_view name() const override { return "model"; }
  std::string missing() const override { return ""; }
  std::vector<std::string> gpus() const override { return {}; }
  std::string refusal(const AttentionShape&) const override { return ""; }
  ErrorTerms error_terms(const AttentionShape&) const override { return {}; }
  AttentionShape stored(const AttentionShape& shape) const override { return shape; }
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, const OwnedLeaves& leaves,
                                      std::int64_t capacity) const override {
    return std::make_unique<ModelCache>(shape, leaves, capacity, bytes_per_second_);
  }

 private:
  double bytes_per_second_;
};

class AxesWorkload : public Workload {
 public:
  AxesWorkload(const WorkloadShape& shape, int steps)
      : Workload(shape, steps), row_(static_cast<std::size_t>(std::max(shape.head_dim, shape.value_dim)) * sizeof(double)) {}

  /// The first call takes the memory, so that the caller can first check that there is enough.
  TensorView query(int step) override {
    require_step(step);
    q_.resize(static_cast<std::size_t>(shape_.n_rows() * shape_.head_dim) * bytes_of(shape_.dtype));
    return TensorView::dense(q_.data(), shape_.dtype, {shape_.batch, shape_.heads, shape_.n_queries, shape_.head_dim});
  }
  Shard keys_and_values(std::int64_t, KeyRange positions) override { return axes(1, positions); }
  std::optional<Shard> in_place(KeyRange positions) override { return axes(shape_.batch, positions); }
  Shard whole() override { throw std::logic_error("AxesWorkload::whole: there are no keys and values"); }

 private:
  Shard axes(std::int64_t n_entries, KeyRange positions) const {
    const auto view = [&](DType dtype, std::int64_t dim) {
      return TensorView{row_.data(), dtype, {n_entries, shape_.kv_heads, positions.size(), dim}, {}};
    };
    return {view(shape_.dtype, shape_.head_dim), view(shape_.value_dtype, shape_.value_dim), positions.begin};
  }

  std::vector<std::byte> q_, row_;
};

}  // namespace

const Backend& model_backend(double bytes_per_second) {
  if (!(bytes_per_second > 0))
    throw std::invalid_argument("model_backend: " + std::to_string(bytes_per_second) + " bytes per second");
  static std::mutex mutex;
  static std::map<double, ModelBackend> backends;
  const std::lock_guard lock(mutex);
  return backends.try_emplace(bytes_per_second, bytes_per_second).first->second;
}

std::unique_ptr<Workload> make_axes(const WorkloadShape& shape, int steps) {
  return std::make_unique<AxesWorkload>(shape, steps);
}

}  // namespace tree_attn::test
