// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Mailboxes in a shared window of MPI.
#include "distributed/transport/shared_transport.hpp"

#include "reference/data/input_error.hpp"
#include "reference/state/require.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

namespace tree_attn {

namespace {

constexpr std::size_t kCacheLine = 64;  // of the cache: each side writes lines of its own
constexpr std::size_t kPage = 4096;     // the memory of each rank begins a page

/// The core of the receiver still has the lines of a buffer, and a store takes each from it. On a Zen 4 a store to every
/// line and then the copy are faster than the copy alone, and requests for the lines gain nothing.
void copy_to_buffer(std::span<const std::byte> bytes, std::byte* buffer) {
  for (std::size_t i = 0; i < bytes.size(); i += kCacheLine)
    std::atomic_ref(buffer[i]).store(std::byte{}, std::memory_order_relaxed);
  std::memcpy(buffer, bytes.data(), bytes.size());
}

}  // namespace

/// One direction between two ranks. The memory belongs to the receiver.
struct SharedTransport::Mailbox {
  alignas(kCacheLine) std::atomic<std::uint64_t> sent{0};     ///< parts, by the sender
  alignas(kCacheLine) std::atomic<std::uint64_t> taken{0};    ///< parts, by the receiver
  alignas(kCacheLine) std::uint64_t message_bytes[kBuffers];  ///< of the whole message
  alignas(kCacheLine) std::byte buffers[kBuffers][kPartBytes];

  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would be in the memory of one process");
};

/// State of a rank, which it sets at the end.
enum class SharedTransport::State { kOpen, kClosed, kGaveUp };

/// The memory of a rank: this, and its mailboxes, one per sender.
struct SharedTransport::Inbox {
  alignas(kCacheLine) std::atomic<State> state{State::kOpen};
};

SharedTransport::SharedTransport(const MpiRanks& ranks, Topology topology)
    : MpiTransport(ranks, std::move(topology)), to_(static_cast<std::size_t>(size())), from_(to_.size()) {
  advance_ = [this] { return advance(); };
  // How many messages are under way at a time depends on the other ranks; a step should allocate nothing all the same.
  constexpr std::size_t kMessagesPerRank = 4;
  sends_.reserve(kMessagesPerRank * to_.size());
  receives_.reserve(kMessagesPerRank * to_.size());
  try {
    open_window();
  } catch (const TransportError& failed) {
    // No agreement with the other ranks: they may wait in the call that has failed here.
    throw TransportError(failed.kind,
                         std::string("--transport shared: no memory that the ranks of a node share: ") + failed.what(),
                         failed.rank, failed.peer, failed.code);
  }
}

void SharedTransport::require_room(std::size_t n_bytes, int n_ranks) {
  const char* const named = std::getenv("OMPI_MCA_osc_sm_backing_directory");
  const std::string folder = named != nullptr ? named : "/dev/shm";
  std::optional<std::string> error;
  if (struct statvfs room{}; n_bytes > 0 && statvfs(folder.c_str(), &room) == 0) {
    const std::uint64_t free = std::uint64_t{room.f_bavail} * room.f_frsize;
    if (free < n_bytes)
      error =
          line_of("--transport shared: the ", n_ranks, " ranks of a node need ", n_bytes, " bytes of shared memory, and ",
                  folder, " has ", free, "; give it more, or send over MPI (--transport mpi, shares_memory = false)");
  }
  try {
    ranks().throw_if_any_failed(error);
  } catch (const InputError&) {
    const BlockingCall call(ranks().deadline(), "MPI_Comm_free");
    MPI_Comm_free(&node_);
    throw;
  }
}

void SharedTransport::open_window() {
  node_ = ranks().split_by_node();
  const std::vector<int> ranks_of_node = ranks().ranks_of(node_);
  const int n = static_cast<int>(ranks_of_node.size());
  int own = 0;
  check_mpi(MPI_Comm_rank(node_, &own), "MPI_Comm_rank");

  // Room to begin at a line of the cache.
  static_assert(sizeof(Inbox) % alignof(Mailbox) == 0 && alignof(Inbox) == alignof(Mailbox));
  // Give mailboxes to the other ranks of this node of the topology alone.
  const auto is_peer = [&](int i, int j) {
    const auto node_of = [&](int of) { return topology().node_of(ranks_of_node[static_cast<std::size_t>(of)]); };
    return i != j && node_of(i) == node_of(j);
  };
  const auto mailboxes_before = [&](int i, int sender) {
    int number = 0;
    for (int j = 0; j < sender; ++j) number += is_peer(i, j);
    return number;
  };
  const auto n_used_of = [&](int i) {
    return sizeof(Inbox) + static_cast<std::size_t>(mailboxes_before(i, n)) * sizeof(Mailbox);
  };
  require_room(
      [&] {
        std::size_t bytes = 0;
        for (int i = 0; n > 1 && i < n; ++i) bytes += n_used_of(i) + kPage;
        return bytes;
      }(),
      n);
  const MPI_Aint n_bytes = static_cast<MPI_Aint>(n_used_of(own) + alignof(Inbox));
  void* memory = nullptr;
  {
    const BlockingCall call(ranks().deadline(), "MPI_Win_allocate_shared");
    check_mpi(MPI_Win_allocate_shared(n_bytes, 1, MPI_INFO_NULL, node_, static_cast<void*>(&memory), &window_),
              "MPI_Win_allocate_shared");
  }
  const auto inbox_of = [&](int i) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* first = nullptr;
    check_mpi(MPI_Win_shared_query(window_, i, &bytes, &unit, static_cast<void*>(&first)), "MPI_Win_shared_query");
    std::size_t room = static_cast<std::size_t>(bytes);
    return static_cast<Inbox*>(std::align(alignof(Inbox), n_used_of(i), first, room));
  };
  const auto mailboxes_of = [&](int i) { return reinterpret_cast<Mailbox*>(inbox_of(i) + 1); };
  own_inbox_ = new (inbox_of(own)) Inbox;
  Mailbox* const mailboxes = mailboxes_of(own);
  for (int i = 0; i < mailboxes_before(own, n); ++i) new (mailboxes + i) Mailbox;
  for (int i = 0; i < n; ++i) {
    inboxes_.push_back(inbox_of(i));
    const int peer = ranks_of_node[static_cast<std::size_t>(i)];
    if (!is_peer(own, i)) continue;
    to_[static_cast<std::size_t>(peer)] = mailboxes_of(i) + mailboxes_before(i, own);
    from_[static_cast<std::size_t>(peer)] = mailboxes + mailboxes_before(own, i);
  }
  ranks().meet(node_);
}

