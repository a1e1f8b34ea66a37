// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The session of the one-shot kernel: windows, the table of peers, one graph per step.
#include "gpu/backend/one_shot_session.hpp"

#include "gpu/backend/session.hpp"
#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/one_shot.cuh"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// A number of this process alone: its id may be that of another, in another container.
std::int64_t this_process() {
  static const std::int64_t drawn = [] {
    std::random_device draw;
    return std::int64_t{draw()} << 32 | draw();
  }();
  return drawn;
}

/// The window of a rank. One that others of the same process store into lives until the last of them has let go of it, also
/// if its rank fails.
class Window {
 public:
  explicit Window(std::int64_t n) : packets_(n, MemoryUse::Window) {
    packets_.fill(0);
    synchronise(Stream{});
  }
  /// Lets others of this process find it.
  static std::shared_ptr<Window> open(std::int64_t n) {
    auto window = std::make_shared<Window>(n);
    const std::lock_guard lock(mutex());
    of_process()[window->address()] = window;
    return window;
  }
  /// Null if it has ended. @param address of another rank of this process
  static std::shared_ptr<Window> find(std::uint64_t address) {
    const std::lock_guard lock(mutex());
    const auto found = of_process().find(address);
    return found == of_process().end() ? nullptr : found->second.lock();
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() {
    const std::lock_guard lock(mutex());
    of_process().erase(address());
  }

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(packets_.data()); }
  std::int64_t size() const { return packets_.size(); }
  WindowHandle handle() const { return packets_.handle(); }
  /// Ends the waits of the kernels that receive here. From any host thread.
  void fail() noexcept { failed_.store(1); }
  const unsigned* failed() const { return failed_.on_device(); }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<std::uint64_t, std::weak_ptr<Window>>& of_process() {
    static std::map<std::uint64_t, std::weak_ptr<Window>> windows;
    return windows;
  }

  DeviceBuffer<Packet> packets_;
  HostWord failed_;
};

class DeviceOneShot final : public OneShotSession, private StepKernel {
 public:
  DeviceOneShot(const DeviceCache& cache, double scale, const OneShotOptions& options)
      : cache_(cache),
        timeout_(options.timeout),
        first_(options.steps_done),
        most_queries_(std::max<std::int64_t>(1, options.most_queries)),
        gave_up_(1, MemoryUse::Window),
        host_gave_up_(1),
        steps_(cache, scale, options.most_queries, *this) {
    require(cache.leaves().order() == LeafOrder::kContiguous,
            "open_one_shot: its kernels read leaves in the contiguous order");
    require(cache.pages() == nullptr, "open_one_shot: its kernels read rows one after the other, but the cache is in pages");
    require(options.timeout >= 0, "open_one_shot: a timeout of ", options.timeout, " s");
    constexpr unsigned kMostDone = std::numeric_limits<unsigned>::max() - 3;
    require(options.steps_done <= kMostDone, "open_one_shot: ", options.steps_done, " steps done; at most ", kMostDone);
  }
  ~DeviceOneShot() override { steps_.stream().finish(); }

