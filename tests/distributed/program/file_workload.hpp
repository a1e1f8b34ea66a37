// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Problems for the program's tests: files of q, k and v, and what should come out.
#pragma once

#include "reference/data/safetensors.hpp"
#include "reference/oracle/attention.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/tensor_files.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <optional>
#include <random>
#include <string>
#include <vector>

/// A tensor of a header. Its type ends with the number of bits, or begins with F8.
struct Entry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype = "F32";
};

/// Writes a file of these tensors, in this order. Their data are zeros, which take no room on the disk.
/// @param data in the place of the first zeros
inline void write_zeros(const std::string& path, const std::vector<Entry>& tensors, const std::string& data = "") {
  nlohmann::json header = nlohmann::json::object();
  std::int64_t end = 0;
  for (const auto& [name, shape, dtype] : tensors) {
    const std::int64_t begin = end;
    std::int64_t n_bytes = std::stoi(dtype.substr(dtype.find_first_of("1368"))) / 8;
    for (const std::int64_t n : shape) n_bytes *= n;
    end += n_bytes;
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
  }
  const std::string bytes = with_length(header.dump());
  std::ofstream(path, std::ios::binary) << bytes << data;
  std::filesystem::resize_file(path, bytes.size() + static_cast<std::uintmax_t>(end));
}

/// Numbers of a tensor, dense, with the lengths of its axes.
struct Elements {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  double& at(std::int64_t i, std::int64_t j, std::int64_t a, std::int64_t c) {
    return values[static_cast<std::size_t>(((i * shape[1] + j) * shape[2] + a) * shape[3] + c)];
  }
};

/// q, k, v, zeta and lengths, all multiples of 1/8 up to 2: every type holds them exactly.
struct FileWorkload {
  Elements q, k, v;
  std::optional<Elements> zeta;
  std::vector<std::int64_t> lengths;
  std::vector<float> sink{}, k_scale{}, v_scale{};
  std::vector<std::int64_t> mask_shape{};  ///< of a mask of a few unseen keys, BOOL or F32; empty: none
  bool mask_is_boolean = false;
  float hidden = -INFINITY;  ///< elements of an F32 mask for keys that are not seen

  /// Draws one with b batch entries, n_h over n_kv heads, l queries, n keys of d_h numbers and values of d_v.
  static FileWorkload draw(std::int64_t b, std::int64_t n_h, std::int64_t n_kv, std::int64_t l, std::int64_t n,
                           std::int64_t d_h, std::int64_t d_v, bool with_zeta = false) {
    constexpr unsigned kSeed = 20240807;
    std::mt19937 random(kSeed);
    const auto elements = [&](std::vector<std::int64_t> shape) {
      Elements drawn{shape, {}};
      drawn.values.resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
      for (double& value : drawn.values) value = (static_cast<int>(random() % 33) - 16) / 8.0;
      return drawn;
    };
    FileWorkload workload{
        elements({b, n_h, l, d_h}), elements({b, n_kv, n, d_h}), elements({b, n_kv, n, d_v}), std::nullopt, {}};
    if (with_zeta) workload.zeta = elements({b, n_h, l, d_v});
    return workload;
  }

  /// @param dtype of F8_E4M3 are keys and values; queries are then BF16
  void write(const std::string& path, const std::string& dtype) const {
    tree_attn::SafetensorsWriter writer;
    const auto add = [&](const char* name, const std::string& type, const std::vector<std::int64_t>& shape,
                         const auto& numbers) {
      if (!shape.empty() && (shape.size() > 1 || shape[0] > 0))
        writer.add(name, type, shape, std::as_bytes(std::span(numbers)));
    };
    std::list<std::vector<std::byte>> stored;
    const auto add_elements = [&](const char* name, const std::string& type, const Elements& elements) {
      const tree_attn::DType as =
          *std::ranges::find(tree_attn::kDTypes, type, [](tree_attn::DType each) { return name_of(each); });
      const std::vector<float> numbers(elements.values.begin(), elements.values.end());
      store(numbers.data(), as, std::ssize(numbers), stored.emplace_back(numbers.size() * bytes_of(as)).data());
      add(name, type, elements.shape, stored.back());
    };
    const auto axis = [](const auto& numbers) { return std::vector<std::int64_t>{std::ssize(numbers)}; };
    const std::vector<std::int64_t> heads{k.shape[0], k.shape[1]};
    add_elements("q", dtype == "F8_E4M3" ? "BF16" : dtype, q);
    add_elements("k", dtype, k);
    add_elements("v", dtype, v);
    if (zeta) add_elements("zeta", dtype, *zeta);
    add("lengths", "I64", axis(lengths), lengths);
    add("sink", "F32", axis(sink), sink);
    if (!k_scale.empty()) add("k_scale", "F32", heads, k_scale);
    if (!v_scale.empty()) add("v_scale", "F32", heads, v_scale);
    std::vector<float> added;
    std::vector<std::uint8_t> seen;
    for (std::int64_t i = 0; !mask_shape.empty() && i < mask_shape[0] * mask_shape[1] * mask_shape[2] * mask_shape[3]; ++i) {
      const bool is_seen = i * i % 7 != 2;
      seen.push_back(is_seen), added.push_back(is_seen ? static_cast<float>(i % 5) / 4 : hidden);
    }
    mask_is_boolean ? add("mask", "BOOL", mask_shape, seen) : add("mask", "F32", mask_shape, added);
    writer.write(path);
  }
};

/// Computes the expected result of `oracle` and `decode` with the oracle of the library, which its own tests hold to eq.
/// (5)-(7).
inline tree_attn::AttentionResult work_out(const FileWorkload& workload, tree_attn::AttentionOptions options = {}) {
  const auto view = [](const Elements& elements) {
    const std::vector<std::int64_t>& shape = elements.shape;
    return tree_attn::TensorView::dense(reinterpret_cast<const std::byte*>(elements.values.data()), tree_attn::DType::F64,
                                        {shape[0], shape[1], shape[2], shape[3]});
  };
  options.lengths = workload.lengths;
  options.key_scale = workload.k_scale, options.value_scale = workload.v_scale;
  if (workload.zeta) options.zeta = view(*workload.zeta);
  return attention(view(workload.q), view(workload.k), view(workload.v), options);
}

/// A tensor of a file that the program wrote, after its dtype and shape were checked.
template <class Number>
std::vector<Number> tensor(const std::string& path, const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto file = tree_attn::SafetensorsFile::open(path);
  const tree_attn::TensorInfo& info = file.at(name);
  CHECK(info.dtype == (sizeof(Number) == 4 ? "F32" : "F64"));
  CHECK(info.shape == shape);
  std::vector<Number> elements((info.end - info.begin) / sizeof(Number));
  if (!elements.empty()) std::memcpy(elements.data(), file.data(info), elements.size() * sizeof(Number));
  return elements;
}

/// Every element within `allowed` of its like; -inf only where it belongs.
template <class Number>
void check_near(const std::vector<Number>& ours, const std::vector<double>& truth, double allowed) {
  const auto comparison = tree_attn::test::compare(ours, truth, allowed, tree_attn::test::NonFinite::Match);
  CHECK_MESSAGE(comparison.ok, comparison.message);
}
