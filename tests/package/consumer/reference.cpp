// SPDX-License-Identifier: Apache-2.0
// Attention of one query over two keys with equal scores: the mean of the values.
#include "tree_attn/reference/oracle/attention.hpp"

#include <cstdio>

int main() {
  const float q[] = {0, 0}, k[] = {1, 2, 3, 4}, v[] = {1, 3, 5, 7};
  const auto view = [](const float* data, std::int64_t n) {
    return tree_attn::TensorView::dense(data, tree_attn::DType::F32, {1, 1, n, 2});
  };
  const tree_attn::AttentionResult result = tree_attn::attention(view(q, 1), view(k, 2), view(v, 2));
  std::printf("z = %g %g\n", result.out[0], result.out[1]);
  return result.out[0] == 3 && result.out[1] == 5 ? 0 : 1;
}
