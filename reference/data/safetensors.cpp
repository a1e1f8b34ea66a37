// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Opening and mapping a safetensors file, and views of its tensors.
#include "reference/data/safetensors.hpp"

#include "reference/data/fnv1a.hpp"
#include "reference/data/safetensors_header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

namespace tree_attn {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is used without conversion");

constexpr std::uint64_t kMaxHeader = 100'000'000;

/// Reads the length of the header from the first 8 bytes, and checks it against the size of the file.
std::uint64_t header_length(const std::string& path, std::string_view bytes) {
  if (bytes.size() < 8) refuse_file(path, "file too short: ", bytes.size(), " bytes, needs 8");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::uint64_t left = bytes.size() - 8;
  if (length > kMaxHeader)
    refuse_file(path, "header too large: ", length, " bytes, at most ", kMaxHeader, "; not a safetensors file?");
  if (length > left)
    refuse_file(path, "header runs past end of file: header of ", length, " bytes, file has ", left, " left");
  return length;
}

}  // namespace

int bits_of_dtype(std::string_view dtype) {
  constexpr std::pair<std::string_view, int> kBits[] = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return 0;
}

std::optional<std::uint64_t> bytes_of_tensor(int bits, const std::vector<std::int64_t>& shape) {
  if (shape.size() > kMaxAxes) return std::nullopt;
  std::int64_t total = bits;
  bool is_empty = false;
  for (const std::int64_t n : shape) {
    if (n < 0 || n >= kMaxLength) return std::nullopt;
    is_empty = is_empty || n == 0;
    if (n != 0 && __builtin_mul_overflow(total, n, &total)) return std::nullopt;
  }
  if (is_empty) return 0;
  if (total % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(total) / 8;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result(path);
  const std::span<const std::byte> all = result.file_.bytes();
  const std::string_view bytes(reinterpret_cast<const char*>(all.data()), all.size());
  const std::uint64_t size = bytes.size(), length = header_length(path, bytes);
  result.data_begin_ = 8 + length;
  SafetensorsHeader header = parse_header(path, bytes.substr(8, length), size - result.data_begin_);
  result.tensors_ = std::move(header.tensors);
  result.by_name_ = std::move(header.by_name);

  // Include the size: files of different sizes differ.
  result.header_hash_ =
      fnv1a(std::as_bytes(std::span(&size, 1)), fnv1a(std::as_bytes(std::span(bytes.substr(0, result.data_begin_)))));
  return result;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](std::size_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  // List the first names of the file, so that the user can spot a misspelling.
  constexpr std::size_t kShown = 8;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, by_name_.size()); ++i) {
    names += (i == 0 ? "" : ", ") + readable(tensors_[by_name_[i]].name, 20);
  }
  if (by_name_.size() > kShown) names += line_of(", ... (", by_name_.size(), " in all)");
  refuse_file(path_, "tensor \"", readable(name), "\" not found; file has: ", names.empty() ? "no tensors" : names);
}

TensorView view4(const SafetensorsFile& file, std::string_view name, std::string_view axes) {
  const TensorInfo& tensor = file.at(name);
  const std::string subject = "tensor \"" + readable(name) + "\": ";
  std::optional<DType> dtype;
  std::string supported;
  for (const DType candidate : kDTypes) {
    if (tensor.dtype == name_of(candidate)) dtype = candidate;
    supported += (supported.empty() ? "" : ", ") + std::string(name_of(candidate));
  }
  if (!dtype) refuse_file(file.path(), subject, "dtype ", tensor.dtype, " not supported (", supported, ")");
  if (const std::size_t n = tensor.shape.size(); n != 4)
    refuse_file(file.path(), subject, n, n == 1 ? " axis" : " axes", ", expected 4 (", axes, ")");
  return TensorView::dense(file.data(tensor), *dtype, {tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3]});
}

}  // namespace tree_attn
