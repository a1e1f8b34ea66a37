// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory of the device in software: a list of allocations, by which every access of a kernel is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tree_attn::soft_gpu {

/// Texts and numbers, one after the other.
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}
/// Fault of a kernel; the machine adds where it happened.
struct Fault : std::runtime_error {
  template <class... Parts>
  explicit Fault(const Parts&... parts) : std::runtime_error(joined(parts...)) {}
};

/// The address in hexadecimal.
std::string hex(std::uint64_t address);

/// An allocation. Its addresses on the device are not those where the host keeps the bytes: a host that follows a device
/// pointer ends with a segmentation fault.
struct Range {
  std::uint64_t begin = 1, end = 0;  ///< on the device
  std::uint64_t to_host = 0;         ///< what is added to an address; 0: pinned memory of the host

  bool is_of_host() const { return to_host == 0; }
  bool holds(std::uint64_t address, std::uint64_t n) const {
    return address >= begin && address <= end && n <= end - address;
  }
  std::byte* host(std::uint64_t address) const { return reinterpret_cast<std::byte*>(address + to_host); }
};

/// All memory that kernels of this process may reach.
namespace memory {

constexpr std::uint64_t kBytesOfDevice = std::uint64_t{512} << 30;

/// The address of n_bytes bytes of the device, the first MiB of them NaN; none if it is full. No address is given twice:
/// what has been freed stays a fault.
std::optional<std::uint64_t> allocate(std::uint64_t n_bytes);
/// Bytes of the device that have never been allocated.
std::uint64_t n_free();
/// Lets the device read and write memory of the host at its own address.
void pin(void* begin, std::uint64_t n_bytes);
/// Ends an allocation that begins there, of the device or of the host. @returns whether there was one
bool release(std::uint64_t begin);
/// The allocation that holds an address.
std::optional<Range> find(std::uint64_t address);
/// Describes the memory around an address, for a message.
std::string around(std::uint64_t address);

}  // namespace memory
}  // namespace tree_attn::soft_gpu
