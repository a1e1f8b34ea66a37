// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Host memory that several processes share: windows of the emulator.
#pragma once

#include "gpu/types/device_error.hpp"
#include "gpu/types/window_handle.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace tree_attn {

/// Pages of a file without a name, which ends with its last user: a job that is killed leaves no file.
class SharedPages {
 public:
  SharedPages() = default;
  /// New ones, of zeros. @param n_bytes at least 1 @throws DeviceError with what the system says
  explicit SharedPages(std::size_t n_bytes) {
    file_ = memfd_create("tree_attn window", MFD_CLOEXEC);
    map(n_bytes, file_ >= 0 && ftruncate(file_, static_cast<off_t>(n_bytes)) == 0,
        "a window of " + std::to_string(n_bytes) + " bytes");
  }
  /// Maps the pages of another process, or those of this one at another address. @param n_bytes as many as it has
  /// @throws DeviceError if the handle names no pages, or others
  SharedPages(const WindowHandle& handle, std::size_t n_bytes) {
    Owner owner;
    std::memcpy(&owner, handle.bytes, sizeof owner);
    const std::string who = "the window of process " + std::to_string(owner.process),
                      path = "/proc/" + std::to_string(owner.process) + "/fd/" + std::to_string(owner.file);
    file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    // In another namespace the number of the process may be that of a stranger.
    struct stat status {};
    if (file_ >= 0 && (fstat(file_, &status) != 0 || static_cast<std::size_t>(status.st_size) != n_bytes)) {
      close(file_);
      throw DeviceError(who + ": " + path + " is another file");
    }
    map(n_bytes, file_ >= 0, who);
  }
  SharedPages(SharedPages&& other) noexcept
      : file_(std::exchange(other.file_, -1)),
        n_bytes_(std::exchange(other.n_bytes_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  SharedPages& operator=(SharedPages&& other) noexcept {
    std::swap(file_, other.file_), std::swap(n_bytes_, other.n_bytes_), std::swap(data_, other.data_);
    return *this;
  }
  ~SharedPages() {
    if (data_ != nullptr) munmap(data_, n_bytes_), close(file_);
  }

  /// Null if there are none.
  std::byte* data() const { return data_; }
  std::size_t size() const { return n_bytes_; }
  /// By which another process finds them, as long as these are there.
  WindowHandle handle() const {
    const Owner owner{getpid(), file_};
    WindowHandle handle;
    static_assert(sizeof owner <= sizeof handle.bytes);
    std::memcpy(handle.bytes, &owner, sizeof owner);
    return handle;
  }

 private:
  /// A file of a process.
  struct Owner {
    std::int64_t process, file;
  };

  void map(std::size_t n_bytes, bool is_there, const std::string& what) {
    void* const memory = is_there ? mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
      const std::string why = std::strerror(errno);
      if (file_ >= 0) close(file_);
      throw DeviceError(what + ": " + why);
    }
    data_ = static_cast<std::byte*>(memory), n_bytes_ = n_bytes;
  }

  int file_ = -1;
  std::size_t n_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace tree_attn
