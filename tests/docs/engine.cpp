// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The listings of the chapter "In your engine", compiled and run: mpirun -n 4 engine. test_engine.py compares them
/// with the page.
#include "distributed/interface/mpi_attention.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/state/lse.hpp"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

using namespace tree_attn;

namespace {

void expect(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "engine: does not hold: %s\n", claim);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

std::vector<float> normal(unsigned seed, std::int64_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> elements(static_cast<std::size_t>(n));
  std::ranges::generate(elements, [&] { return draw(random); });
  return elements;
}

template <class Progress>
void compute_something_else(const Progress& progress) {
  for (int part = 0; part < 20; ++part) progress();
}

bool near(float a, double b) { return std::fabs(a - b) < 1e-5; }

/// Level 1: two parts of one sequence, in base two.
void merge_alone() {
  const std::int64_t d_v = 16, n = 300, cut = 100;
  const std::vector<float> q = normal(1, d_v), k = normal(2, n * d_v), v = normal(3, n * d_v);
  const auto part = [&](const std::vector<float>& x, std::int64_t begin, std::int64_t end) {
    return TensorView::dense(x.data() + begin * d_v, DType::F32, {1, 1, end - begin, d_v});
  };
  const auto attend = [&](std::int64_t begin, std::int64_t end) {
    return attention(part(q, 0, 1), part(k, begin, end), part(v, begin, end));
  };
  const AttentionResult prefix = attend(0, cut), rest = attend(cut, n), whole = attend(0, n);
  const std::vector<float> o_1(prefix.out.begin(), prefix.out.end()), o_2(rest.out.begin(), rest.out.end());
  const float *const o_prefix = o_1.data(), *const o_rest = o_2.data();
  const auto lse_prefix = static_cast<float>(prefix.lse[0] * kLog2E), lse_rest = static_cast<float>(rest.lse[0] * kLog2E);
  // [merge]
  std::vector<float> left(state_size(d_v)), right(state_size(d_v)), o(d_v);
  set_from_lse(left.data(), o_prefix, lse_prefix, d_v, LseForm::kBaseTwo);
  set_from_lse(right.data(), o_rest, lse_rest, d_v, LseForm::kBaseTwo);
  merge(left.data(), right.data(), d_v);
  const float lse = to_lse(left.data(), o.data(), d_v, LseForm::kBaseTwo);
  // [end]
  expect(near(lse, whole.lse[0] * kLog2E) && near(o[3], whole.out[3]), "the merge is attention over both parts");
}

/// Level 2: every rank has the output of its own keys.
void exchange_alone(MPI_Comm comm, int rank, int size) {
  const std::int64_t n_h = 8, d_v = 16, n = 200 * size;
  const std::vector<float> q = normal(1, n_h * d_v), k = normal(2, n_h * n * d_v), v = normal(3, n_h * n * d_v);
  const auto view = [&](const std::vector<float>& x, std::int64_t rows) {
    return TensorView::dense(x.data(), DType::F32, {1, n_h, rows, d_v});
  };
  const auto mine = [&](const std::vector<float>& x) { return view(x, n).positions(200 * rank, 200 * rank + 200); };
  const AttentionResult own = attention(view(q, 1), mine(k), mine(v)), exact = attention(view(q, 1), view(k, n), view(v, n));
  const std::vector<float> own_o(own.out.begin(), own.out.end()), own_lse(own.lse.begin(), own.lse.end());
  const TensorView o = view(own_o, 1), lse = TensorView::dense(own_lse.data(), DType::F32, {1, n_h, 1, 1});
  // [exchange]
  Attention layer = open_attention(comm, {.heads = n_h, .kv_heads = n_h, .head_dim = d_v, .value_dim = d_v});
  OutputView whole = layer.combine(o, lse, OutputPart::kAll, LseForm::kNatural);
  OutputView heads = layer.combine(o, lse, OutputPart::kHeads, LseForm::kNatural);
  // [end]
  const auto first = static_cast<std::size_t>(n_h / size * rank * d_v);
  for (std::size_t i = 0; i < heads.out.size(); ++i) expect(near(heads.out[i], exact.out[first + i]), "heads of this rank");
  whole = layer.combine(o, lse);
  for (std::size_t i = 0; i < exact.out.size(); ++i) expect(near(whole.out[i], exact.out[i]), "all heads");
}

/// Level 3: keys and values are the library's.
void everything(MPI_Comm comm) {
  const std::int64_t n_h = 8, n_kv = 2, d_h = 32, d_v = 16, n = 500, n_accepted = 490;
  const std::vector<float> elements_of_q = normal(1, n_h * d_h), of_k = normal(2, n_kv * n * d_h),
                           of_v = normal(3, n_kv * n * d_v);
  const TensorView q = TensorView::dense(elements_of_q.data(), DType::F32, {1, n_h, 1, d_h}),
                   k = TensorView::dense(of_k.data(), DType::F32, {1, n_kv, n, d_h}),
                   v = TensorView::dense(of_v.data(), DType::F32, {1, n_kv, n, d_v});
  Attention alone({.heads = n_h, .kv_heads = n_kv, .head_dim = d_h, .value_dim = d_v});
  alone.append(0, k, v);
  const DecodeOutput expected = alone.step(q).copy();
  // [everything]
  Attention cache = open_attention(comm, {.heads = n_h, .kv_heads = n_kv, .head_dim = d_h, .value_dim = d_v});
  cache.append(0, k, v);              // entry 0 of the batch: all ranks the same positions, null data where not held
  OutputView output = cache.step(q);  // out and lse
  cache.start(q);                     // the states of this rank, and the first messages
  compute_something_else([&] { cache.progress(); });
  output = cache.finish();        // the same bits
  cache.truncate(0, n_accepted);  // drafts that were refused
  cache.release(0);               // the next sequence
  // [end]
  expect(std::ranges::equal(output.out, expected.out), "the bits of one rank");
  expect(cache.lengths()[0] == 0, "released");
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  merge_alone();
  exchange_alone(MPI_COMM_WORLD, rank, size);
  everything(MPI_COMM_WORLD);
  MPI_Finalize();
}
