// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shared memory of a node, and copies into its mailboxes and out of them.
#include "distributed/transport/mailboxes.hpp"

#include "reference/data/fnv1a.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <string_view>

namespace tree_attn {
namespace {

/// A file that is removed at the end, if this rank has made it.
struct File {
  int descriptor = -1;
  std::string made{};  ///< its path
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) close(descriptor);
    remove_name();
  }
  /// Leaves the file to those that have opened it.
  void remove_name() {
    if (!made.empty()) unlink(made.c_str());
    made.clear();
  }
};

constexpr std::string_view kWithout =
    "send without shared memory: --transport mpi, shares_memory = false, in C no_shared_memory = 1, in Python "
    "shared_memory=False";

std::string error_text(const std::string& path) {
  return line_of("shared memory: ", path, ": ", std::strerror(errno), "; ", kWithout);
}

/// A number of a folder and its file system; 0: there is none. Containers may have other folders of one file system.
std::uint64_t number_of(const std::string& folder) {
  struct stat of {};
  if (stat(folder.c_str(), &of) != 0) return 0;
  const std::array numbers{std::uint64_t{of.st_dev}, std::uint64_t{of.st_ino}};
  return fnv1a(std::as_bytes(std::span(numbers)));
}

/// Makes a file of so many bytes where they are free. @returns why it cannot be
std::optional<std::string> make_file(File& file, const std::string& folder, std::size_t n_bytes, std::size_t n_ranks) {
  // A file system of no blocks has no limit: a tmpfs of size=0.
  struct statvfs room {};
  const bool has_limit = statvfs(folder.c_str(), &room) == 0 && room.f_blocks > 0;
  const std::uint64_t free = has_limit ? std::uint64_t{room.f_bavail} * room.f_frsize : std::uint64_t{n_bytes};
  if (free < n_bytes)
    return line_of("shared memory: the ", n_ranks, " ranks of a node need ", n_bytes, " bytes, and ", folder, " has ", free,
                   "; give it more, or ", kWithout);
  std::string path = folder + "/tree_attn-XXXXXX";
  file.descriptor = mkostemp(path.data(), O_CLOEXEC);
  if (file.descriptor < 0) return error_text(path);
  file.made = path;
  if (ftruncate(file.descriptor, static_cast<off_t>(n_bytes)) != 0) return error_text(path);
  return {};
}

/// The core of the receiver still has the lines of a buffer, and a store takes each from it. On a Zen 4 a store to every
/// line and then the copy are faster than the copy alone, and requests for the lines gain nothing.
void copy_to_buffer(std::span<const std::byte> bytes, std::byte* buffer) {
  for (std::size_t i = 0; i < bytes.size(); i += Mailboxes::kCacheLine)
    std::atomic_ref(buffer[i]).store(std::byte{}, std::memory_order_relaxed);
  std::memcpy(buffer, bytes.data(), bytes.size());
}

}  // namespace

std::uint64_t host_number() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string host = name, start;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), start);
  host += ' ' + start;
  return fnv1a(std::as_bytes(std::span(host)));
}

Mailboxes::Mailboxes(const Ranks& ranks, const Topology& topology, const std::string& folder)
    : rank_(ranks.rank()), to_(static_cast<std::size_t>(ranks.size())), from_(to_.size()) {
  // How many messages are under way at a time depends on the other ranks; a step should allocate nothing all the same.
  constexpr std::size_t kMessagesPerRank = 4;
  sends_.reserve(kMessagesPerRank * to_.size());
  receives_.reserve(kMessagesPerRank * to_.size());

  // Ranks of one number share memory; 0: with none.
  const std::uint64_t of_folder = number_of(folder);
  const auto keys = ranks.all_gather(std::array{host_number(), of_folder}, "all ranks to open shared memory");
  std::vector<int> members;
  for (int each = 0; each < ranks.size(); ++each)
    if (of_folder != 0 && keys[static_cast<std::size_t>(each)] == keys[static_cast<std::size_t>(rank_)] &&
        topology.node_of(each) == topology.node_of(rank_))
      members.push_back(each);
  const std::size_t n = members.size(), n_of_rank = (n - std::min<std::size_t>(n, 1)) * sizeof(Mailbox),
                    n_bytes = n * n_of_rank;
  const bool shares = n > 1, makes = shares && members.front() == rank_;

  // The lowest rank of a node makes the file, and removes its name when all have opened it.
  File file;
  ranks.throw_if_any_failed(makes ? make_file(file, folder, n_bytes, n) : std::nullopt);
  std::array<char, 256> path{};
  file.made.copy(path.data(), path.size() - 1);
  const auto paths = ranks.all_gather(path, "the memory of all nodes");
  const auto own = static_cast<std::size_t>(std::ranges::find(members, rank_) - members.begin());
  std::optional<std::string> error;
  const std::string there = shares ? paths[static_cast<std::size_t>(members.front())].data() : "";
  if (shares && !makes) file.descriptor = open(there.c_str(), O_RDWR | O_CLOEXEC);
  if (shares && file.descriptor < 0) error = error_text(there);
  ranks.throw_if_any_failed(error);
  file.remove_name();
  if (shares) {
    // A rank takes the pages of its own mailboxes near its core. One that is not there at the first store ends the process.
    int status = EINTR;
    while (status == EINTR)
      status = posix_fallocate(file.descriptor, static_cast<off_t>(own * n_of_rank), static_cast<off_t>(n_of_rank));
    errno = status;
    void* const mapped =
        status != 0 ? MAP_FAILED : mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
    if (mapped == MAP_FAILED)
      error = error_text(there);
    else
      memory_ = {static_cast<std::byte*>(mapped), [n_bytes](std::byte* memory) { munmap(memory, n_bytes); }};
  }
  // Each rank has a mailbox for each other one, in their order.
  const auto mailbox = [&](std::size_t receiver, std::size_t sender) {
    return reinterpret_cast<Mailbox*>(memory_.get()) + receiver * (n - 1) + sender - (sender > receiver);
  };
  for (std::size_t i = 0; memory_ != nullptr && i < n; ++i) {
    if (i == own) continue;
    to_[static_cast<std::size_t>(members[i])] = mailbox(i, own);
    from_[static_cast<std::size_t>(members[i])] = new (mailbox(own, i)) Mailbox;
  }
  ranks.throw_if_any_failed(error);  // and all mailboxes are made
}