  NodeWindow open_window(std::span<const KeyRange> ranges, int me, int rank, bool is_shared,
                         std::int64_t most_queries) override {
    if (ranges.size() > kMaxPeers)
      throw DeviceError("one-shot: " + std::to_string(ranges.size()) + " ranks; at most " + std::to_string(kMaxPeers));
    require_neighbours("OneShotSession::open_window", ranges);
    // Units count leaves in 32 bits.
    if (ranges.back().end > (kMostWorkItems << kLeafLevel))
      throw DeviceError("one-shot: position " + std::to_string(ranges.back().end) + ": more than 2^38 - 64");
    require<std::out_of_range>(me >= 0 && me < std::ssize(ranges), "OneShotSession::open_window: index ", me, " among ",
                               ranges.size(), " ranks");
    const KeyRange held = cache_.leaves().range();
    require(ranges[static_cast<std::size_t>(me)].begin == held.begin, "OneShotSession::open_window: range ", me,
            " begins at ", ranges[static_cast<std::size_t>(me)].begin, ", but its cache at ", held.begin);
    const AttentionShape& shape = cache_.shape();
    most_queries_ = std::max(most_queries_, most_queries);
    peers_ = Peers::of(ranges, me, shape.n_rows(most_queries_), shape.value_dim);
    peers_.gave_up = gave_up_.data();
    if (std::isfinite(timeout_)) peers_.limit_ns = static_cast<std::uint64_t>(std::clamp(1e9 * timeout_, 1.0, 0x1p62));
    steps_.plan_range(peers_.range[me], most_queries_);

    // Nothing of this rank is under way, and no other rank knows the new window.
    synchronise(steps_.stream());
    gave_up_.fill(0), n_before_ = n_steps_;
    take_memory();
    plan_queries(1);
    next_.reset();
    next_ = Window::open(peers_.n_window());
    const bool has_handle = is_shared && next_->size() > 0;
    return {next_->address(), this_process(), current_device(), rank, has_handle ? next_->handle() : WindowHandle{}};
  }