SharedTransport::~SharedTransport() {
  if (!MpiRanks::is_running()) return;
  if (SharedTransport::has_messages_in_flight()) ranks().give_up();
  own_inbox_->state = ranks().can_meet() ? State::kClosed : State::kGaveUp;
  if (!ranks().can_meet()) return;
  // The calls below block until all ranks of the node have come, and do not end if one has given up.
  try {
    ranks().await({}, "the ranks of the node to close their mailboxes", {}, [this] {
      return std::ranges::none_of(inboxes_, [](const Inbox* inbox) { return inbox->state == State::kOpen; });
    });
  } catch (const TransportError&) {
    return;
  }
  if (std::ranges::any_of(inboxes_, [](const Inbox* inbox) { return inbox->state == State::kGaveUp; })) {
    ranks().give_up();
    return;
  }
  const BlockingCall call(ranks().deadline(), "MPI_Win_free");
  MPI_Win_free(&window_);
  MPI_Comm_free(&node_);
}

bool SharedTransport::has_messages_in_flight() const {
  return !sends_.empty() || !receives_.empty() || MpiTransport::has_messages_in_flight();
}

std::vector<int> SharedTransport::pending(bool is_received) const {
  std::vector<int> peers = MpiTransport::pending(is_received);
  const auto add = [&](const auto& messages) {
    for (const auto& message : messages) peers.push_back(message.peer);
  };
  is_received ? add(receives_) : add(sends_);
  return peers;
}

SharedTransport::Mailbox* SharedTransport::mailbox(const std::vector<Mailbox*>& of_ranks, int peer,
                                                   std::size_t n_bytes) const {
  return n_bytes <= kMaxBytes ? of_ranks[static_cast<std::size_t>(peer)] : nullptr;
}

void SharedTransport::start_send(std::span<const std::byte> bytes, int to) {
  check();
  Mailbox* const box = mailbox(to_, to, bytes.size());
  if (box == nullptr) return MpiTransport::start_send(bytes, to);
  sends_.push_back({bytes, bytes.size(), to, box});
  advance();
}

void SharedTransport::start_receive(std::span<std::byte> bytes, int from) {
  check();
  Mailbox* const box = mailbox(from_, from, bytes.size());
  if (box == nullptr) return MpiTransport::start_receive(bytes, from);
  receives_.push_back({bytes, bytes.size(), from, box});
}

bool SharedTransport::put(Message<const std::byte>& message) const {
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

bool SharedTransport::take(Message<std::byte>& message) {
  Mailbox& box = *message.mailbox;
  const std::uint64_t taken = box.taken.load(std::memory_order_relaxed), first = taken % kBuffers;
  if (box.sent.load(std::memory_order_acquire) == taken) return false;
  if (box.message_bytes[first] != message.n_bytes)
    throw another_length(rank(), message.n_bytes, message.peer, box.message_bytes[first]);
  const std::size_t n = std::min(message.rest.size(), kPartBytes);
  std::memcpy(message.rest.data(), box.buffers[first], n);
  box.taken.store(taken + 1, std::memory_order_release);
  message.rest = message.rest.subspan(n);
  return true;
}

template <class Byte, class Move>
void SharedTransport::move_all(std::vector<Message<Byte>>& messages, const Move& move) {
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

bool SharedTransport::advance() {
  move_all(receives_, [this](auto& message) { return take(message); });
  move_all(sends_, [this](auto& message) { return put(message); });
  return sends_.empty() && receives_.empty();
}

}  // namespace tree_attn