bool Mailboxes::send(std::span<const std::byte> bytes, int to) {
  Mailbox* const box = to_[static_cast<std::size_t>(to)];
  if (box == nullptr || bytes.size() > kMaxBytes) return false;
  sends_.push_back({bytes, bytes.size(), to, box});
  advance();
  return true;
}

bool Mailboxes::receive(std::span<std::byte> bytes, int from) {
  Mailbox* const box = from_[static_cast<std::size_t>(from)];
  if (box == nullptr || bytes.size() > kMaxBytes) return false;
  receives_.push_back({bytes, bytes.size(), from, box});
  return true;
}

std::size_t Mailboxes::n_left() const {
  std::size_t n = 0;
  for (const auto& message : sends_) n += message.rest.size();
  for (const auto& message : receives_) n += message.rest.size();
  return n;
}

void Mailboxes::add_pending(bool is_received, std::vector<int>& peers) const {
  const auto add = [&](const auto& messages) {
    for (const auto& message : messages) peers.push_back(message.peer);
  };
  is_received ? add(receives_) : add(sends_);
}

bool Mailboxes::put(Message<const std::byte>& message) {
  Mailbox& box = *message.mailbox;
  const std::uint64_t sent = box.sent.load(std::memory_order_relaxed);
  if (sent - box.taken.load(std::memory_order_acquire) == kBuffers) return false;
  std::byte* const buffer = box.buffers[sent % kBuffers];
  const std::size_t n = std::min(message.rest.size(), kPartBytes);
  box.message_bytes[sent % kBuffers] = message.n_bytes;
  copy_to_buffer(message.rest.first(n), buffer);
  box.sent.store(sent + 1, std::memory_order_release);
  message.rest = message.rest.subspan(n);
  return true;
}

bool Mailboxes::take(Message<std::byte>& message) const {
  Mailbox& box = *message.mailbox;
  const std::uint64_t taken = box.taken.load(std::memory_order_relaxed), first = taken % kBuffers;
  if (box.sent.load(std::memory_order_acquire) == taken) return false;
  if (box.message_bytes[first] != message.n_bytes)
    throw another_length(rank_, message.n_bytes, message.peer, box.message_bytes[first]);
  const std::size_t n = std::min(message.rest.size(), kPartBytes);
  std::memcpy(message.rest.data(), box.buffers[first], n);
  box.taken.store(taken + 1, std::memory_order_release);
  message.rest = message.rest.subspan(n);
  return true;
}

template <class Byte, class Move>
void Mailboxes::move_all(std::vector<Message<Byte>>& messages, const Move& move) {
  std::size_t n_left = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message<Byte>& message = messages[i];
    // Messages through one mailbox stay in order.
    const auto left = std::span(messages).first(n_left);
    const bool is_next =
        std::none_of(left.begin(), left.end(), [&](const auto& each) { return each.mailbox == message.mailbox; });
    while (is_next && !message.rest.empty() && move(message)) {
    }
    if (!message.rest.empty()) messages[n_left++] = message;
  }
  messages.resize(n_left);
}

bool Mailboxes::advance() {
  move_all(receives_, [this](auto& message) { return take(message); });
  move_all(sends_, [](auto& message) { return put(message); });
  return is_empty();
}

}  // namespace tree_attn
