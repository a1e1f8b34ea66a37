// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The error for bad input or usage: one line, shown to the user verbatim, which ends the run.
#pragma once

#include "reference/state/require.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tree_attn {

/// Bad input or usage. The user sees what(): one line that names the file, tensor or argument, and the values.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bytes of the UTF-8 character that starts at text[at], 1 to 4; 0 if there is none: a stray or missing continuation byte,
/// an overlong form, a surrogate, a code point above U+10FFFF, or the end of the text.
inline std::size_t utf8_length(std::string_view text, std::size_t at) {
  if (at >= text.size()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() - at < length) return 0;
  // The bounds of the second byte depend on the first: they exclude overlong forms, surrogates and code points above
  // U+10FFFF.
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(at + i) < 0x80 || byte(at + i) > 0xBF) return 0;
  }
  return length;
}

/// Index of the first byte that is not UTF-8, or npos.
inline std::size_t find_not_utf8(std::string_view text) {
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    length = utf8_length(text, at);
    if (length == 0) return at;
  }
  return std::string_view::npos;
}

/// Escapes untrusted text for one line on a terminal. Bytes that could end the line, move the cursor or reverse the writing
/// direction become `\xNN`. Text beyond `limit` is replaced by "...".
/// @param limit bytes of the result, without the dots
inline std::string readable(std::string_view text, std::size_t limit = 60) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    const std::string_view character = text.substr(at, length == 0 ? 1 : length);
    // U+0080..U+009F is a second set of control characters; U+2028..U+202E and U+2066..U+2069 break lines and reverse text.
    const bool is_control = length == 1 && (static_cast<unsigned char>(text[at]) < 0x20 || text[at] == 0x7F);
    const bool is_second_control = length == 2 && character < "\xC2\xA0";
    const bool is_format = length == 3 && ((character >= "\xE2\x80\xA8" && character <= "\xE2\x80\xAE") ||
                                           (character >= "\xE2\x81\xA6" && character <= "\xE2\x81\xA9"));
    std::string piece;
    if (length == 0 || is_control || is_second_control || is_format) {
      for (const char c : character) {
        const auto byte = static_cast<unsigned char>(c);
        piece += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    } else {
      piece = character;
    }
    if (shown.size() + piece.size() > limit) return shown + "...";
    shown += piece;
    at += character.size();
  }
  return shown;
}

/// Throws InputError for a file. @param parts "header of ", n, " bytes"
template <class... Parts>
[[noreturn]] void refuse_file(const std::string& path, const Parts&... parts) {
  throw InputError(line_of(readable(path, 4096), ": ", parts...));
}

}  // namespace tree_attn
