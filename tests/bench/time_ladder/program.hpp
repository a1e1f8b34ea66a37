// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Functions that programs that measure share: their options, and a measurement as one line of JSON on standard
/// output, which tests/bench/time_ladder/measure collects.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tree_attn {

/// A wrong option, or a wrong value of one.
struct WrongOption : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Options of a program, which its usage names in brackets, some with a value.
class Options {
 public:
  /// @throws WrongOption for another option, and for one that has to have a value and has none
  Options(int argc, char** argv, const std::string& usage) {
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      const std::size_t at = usage.find("[" + option);
      const char after = at != std::string::npos ? usage[at + 1 + option.size()] : '\0';
      if (after != ']' && (after != ' ' || i + 1 == argc)) throw WrongOption("Run: " + usage);
      values_[option] = after == ' ' ? argv[++i] : "";
    }
  }
  bool has(const std::string& option) const { return values_.contains(option); }
  /// The value of an option; empty without it.
  std::string text(const std::string& option) const { return has(option) ? values_.at(option) : ""; }
  /// Numbers with a comma after each but the last. @throws WrongOption if one is no number greater than 0
  template <class Number>
  std::vector<Number> numbers(const std::string& option, const std::vector<Number>& otherwise) const {
    if (!has(option)) return otherwise;
    std::vector<Number> all;
    std::istringstream list(text(option));
    for (std::string each; std::getline(list, each, ',');) {
      std::istringstream word(each);
      if (!(word >> all.emplace_back()) || !word.eof() || !(all.back() > 0))
        throw WrongOption("'" + each + "' is no number greater than 0");
    }
    if (all.empty()) throw WrongOption(option + " has no number");
    return all;
  }
  template <class Number>
  Number number(const std::string& option, Number otherwise) const {
    return numbers<Number>(option, {otherwise}).back();
  }

 private:
  std::map<std::string, std::string> values_;
};

/// The main() of a program.
/// @param usage its name, then its options @param run (options) -> the exit status
/// @returns that; 2 for a wrong option or value, 1 for an error, with a line that says why
template <class Run>
int run_program(int argc, char** argv, const std::string& usage, const Run& run) {
  const auto fail = [&](const std::exception& error, int status) {
    std::fprintf(stderr, "%s: %s\n", usage.substr(0, usage.find(' ')).c_str(), error.what());
    return status;
  };
  try {
    return run(Options(argc, argv, usage));
  } catch (const WrongOption& error) {
    return fail(error, 2);
  } catch (const std::exception& error) {
    return fail(error, 1);
  }
}

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
