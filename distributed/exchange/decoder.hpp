// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Algorithms that decode with sharded keys and values, and the decoder that each of them opens (sections 5 and 6).
///
/// An algorithm is one file of this folder: its plan, or a decoder of its own, and what is known about it. decoder.cpp lists
/// all algorithms.
#pragma once

#include "distributed/exchange/open_shard.hpp"
#include "distributed/exchange/plan.hpp"
#include "distributed/exchange/plan_options.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/data/workload.hpp"
#include "reference/decode/decode.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace tree_attn {

/// Decode steps of one rank over one shard, by one algorithm. Algorithm::open() makes one.
///
/// A step has any number of queries. The blocks of states, the buffers of messages and the output live as long as the
/// decoder, and grow with the most queries of any step; a step of up to OpenShard::most_queries takes no memory for them.
/// Plans are kept for the last four numbers of queries. On the CPU backend step() allocates nothing from the second step of
/// such a number on, but for lists of shared pages, and of subtrees where the ring passes a shard that no query sees.
class Decoder {
 public:
  /// Gives up the messages of a step that is under way, unless start() has taken the whole of it: other ranks may have
  /// posted rounds that this one has not.
  virtual ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Decodes one step; collective over the ranks of the transport.
  /// @param step the same on every rank; of the mask a rank reads the elements of its own keys. The ranks compare the
  ///   number, type and memory of queries, the rule, the learned sinks, the soft cap, the kind of the mask and the part
  ///   where one has changed; or all of these, and the lengths, in every step, see Algorithm::open_agreed()
  /// @param refusal of the caller, for ranks that compare every step: all of them throw it
  /// @param part of the output; of kHeads in host memory alone
  /// @returns the output, valid until the next step @throws as DecodeSession::decode(); std::out_of_range also for a length
  ///   beyond the ranges of all ranks; where ranks compare every step, all throw InputError instead, in one line, whichever
  ///   rank refuses its arguments; InputError if ranks differ, or the decoder has no kernel for a rule; TransportError
  OutputView step(const Step& step, const std::optional<std::string>& refusal = {}, OutputPart part = OutputPart::kAll);
  /// Begins a step, as far as it goes without waiting: computes the states of this rank and posts the first messages. The
  /// step is read before it returns. A decoder that has no plan, or sends from device memory, takes the whole step here, as
  /// all do for q on a device.
  /// @throws as step(); std::logic_error if a step is under way
  void start(const Step& step, const std::optional<std::string>& refusal = {}, OutputPart part = OutputPart::kAll);
  /// Moves the step that has been started, without waiting: merges what has arrived and posts the next messages.
  /// @returns whether nothing is left to wait for @throws as step()
  bool progress();
  /// Ends the step that has been started. @returns as step() @throws as step(); std::logic_error if none is under way
  OutputView finish();
  bool is_under_way() const { return is_started_; }  ///< whether a step has been started and not finished
  /// When the last step had the states of this rank's own shard where they are merged, as Transport::seconds().
  double states_ready() const { return states_ready_; }
  /// Windows into which kernels have stored: opened by "ipc", of this "process"; or none.
  virtual std::string_view windows() const { return ""; }
  virtual bool takes_device_queries() const { return false; }  ///< from device memory, where the output then is too
  /// Throws std::invalid_argument unless a step can leave this part of the output.
  void check_part(OutputPart part) const;

 protected:
  /// Both outlive the decoder.
  Decoder(Transport& transport, OpenShard& shard);
  /// The part of step() and start() that needs no other rank, and memory for the rest, before the ranks compare the step: a
  /// rank without memory tells the others by that. Called again after a step that was refused.
  virtual void begin(const Step&) {}
  /// Carries out a whole step, after begin(); all checks have passed.
  virtual OutputView run(const Step& step) = 0;
  /// Implement start(), progress() and finish(), of which a step consists: by default start() carries it out as a whole.
  /// @returns whether it has; then the others are not called
  virtual bool run_start(const Step& step) {
    output_ = run(step);
    return true;
  }
  virtual bool run_progress() { return true; }
  virtual OutputView run_finish() { return output_; }
  /// The states of this rank's own shard, on the host; messages in flight advance meanwhile. They may be used up.
  Forest<float>& decode_own_shard(const Step& step);
  void set_states_ready(double seconds) { states_ready_ = seconds; }
  /// Tests whether there is a plan for the output by heads.
  virtual bool has_heads() const { return false; }
  OutputPart part() const { return part_; }  ///< of the output of the step
  /// The learned sink of every row; empty: none.
  std::span<const float> sinks_of_rows(const Step& step);

  Transport& transport_;
  OpenShard& shard_;
  std::function<void()> progress_;  ///< lets messages advance

 private:
  friend struct Algorithm;
  void check(const Step& step) const;
  void reserve(std::int64_t l);  ///< memory for the output of l queries, where it is scaled
  /// Checks a step, and compares it over all ranks.
  void agree(const Step& step, std::optional<std::string> refusal, OutputPart part);
  void require_started(const char* function, bool started) const;
  /// An output on the host times the scales of the values.
  OutputView scaled(const OutputView& output);

