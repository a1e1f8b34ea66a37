// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decode steps that end with the output of all devices of a node: one launch from the keys to it (section 5.3,
/// Alg. 3).
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include "gpu/types/device_error.hpp"
#include "gpu/types/window_handle.hpp"
#include "reference/decode/decode.hpp"
#include "reference/decode/kv_cache.hpp"
#include "reference/decode/step.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace tree_attn {

/// Location of a rank's window, sent to the other ranks, which store into the window. The address is for threads of its
/// process, the handle for other processes.
struct NodeWindow {
  std::uint64_t address = 0;
  std::int64_t process = 0;  ///< drawn at random, once for each
  std::int32_t device = 0, rank = 0;
  WindowHandle handle;
};

/// Most ranks that exchange, and most bytes of the states of one: beyond them two rounds, as of two-level, are faster.
inline constexpr int kMostOneShotRanks = 16;
inline constexpr std::int64_t kMostOneShotBytes = 128 * 1024;

/// Error that a step throws after give_up() of another rank; it has no cause of its own.
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
/// copy uploads the query, the lengths and what was appended, a small kernel stores the latter, one kernel decodes units,
/// one combines and exchanges them and finishes the rows, and the output is downloaded.
class OneShotSession {
 public:
  virtual ~OneShotSession() = default;
  /// Makes an empty window, laid out for these ranges, and counts steps from 1 again. The old window stays, since others
  /// close it in connect(); the one before it goes. A step lies between two calls, so all have closed that one.
  /// @param ranges of the ranks of the node in the tree, closed, neighbours touching @param me the index of this rank among
  /// them
  /// @param is_shared whether other ranks are processes of their own
  /// @param most_queries of the steps to come; fewer than before: as many as before
  /// @throws std::invalid_argument or std::out_of_range for other ranges or another index; DeviceError if there are more
  /// than kMostOneShotRanks ranks, the device has no memory, or the machine has no way to share it between processes
  virtual NodeWindow open_window(std::span<const KeyRange> ranges, int me, int rank, bool is_shared,
                                 std::int64_t most_queries = 1) = 0;
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
  /// Makes one step of at most most_queries queries, which DecodeSession::check() has passed; collective over the node.
  /// @returns z and lse, in host memory of the session, until the next step
  /// @throws std::logic_error before connect(); DeviceError if another rank has sent nothing for longer than the timeout:
  /// "rank 0, step 17: no states from rank 5, row 3, for 60 s"; PeerFailed after give_up() of another rank
  virtual OutputView step(const Step& step, const std::function<void()>& progress) = 0;
  /// Ends the waits of kernels of this rank, and of all ranks of this process that store into its window, within about a
  /// millisecond: to be called when this rank has failed. No step succeeds from then on before new windows are open.
  virtual void give_up() noexcept = 0;
  /// Bytes that the last step has stored into windows of other devices: counted by the emulator, worked out on a GPU.
  virtual std::int64_t bytes_sent() const = 0;
  /// The launch configuration in one line.
  virtual std::string describe() const = 0;
};

/// Bytes that one rank stores into the window of each other in a step. They are packets of 16 bytes, of which one has three
/// of the 2 + d_v floats of a state; a rank without positions stores one packet per row.
/// @param ranges of all ranks, closed, at most kMostOneShotRanks @param from an index among them
/// @throws std::invalid_argument for other ranges, or a negative size; std::out_of_range for another index
std::int64_t one_shot_bytes(std::span<const KeyRange> ranges, int from, std::int64_t n_rows, std::int64_t d_v);
/// Bytes of the window of every rank, for steps of up to so many rows. Arguments as one_shot_bytes()
std::int64_t one_shot_window_bytes(std::span<const KeyRange> ranges, std::int64_t n_rows, std::int64_t d_v);

/// Options of a session.
struct OneShotOptions {
  double timeout = 0;             ///< seconds that one wait of a kernel may take, at least 0; infinity for no limit
  unsigned steps_done = 0;        ///< steps that a new window counts as done, at most 2^32 - 4: tests begin before the wrap
  std::int64_t most_queries = 1;  ///< of a step, until open_window() is for more
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
