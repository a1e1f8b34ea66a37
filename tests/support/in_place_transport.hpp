// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between threads that stay where they have arrived, for tests of what reads them there.
#pragma once

#include "tree_attn/distributed/transport/thread_transport.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn::test {

/// Leaves messages that may stay where they have arrived in memory of their own, which is NaN after release(). To receive
/// again from their sender before release() is a std::logic_error.
class InPlaceTransport : public Transport {
 public:
  explicit InPlaceTransport(ThreadTransport& inner) : Transport(inner.topology(), inner.rank()), inner_(inner) {}
  std::string_view name() const override { return inner_.name(); }
  const Network& network() const override { return inner_.network(); }
  const Ranks& ranks() const override { return inner_.ranks(); }
  void progress() override {}
  void release() override {
    for (; n_in_use_ > 0; --n_in_use_) std::ranges::fill(arrived_[n_in_use_ - 1].memory, std::byte{0xFF});
  }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { inner_.send(bytes, to); }
  void start_receive(std::span<std::byte> bytes, int from) override {
    const auto in_use = std::span(arrived_).first(n_in_use_);
    if (std::ranges::find(in_use, from, &Message::from) != in_use.end())
      throw std::logic_error("InPlaceTransport: receives from rank " + std::to_string(from) + " before release()");
    inner_.receive(bytes, from);
  }
  void start_receive_in_place(std::span<std::byte> bytes, int from, const std::byte*& at) override {
    if (n_in_use_ == arrived_.size()) arrived_.emplace_back();
    std::vector<std::byte>& memory = arrived_[n_in_use_].memory;
    memory.resize(std::max(memory.size(), bytes.size()));
    start_receive(std::span(memory).first(bytes.size()), from);
    std::memset(bytes.data(), 0xFF, bytes.size());  // a NaN in every element type
    at = memory.data();
    arrived_[n_in_use_++].from = from;
  }
  void finish_messages() override { inner_.wait(); }

 private:
  struct Message {
    std::vector<std::byte> memory;
    int from = 0;
  };
  Transport& inner_;
  std::vector<Message> arrived_;
  std::size_t n_in_use_ = 0;
};

}  // namespace tree_attn::test
