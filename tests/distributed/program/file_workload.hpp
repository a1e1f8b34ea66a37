// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Problems for the program's tests: files of q, k and v, and what should come out.
#pragma once

#include "tree_attn/reference/data/safetensors.hpp"
#include "tree_attn/reference/oracle/attention.hpp"
#include "tree_attn/tests/support/compare.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

/// Numbers of a tensor, dense, with the lengths of its axes.
struct Elements {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  double& at(std::int64_t i, std::int64_t j, std::int64_t a, std::int64_t c) {
    return values[static_cast<std::size_t>(((i * shape[1] + j) * shape[2] + a) * shape[3] + c)];
  }
  double at(std::int64_t i, std::int64_t j, std::int64_t a, std::int64_t c) const {
    return const_cast<Elements*>(this)->at(i, j, a, c);
  }
};

/// Bytes of numbers that the type holds exactly, spelt out here: the program's own conversions are under test.
inline std::string stored(const std::vector<double>& values, const std::string& dtype) {
  std::string bytes;
  const auto append = [&](auto number) { bytes.append(reinterpret_cast<const char*>(&number), sizeof number); };
  for (const double value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    if (dtype == "F64")
      append(value);
    else if (dtype == "F32")
      append(static_cast<float>(value));
    else if (dtype == "BF16")
      append(static_cast<std::uint16_t>(bits >> 16));
    else if (value == 0)
      append(std::uint16_t{0});
    // Sign, exponent with its bias of 127 made 15, ten bits of the fraction.
    else
      append(static_cast<std::uint16_t>((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3FFFF) - ((127 - 15) << 10))));
  }
  return bytes;
}

/// q, k, v, zeta and lengths, all multiples of 1/8 up to 2: every type holds them exactly.
struct FileWorkload {
  Elements q, k, v;
  std::optional<Elements> zeta;
  std::vector<std::int64_t> lengths;
  std::vector<float> sink{};
  std::vector<std::int64_t> mask_shape{};  ///< of a mask of a few unseen keys, BOOL or F32; empty: none
  bool mask_is_boolean = false;

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

  /// Draws one with scores of 1e40, which are numbers in double and overflow in F32.
  static FileWorkload draw_overflowing() {
    FileWorkload workload = draw(1, 1, 1, 1, 8, 4, 4);
    for (double& number : workload.q.values) number *= 1e20;
    for (double& number : workload.k.values) number *= 1e20;
    return workload;
  }

  void write(const std::string& path, const std::string& dtype) const {
    const std::string q_bytes = stored(q.values, dtype), k_bytes = stored(k.values, dtype),
                      v_bytes = stored(v.values, dtype);
    const std::string zeta_bytes = zeta ? stored(zeta->values, dtype) : "";
    const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    tree_attn::SafetensorsWriter writer;
    writer.add("q", dtype, q.shape, bytes(q_bytes));
    writer.add("k", dtype, k.shape, bytes(k_bytes));
    if (!v.shape.empty()) writer.add("v", dtype, v.shape, bytes(v_bytes));
    if (zeta) writer.add("zeta", dtype, zeta->shape, bytes(zeta_bytes));
    const std::vector<std::int64_t> shape{static_cast<std::int64_t>(lengths.size())};
    if (!lengths.empty()) writer.add("lengths", "I64", shape, std::as_bytes(std::span(lengths)));
    const std::vector<std::int64_t> heads{static_cast<std::int64_t>(sink.size())};
    if (!sink.empty()) writer.add("sink", "F32", heads, std::as_bytes(std::span(sink)));
    std::vector<float> added;
    std::vector<std::uint8_t> seen;
    for (std::int64_t i = 0; !mask_shape.empty() && i < mask_shape[0] * mask_shape[1] * mask_shape[2] * mask_shape[3]; ++i) {
      const bool is_seen = i * i % 7 != 2;
      seen.push_back(is_seen), added.push_back(is_seen ? static_cast<float>(i % 5) / 4 : -INFINITY);
    }
    if (mask_is_boolean && !mask_shape.empty()) writer.add("mask", "BOOL", mask_shape, std::as_bytes(std::span(seen)));
    if (!mask_is_boolean && !mask_shape.empty()) writer.add("mask", "F32", mask_shape, std::as_bytes(std::span(added)));
    writer.write(path);
  }
};

/// What `oracle` and `decode` should say of it: the oracle of the library, which its own tests hold to eq. (5)-(7).
inline tree_attn::AttentionResult work_out(const FileWorkload& workload, std::optional<double> scale = {},
                                           bool causal = false) {
  const auto view = [](const Elements& elements) {
    const std::vector<std::int64_t>& shape = elements.shape;
    return tree_attn::TensorView::dense(reinterpret_cast<const std::byte*>(elements.values.data()), tree_attn::DType::F64,
                                        {shape[0], shape[1], shape[2], shape[3]});
  };
  tree_attn::AttentionOptions options{.scale = scale, .rule = {.causal = causal}, .lengths = workload.lengths};
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

/// Largest distance of two elements of the same place; +inf where one is NaN or they are not the same Inf.
template <class Number>
double largest_error(const std::vector<Number>& ours, const std::vector<double>& truth) {
  REQUIRE(ours.size() == truth.size());
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double number = static_cast<double>(ours[i]);
    const double error = number == truth[i] ? 0 : std::abs(number - truth[i]);
    largest = tree_attn::test::larger_error(largest, error);
  }
  return largest;
}

/// Every element within `allowed` of its like; -inf only where it belongs, NaN nowhere.
template <class Number>
void check_near(const std::vector<Number>& ours, const std::vector<double>& truth, double allowed) {
  CHECK(largest_error(ours, truth) <= allowed);
}
