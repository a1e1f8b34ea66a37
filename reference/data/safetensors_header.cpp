// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Parses the header of a safetensors file with an event-driven (SAX) JSON parser.
///
/// Unlike a document, events show duplicate keys (a document keeps one of them, and readers disagree which), let parsing
/// stop at the first wrong value, and need no tree of nodes for a header of 100 MB.
#include "reference/data/safetensors_header.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

namespace tree_attn {
namespace {

using Json = nlohmann::json;

/// "[2, 2]", truncated to a readable length.
std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + readable(text, 80) + "]";
}

std::string range_text(const TensorInfo& t) { return line_of("[", t.begin, ", ", t.end, "]"); }

std::string in_quotes(std::string_view name) { return line_of("\"", readable(name), "\""); }

/// Receives the parser's events. Throws at the first error.
class HeaderReader final : public Json::json_sax_t {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  SafetensorsHeader header;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    refuse_file(path_, parts...);
  }

  // Objects and arrays change the context; anywhere else they are an error of that context.
  bool start_object(std::size_t) override {
    if (context_ == Context::kTop) return go(Context::kHeader);
    if (context_ != Context::kHeader) refuse();
    if (key_ == "__metadata__") return go(Context::kMetadata);
    header.tensors.emplace_back();
    tensor().name = std::move(key_);
    seen_ = {};
    return go(Context::kTensor);
  }
  bool end_object() override {
    if (context_ == Context::kTensor) check_tensor();
    if (context_ == Context::kMetadata) check_metadata();
    return go(context_ == Context::kHeader ? Context::kEnd : Context::kHeader);
  }
  bool start_array(std::size_t) override {
    if (context_ == Context::kTensor && key_ == "shape") return go(Context::kShape);
    if (context_ == Context::kTensor && key_ == "data_offsets") return go(Context::kOffsets);
    refuse();
  }
  bool end_array() override {
    if (context_ == Context::kOffsets && n_offsets_ != 2) fail_tensor("data_offsets needs two numbers, has ", n_offsets_);
    return go(Context::kTensor);
  }

  // Duplicate keys are an error at every level. Tensor names are compared after the last one, by sorting.
  bool key(std::string& name) override {
    key_ = std::move(name);
    if (context_ == Context::kHeader && key_ == "__metadata__" && std::exchange(has_metadata_, true)) {
      fail("duplicate key \"__metadata__\"");
    }
    if (context_ == Context::kMetadata) metadata_keys_.push_back(std::hash<std::string>()(key_));
    if (context_ == Context::kTensor) {
      const auto field = std::find(std::begin(kFields), std::end(kFields), key_);
      if (field == std::end(kFields)) fail_tensor("unknown field ", in_quotes(key_), " (dtype, shape, data_offsets)");
      if (std::exchange(seen_[field - std::begin(kFields)], true)) fail_tensor("duplicate field \"", key_, "\"");
    }
    return true;
  }

