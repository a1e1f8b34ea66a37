// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Collectives of ranks by one callback that gathers.
#include "distributed/transport/callback_ranks.hpp"

#include "distributed/transport/callback_shared_transport.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace tree_attn {

CallbackRanks::CallbackRanks(std::unique_ptr<Callbacks> callbacks, int rank, int size, double timeout)
    : Ranks(rank, size, ", and its group is not used again: open another object on a new group"),
      callbacks_(std::move(callbacks)),
      deadline_(rank, timeout) {}

void CallbackRanks::fail(const char* why) const {
  give_up();
  std::throw_with_nested(TransportError(TransportError::Kind::kCallback,
                                        "rank " + std::to_string(rank()) + ": a callback has failed: " + why, rank()));
}

void CallbackRanks::await(std::span<Callbacks::Request> requests, std::string_view what,
                          const Deadline::FindPending& find) const {
  const auto are_complete = [&] { return std::ranges::count(requests, Callbacks::kComplete) == std::ssize(requests); };
  if (are_complete()) return;
  const Waiting waiting(deadline_, "for " + std::string(what));
  guard([&] { callbacks_->wait(requests, deadline_.seconds()); });
  if (are_complete()) return;
  give_up();
  deadline_.miss(find);
}

void CallbackRanks::barrier() const { all_gather(std::byte{}, "all ranks to arrive"); }

/// The memory of a gather that is not complete is never freed: the group may still write there.
void CallbackRanks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  check();
  if (size() == 1 || mine.empty()) {
    std::ranges::copy(mine, all.begin());
    return;
  }
  const std::size_t n = mine.size(), n_all = n * static_cast<std::size_t>(size());
  auto memory = std::make_unique_for_overwrite<std::byte[]>(n + n_all);
  const std::span own(memory.get(), n), gathered(memory.get() + n, n_all);
  std::ranges::copy(mine, own.begin());
  try {
    Callbacks::Request request = start([&](Callbacks& callbacks) { return callbacks.start_all_gather(own, gathered); });
    await({&request, 1}, what);
  } catch (...) {
    static_cast<void>(memory.release());
    throw;
  }
  std::ranges::copy(gathered, all.begin());
}

void CallbackRanks::broadcast(std::span<std::byte> bytes, int root, std::string_view what) const {
  require<std::out_of_range>(root >= 0 && root < size(), "CallbackRanks::broadcast: rank ", root, " of ", size());
  std::vector<std::byte> all(bytes.size() * static_cast<std::size_t>(size()));
  all_gather(bytes, all, what);
  std::ranges::copy(std::span(all).subspan(bytes.size() * static_cast<std::size_t>(root), bytes.size()), bytes.begin());
}

std::unique_ptr<Transport> CallbackRanks::open_transport(Topology topology) const {
  return std::make_unique<CallbackTransport>(*this, std::move(topology));
}

std::unique_ptr<Transport> CallbackRanks::open_shared_transport(Topology topology) const {
  return std::make_unique<CallbackSharedTransport>(*this, std::move(topology));
}

std::vector<int> CallbackRanks::find_nodes() const {
  const std::vector<std::uint64_t> hosts = all_gather(host_number(), "the nodes of all ranks");
  std::vector<int> nodes;
  for (const std::uint64_t host : hosts) nodes.push_back(static_cast<int>(std::ranges::find(hosts, host) - hosts.begin()));
  return nodes;
}

}  // namespace tree_attn
