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
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

namespace tree_attn {

namespace {

constexpr std::size_t kCacheLine = Mailboxes::kCacheLine;
constexpr std::size_t kPage = 4096;  // the memory of each rank begins a page

}  // namespace

/// State of a rank, which it sets at the end.
enum class SharedTransport::State { kOpen, kClosed, kGaveUp };

/// The memory of a rank: this, and its mailboxes, one per sender.
struct SharedTransport::Inbox {
  alignas(kCacheLine) std::atomic<State> state{State::kOpen};
};

SharedTransport::SharedTransport(const MpiRanks& ranks, Topology topology)
    : MpiTransport(ranks, std::move(topology)), mail_(ranks.rank(), ranks.size()) {
  advance_ = [this] { return mail_.advance(); };
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
    mail_.add(peer, mailboxes_of(i) + mailboxes_before(i, own), mailboxes + mailboxes_before(own, i));
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

bool SharedTransport::has_messages_in_flight() const { return !mail_.is_empty() || MpiTransport::has_messages_in_flight(); }

std::vector<int> SharedTransport::pending(bool is_received) const {
  std::vector<int> peers = MpiTransport::pending(is_received);
  mail_.add_pending(is_received, peers);
  return peers;
}

void SharedTransport::start_send(std::span<const std::byte> bytes, int to) {
  check();
  if (!mail_.send(bytes, to)) MpiTransport::start_send(bytes, to);
}

void SharedTransport::start_receive(std::span<std::byte> bytes, int from) {
  check();
  if (!mail_.receive(bytes, from)) MpiTransport::start_receive(bytes, from);
}

}  // namespace tree_attn