  bool string(std::string& value) override {
    if (context_ == Context::kMetadata) return true;
    if (context_ != Context::kTensor || key_ != "dtype") refuse();
    if (bits_of_dtype(value) == 0) fail_tensor("unknown dtype ", in_quotes(value));
    tensor().dtype = std::move(value);
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (context_ == Context::kShape) {
      if (value >= static_cast<std::uint64_t>(kMaxLength)) fail_size(std::to_string(value));
      if (tensor().shape.size() == kMaxAxes) fail_tensor("more than ", kMaxAxes, " axes");
      tensor().shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (context_ != Context::kOffsets) refuse();
    if (n_offsets_ < 2) (n_offsets_ == 0 ? tensor().begin : tensor().end) = value;
    ++n_offsets_;
    return true;
  }
  // Signed numbers. The reference reader parses -0 as a float, so no signed number is a length.
  bool number_integer(std::int64_t value) override {
    const std::string text = value == 0 ? "-0" : std::to_string(value);
    if (context_ == Context::kShape && value == 0) fail_tensor("shape has a size that is not an unsigned integer: -0");
    if (context_ == Context::kShape) fail_tensor("shape has a negative size: ", text);
    if (context_ == Context::kOffsets) fail_tensor("negative offset in data_offsets: ", text);
    refuse();
  }
  // Numbers with a point or an exponent, and integers from 2^64 on.
  bool number_float(double, const std::string& text) override {
    const bool is_whole = text.find_first_not_of("-0123456789") == std::string::npos;
    if (context_ == Context::kShape && is_whole) fail_size(readable(text));
    if (context_ == Context::kShape) fail_tensor("shape has a size that is not an integer: ", readable(text));
    if (context_ == Context::kOffsets) fail_tensor("data_offsets is not a pair of integers below 2^64: ", readable(text));
    refuse();
  }
  bool null() override { refuse(); }
  bool boolean(bool) override { refuse(); }
  bool binary(Json::binary_t&) override { refuse(); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    // The parser's message without its code, line and column: a header is one line.
    std::string_view words = error.what();
    for (const std::string_view mark : {"] ", "parse error at ", ": "}) {
      const std::size_t at = words.find(mark);
      if (at != std::string_view::npos) words.remove_prefix(at + mark.size());
    }
    fail("header is not JSON, byte ", position, ": ", readable(words, 120));
  }

 private:
  /// The current position in the header. No context nests in itself, so no stack is needed.
  enum class Context { kTop, kHeader, kMetadata, kTensor, kShape, kOffsets, kEnd };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};

  TensorInfo& tensor() { return header.tensors.back(); }
  bool go(Context context) {
    if (context == Context::kOffsets) n_offsets_ = 0;
    context_ = context;
    return true;
  }

  template <class... Parts>
  [[noreturn]] void fail_tensor(const Parts&... parts) {
    fail("tensor ", in_quotes(tensor().name), ": ", parts...);
  }
  [[noreturn]] void fail_size(const std::string& size) {
    fail_tensor("size out of range: shape has ", size, ", sizes must be below 2^48");
  }
  /// Fails for a value of the wrong type, with a message for the current context.
  [[noreturn]] void refuse() {
    switch (context_) {
      case Context::kHeader: fail((key_ == "__metadata__" ? key_ : "tensor " + in_quotes(key_)) + " is not an object");
      case Context::kMetadata: fail("__metadata__: the value of " + in_quotes(key_) + " is not a string");
      case Context::kTensor:
        fail_tensor(key_ + (key_ == "dtype"   ? " is not a string"
                            : key_ == "shape" ? " is not a list"
                                              : " is not a pair of numbers"));
      case Context::kShape: fail_tensor("shape has a size that is not an integer");
      case Context::kOffsets: fail_tensor("data_offsets is not a pair of numbers");
      default: fail("header is not an object");
    }
  }

  /// Checks that all fields are present and consistent.
  void check_tensor() {
    const TensorInfo& t = tensor();
    for (std::size_t i = 0; i < std::size(kFields); ++i) {
      if (!seen_[i]) fail_tensor(kFields[i], " missing");
    }
    const std::optional<std::uint64_t> bytes = bytes_of_tensor(bits_of_dtype(t.dtype), t.shape);
    const std::string what = "shape " + shape_text(t.shape) + " of " + t.dtype;
    if (!bytes) fail_tensor("size overflows or is not a whole number of bytes: ", what);
    if (t.end < t.begin) fail_tensor("range ends before it starts: data_offsets ", range_text(t));
    if (t.end - t.begin != *bytes)
      fail_tensor(what, " takes ", *bytes, " bytes, data_offsets ", range_text(t), " hold ", t.end - t.begin);
  }

  /// Checks that "__metadata__" has no duplicate key. Nine million different keys have a hash collision with probability
  /// 2e-6.
  void check_metadata() {
    std::sort(metadata_keys_.begin(), metadata_keys_.end());
    if (std::adjacent_find(metadata_keys_.begin(), metadata_keys_.end()) != metadata_keys_.end())
      fail("__metadata__: duplicate key");
    metadata_keys_ = {};
  }

