// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A file truncated while it is mapped ends the process with one line and status 2. Any other SIGBUS keeps its
/// effect.
#include "tree_attn/reference/data/mapped_file.hpp"
#include "tree_attn/tests/support/ending.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>

namespace {

using namespace tree_attn;
using test::Ending, test::ending_of;

/// Reads one byte per page.
unsigned touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 4096) {
    const volatile std::byte& first = bytes[i];
    sum += static_cast<unsigned>(first);
  }
  return sum;
}

std::atomic_flag claimed;
bool claim_once(const void* flag) { return !static_cast<std::atomic_flag*>(const_cast<void*>(flag))->test_and_set(); }

}  // namespace

TEST_CASE("mapped file: truncation ends the process with one line and status 2") {
  const Scratch scratch;
  const std::string path = scratch.write("cut", std::string(1 << 20, 'x')),
                    other = scratch.write("other", std::string(1 << 16, 'x'));
  const Ending ending = ending_of([&] {
    end_on_cut_file(claim_once, &claimed);
    const MappedFile first(other), file(path);
    touch(file.bytes());
    std::filesystem::resize_file(path, 5000);
    touch(first.bytes());  // not truncated
    touch(file.bytes());
  });
  CHECK(ending.status == 2);
  CHECK(ending.err == "tree_attn: " + path + ": truncated, or its disk failed, while it was being read\n");
}

TEST_CASE("mapped file: a SIGBUS outside mapped files has its previous effect") {
  const Scratch scratch;
  const std::string path = scratch.write("ours", std::string(1 << 16, 'x')),
                    foreign = scratch.write("foreign", std::string(1 << 16, 'x'));
  const Ending sent = ending_of([&] {
    end_on_cut_file(claim_once, &claimed);
    const MappedFile file(path);
    ::raise(SIGBUS);
  });
  CHECK(sent.status == 128 + SIGBUS);
  CHECK(sent.err == "");

  // A foreign mapping that is truncated, at the address of a former mapped file.
  const Ending elsewhere = ending_of([&] {
    end_on_cut_file(claim_once, &claimed);
    const std::byte* address = nullptr;
    {
      const MappedFile gone(foreign);
      address = gone.bytes().data();
    }
    const int descriptor = ::open(foreign.c_str(), O_RDONLY | O_CLOEXEC);
    const void* bytes = ::mmap(const_cast<std::byte*>(address), 1 << 16, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes != address) ::_exit(3);
    const MappedFile file(path);
    std::filesystem::resize_file(foreign, 0);
    touch({static_cast<const std::byte*>(bytes), 1 << 16});
  });
  CHECK(elsewhere.status == 128 + SIGBUS);
  CHECK(elsewhere.err == "");
}
