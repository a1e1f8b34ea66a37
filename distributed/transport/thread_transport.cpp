// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Mailboxes, and the threads that use them.
#include "distributed/transport/thread_transport.hpp"

#include "reference/data/input_error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>

namespace tree_attn {
namespace {

constexpr const char* kNotReceived = "messages were sent that no rank received";

OtherRankFailed another_failed(int rank) {
  return OtherRankFailed("rank " + std::to_string(rank) + " gave up: another rank failed", rank);
}

/// Throws the error of one rank, with `who` before a text that names no rank. A TransportError, an InputError and a
/// std::logic_error stay as they are.
[[noreturn]] void rethrow(const std::exception_ptr& error, const std::string& who) {
  try {
    std::rethrow_exception(error);
  } catch (const TransportError&) {
    throw;
  } catch (const InputError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(who + ": not enough memory");
  } catch (const std::runtime_error& unnamed) {
    if (std::string_view(unnamed.what()).starts_with("rank ")) throw;
    throw std::runtime_error(who + ": " + unnamed.what());
  }
}

}  // namespace

ThreadNetwork::ThreadNetwork(int size, double timeout)
    : timeout_(timeout), n_computing_(size), mailboxes_(static_cast<std::size_t>(std::max(size, 0))) {
  require(size >= 1, "ThreadNetwork: ", size, " ranks");
  require_timeout("ThreadNetwork", timeout);
  constexpr std::size_t kChannels = 2, kMessages = 4;  // from one sender at a time: the ring has two
  for (Mailbox& mailbox : mailboxes_) {
    mailbox.queues.resize(kChannels * mailboxes_.size());
    for (auto& queue : mailbox.queues) queue.reserve(kMessages);
  }
}

void ThreadNetwork::put(Channel channel, int from, int to, std::span<const std::byte> message) {
  Mailbox& sender = mailbox(from);
  {
    const std::lock_guard lock(sender.mutex);
    ++sender.n_offered;
  }
  Mailbox& receiver = mailbox(to);
  std::unique_lock lock(receiver.mutex);
  queue(receiver, channel, from).push_back(message);
  receiver.changed.notify_one();
  if (!receiver.left || channel == Channel::kRanks) return;
  lock.unlock();
  withdraw(from);
  throw std::logic_error(kNotReceived);
}

void ThreadNetwork::take(Channel channel, int from, const ThreadDeadline& to, std::span<std::byte> message,
                         std::string_view what) {
  Mailbox& receiver = mailbox(to.rank());
  std::unique_lock lock(receiver.mutex);
  std::vector<std::span<const std::byte>>& messages = queue(receiver, channel, from);
  wait(
      to, from, lock, [&] { return !messages.empty(); },
      [&] {
        const std::string name = "rank " + std::to_string(from);
        return what.ends_with(name) ? std::string(what) : std::string(what) + " of " + name;
      });
  if (const std::size_t got = messages.front().size(); got != message.size()) {
    lock.unlock();
    withdraw(to.rank());
    throw another_length(to.rank(), message.size(), from, got);
  }
  std::ranges::copy(messages.front(), message.begin());
  messages.erase(messages.begin());
  lock.unlock();

  Mailbox& sender = mailbox(from);
  const std::lock_guard sender_lock(sender.mutex);
  if (--sender.n_offered == 0) sender.changed.notify_one();
}

void ThreadNetwork::flush(const ThreadDeadline& from) {
  Mailbox& sender = mailbox(from.rank());
  std::unique_lock lock(sender.mutex);
  wait(
      from, -1, lock, [&] { return sender.n_offered == 0; }, [] { return std::string("its messages to be received"); });
}

template <class Condition, class What>
void ThreadNetwork::wait(const ThreadDeadline& own, int peer, std::unique_lock<std::mutex>& lock, const Condition& condition,
                         const What& what) {
  // Computing counts as answering: the time of a wait starts again whenever some rank computes.
  constexpr double kBetweenChecks = 0.05;
  const auto check_after = std::chrono::duration<double>(std::min(timeout_, kBetweenChecks));
  Mailbox& box = mailbox(own.rank());
  --n_computing_;
  bool woken = false;
  for (auto since = std::chrono::steady_clock::now();;) {
    woken = box.changed.wait_for(lock, check_after, [&] { return condition() || box.closed; });
    const auto now = std::chrono::steady_clock::now();
    if (woken) break;
    if (n_computing_ > 0) since = now;
    if (now - since >= std::chrono::duration<double>(timeout_)) break;
  }
  ++n_computing_;
  if (condition()) return;
  lock.unlock();
  withdraw(own.rank());
  if (woken) throw another_failed(own.rank());
  throw gave_up(own.rank(), timeout_, "for " + what(), own.activity(), peer);
}

void ThreadNetwork::withdraw(int rank) {
  for (Mailbox& receiver : mailboxes_) {
    const std::lock_guard lock(receiver.mutex);
    for (const Channel channel : {Channel::kTransport, Channel::kRanks}) queue(receiver, channel, rank).clear();
  }
  Mailbox& sender = mailbox(rank);
  const std::lock_guard lock(sender.mutex);
  sender.n_offered = 0;
}

void ThreadNetwork::leave(int rank) {
  Mailbox& own = mailbox(rank);
  const std::lock_guard lock(own.mutex);
  own.left = true;
  --n_computing_;
  for (int from = 0; from < static_cast<int>(mailboxes_.size()); ++from) {
    if (!queue(own, Channel::kTransport, from).empty()) throw std::logic_error(kNotReceived);
  }
}

void ThreadNetwork::close() {
  for (Mailbox& each : mailboxes_) {
    const std::lock_guard lock(each.mutex);
    each.closed = true;
    each.changed.notify_one();
  }
}

void ThreadDeadline::begin_wait(std::string_view phrase) {
  Deadline::begin_wait(phrase);
  --network_.n_computing_;
}

void ThreadDeadline::end_wait() {
  ++network_.n_computing_;
  Deadline::end_wait();
}

void ThreadDeadline::poll(const FindPending& find) {
  if (!is_waiting()) return;
  ThreadNetwork::Mailbox& own = network_.mailbox(rank());
  const std::lock_guard lock(own.mutex);
  if (own.closed) throw another_failed(rank());
  // Computing counts as answering.
  if (network_.n_computing_ > 0) progress();
  Deadline::poll(find);
}

void ThreadRanks::barrier() const { all_gather({}, {}, "the arrival"); }

void ThreadRanks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  check();
  require(all.size() == static_cast<std::size_t>(size()) * mine.size(), "ThreadRanks::all_gather: ", all.size(),
          " bytes for ", mine.size(), " of each of ", size(), " ranks");
  for (int to = 0; to < size(); ++to) network_.put(ThreadNetwork::Channel::kRanks, rank(), to, mine);
  for (int from = 0; from < size(); ++from)
    network_.take(ThreadNetwork::Channel::kRanks, from, deadline_,
                  all.subspan(static_cast<std::size_t>(from) * mine.size(), mine.size()), what);
  network_.flush(deadline_);
}

