// SPDX-License-Identifier: Apache-2.0
// The algorithms, each with its brief.
#include "tree_attn/distributed/exchange/decoder.hpp"

#include <cstdio>

int main() {
  for (const tree_attn::Algorithm& algorithm : tree_attn::algorithms())
    std::printf("%s: %s\n", std::string(algorithm.name).c_str(), std::string(algorithm.brief).c_str());
  return tree_attn::algorithms().empty() ? 1 : 0;
}
