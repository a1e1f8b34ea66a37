// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fuzzes the parser of safetensors headers: any bytes are refused in one line, or describe tensors that cover the
/// data.
///
/// Input: two bytes, the size of the data (little-endian); then the header.
#include "reference/data/safetensors_header.hpp"
#include "tests/fuzz/check.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tree_attn;
  if (size < 2) return 0;
  const std::uint64_t data_size = bytes[0] + 256u * bytes[1];
  const std::string_view json(reinterpret_cast<const char*>(bytes) + 2, size - 2);
  try {
    const SafetensorsHeader header = parse_header("path", json, data_size);

    // The ranges follow each other from the first byte to the last, each as long as dtype and shape say.
    std::uint64_t covered = 0;
    for (const TensorInfo& tensor : header.tensors) {
      FUZZ_CHECK(tensor.begin == covered);
      FUZZ_CHECK(bytes_of_tensor(bits_of_dtype(tensor.dtype), tensor.shape) == tensor.end - tensor.begin);
      covered = tensor.end;
    }
    FUZZ_CHECK(covered == data_size);

    // Every name is there once, in order.
    FUZZ_CHECK(header.by_name.size() == header.tensors.size());
    for (std::size_t i = 1; i < header.by_name.size(); ++i) {
      FUZZ_CHECK(header.tensors[header.by_name[i - 1]].name < header.tensors[header.by_name[i]].name);
    }
  } catch (const InputError& error) {
    check_refusal("path: ", error.what());
  }
  return 0;
}
