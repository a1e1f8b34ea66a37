// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Helpers for tests of tensor files: a temporary folder, and the message of a refused file.
#pragma once

#include "reference/data/safetensors.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// A new folder in the system's temporary folder, removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "tree_attn_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::string path(std::string_view name) const { return (folder_ / name).string(); }
  /// Writes a file and returns its path.
  std::string write(std::string_view name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Names in the folder.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

 private:
  std::filesystem::path folder_;
};

/// Drops root's permission to open every file, for the lifetime of the object.
class AsNobody {
 public:
  AsNobody() : was_root_(::geteuid() == 0) {
    if (was_root_) changed_ = ::seteuid(65534) == 0;
  }
  ~AsNobody() {
    if (changed_ && ::seteuid(0) != 0) std::abort();
  }
  bool is_root() const { return was_root_ && !changed_; }

 private:
  bool was_root_;
  bool changed_ = false;
};

/// The contents of a file: the length of the header, the header, the data.
inline std::string with_length(const std::string& header, const std::string& data = "") {
  const std::uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), sizeof n) + header + data;
}

/// The message with which the file is refused, or "" if it is accepted.
template <class Use>
std::string refusal(const std::string& path, const Use& use) {
  return tree_attn::test::message<tree_attn::InputError>([&] { use(tree_attn::SafetensorsFile::open(path)); });
}
inline std::string refusal(const std::string& path) {
  return refusal(path, [](const tree_attn::SafetensorsFile&) {});
}

/// Checks that the file is refused in one line that names it and this reason.
inline void check_refused(const std::string& path, const std::string& message, const std::string& reason) {
  CAPTURE(message);
  CHECK(message.starts_with(path + ": "));
  CHECK(message.find(reason) != std::string::npos);
  CHECK(message.size() < 400);
  for (const char c : message) CHECK(static_cast<unsigned char>(c) >= 0x20);
}
