// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Mailboxes in a file that the lowest rank of a node makes, and removes when all have mapped it.
#include "distributed/transport/callback_shared_transport.hpp"

#include "reference/data/fnv1a.hpp"
#include "reference/data/input_error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tree_attn {
namespace {

/// A file that is removed at the end, if this rank has made it.
struct File {
  int descriptor = -1;
  std::string made{};
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) close(descriptor);
    if (!made.empty()) unlink(made.c_str());
  }
};

constexpr std::string_view kWithout =
    "send without shared memory: shares_memory = false, in C no_shared_memory = 1, in Python shared_memory=False";

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

/// Makes a file with memory for so many bytes. @returns why it cannot be
std::optional<std::string> make_file(File& file, const std::string& folder, std::size_t n_bytes, std::size_t n_ranks) {
  struct statvfs room {};
  const std::uint64_t free =
      statvfs(folder.c_str(), &room) == 0 ? std::uint64_t{room.f_bavail} * room.f_frsize : std::uint64_t{n_bytes};
  int status = free < n_bytes ? ENOSPC : 0;
  std::string path = folder + "/tree_attn-XXXXXX";
  if (status == 0) {
    file.descriptor = mkostemp(path.data(), O_CLOEXEC);
    if (file.descriptor < 0) return error_text(path);
    file.made = path;
    // Pages that are not there at the first store would end the process.
    do status = posix_fallocate(file.descriptor, 0, static_cast<off_t>(n_bytes));
    while (status == EINTR);
  }
  errno = status;
  if (status == 0) return {};
  if (status != ENOSPC) return error_text(path);
  return line_of("shared memory: the ", n_ranks, " ranks of a node need ", n_bytes, " bytes, and ", folder, " has ", free,
                 "; give it more, or ", kWithout);
}

}  // namespace

CallbackSharedTransport::CallbackSharedTransport(const CallbackRanks& ranks, Topology of, const std::string& folder)
    : CallbackTransport(ranks, std::move(of)), mail_(ranks.rank(), ranks.size()) {
  using Mailbox = Mailboxes::Mailbox;
  // Ranks of one number share memory; 0: with none.
  const std::uint64_t place = number_of(folder), host = CallbackRanks::host_number();
  const auto keys = ranks.all_gather(std::array{host, place}, "all ranks to open shared memory");
  std::vector<int> members;
  for (int each = 0; each < size(); ++each)
    if (place != 0 && keys[static_cast<std::size_t>(each)] == keys[static_cast<std::size_t>(rank())] &&
        topology().node_of(each) == topology().node_of(rank()))
      members.push_back(each);
  const std::size_t n = members.size(), n_bytes = n * (n - std::min<std::size_t>(n, 1)) * sizeof(Mailbox);
  const bool shares = n > 1, makes = shares && members.front() == rank();

  File file;
  ranks.throw_if_any_failed(makes ? make_file(file, folder, n_bytes, n) : std::nullopt);
  std::array<char, 256> path{};
  file.made.copy(path.data(), path.size() - 1);
  const auto paths = ranks.all_gather(path, "the memory of all nodes");
  std::optional<std::string> error;
  if (shares) {
    const std::string there = paths[static_cast<std::size_t>(members.front())].data();
    if (!makes) file.descriptor = open(there.c_str(), O_RDWR | O_CLOEXEC);
    void* const mapped =
        file.descriptor < 0 ? MAP_FAILED : mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
    if (mapped == MAP_FAILED)
      error = error_text(there);
    else
      memory_ = {static_cast<std::byte*>(mapped), [n_bytes](std::byte* memory) { munmap(memory, n_bytes); }};
  }
  // Each rank has a mailbox for each other one, in their order.
  const auto mailbox = [&](std::size_t receiver, std::size_t sender) {
    return reinterpret_cast<Mailbox*>(memory_.get()) + receiver * (n - 1) + sender - (sender > receiver);
  };
  const auto own = static_cast<std::size_t>(std::ranges::find(members, rank()) - members.begin());
  for (std::size_t i = 0; memory_ != nullptr && i < n; ++i) {
    if (i == own) continue;
    mail_.add(members[i], mailbox(i, own), new (mailbox(own, i)) Mailbox);
  }
  ranks.throw_if_any_failed(error);  // and all mailboxes are made
}

CallbackSharedTransport::~CallbackSharedTransport() {
  if (!mail_.is_empty()) ranks().give_up();
}

void CallbackSharedTransport::start_send(std::span<const std::byte> bytes, int to) {
  check();
  if (!mail_.send(bytes, to)) CallbackTransport::start_send(bytes, to);
}

void CallbackSharedTransport::start_receive(std::span<std::byte> bytes, int from) {
  check();
  if (!mail_.receive(bytes, from)) CallbackTransport::start_receive(bytes, from);
}

bool CallbackSharedTransport::advance() {
  try {
    return mail_.advance();
  } catch (...) {
    ranks().give_up();
    throw;
  }
}

bool CallbackSharedTransport::have_arrived() {
  check();
  return advance() && !CallbackTransport::has_messages_in_flight();
}

/// First inside the node: what the others of it have sent does not depend on their waits for callbacks, as all messages of
/// a wait are started before it.
void CallbackSharedTransport::finish_messages() {
  check();
  constexpr int kPolls = 32;
  const auto is_done = [this] {
    for (int i = 0; i < kPolls; ++i)
      if (advance()) return true;
    return false;
  };
  if (!is_done()) {
    const Waiting waiting(ranks().deadline(), "for a message");
    const auto find = [this] {
      std::vector<int> senders, receivers;
      mail_.add_pending(true, senders), mail_.add_pending(false, receivers);
      return Deadline::Pending{senders.empty() ? receivers : senders, senders.empty()};
    };
    try {
      for (std::size_t n = mail_.n_left(); !is_done();) {
        // Ranks may outnumber cores: yield to the rank that this one waits for.
        std::this_thread::yield();
        if (const std::size_t now = mail_.n_left(); now < n) waiting.progress(), n = now;
        ranks().deadline().poll(find);
      }
    } catch (...) {
      ranks().give_up();
      throw;
    }
  }
  CallbackTransport::finish_messages();
}

}  // namespace tree_attn
