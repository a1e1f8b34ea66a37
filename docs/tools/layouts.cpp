// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief 2,048 keys and the decode that defines the bits (reference/decode/plain.hpp), cut among ranks as a reader of the
/// book likes: for docs/cut_the_tree.js as WebAssembly, and as a program that tests compare it with.
///
/// Run: layouts < CUTS      a layout on each line, as in "0 5 32": leaves of 64 keys where ranks begin, and the last one's
/// end;
///                          prints the digests by the tree and by Alg. 3 of each
#include "reference/decode/plain.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace tree_attn {
namespace {

constexpr std::int64_t kKeys = 2048, kLeaves = kKeys / kLeafKeys;
constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 64;

/// The input, in BF16: q [1, 4, 1, 64], k and v [1, 2, 2048, 64].
struct Input {
  std::vector<std::uint16_t> q, k, v;

  Input() : q(kHeads * kDim), k(kKvHeads * kKeys * kDim), v(k.size()) {
    std::uint32_t state = 2408;
    for (std::vector<std::uint16_t>* tensor : {&q, &k, &v}) {
      for (std::uint16_t& element : *tensor) element = draw(state);
    }
  }
  /// A sum of four uniform variables, cut to BF16.
  static std::uint16_t draw(std::uint32_t& state) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    }
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sum) >> 16);
  }
};

Input input;
std::int32_t cuts[kLeaves + 1];  // in leaves: where ranks begin, and the last one's end
std::uint32_t digest[4];         // low and high words, by the tree and by Alg. 3

std::uint64_t hash_of(const std::vector<float>& x, std::uint64_t hash) {
  std::vector<unsigned char> bytes(x.size() * sizeof(float));
  std::memcpy(bytes.data(), x.data(), bytes.size());
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001B3u;
  return hash;
}

/// FNV-1a of the outputs, then of their log-sum-exps: the digest that the program prints.
std::uint64_t digest_of(const std::vector<float>& out, const std::vector<float>& lse) {
  return hash_of(lse, hash_of(out, 0xCBF29CE484222325u));
}

/// The states of the shard that holds leaves [begin, end), as one rank makes them.
Forest<float> shard(const Step& step, std::int64_t begin, std::int64_t end) {
  const KeyRange range{begin * kLeafKeys, end * kLeafKeys};
  const auto part = [&](std::vector<std::uint16_t>& x) {
    return TensorView{reinterpret_cast<std::byte*>(x.data() + range.begin * kDim),
                      DType::BF16,
                      {1, kKvHeads, range.end - range.begin, kDim},
                      {kKvHeads * kKeys * kDim, kKeys * kDim, kDim}};
  };
  return plain::decode(step, part(input.k), part(input.v), OwnedLeaves(range), 0.125);
}

/// Lines 3 to 6 of Alg. 3: the largest lse of all ranks, then two sums in the order of the ranks.
/// @param o, lse of every rank and head @returns the digest
std::uint64_t by_paper(const std::vector<std::vector<float>>& o, const std::vector<std::vector<float>>& lse) {
  std::vector<float> out(kHeads * kDim), all(kHeads);
  for (std::size_t h = 0; h < kHeads; ++h) {
    float m = -INFINITY, D = 0;
    for (const std::vector<float>& each : lse) m = std::max(m, each[h]);
    float* const n = &out[h * kDim];
    for (std::size_t r = 0; r < o.size(); ++r) {
      // exp and log in double, rounded once: then C libraries agree.
      const auto w = static_cast<float>(std::exp(static_cast<double>(lse[r][h] - m)));
      for (std::size_t j = 0; j < kDim; ++j) n[j] += o[r][h * kDim + j] * w;
      D += w;
    }
    for (std::size_t j = 0; j < kDim; ++j) n[j] /= D;
    all[h] = m + static_cast<float>(std::log(static_cast<double>(D)));
  }
  return digest_of(out, all);
}

/// Decodes on every rank of the layout in `cuts`, and joins the ranks both ways.
void decode(std::int64_t n_ranks) {
  const std::int64_t lengths[] = {kKeys};
  const Step step{.q = TensorView::dense(input.q.data(), DType::BF16, {1, kHeads, 1, kDim}), .lengths = lengths};
  Forest<float> joined(kHeads, kDim);
  std::vector<std::vector<float>> o, lse;
  const auto finished = [](std::span<const float> states, std::vector<float>& out, std::vector<float>& of) {
    out.resize(kHeads * kDim), of.resize(kHeads);
    for (std::size_t h = 0; h < kHeads; ++h) of[h] = finish(&states[h * state_size(kDim)], &out[h * kDim], kDim);
  };
  for (std::int64_t r = 0; r < n_ranks; ++r) {
    Forest<float> own = shard(step, cuts[r], cuts[r + 1]);
    joined.append(own.subtrees(), own.states().data());
    finished(own.fold(), o.emplace_back(), lse.emplace_back());
  }
  std::vector<float> out, of;
  finished(joined.fold(), out, of);
  const std::uint64_t found[] = {digest_of(out, of), by_paper(o, lse)};
  for (std::size_t i = 0; i < 2; ++i)
    digest[2 * i] = static_cast<std::uint32_t>(found[i]), digest[2 * i + 1] = static_cast<std::uint32_t>(found[i] >> 32);
}

}  // namespace
}  // namespace tree_attn

#ifdef __wasm__
// There are no exceptions here: what would throw traps.
extern "C" void* __cxa_allocate_exception(std::size_t) noexcept { __builtin_trap(); }
extern "C" void __cxa_throw(void*, void*, void* (*)(void*)) { __builtin_trap(); }

#define TREE_ATTN_EXPORT(name) extern "C" __attribute__((export_name(#name)))

TREE_ATTN_EXPORT(n_keys) int n_keys() { return tree_attn::kKeys; }
TREE_ATTN_EXPORT(leaf_keys) int leaf_keys() { return tree_attn::kLeafKeys; }
TREE_ATTN_EXPORT(state_bytes) int state_bytes() { return tree_attn::kHeads * tree_attn::state_size(tree_attn::kDim) * 4; }
TREE_ATTN_EXPORT(cuts) std::int32_t* cuts() { return tree_attn::cuts; }
TREE_ATTN_EXPORT(digests) std::uint32_t* digests() { return tree_attn::digest; }
TREE_ATTN_EXPORT(decode) void decode(int n_ranks) { tree_attn::decode(n_ranks); }
/// Sets component 0 of the value of a key, of the first head, rounded to BF16 towards zero.
TREE_ATTN_EXPORT(set_value) void set_value(int key, float x) {
  tree_attn::input.v[static_cast<std::size_t>(key) * tree_attn::kDim] =
      static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}
#else
int main() {
  std::array<char, 1024> line;
  while (std::fgets(line.data(), line.size(), stdin) != nullptr) {
    std::int64_t n = 0;
    for (char* at = line.data(); n < std::ssize(tree_attn::cuts); ++n) {
      char* end = at;
      const long cut = std::strtol(at, &end, 10);
      if (end == at) break;
      tree_attn::cuts[n] = static_cast<std::int32_t>(cut), at = end;
    }
    tree_attn::decode(n - 1);
    const std::uint32_t* const d = tree_attn::digest;
    std::printf("%08x%08x %08x%08x\n", d[1], d[0], d[3], d[2]);
  }
}
#endif
