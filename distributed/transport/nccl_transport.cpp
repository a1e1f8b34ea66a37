// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Groups of messages on a stream, and the wait for them.
#include "distributed/transport/nccl_transport.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace tree_attn {
namespace {

/// Tests whether NCCL sends by its low-latency protocol between nodes too.
bool has_low_latency_buffers() {
  const char* const value = std::getenv(kNcclLowLatencyVariable);
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

NcclTransport::NcclTransport(const Ranks& ranks, Topology topology, const DevicePlatform& platform,
                             std::string_view interface)
    : Transport(std::move(topology), ranks.rank()),
      communicator_(ranks, platform.is_emulated, interface),
      network_(ranks.all_min(std::uint64_t{has_low_latency_buffers()}) != 0 ? kNcclLowLatencyNetwork : kNcclNetwork),
      platform_(platform) {
  require(size() == ranks.size(), "NcclTransport: a topology of ", size(), " ranks for ", ranks.size());
  if (communicator_.library().has_windows()) network_.gather_us = kNcclGatherUs;
  communicator_.before_abort([this]() noexcept { drop_graphs(); });
}

void NcclTransport::queue_on(DeviceStream& stream) {
  stream_ = &stream;
  groups_.clear();
  stream.keep_marks(0);
  stream.mark();  // 0: what precedes the messages
}

void NcclTransport::finish_messages() {
  if (sends_.empty() && receives_.empty()) return;
  if (stream_ == nullptr) throw std::logic_error("NcclTransport: messages before queue_on()");
  const nccl::Functions& f = communicator_.functions();
  communicator_.group([&] {
    for (const auto& [bytes, from] : receives_)
      communicator_.check("ncclRecv", f.ncclRecv(bytes.data(), bytes.size(), nccl::Type::kInt8, from, communicator_.get(),
                                                 stream_->handle()));
    for (const auto& [bytes, to] : sends_)
      communicator_.check(
          "ncclSend", f.ncclSend(bytes.data(), bytes.size(), nccl::Type::kInt8, to, communicator_.get(), stream_->handle()));
  });
  Group group{stream_->mark(), {}};
  for (const Receive& each : receives_) {
    if (std::ranges::find(group.senders, each.from) == group.senders.end()) group.senders.push_back(each.from);
  }
  groups_.push_back(std::move(group));
  sends_.clear();
  receives_.clear();
}

std::unique_ptr<NcclWindow> NcclTransport::allocate_to_gather(std::size_t n_bytes) {
  return std::make_unique<NcclWindow>(communicator_, n_bytes);
}

template <class Queue>
void NcclTransport::queue_collective(const char* call, const Queue& queue) {
  if (stream_ == nullptr) throw std::logic_error("NcclTransport: a collective before queue_on()");
  communicator_.group([&] { communicator_.check(call, queue(communicator_.functions(), communicator_.get())); });
  Group group{stream_->mark(), {}};
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) group.senders.push_back(other);
  }
  groups_.push_back(std::move(group));
}

void NcclTransport::all_gather(std::span<const float> own, std::span<float> all) {
  if (own.empty()) return;
  queue_collective("ncclAllGather", [&](const nccl::Functions& f, nccl::Comm* comm) {
    return f.ncclAllGather(own.data(), all.data(), own.size(), nccl::Type::kFloat32, comm, stream_->handle());
  });
}

void NcclTransport::all_reduce(nccl::Operator op, std::span<float> elements) {
  if (elements.empty() || size() == 1) return;
  queue_collective("ncclAllReduce", [&](const nccl::Functions& f, nccl::Comm* comm) {
    return f.ncclAllReduce(elements.data(), elements.data(), elements.size(), nccl::Type::kFloat32, op, comm,
                           stream_->handle());
  });
}

void NcclTransport::settle(const Queued& queued) {
  if (queued.stream == nullptr) return;
  DeviceStream& stream = *queued.stream;
  try {
    // Own kernels are no wait for other ranks, so they have no deadline.
    for (; !stream.has_passed(0); std::this_thread::yield()) communicator_.poll();
    settled_from_ = seconds();
    for (const Group& group : queued.groups) await(stream, group.mark, text_of(group));
    // Events inside the graph show how far it has got; an event recorded now shows that the step is complete.
    const std::size_t end = stream.mark();
    await(stream, end, "the end of its step over NCCL");
    stream.keep_marks(end);
  } catch (...) {
    abandon();
    throw;
  }
}

void NcclTransport::await(DeviceStream& stream, std::size_t mark, const std::string& what) {
  communicator_.wait_until([&] { return stream.has_passed(mark); }, what);
}

std::string NcclTransport::text_of(const Group& group) {
  if (group.senders.empty()) return "its messages over NCCL to be received";
  std::string text = group.senders.size() == 1 ? "the message of rank" : "the messages of ranks";
  for (std::size_t i = 0; i < group.senders.size(); ++i)
    text += (i == 0 ? " " : i + 1 == group.senders.size() ? " and " : ", ") + std::to_string(group.senders[i]);
  return text + " over NCCL";
}

}  // namespace tree_attn
