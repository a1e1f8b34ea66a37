// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A decode session, which holds everything that does not change from step to step, and the states of one step
/// (sections 5 and 6).
#pragma once

#include "reference/decode/step.hpp"
#include "reference/state/forest.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace tree_attn {

class KvCache;

/// States of the maximal subtrees of a cache's range, [subtrees][n_rows][2 + d_v], in host or device memory.
class States {
 public:
  virtual ~States() = default;
  /// The states on the host. The first call after a step downloads them if they were computed on a device. The caller may
  /// consume the forest; the next step fills it again.
  virtual Forest<float>& host() = 0;
  /// The states on the device, in the order of the subtrees, left to right; null if they were computed on the host. Valid
  /// until the next step.
  virtual const float* device() const = 0;
};

/// Decode steps on one cache, each of any number of queries. The session holds workspace, plan and memory for queries and
/// states: a step copies no key, and allocates nothing unless the cache has grown, or it has more queries, or sees more
/// millions of keys, than steps before.
class DecodeSession {
 public:
  virtual ~DecodeSession() = default;
  DecodeSession(const DecodeSession&) = delete;
  DecodeSession& operator=(const DecodeSession&) = delete;

  /// The states of the positions that the cache holds, for every query. One read of keys and values serves the query
  /// rows of a group: all of them on the CPU, up to 32 on tensor cores, one on scalar cores.
  ///
  /// Row (i, h, j) of the states is (i n_h + h) l + j. Positions that a query does not see are not read and count as the
  /// empty set. The subtrees are those of the range of the cache, which is closed() if it is open.
  /// @param progress called from time to time to advance messages; may be empty
  /// @throws std::invalid_argument for other axes, a q without data, or if a query sees keys whose pages were given back
  /// @throws std::out_of_range if a length is negative, or the cache does not hold all positions of its range below it
  /// @paper{eq_7, eq. (7)}
  States& decode(const Step& step, const std::function<void()>& progress = {});
  /// decode() of a step that check() has passed.
  States& decode_checked(const Step& step, const std::function<void()>& progress);
  /// Throws what decode() throws for these arguments.
  void check(const Step& step) const;

  /// Factor of q.k.
  double scale() const { return scale_; }

  virtual std::int64_t bytes_read() const { return -1; }  ///< of keys and values by the last step; -1: not counted
  /// The launch configuration in one line; empty if there is none.
  virtual std::string describe() const = 0;

 protected:
  /// @throws std::invalid_argument for a scale that is not finite
  DecodeSession(const KvCache& cache, double scale, std::int64_t most_queries);
  virtual States& run(const Step& step, const std::function<void()>& progress) = 0;

 private:
  const KvCache& cache_;
  double scale_;
};

}  // namespace tree_attn
