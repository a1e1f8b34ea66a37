// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decode steps of the library kernel over a device cache, and what they share with other kernels (section 5.3,
/// Alg. 3).
#pragma once

#include "gpu/backend/cache.hpp"
#include "gpu/backend/device_steps.hpp"
#include "gpu/backend/kernel_stream.hpp"
#include "gpu/backend/leaf_lists.hpp"
#include "gpu/backend/shared_prefix.hpp"
#include "gpu/backend/step_input.hpp"
#include "gpu/engine/launch.hpp"
#include "reference/decode/session.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Plan that the steps of a range and a number of queries share: the parameters of their kernel, its launch, and memory.
struct StepPlan {
  const DeviceCache& cache;
  std::int64_t n_queries = 1;  ///< l
  KeyRange range{0, -1};       ///< of the keys that it is for
  LeafOrder order = LeafOrder::kContiguous;
  SeenRule rule{};
  double softcap = 0;               ///< 0: none
  bool q_on_device = false;         ///< whether the queries were given in device memory
  std::int64_t n_positions = 0;     ///< of an entry of the cache then
  std::vector<Subtree> subtrees{};  ///< of the range
  ListedParams params{};            ///< in the contiguous order the part that is DecodeParams
  LaunchPlan launch{};
  DeviceWorkspace workspace{};
  DeviceBuffer<float> states{};  ///< room for those of the subtrees
  SharedPrefix prefix{};         ///< which the parameters and the launch leave out

  const AttentionShape& shape() const { return cache.shape(); }
  std::int64_t n_rows() const { return shape().n_rows(n_queries); }
  /// Tests whether the kernel reads the leaves of a list: in the dealt order, in pages, and those that a sliding window
  /// leaves.
  bool is_listed() const { return order == LeafOrder::kDealt || rule.window > 0 || cache.pages() != nullptr; }
};

/// The kernel that decodes in a step.
class StepKernel {
 public:
  virtual ~StepKernel() = default;
  /// Tests whether there is anything to launch.
  virtual bool has_work(const StepPlan& plan) const = 0;
  /// Launch configuration of the kernel. @pre has_work()
  virtual LaunchPlan launch_of(const StepPlan& plan) const = 0;
  virtual void queue(const StepPlan& plan, Stream stream) = 0;
};

/// Steps over a device cache, whatever the kernel.
///
/// A step uploads the queries, the lengths and the position that was appended to each entry by one copy; a small kernel
/// stores that position where it belongs, and the kernel decodes. Of queries that are on the device it uploads no
/// element. All on a stream of its own, by DeviceStream::repeat(): from the second step of a plan on, a step is one launch
/// of a graph. What changes from step to step is read from device memory. The plan covers the capacity of the cache, so a
/// new one is made when the cache has grown. Steps of another number of queries have a graph of their own, over the same
/// memory: that is for the most queries of any step, and at least for those that it was opened for.
class StepRunner {
 public:
  /// @param cache, kernel outlive it
  /// @throws DeviceError if no kernel takes the shape, or the device has no memory
  StepRunner(const DeviceCache& cache, double scale, std::int64_t most_queries, StepKernel& kernel);
  ~StepRunner() { stream_.finish(); }

  const StepPlan& plan() const { return plan_; }
  KernelStream& stream() { return stream_; }
  bool has_work() const { return kernel_.has_work(plan_); }
  /// Plans for a range. Another range than the first is that of a shard of the ring, or of a cache that has grown: memory
  /// grows where it must, and all graphs are forgotten. @param most_queries of the steps to come, if more than before
  void plan_range(KeyRange range, std::int64_t most_queries = 1);
  /// Takes the memory for a step of l queries whose longest sequence has so many keys, if there is not enough.
  void prepare(std::int64_t l, std::int64_t longest);
  /// Plans for the queries of a step, and for what they see. @param has_end whether it goes on with something
  void prepare(const Step& step, bool has_end);
  /// Queues a step, after what the default stream did before. @param end what it goes on with; null: nothing
  void run(const Step& step, StepEnd* end, const std::function<void()>& progress);
  /// The launch configuration in one line.
  std::string describe() const;

 private:
  /// Writes what the step uploads: the queries as they are stored, the lengths, what was appended, the lists. @pre the step
  /// before is over
  void stage(const Step& step);
  void queue_step(StepEnd* end);
  /// The parts of plan_range(): what follows from the keys; the parameters and the launch of l queries.
  void plan_keys();
  void plan_queries(std::int64_t l);
  /// Takes the memory for steps of 1 to most_queries_ queries.
  void take_memory();
  /// The type of the queries, and bytes of an element.
  DType type_of_q() const { return query_type(params_of(plan_.shape(), 1, {}), plan_.shape().dtype); }
  std::int64_t size_of_q() const { return static_cast<std::int64_t>(bytes_of(type_of_q())); }

  StepPlan plan_;
  StepKernel& kernel_;
  double scale_;
  std::int64_t most_queries_;
  LeafLists lists_;                       ///< if there are any
  std::optional<StepInput> input_;        ///< for most_queries_
  DeviceBuffer<unsigned char> device_q_;  ///< queries that were on the device, of query_type()
  DeviceBuffer<float> head_scales_;       ///< DecodeParams::head_scales, if keys have scales
  std::vector<float> row_;
  KernelStream stream_;
};

/// The library kernel over a device cache. States stay on the device until host() asks for them. The default stream waits
/// for a step, and a step for what the default stream did before it.
class DeviceSession final : public DecodeSession, public DeviceSteps, public States, private StepKernel {
 public:
  /// @throws as StepRunner
  DeviceSession(const DeviceCache& cache, double scale, std::int64_t most_queries);

  Forest<float>& host() override;
  const float* device() const override { return steps_.plan().states.data(); }
  std::string describe() const override { return steps_.describe(); }

  DeviceStream& stream() override { return steps_.stream(); }
  void decode_to(StepEnd& end, const Step& step, const std::function<void()>& progress) override;
  void prepare(const Step& step) override;

 private:
  States& run(const Step& step, const std::function<void()>& progress) override;
  bool has_work(const StepPlan& plan) const override { return !plan.subtrees.empty() && plan.n_rows() > 0; }
  LaunchPlan launch_of(const StepPlan& plan) const override;
  void queue(const StepPlan& plan, Stream stream) override;

  StepRunner steps_;
  Forest<float> forest_;
  bool is_on_host_ = true;
  Event after_;  ///< on the stream of the steps
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