  void connect(std::span<const NodeWindow> windows) override {
    if (next_ == nullptr) throw std::logic_error("OneShotSession::connect: no window is open");
    require(std::ssize(windows) == peers_.n, "OneShotSession::connect: ", windows.size(), " windows of ", peers_.n,
            " ranks");
    const NodeWindow& own = windows[static_cast<std::size_t>(peers_.me)];
    std::vector<OpenedWindow> opened;
    std::vector<std::shared_ptr<Window>> held;
    ranks_.clear();
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const NodeWindow& other = windows[i];
      ranks_.push_back(other.rank);
      peers_.window[i] = reinterpret_cast<Packet*>(other.address);
      if (other.rank == own.rank || next_->size() == 0) continue;
      const std::size_t n_bytes = static_cast<std::size_t>(next_->size()) * sizeof(Packet);
      const std::string who = "one-shot: ranks " + std::to_string(own.rank) + " and " + std::to_string(other.rank);
      try {
        const bool is_same = other.process == own.process && other.device == own.device;
        if (is_same && DevicePart::n_multiprocessors() == 0)
          throw DeviceError("both on device " + std::to_string(own.device));
        if (other.process != own.process) {
          peers_.window[i] = static_cast<Packet*>(opened.emplace_back(other.handle, n_bytes).data());
        } else {
          if (held.emplace_back(Window::find(other.address)) == nullptr) throw DeviceError("its window has ended");
          if (!is_same) enable_peer_access(other.device);
        }
      } catch (const DeviceError& error) {
        throw DeviceError(who + ": " + error.what());
      }
    }
    std::swap(own_, next_);
    opened_ = std::move(opened), held_ = std::move(held);
    peers_.failed = own_->failed();
  }
  void prepare(std::int64_t longest) override { steps_.prepare(most_queries_, longest); }
  void disconnect() override {
    steps_.stream().finish();
    opened_.clear(), held_.clear();
  }
  void give_up() noexcept override {
    if (own_ != nullptr) own_->fail();
    for (const std::shared_ptr<Window>& window : held_) window->fail();
  }

  OutputView step(const Step& step, const std::function<void()>& progress) override {
    if (own_ == nullptr) throw std::logic_error("OneShotSession::step: no windows are connected");
    const std::optional<std::int64_t> before = bytes_to_peers();
    require(step.q.shape[2] <= most_queries_, "OneShotSession::step: ", step.q.shape[2], " queries, but windows for ",
            most_queries_);
    if (step.q.shape[2] != l_) plan_queries(step.q.shape[2]);
    steps_.run(step, nullptr, progress);
    synchronise(steps_.stream());
    if (const GaveUp& wait = *host_gave_up_.data(); steps_.has_work() && wait.n > 0) {
      std::ostringstream line;
      line << "rank " << ranks_[static_cast<std::size_t>(peers_.me)] << ", step " << n_before_ + (wait.step - first_);
      if (wait.peer_failed != 0) throw PeerFailed(line.str() + ", gave up: another rank failed");
      line << ": no states from rank " << ranks_[wait.source] << ", row " << wait.row << ", for " << timeout_ << " s";
      throw DeviceError(line.str());
    }
    ++n_steps_;
    bytes_sent_ = before ? *bytes_to_peers() - *before : bytes_of_step();
    const std::span<const float> all = host_result_->elements();
    return {.out = all.first(static_cast<std::size_t>(n_out())),
            .lse = all.subspan(static_cast<std::size_t>(n_out()), static_cast<std::size_t>(peers_.n_rows))};
  }

  std::int64_t bytes_sent() const override { return bytes_sent_; }
  std::string describe() const override { return steps_.describe() + ", one launch for all devices"; }

 private:
  /// Takes the memory for the output and the counters. Nothing is under way.
  void take_memory() {
    const std::int64_t n_rows = cache_.shape().n_rows(most_queries_), n = n_rows * (cache_.shape().value_dim + 1);
    if (n_rows > counters_.size()) counters_ = DeviceBuffer<unsigned>(n_rows, MemoryUse::Window);
    if (host_result_ && n == result_.size()) return;
    result_ = DeviceBuffer<float>(n);
    host_result_.emplace(n);
  }
  /// Begins steps of l queries: the next one has one number for all rows. Nothing is under way.
  void plan_queries(std::int64_t l) {
    peers_.n_rows = cache_.shape().n_rows(l), peers_.steps = counters_.data(), l_ = l;
    counters_.upload(std::vector<unsigned>(static_cast<std::size_t>(counters_.size()),
                                           first_ + static_cast<unsigned>(n_steps_ - n_before_)));
  }
  /// Floats of z.
  std::int64_t n_out() const { return peers_.n_rows * cache_.shape().value_dim; }
  std::int64_t bytes_of_step() const { return (peers_.n - 1) * peers_.n_sent() * static_cast<std::int64_t>(sizeof(Packet)); }
  bool has_work(const StepPlan& plan) const override { return plan.n_rows() > 0; }
  LaunchPlan launch_of(const StepPlan& plan) const override {
    return plan_equal_runs<DecodeParams>(plan.params, plan.shape().dtype, {});
  }
  void queue(const StepPlan& plan, Stream stream) override {
    run_one_shot(plan.params, plan.shape().dtype, peers_, {.out = result_.data(), .lse = result_.data() + n_out()},
                 plan.launch, plan.workspace.get(), stream);
    result_.queue_download(stream, {host_result_->data(), static_cast<std::size_t>(n_out() + peers_.n_rows)});
    gave_up_.queue_download(stream, {host_gave_up_.data(), 1});
  }

  const DeviceCache& cache_;
  double timeout_;
  unsigned first_;                                ///< steps that count as done in a new window
  std::int64_t most_queries_, l_ = 1;             ///< of the steps that there is memory for, and of the one at hand
  DeviceBuffer<float> result_;                    ///< z [n_rows, d_v], then lse [n_rows]
  std::optional<HostBuffer<float>> host_result_;  ///< the same
  DeviceBuffer<unsigned> counters_;               ///< of steps, one per row
  DeviceBuffer<GaveUp> gave_up_;
  HostBuffer<GaveUp> host_gave_up_;
  std::shared_ptr<Window> own_, next_;         ///< in use; before connect() the next one, afterwards the one before
  std::vector<OpenedWindow> opened_;           ///< of other processes
  std::vector<std::shared_ptr<Window>> held_;  ///< of other ranks of this process
  Peers peers_;
  std::vector<int> ranks_;  ///< in the order of the ranges
  std::int64_t bytes_sent_ = 0;
  std::int64_t n_steps_ = 0, n_before_ = 0;  ///< steps done, and those before the window was opened
  StepRunner steps_;
};

}  // namespace

std::unique_ptr<OneShotSession> open_one_shot(const KvCache& cache, double scale, const OneShotOptions& options) {
  const auto* const own = dynamic_cast<const DeviceCache*>(&cache);
  return own == nullptr ? nullptr : std::make_unique<DeviceOneShot>(*own, scale, options);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
