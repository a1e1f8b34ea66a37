// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Writing a safetensors file.
#include "reference/data/safetensors.hpp"
#include "reference/data/safetensors_header.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace tree_attn {

void SafetensorsWriter::add(std::string_view name, std::string_view dtype, std::span<const std::int64_t> shape,
                            std::span<const std::byte> bytes) {
  const std::string here = "SafetensorsWriter::add: tensor \"" + readable(name) + "\": ";
  require(find_not_utf8(name) == std::string_view::npos, here, "name is not UTF-8");
  require(name != "__metadata__", here, "name is reserved for metadata");
  for (const Entry& entry : entries_) require(entry.info.name != name, here, "name is taken");
  require(bits_of_dtype(dtype) != 0, here, "unknown dtype \"", readable(dtype), "\"");
  TensorInfo info{std::string(name), std::string(dtype), {shape.begin(), shape.end()}};
  const std::optional<std::uint64_t> size = bytes_of_tensor(bits_of_dtype(dtype), info.shape);
  require(size.has_value(), here, "shape out of range, or not a whole number of bytes");
  require(bytes.size() == *size, here, "takes ", *size, " bytes, got ", bytes.size());
  entries_.push_back({std::move(info), bytes});
}

void SafetensorsWriter::write(OutputFile& file) const {
  // Lay out the data: the widest dtypes first, otherwise in the order of add().
  std::vector<Entry> entries = entries_;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return bits_of_dtype(a.info.dtype) > bits_of_dtype(b.info.dtype); });
  std::uint64_t at = 0;
  for (auto& [info, bytes] : entries) {
    info.begin = at;
    info.end = at += bytes.size();
  }

  // Build the header in the order of the data; Json escapes the strings. Data is aligned as by the reference writer.
  using Json = nlohmann::json;
  constexpr std::size_t kAlignment = 8;
  std::string text = "{";
  for (const auto& [info, bytes] : entries) {
    const Json fields = {{"dtype", info.dtype}, {"shape", info.shape}, {"data_offsets", {info.begin, info.end}}};
    text += line_of(text.size() == 1 ? "" : ",", Json(info.name).dump(), ":", fields.dump());
  }
  text += "}";
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size();

  // Write length, header and data.
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const Entry& entry : entries) file.write(entry.bytes);
}

void SafetensorsWriter::write(const std::string& path) const {
  OutputFile file(path);
  write(file);
  file.put_in_place();
}

}  // namespace tree_attn
