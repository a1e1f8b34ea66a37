// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A measurement as one line of JSON on standard output: what tests/gpu/time_ladder/measure collects.
#pragma once

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
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
  JsonLine& add(const char* name, const std::string& text) {
    std::string quoted;
    for (const char c : text) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c == '\n' ? ' ' : c;
    }
    return put(name, "\"" + quoted + "\"");
  }
  JsonLine& add(const char* name, const char* text) { return add(name, std::string(text)); }
  JsonLine& add(const char* name, std::string_view text) { return add(name, std::string(text)); }
  JsonLine& add(const char* name, const std::vector<std::int64_t>& numbers) {
    std::string list;
    for (const std::int64_t n : numbers) list += (list.empty() ? "" : ", ") + std::to_string(n);
    return put(name, "[" + list + "]");
  }
  /// @param number finite
  template <class Number>
  JsonLine& add(const char* name, Number number) {
    std::ostringstream digits;
    digits.precision(9);
    digits << number;
    return put(name, digits.str());
  }

 private:
  JsonLine& put(const char* name, const std::string& value) {
    line_ << (line_.tellp() > 0 ? ", \"" : "\"") << name << "\": " << value;
    return *this;
  }
  std::ostringstream line_;
};

}  // namespace tree_attn
