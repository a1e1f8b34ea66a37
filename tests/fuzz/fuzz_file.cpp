// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fuzzes whole tensor files, mapped as the program maps them: every tensor that is accepted can be read to its end.
///
/// Input: the file.
#include "reference/data/workload.hpp"
#include "tests/fuzz/check.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace {

using namespace tree_attn;

/// Reads every row of a tensor of four axes, as the decoders do.
void read_rows(const TensorView& view) {
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t n = 0; n < view.shape[2]; ++n) load_row(view, i, h, n, row.data());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  FUZZ_CHECK(descriptor >= 0 && ::ftruncate(descriptor, 0) == 0);
  FUZZ_CHECK(::pwrite(descriptor, bytes, size, 0) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  try {
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::size_t sum = 0;
    for (const TensorInfo& tensor : file.tensors()) {
      FUZZ_CHECK(file.find(tensor.name) == &tensor);
      for (std::uint64_t i = 0; i < tensor.end - tensor.begin; ++i)
        sum += std::to_integer<std::size_t>(file.data(tensor)[i]);
    }
    FUZZ_CHECK(sum <= 255 * size);  // and so it is computed

    const FileTensors tensors = read_tensors(file);
    FUZZ_CHECK(tensors.shape.lengths.empty() ||
               static_cast<std::int64_t>(tensors.shape.lengths.size()) == tensors.q.shape[0]);
    for (const std::vector<float>* scales : {&tensors.shape.scales.k, &tensors.shape.scales.v}) {
      FUZZ_CHECK(scales->empty() || static_cast<std::int64_t>(scales->size()) == tensors.k.shape[0] * tensors.k.shape[1]);
      for (const float scale : *scales) FUZZ_CHECK(is_scale(scale));
    }
    // An axis may be long although there are no elements.
    for (const TensorView* view : {&tensors.q, &tensors.k, &tensors.v}) {
      if (tensors.shape.n_rows() > 0 && view->shape[3] <= 4096 && view->shape[0] * view->shape[1] <= 4096 &&
          view->shape[2] <= 4096)
        read_rows(*view);
    }
  } catch (const InputError& error) {
    check_refusal(path, error.what());
  }
  return 0;
}
