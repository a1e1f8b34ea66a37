// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Mapping files.
#include "reference/data/mapped_file.hpp"

#include "reference/data/input_error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace tree_attn {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

/// A file descriptor that is closed at the end of its scope.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  struct stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0) refuse_file(path, "cannot open: ", reason(errno));
  if (S_ISDIR(status.st_mode)) refuse_file(path, "is a directory");
  if (!S_ISREG(status.st_mode)) refuse_file(path, "is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap rejects empty files

  // The mapping outlives the descriptor.
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (mapped == MAP_FAILED) refuse_file(path, "cannot map ", size, " bytes: ", reason(errno));
  bytes_ = {static_cast<const std::byte*>(mapped), Unmap{size}};
}

void MappedFile::release_pages() const {
  ::madvise(const_cast<std::byte*>(bytes_.get()), bytes().size(), MADV_DONTNEED);  // a hint: nothing depends on it
}

void MappedFile::Unmap::operator()(const std::byte* bytes) const { ::munmap(const_cast<std::byte*>(bytes), size); }

}  // namespace tree_attn
