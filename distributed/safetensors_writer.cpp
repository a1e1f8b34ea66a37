// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Writing a safetensors file: complete, or not at all.
#include "distributed/safetensors.hpp"
#include "distributed/safetensors_header.hpp"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace tree_attn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kAlignment = 8;  // of the data; safetensors' own writer has the same

[[noreturn]] void fail(const std::string& path, int error) {
  throw InputError(readable(path, 4096) + ": cannot write: " + std::generic_category().message(error));
}

bool is_utf8(std::string_view text) { return find_not_utf8(text) == std::string_view::npos; }

/// A file under a name that nobody else has, in the folder of its final place; removed unless it gets there.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string target) : target_(std::move(target)) {
    // The name does not build on the target's: with a suffix, a long one would no longer fit.
    static std::atomic<unsigned> counter{0};
    for (int attempt = 0; descriptor_ < 0; ++attempt) {
      const std::string name = ".tree_attn-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
      path_ = (fs::path(target_).parent_path() / name).string();
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      // Left behind by a run that was killed, or taken by another machine on a shared disk: the next number.
      if (descriptor_ < 0 && (errno != EEXIST || attempt == 1000)) fail(target_, errno);
    }
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    // A call moves at most 2 GiB, and may move less.
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(target_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void move_into_place() {
    // Some network disks report that they are full only here.
    if (::close(std::exchange(descriptor_, -1)) != 0) fail(target_, errno);
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail(target_, errno);
    path_.clear();
  }

 private:
  std::string target_;
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

void SafetensorsWriter::add(std::string_view name, std::string_view dtype, std::span<const std::int64_t> shape,
                            std::span<const std::byte> bytes) {
  const auto require = [&](bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument("SafetensorsWriter::add: tensor \"" + readable(name) + "\": " + message);
  };
  require(is_utf8(name), "name is not UTF-8");
  require(name != "__metadata__", "name is reserved, use set_metadata()");
  for (const Entry& entry : entries_) require(entry.info.name != name, "name is taken");
  require(bits_of_dtype(dtype) != 0, "unknown dtype \"" + readable(dtype) + "\"");
  TensorInfo info{std::string(name), std::string(dtype), {shape.begin(), shape.end()}};
  const std::optional<std::uint64_t> size = bytes_of_tensor(bits_of_dtype(dtype), info.shape);
  require(size.has_value(), "shape out of range, or not a whole number of bytes");
  require(bytes.size() == *size, "takes " + std::to_string(*size) + " bytes, got " + std::to_string(bytes.size()));
  entries_.push_back({std::move(info), bytes});
}

void SafetensorsWriter::set_metadata(Metadata metadata) {
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      throw std::invalid_argument("SafetensorsWriter::set_metadata: \"" + readable(key) + "\" is not UTF-8");
    }
  }
  metadata_ = std::move(metadata);
}

std::string SafetensorsWriter::header(std::span<const Entry> entries) const {
  // Key by key, in the order of the data; Json escapes the strings.
  std::string text = "{";
  if (!metadata_.empty()) text += "\"__metadata__\":" + Json(metadata_).dump();
  for (const auto& [info, bytes] : entries) {
    const Json fields = {{"dtype", info.dtype}, {"shape", info.shape}, {"data_offsets", {info.begin, info.end}}};
    text += (text.size() == 1 ? "" : ",") + Json(info.name).dump() + ":" + fields.dump();
  }
  text += "}";
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

void SafetensorsWriter::write(const std::string& path) const {
  // Place the data: wide numbers first, then the order of add().
  std::vector<Entry> entries = entries_;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return bits_of_dtype(a.info.dtype) > bits_of_dtype(b.info.dtype); });
  std::uint64_t at = 0;
  for (auto& [info, bytes] : entries) {
    info.begin = at;
    info.end = at += bytes.size();
  }
  const std::string text = header(entries);
  const std::uint64_t length = text.size();

  // A rename would put a file in the place of a device or a pipe (/dev/null, say), and of a link rather than its target.
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail(path, EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InputError(readable(path, 4096) + ": is not a regular file");
  }
  const fs::path target = fs::exists(status) ? fs::canonical(path, ignored) : fs::path(path);

  TemporaryFile file(target.string());
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  for (const Entry& entry : entries) file.write(entry.bytes);
  file.move_into_place();
}

}  // namespace tree_attn