  OutputView output_;                           ///< of a step that start() has taken whole
  std::vector<float> scaled_;                   ///< z of the last step times scales
  bool is_started_ = false, is_whole_ = false;  ///< whether a step is under way, and start() has taken the whole of it
  OutputPart part_ = OutputPart::kAll;
  double states_ready_ = 0;
  std::uint64_t agreed_ = 0;           ///< hash of what ranks have compared of the step before
  std::vector<float> of_rows_;         ///< learned sinks of the step, of all rows
  std::int64_t most_keys_ = kOpenEnd;  ///< where the ranges of all ranks end: set by Algorithm::open_agreed(), as the next
  bool compares_steps_ = false;        ///< whether ranks compare every step
};

/// Terms that an algorithm adds to the error model of the backend (error_bound.hpp).
struct ExchangeRounding {
  /// Error of a weight exp(lse - m), in units of u, for each unit of the largest |lse|: that of its lse.
  double weight_error_per_lse = 0;
  double additions_per_rank = 0;   ///< additions for each rank
  double additions_per_level = 0;  ///< for each level of the tree: 1 if the subtrees of a rank are folded into one state
  double rescalings = 0;           ///< rescalings that are not by a power of two
  bool operator==(const ExchangeRounding&) const = default;
};

/// Writes the plan of one rank. @param ranges positions of every rank, in the order of the topology
/// @param options the same on every rank, with the shape of the states
using PlanOf = Plan (*)(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options);

/// The radix that plans for these options have. @param ranges, options as PlanOf
using RadixOf = int (*)(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options);

/// An algorithm that moves more than states, and therefore has a decoder of its own instead of a plan.
struct OwnDecoder {
  std::unique_ptr<Decoder> (*open)(Transport&, OpenShard&, std::span<const KeyRange> ranges, const PlanOptions& options);
  RankCost (*cost)(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape,
                   const PlanOptions& options);
};

/// Why an algorithm cannot combine these shards, in a few words; empty if it can. The same on every rank.
/// @param backend null, for a prediction: any that has the kernels
/// @param ranges as Algorithm::open() @param shape as the cache stores it
using RefusalOf = std::string (*)(const Topology& topology, const Backend* backend, std::span<const KeyRange> ranges,
                                  const WorkloadShape& shape);

/// A way of combining shards. Every rank ends with the same output.
struct Algorithm {
  std::string_view name;
  std::string_view brief;
  bool takes_dealt = true;  ///< whether it takes the dealt order of leaves
  bool keeps_bits = true;   ///< whether the output bits are the same for every number of ranks, shards, nodes and batch
  ExchangeRounding rounding = {};
  int kv_shards_in_flight = 0;  ///< shards of other ranks that a rank holds at once
  std::variant<PlanOf, OwnDecoder> exchange;
  PlanOf heads = nullptr;       ///< the plan of OutputPart::kHeads; nullptr: it has none
  RadixOf radix = nullptr;      ///< nullptr: the plan has no radix
  RefusalOf refusal = nullptr;  ///< nullptr: it takes any nodes, and all that the backend takes

  /// Prepares decode steps: writes the plan of this rank and takes the memory for it. Collective: all ranks open the same
  /// algorithm, with the same shape, scale, order of leaves, ranges and options, and tell each other so; see DecoderSetup.
  /// @param transport, shard outlive the decoder
  /// @param ranges range of every rank in the tree, in the order of the topology; neighbours touch, some may be empty, and
  /// the last may be open: then the plan is written anew when the longest sequence has doubled, see closed(). Those with
  /// keys begin at multiples of kLeafKeys
  /// @param options of the plan
  /// @throws InputError on every rank if two ranks differ; std::invalid_argument unless the ranges are such ranges, one per
  ///   rank, from position 0 on (in the dealt order up to the last slot), that of this rank is the one of its cache, and a
  ///   radix is 0 or at least 2; TransportError
  std::unique_ptr<Decoder> open(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                const PlanOptions& options = {}) const;
  /// open() of ranks that have compared all that, and called check_ranges().
  /// @param compares_steps whether ranks compare every step, by a reduction of 16 bytes
  std::unique_ptr<Decoder> open_agreed(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                       const PlanOptions& options, bool compares_steps) const;
  /// Throws std::invalid_argument unless the ranges are those of n ranks, the algorithm takes the order of leaves, and a
  /// plan can be written for the options. @param function that begins the line
  void check_ranges(const char* function, int n_ranks, std::span<const KeyRange> ranges, LeafOrder order,
                    const PlanOptions& options) const;
  /// The radix of its plans; 0 if they have none. @param ranges, options as PlanOf
  int radix_of(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) const {
    return radix == nullptr ? 0 : radix(topology, ranges, options);
  }
  /// Cost of a step for one rank: the data that it sends and holds. @throws as open(); std::invalid_argument also if a
  /// sequence is longer than the ranges, and for a part that it does not leave; std::logic_error if `refusal` names a reason
  /// @param part of the output; by heads, its queries are not counted, see QueriesByHeads
  RankCost cost(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape,
                const PlanOptions& options = {}, OutputPart part = OutputPart::kAll) const;
};

/// All algorithms, in the order of the docs. The kernels of the last one, one-shot, exchange states themselves:
/// Algorithm::refusal says what it does not take.
std::span<const Algorithm> all_algorithms();
/// The algorithms whose ranks exchange messages: all but that one. They take every backend and any nodes.
std::span<const Algorithm> algorithms();
/// The algorithm of that name. @throws InputError if the name is unknown; the message lists the known ones
const Algorithm& find_algorithm(std::string_view name);

}  // namespace tree_attn
