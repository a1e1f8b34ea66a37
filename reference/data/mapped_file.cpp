// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Mapping files, and the SIGBUS handler.
#include "tree_attn/reference/data/mapped_file.hpp"

#include "tree_attn/reference/data/input_error.hpp"
#include "tree_attn/reference/data/temporary_files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <mutex>
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

/// A mapping and the message for its file, built in advance because a signal handler may not allocate.
struct Watched {
  std::atomic<const std::byte*> begin = nullptr;  // null: the entry is free
  std::size_t size = 0;
  std::array<char, 512> line{};
  std::size_t length = 0;
};

std::array<Watched, 16> watched;  // mappings beyond these are not watched
std::mutex watching;              // held to change an entry; the handler reads without locking

void watch(const std::byte* begin, std::size_t size, const std::string& path) {
  const std::lock_guard lock(watching);
  const auto entry = std::find_if(watched.begin(), watched.end(), [](const Watched& w) { return w.begin == nullptr; });
  if (entry == watched.end()) return;
  const std::string line =
      "tree_attn: " + readable(path, 200) + ": truncated, or its disk failed, while it was being read\n";
  entry->size = size;
  entry->length = line.copy(entry->line.data(), entry->line.size());
  entry->begin = begin;
}

void unwatch(const std::byte* begin) {
  const std::lock_guard lock(watching);
  for (Watched& w : watched) {
    if (w.begin == begin) w.begin = nullptr;
  }
}

struct sigaction action_before;
bool (*may_write)(const void*);
const void* may_write_context;

/// Calls async-signal-safe functions only.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const Watched& w : watched) {
    const std::byte* begin = w.begin;
    if (info->si_code != BUS_ADRERR || begin == nullptr || address < begin || address >= begin + w.size) continue;
    // The first thread of all ranks to get here writes. The others wait until its exit ends them.
    const bool writes = may_write(may_write_context);
    if (writes) (void)!::write(STDERR_FILENO, w.line.data(), w.length);
    remove_temporary_files();
    const timespec wait = writes ? timespec{0, 500'000'000} : timespec{5, 0};
    ::nanosleep(&wait, nullptr);
    ::_exit(2);
  }
  // Not one of our mappings: restore the previous handler and raise the signal again.
  ::sigaction(SIGBUS, &action_before, nullptr);
  ::raise(signal);
}

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
  watch(bytes_.get(), size, path);
}

void MappedFile::release_pages() const {
  ::madvise(const_cast<std::byte*>(bytes_.get()), bytes().size(), MADV_DONTNEED);  // a hint: nothing depends on it
}

void MappedFile::Unmap::operator()(const std::byte* bytes) const {
  unwatch(bytes);
  ::munmap(const_cast<std::byte*>(bytes), size);
}

void end_on_cut_file(bool (*claim)(const void*), const void* context) {
  may_write = claim;
  may_write_context = context;

  // A separate stack, because the stack of an emulator fiber may be too small for a signal frame.
  alignas(16) static std::array<std::byte, 1 << 16> stack;
  stack_t signal_stack{};
  signal_stack.ss_sp = stack.data();
  signal_stack.ss_size = stack.size();
  ::sigaltstack(&signal_stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &action_before);
}

}  // namespace tree_attn
