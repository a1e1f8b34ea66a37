// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A measurement as one line of JSON on standard output: what tests/gpu/time_ladder/measure collects.
#pragma once

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tree_attn {

/// {"part": ..., ...}, printed when it ends.
class JsonLine {
 public:
  explicit JsonLine(const std::string& part) { add("part", part); }
  JsonLine(const JsonLine&) = delete;
  JsonLine& operator=(const JsonLine&) = delete;
  ~JsonLine() {
    std::printf("{%s}\n", line_.str().c_str());
    std::fflush(stdout);
  }
  JsonLine& add(const char* name, const std::vector<std::int64_t>& numbers) {
    std::string list;
    for (const std::int64_t n : numbers) list += (list.empty() ? "" : ", ") + std::to_string(n);
    return put(name, "[" + list + "]");
  }
  /// @param value a text, or a finite number
  template <class Value>
  JsonLine& add(const char* name, const Value& value) {
    std::ostringstream text;
    text.precision(9);
    if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
      text << '"';
      for (const char c : std::string_view(value)) text << (c == '"' || c == '\\' ? "\\" : "") << (c == '\n' ? ' ' : c);
      text << '"';
    } else {
      text << value;
    }
    return put(name, text.str());
  }

 private:
  JsonLine& put(const char* name, const std::string& value) {
    line_ << (line_.tellp() > 0 ? ", \"" : "\"") << name << "\": " << value;
    return *this;
  }
  std::ostringstream line_;
};

}  // namespace tree_attn