void ThreadRanks::broadcast(std::span<std::byte> bytes, int root, std::string_view what) const {
  check();
  require<std::out_of_range>(root >= 0 && root < size(), "ThreadRanks::broadcast: rank ", root, " of ", size());
  if (rank() != root) return network_.take(ThreadNetwork::Channel::kRanks, root, deadline_, bytes, what);
  for (int to = 0; to < size(); ++to) {
    if (to != root) network_.put(ThreadNetwork::Channel::kRanks, root, to, bytes);
  }
  network_.flush(deadline_);
}

std::unique_ptr<Transport> ThreadRanks::open_transport(Topology topology) const {
  require(topology.size() == size(), "ThreadRanks::open_transport: a topology of ", topology.size(), " ranks for ", size());
  return std::make_unique<ThreadTransport>(*this, std::move(topology));
}

std::vector<int> ThreadRanks::find_nodes() const {
  std::vector<int> nodes;
  for (int each = 0; each < size(); ++each) nodes.push_back(topology_.node_of(each));
  return nodes;
}

void ThreadTransport::finish_messages() {
  try {
    for (const Send& send : sends_) network_.put(ThreadNetwork::Channel::kTransport, rank(), send.to, send.bytes);
    for (const Receive& receive : receives_)
      network_.take(ThreadNetwork::Channel::kTransport, receive.from, ranks_.deadline(), receive.bytes, "a message");
    network_.flush(ranks_.deadline());
  } catch (...) {
    abandon();
    throw;
  }
  sends_.clear();
  receives_.clear();
}

void ThreadTransport::start_receive(std::span<std::byte> bytes, int from) {
  // All ones are a NaN in every element type.
  std::memset(bytes.data(), 0xFF, bytes.size());
  receives_.push_back({bytes, from});
}

void run_threads(const Topology& topology, double timeout, const ThreadBody& body) {
  ThreadNetwork network(topology.size(), timeout);
  std::mutex mutex;
  std::exception_ptr first;
  int first_rank = 0;
  bool first_follows = false;
  // A rank whose kernel waited for the one that failed may come here before it.
  const auto end_all = [&](int rank, bool follows = false) {
    const std::lock_guard lock(mutex);
    if (!first || (first_follows && !follows)) first = std::current_exception(), first_rank = rank, first_follows = follows;
    network.close();
  };
  int n_started = 0;
  {
    std::vector<std::jthread> threads;
    try {
      for (; n_started < topology.size(); ++n_started) {
        threads.emplace_back([&, rank = n_started] {
          try {
            const ThreadRanks ranks(network, topology, rank);
            ThreadTransport transport(ranks, topology);
            body(ranks, transport);
            if (transport.in_flight() > 0)
              throw std::logic_error("rank " + std::to_string(rank) + " ended with messages in flight");
            network.leave(rank);
          } catch (const OtherRankFailed&) {
            end_all(rank, true);
          } catch (...) {
            end_all(rank);
          }
        });
      }
    } catch (...) {
      end_all(n_started);
    }
  }
  if (!first) return;
  const std::string who = "rank " + std::to_string(first_rank);
  rethrow(first, first_rank < n_started ? who : who + ": the system started no thread for it");
}

}  // namespace tree_attn
