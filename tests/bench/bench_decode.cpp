// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times one decode step, or one of its baselines, on request (sections 3 and 5).
///
/// Run: echo 'case F32 4096 4 4 64 1 1
///      time decode 0.02' | build-bench/bench_decode
///
/// tests/bench/decode_rounds.py lets this program and baseline_torch.py take turns. Both speak one protocol, a line of
/// answer per line of request:
///
///     versions                                    JSON: compiler, libraries and the instruction set of the decode
///     case TYPE KEYS HEADS KV_HEADS DIM QUERIES THREADS
///                                                 multiplies, adds, conversions and exponentials per key and group
///     time NAME SECONDS                           seconds of one run of NAME: CPU time of all threads, wall time
///     result NAME                                 z [n_h, l, d_h]
///
/// NAME is read, arithmetic, fused, decode, plain or Eigen; several QUERIES have a causal edge, without plain and Eigen. A
/// run that is not timed comes first; then as many as fit into SECONDS, at least one; the answer is their mean.
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/cpu/thread_pool.hpp"
#include "reference/decode/backend.hpp"
#include "reference/decode/decode.hpp"
#include "tests/bench/baselines.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace tree_attn;

/// Element i of every array before it is rounded to its type: about uniform with variance 1. baseline_torch.py has the same.
float element(std::size_t i) {
  std::uint32_t hash = static_cast<std::uint32_t>(i) * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  hash ^= hash >> 13;
  return (static_cast<float>(hash >> 8) * 0x1p-23f - 1) * 1.732f;
}

/// Memory in pages of 2 MiB where the kernel has them; it grows, and its elements are then computed anew.
class Elements {
 public:
  Elements() = default;
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;
  ~Elements() { std::free(data_); }

  /// At least n elements of the type.
  const std::byte* get(DType dtype, std::size_t n) {
    const std::size_t wanted = (n * bytes_of(dtype) + kPage - 1) / kPage * kPage;
    if (wanted > n_bytes_) {
      std::free(data_);
      data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, wanted));
      if (data_ == nullptr) throw std::bad_alloc();
      madvise(data_, wanted, MADV_HUGEPAGE);
      n_bytes_ = wanted;
      n_filled_ = 0;
    }
    if (dtype != dtype_ || n > n_filled_) fill(dtype, n);
    return data_;
  }

 private:
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  void fill(DType dtype, std::size_t n) {
    constexpr std::size_t kAtOnce = 4096;
    std::vector<float> some(kAtOnce);
    for (std::size_t begin = 0; begin < n; begin += kAtOnce) {
      const std::size_t count = std::min(kAtOnce, n - begin);
      for (std::size_t i = 0; i < count; ++i) some[i] = element(begin + i);
      store(some.data(), dtype, static_cast<std::int64_t>(count), data_ + begin * bytes_of(dtype));
    }
    dtype_ = dtype;
    n_filled_ = n;
  }

  std::byte* data_ = nullptr;
  std::size_t n_bytes_ = 0, n_filled_ = 0;
  DType dtype_ = DType::F32;
};

/// The decode of the library: a session over a cache that borrows keys and values.
class Decode {
 public:
  /// @param q queries in the type of the keys
  Decode(const bench::Step& step, const std::byte* q, int n_threads)
      : q_(TensorView::dense(q, step.dtype, {1, step.heads, step.n_queries, step.head_dim})),
        lengths_{step.n_keys},
        n_rows_(step.heads * step.n_queries),
        d_(step.head_dim) {
    const AttentionShape shape{.dtype = step.dtype,
                               .value_dtype = step.dtype,
                               .heads = step.heads,
                               .kv_heads = step.kv_heads,
                               .head_dim = d_,
                               .value_dim = d_};
    const std::array<std::int64_t, 4> axes{1, step.kv_heads, step.n_keys, d_};
    cache_ = cpu_backend(n_threads).make_cache(shape, {0, step.n_keys});
    cache_->borrow({TensorView::dense(step.k, step.dtype, axes), TensorView::dense(step.v, step.dtype, axes), 0}, lengths_);
    session_ = cache_->open(step.scale, step.n_queries);
  }
  void run(float* z) {
    const DecodeOutput output = finish_rows(session_->decode({q_, lengths_, {.causal = true}}).host().fold(), n_rows_, d_);
    std::copy(output.out.begin(), output.out.end(), z);
  }

 private:
  TensorView q_;
  std::vector<std::int64_t> lengths_;
  std::int64_t n_rows_, d_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<DecodeSession> session_;
};

/// Calls f(begin, end) with an equal part of the key/value heads on every thread.
template <class F>
void on_threads(ThreadPool& pool, std::int64_t kv_heads, const F& f) {
  auto part = [&](std::int64_t i) { f(kv_heads * i / pool.size(), kv_heads * (i + 1) / pool.size()); };
  using Part = decltype(part);
  pool.run(pool.size(), false, [](void* context, int, std::int64_t i) { (*static_cast<Part*>(context))(i); }, &part, {});
}

double seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// One case, and everything that may be timed in it.
class Bench {
 public:
  /// @returns what each key takes
  bench::Operations open(std::istream& request) {
    std::string type;
    int n_threads = 0;
    bench::Step step;
    if (!(request >> type >> step.n_keys >> step.heads >> step.kv_heads >> step.head_dim >> step.n_queries >> n_threads))
      throw std::invalid_argument("case TYPE KEYS HEADS KV_HEADS DIM QUERIES THREADS");
    const auto dtype = std::find_if(kDTypes.begin(), kDTypes.end(), [&](DType t) { return name_of(t) == type; });
    if (dtype == kDTypes.end()) throw std::invalid_argument("no type " + type);
    step.dtype = *dtype;
    step.scale = 1 / std::sqrt(static_cast<float>(step.head_dim));

    // Keys, values and queries lie one after the other.
    const std::size_t n_cache = static_cast<std::size_t>(step.kv_heads * step.n_keys * step.head_dim);
    const std::size_t n_z = static_cast<std::size_t>(step.heads * step.n_queries * step.head_dim);
    const std::size_t cache_bytes = 2 * n_cache * bytes_of(step.dtype);
    decode_.reset();
    step.k = elements_.get(step.dtype, 2 * n_cache + n_z);
    step.v = step.k + cache_bytes / 2;
    const std::byte* q = step.k + cache_bytes;
    q_.resize(n_z);
    z_.resize(n_z);
    load(q, step.dtype, static_cast<std::int64_t>(n_z), q_.data());
    step.q = q_.data();
    decode_ = std::make_unique<Decode>(step, q, n_threads);
    pool_ = std::make_unique<ThreadPool>(n_threads);

    float* z = z_.data();
    runs_.clear();
    runs_["decode"] = [this, z] { decode_->run(z); };
    runs_["read"] = [this, step, cache_bytes] {
      const std::size_t bytes_of_head = cache_bytes / static_cast<std::size_t>(step.kv_heads);
      on_threads(*pool_, step.kv_heads, [&](std::int64_t begin, std::int64_t end) {
        const std::size_t first = static_cast<std::size_t>(begin) * bytes_of_head;
        sum_ = bench::read_bytes(step.k + first, static_cast<std::size_t>(end) * bytes_of_head - first);
      });
    };
    const bench::Operations of_key = operations(step);
    for (const bool fused : {false, true}) {
      runs_[fused ? "fused" : "arithmetic"] = [this, step, of_key, fused] {
        on_threads(*pool_, step.kv_heads, [&](std::int64_t begin, std::int64_t end) {
          const double n = static_cast<double>((end - begin) * step.n_keys);
          const bench::Operations all{n * of_key.multiplies, n * of_key.adds, n * of_key.conversions,
                                      n * of_key.exponentials};
          sum_ = static_cast<std::uint64_t>(arithmetic(all, lanes(), fused));
        });
      };
    }
    if (step.n_queries > 1) return of_key;
    runs_["plain"] = [this, step, z] {
      on_threads(*pool_, step.kv_heads, [&](auto begin, auto end) { bench::plain_decode(step, begin, end, z); });
    };
    runs_["Eigen"] = [this, step, z] {
      on_threads(*pool_, step.kv_heads, [&](auto begin, auto end) { bench::eigen_decode(step, begin, end, z); });
    };
    return of_key;
  }

  void time(std::istream& request) const {
    double least = 0;
    const std::function<void()>& run = named(request);
    request >> least;
    run();
    int n_runs = 0;
    const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
    double elapsed = 0;
    while (n_runs == 0 || elapsed < least) {
      run();
      ++n_runs;
      elapsed = seconds(CLOCK_MONOTONIC) - wall;
    }
    std::printf("%.9g %.9g\n", (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / n_runs, elapsed / n_runs);
  }

  void result(std::istream& request) {
    std::fill(z_.begin(), z_.end(), NAN);
    named(request)();
    for (const float z : z_) std::printf("%.9g ", static_cast<double>(z));
    std::printf("\n");
  }

 private:
  /// Elements of a register of the decode's instruction set.
  static int lanes() {
    const std::string_view name = leaf_kernel().name;
    return name == "x86-64-v4" ? 16 : name == "x86-64-v3" ? 8 : 4;
  }

  const std::function<void()>& named(std::istream& request) const {
    std::string name;
    request >> name;
    if (const auto run = runs_.find(name); run != runs_.end()) return run->second;
    throw std::invalid_argument("there is no '" + name + "' to run");
  }

  Elements elements_;
  std::vector<float> q_, z_;
  std::unique_ptr<Decode> decode_;
  std::unique_ptr<ThreadPool> pool_;  ///< of the baselines, which start no threads in a run either
  std::map<std::string, std::function<void()>> runs_;
  std::atomic<std::uint64_t> sum_ = 0;  ///< of what was read: the compiler has to read it
};

}  // namespace

int main() try {
  Bench bench;
  for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) {
    std::istringstream request(line);
    std::string command;
    request >> command;
    if (command == "versions") {
      std::printf("{\"compiler\": \"%s\", \"Eigen\": \"%s\", \"instructions\": \"%s\"}\n", TREE_ATTN_COMPILER,
                  tree_attn::bench::eigen_version().c_str(), std::string(leaf_kernel().name).c_str());
    } else if (command == "case") {
      const bench::Operations n = bench.open(request);
      std::printf("%g %g %g %g\n", n.multiplies, n.adds, n.conversions, n.exponentials);
    } else if (command == "time") {
      bench.time(request);
    } else if (command == "result") {
      bench.result(request);
    } else {
      throw std::invalid_argument("no command '" + command + "'");
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_decode: %s\n", error.what());
  return 2;
}
