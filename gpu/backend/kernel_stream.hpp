// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A stream for kernels and a library, and the graphs of the steps on it (section 5.3).
#pragma once

#include "gpu/backend/device_stream.hpp"
#include "gpu/platform/launch.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// See DeviceStream.
class KernelStream final : public DeviceStream {
 public:
  KernelStream() = default;
  ~KernelStream() override { finish(); }
  operator Stream() const { return stream_; }
  /// Waits for what is queued, where nothing may be thrown.
  void finish() noexcept { stream_.finish(); }

  void* handle() override { return for_library_.handle(); }
  void follow_default() override { follow(nullptr); }
  void follow(void* other) override {
    before_.record(LibraryStream::of(other));
    before_.hold(stream_);
  }
  void lead(void* other) override {
    before_.record(stream_);
    before_.hold(LibraryStream::of(other));
  }
  bool is_captured(void* other) const override { return LibraryStream::is_captured(other); }
  void wait() override { synchronise(stream_); }
  std::size_t mark() override {
    if (n_marks_ == marks_.size()) marks_.push_back(std::make_unique<Event>());
    Event& event = *marks_[n_marks_];
    if (is_recording_)
      event.record_in_graph(stream_);
    else
      event.record(stream_);
    return n_marks_++;
  }
  bool has_passed(std::size_t mark) override { return marks_.at(mark)->has_passed(); }
  void keep_marks(std::size_t n) override { n_marks_ = std::min(n, n_marks_); }

  void choose(std::uint64_t graph) override {
    const auto known = std::ranges::find(kept_, graph, &Kept::number);
    if (known != kept_.end())
      std::rotate(kept_.begin(), known, known + 1);
    else
      kept_.insert(kept_.begin(), {.number = graph});
    if (kept_.size() > kMostKept) kept_.pop_back();
  }
  void repeat(const std::function<void()>& queue, bool may_record) override {
    if (kept_.front().n_repeats == 0 || !may_record) {
      queue();
      kept_.front().n_repeats = 1;
      return;
    }
    if (kept_.front().n_repeats == 1) record(queue);
    kept_.front().graph.replay(stream_);
    kept_.front().n_repeats = 2;
  }
  void forget() noexcept override {
    if (is_recording_) drop_capture(stream_);
    for (Kept& each : kept_) each.graph = Graph(), each.n_repeats = 0;
  }
  bool is_new() const override { return kept_.front().n_repeats == 0; }

 private:
  static constexpr std::size_t kMostKept = 4;
  struct Kept {
    std::uint64_t number = 0;
    int n_repeats = 0;  ///< since forget(): 0, 1, or 2 and more
    Graph graph{};
  };
  void record(const std::function<void()>& queue) {
    is_recording_ = true;
    const std::unique_ptr<bool, void (*)(bool*)> until_end(&is_recording_, [](bool* flag) { *flag = false; });
    kept_.front().graph = Graph(stream_, queue);
  }

  OwnedStream stream_;
  LibraryStream for_library_{stream_};
  Event before_;
  std::vector<std::unique_ptr<Event>> marks_;  ///< kept for later marks
  std::size_t n_marks_ = 0;
  bool is_recording_ = false;
  std::vector<Kept> kept_ = std::vector<Kept>(1);  ///< the one that was chosen last first
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
