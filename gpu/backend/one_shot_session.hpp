// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decode steps that end with the output of all devices of a node, or with its states: one launch from the keys to
/// them (section 5.3, Alg. 3).
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include "tree_attn/gpu/backend/node_memory.hpp"
#include "tree_attn/gpu/platform/device_error.hpp"
#include "tree_attn/gpu/platform/window_handle.hpp"
#include "tree_attn/reference/decode/kv_cache.hpp"
#include "tree_attn/reference/decode/step.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace tree_attn {

/// What a rank tells the others: where its window is, which they store into. The address is for threads of its process, the
/// handle for other processes; a window that a library has mapped needs neither.
struct NodeWindow {
  std::uint64_t address = 0;
  std::int64_t process = 0;  ///< drawn at random, once for each
  std::int32_t device = 0, rank = 0;
  WindowHandle handle;
};

/// Most ranks of a node.
inline constexpr int kMostOneShotRanks = 16;

/// What a step leaves.
enum class OneShotResult {
  kOutput,         ///< z and lse, in host memory
  kStates,         ///< the states of the node's range, in host memory: those of other nodes are still to come
  kStatesOnDevice  ///< the same in device memory
};

/// What a step throws after give_up() of another rank: it says nothing of its own.
class PeerFailed : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// Decode steps of one rank over its cache, combined by the kernel that decodes; see gpu/engine/peers.hpp for the
/// protocol.
///
/// All ranks of the node make the same calls. open_window() and connect() come before the first step, and again whenever the
/// ranges have changed. Memory is taken and freed, and access to windows enabled, while no rank is in a step: on a GPU that
/// may wait for its kernels and those of its peers, and these for a rank that has not launched yet. A step is one graph: one
/// copy uploads the query, the lengths and what was appended, a small kernel stores the latter, one kernel runs from the
/// keys to the result, and the result is downloaded.
class OneShotSession {
 public:
  /// The result of a step, by OneShotOptions::result; in memory of the session, until the next step.
  struct Output {
    std::span<const float> out{};             ///< z, [b, n_h, l, d_v]
    std::span<const float> lse{};             ///< natural, [b, n_h, l]
    std::span<const float> states{};          ///< [subtrees of the node's range][b, n_h, l][2 + d_v]
    const float* states_on_device = nullptr;  ///< the same
  };

  virtual ~OneShotSession() = default;
  /// Makes an empty window, laid out for these ranges, and counts steps from 1 again. The old window stays, since others
  /// close it in connect(); the one before it goes. A step lies between two calls, so all have closed that one.
  /// @param ranges of the ranks of the node in the tree, closed, neighbours touching @param me the place of this rank among
  /// them
  /// @param is_shared whether other ranks are processes of their own
  /// @param memory in which the windows of the node lie, one_shot_window_bytes() each; null: in memory of the session
  /// @param most_queries of the steps to come; fewer than before: as many as before
  /// @throws std::invalid_argument or std::out_of_range for other ranges or another place; DeviceError if there are more
  /// than kMostOneShotRanks ranks, the device has no memory, or the machine has no way to share it between processes
  virtual NodeWindow open_window(std::span<const KeyRange> ranges, int me, int rank, bool is_shared,
                                 std::shared_ptr<NodeMemory> memory = nullptr, std::int64_t most_queries = 1) = 0;
  /// Lets the kernels of this rank reach the windows of the node. @param windows of its ranks, in the order of the ranges;
  /// each of them has opened its window, and stores into no older one any more
  /// @throws std::invalid_argument if there are not as many as ranges; std::logic_error before open_window(); DeviceError if
  /// a window cannot be reached, or is on the device of this rank and of the same process: their
  /// kernels would wait for each other, unless each has a DevicePart
  virtual void connect(std::span<const NodeWindow> windows) = 0;
  /// Takes the memory for steps whose longest sequence has so many keys, over a cache that has room for them.
  virtual void prepare(std::int64_t longest) = 0;
  /// Closes the windows of other processes. They may be freed once all ranks have.
  virtual void disconnect() = 0;
  /// One step of at most most_queries queries; collective over the node. Arguments as DecodeSession::decode(), which throws
  /// for others.
  /// @throws std::logic_error before connect(); DeviceError if another rank has sent nothing for longer than the timeout:
  /// "rank 0, step 17: no states from rank 5, row 3, for 60 s"; PeerFailed after give_up() of another rank
  virtual Output step(const Step& step, const std::function<void()>& progress) = 0;
  /// Ends the waits of kernels of this rank, and of all ranks of this process that store into its window, within about a
  /// millisecond: to be called when this rank has failed. No step succeeds from then on before new windows are open.
  virtual void give_up() noexcept = 0;
  /// Bytes that the last step has stored into windows of other devices: counted by the emulator, worked out on a GPU.
  virtual std::int64_t bytes_sent() const = 0;
  /// The launch configuration in one line.
  virtual std::string describe() const = 0;
};

/// Bytes that one rank stores into the window of another in a step.
struct StoredBytes {
  std::int64_t states = 0, rows = 0;  ///< first states; then finished rows or states of the node, if rows have owners
};
/// They are packets of 16 bytes, of which one has three of the 2 + d_v floats of a state, or of the 1 + d_v of a finished
/// row. A rank without positions stores one packet per row. See Peers for when rows have owners, and for how many packets
/// that makes.
/// @param ranges of the ranks of a node, closed, at most kMostOneShotRanks @param from, to places among them
/// @param leaves_states whether a step leaves states of the node and not finished rows
/// @throws std::invalid_argument for other ranges, or a negative size; std::out_of_range for another place
StoredBytes one_shot_bytes(std::span<const KeyRange> ranges, int from, int to, std::int64_t n_rows, std::int64_t d_v,
                           bool leaves_states = false);
/// Bytes of the window of every rank for steps of 1 to most_queries queries, each of so many rows. @throws as
/// one_shot_bytes()
std::int64_t one_shot_window_bytes(std::span<const KeyRange> ranges, std::int64_t rows_of_query, std::int64_t d_v,
                                   bool leaves_states = false, std::int64_t most_queries = 1);

/// What a session is opened with.
struct OneShotOptions {
  double timeout = 0;            ///< seconds that one wait of a kernel may take, at least 0; infinity for no limit
  bool windows_on_host = false;  ///< windows in pinned memory of the host, for devices that do not reach each other's memory
  unsigned steps_done = 0;       ///< steps that a new window counts as done, at most 2^32 - 4: tests begin before the wrap
  std::int64_t most_queries = 1;  ///< of a step, until open_window() is for more
  OneShotResult result = OneShotResult::kOutput;
};

namespace emulated {
/// @returns null if the cache is of another backend
std::unique_ptr<OneShotSession> open_one_shot(const KvCache& cache, double scale, const OneShotOptions& options);
}  // namespace emulated
namespace cuda {
std::unique_ptr<OneShotSession> open_one_shot(const KvCache& cache, double scale, const OneShotOptions& options);
}
/// On the backend of the cache. @returns null if that has no such kernels: the CPU, the model
/// @throws std::invalid_argument if its leaves are dealt
std::unique_ptr<OneShotSession> open_one_shot(const KvCache& cache, double scale, const OneShotOptions& options);

}  // namespace tree_attn