  const std::string& path_;
  Context context_ = Context::kTop;
  std::string key_;
  bool has_metadata_ = false;
  std::vector<std::size_t> metadata_keys_;  // 64-bit hashes; the strings are not kept
  std::array<bool, std::size(kFields)> seen_{};
  std::size_t n_offsets_ = 0;
};

/// Checks that the ranges cover the data exactly once. They are sorted, so comparing neighbours is enough.
void check_cover(const HeaderReader& reader, std::uint64_t data_size) {
  const std::vector<TensorInfo>& tensors = reader.header.tensors;
  // Check for a truncated file first: it is the most likely fault, and it causes the others.
  const auto last =
      std::max_element(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.end < b.end; });
  if (last != tensors.end() && last->end > data_size)
    reader.fail("file ends ", last->end - data_size, " bytes early: tensor ", in_quotes(last->name), " has data_offsets ",
                range_text(*last), ", data is ", data_size, " bytes");
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& t = tensors[i];
    if (t.begin < covered)
      reader.fail("tensors ", in_quotes(tensors[i - 1].name), " and ", in_quotes(t.name), " overlap: data_offsets ",
                  range_text(tensors[i - 1]), " and ", range_text(t));
    if (t.begin > covered)
      reader.fail("data has bytes ", covered, "..", t.begin, " that no tensor covers, before tensor ", in_quotes(t.name));
    covered = t.end;
  }
  if (covered != data_size)
    reader.fail("file has ", data_size - covered, " bytes that no tensor covers, after the last tensor");
}

}  // namespace

SafetensorsHeader parse_header(const std::string& path, std::string_view json, std::uint64_t data_size) {
  HeaderReader reader(path);

  // Check what the parser would accept or explain badly.
  const std::size_t not_utf8 = find_not_utf8(json);
  if (not_utf8 != std::string_view::npos) reader.fail("header is not UTF-8: byte ", not_utf8 + 1);
  if (json.find_first_not_of(" \t\n\r") == std::string_view::npos) reader.fail("header is empty");
  if (json.starts_with("\xEF\xBB\xBF")) reader.fail("header starts with a byte order mark instead of {");

  // Parse, then sort: by range for the check of the data, by name for the lookup.
  Json::sax_parse(json.begin(), json.end(), &reader);
  // The parser treats NUL as the end of the input and would ignore any bytes after it.
  const std::size_t nul = json.find('\0');
  if (nul != std::string_view::npos) reader.fail("header is not JSON, byte ", nul + 1, ": NUL");
  std::vector<TensorInfo>& tensors = reader.header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::vector<std::size_t>& by_name = reader.header.by_name;
  by_name.resize(tensors.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::sort(by_name.begin(), by_name.end(), [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });

  const auto twice = std::adjacent_find(by_name.begin(), by_name.end(),
                                        [&](std::size_t a, std::size_t b) { return tensors[a].name == tensors[b].name; });
  if (twice != by_name.end()) reader.fail("duplicate key ", in_quotes(tensors[*twice].name));
  check_cover(reader, data_size);
  return std::move(reader.header);
}

std::optional<std::string> SafetensorsFile::metadata(std::string_view key) const {
  const std::string_view json(reinterpret_cast<const char*>(file_.bytes().data()) + 8, data_begin_ - 8);
  // Keep the wanted entry alone: the tensors of a large model would make a large document.
  const auto is_wanted = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    return event != Json::parse_event_t::key || parsed.get_ref<const std::string&>() == (depth == 1 ? "__metadata__" : key);
  };
  const Json header = Json::parse(json.begin(), json.end(), is_wanted);
  const auto metadata = header.find("__metadata__");
  if (metadata == header.end() || metadata->empty()) return std::nullopt;
  return metadata->front().get<std::string>();
}

}  // namespace tree_attn
