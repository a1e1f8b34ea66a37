// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Functions of C that carry messages, as Callbacks.
#pragma once

#include "distributed/interface/tree_attn.h"
#include "distributed/transport/callback_ranks.hpp"
#include "distributed/transport/messages.hpp"
#include "reference/state/require.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tree_attn {

/// Callbacks that are the functions of a ta_comm.
class CCallbacks : public Callbacks {
 public:
  explicit CCallbacks(const ta_comm& comm) : comm_(comm) {}
  Request start_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return started("all_gather", comm_.all_gather, mine.data(), std::ssize(mine), all.data());
  }
  Request start_send(std::span<const std::byte> bytes, int to) override {
    return started("post_send", comm_.post_send, bytes.data(), std::ssize(bytes), to);
  }
  Request start_receive(std::span<std::byte> bytes, int from) override {
    return started("post_receive", comm_.post_receive, bytes.data(), std::ssize(bytes), from);
  }
  void wait(std::span<Request> requests, double seconds) override {
    check("wait", comm_.wait(comm_.context, std::ssize(requests), requests.data(), seconds));
  }

 private:
  template <class Function, class... Arguments>
  Request started(const char* name, Function* function, Arguments... arguments) const {
    Request request = kComplete;
    check(name, function(comm_.context, arguments..., &request));
    return request;
  }
  static void check(const char* name, int status) {
    if (status != 0) throw std::runtime_error(std::string(name) + " of ta_comm has returned " + std::to_string(status));
  }
  ta_comm comm_;
};

/// Throws std::invalid_argument for functions that are not there, which no other rank can be told.
inline void require_comm(const ta_comm& comm) {
  constexpr std::int64_t kSize = sizeof(ta_comm);
  require(comm.struct_size == kSize, "callbacks have a size of ", comm.struct_size,
          " bytes, but a ta_comm of this library has ", kSize);
  require(comm.all_gather != nullptr && comm.post_send != nullptr && comm.post_receive != nullptr && comm.wait != nullptr,
          "a function of callbacks is null");
}

/// Returns the Messages of a ta_comm: those of the objects that are open over the same functions and context, else new ones.
/// Ranks that have given up refuse all further work, as long as one of these objects lives. @param timeout of new ranks
/// @throws as CallbackRanks
inline std::shared_ptr<Messages> messages_of(const ta_comm& comm, double timeout) {
  static std::mutex mutex;
  static std::vector<std::pair<ta_comm, std::weak_ptr<Messages>>> all;
  const auto key = [](const ta_comm& of) {
    return std::tuple(of.rank, of.size, of.context, of.all_gather, of.post_send, of.post_receive, of.wait);
  };
  const std::scoped_lock lock(mutex);
  std::erase_if(all, [](const auto& each) { return each.second.expired(); });
  for (const auto& [of, messages] : all)
    if (auto found = messages.lock(); found && key(of) == key(comm)) return found;
  auto ranks = std::make_unique<const CallbackRanks>(std::make_unique<CCallbacks>(comm), comm.rank, comm.size, timeout);
  auto messages = std::make_shared<Messages>(std::move(ranks));
  all.emplace_back(comm, messages);
  return messages;
}

}  // namespace tree_attn
