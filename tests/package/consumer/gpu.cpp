// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated device: what goes up comes down.
#include "tree_attn/gpu/platform/launch.hpp"

#include <cstdio>
#include <vector>

int main() {
  const std::vector<float> up = {1, 2, 3};
  tree_attn::emulated::DeviceBuffer<float> buffer(3);
  buffer.upload(up);
  std::printf("device: %s\n", tree_attn::emulated::device().name.c_str());
  return buffer.download() == up ? 0 : 1;
}
