// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One class for programs that have keys, values and queries: attention over a growing cache, alone or over ranks
/// (sections 5 and 6).
///
/// It holds a Ranks, a Transport, an OpenShard and a Decoder, which programs with other needs use themselves.
#pragma once

#include "tree_attn/distributed/decoders/combiner.hpp"
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/distributed/transport/ranks.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// How an Attention is opened: the same on every rank, but for the threads.
struct AttentionSetup {
  std::string algorithm = "two-level";  ///< find_algorithm()
  std::string backend = "cpu";          ///< find_backend()
  int n_threads = 1;                    ///< of this rank on the CPU
  std::optional<double> scale{};        ///< factor of q.k; 1/sqrt(d_h) by default
  /// Which rank holds what. Empty: leaves of 64 keys are dealt to the ranks as the sequences grow. Otherwise a range of
  /// positions for each rank, in the order of the topology; the last one may end at kOpenEnd.
  std::vector<KeyRange> ranges{};
  int ranks_per_node = 0;      ///< 0: ranks that share memory form a node
  bool shares_memory = false;  ///< whether the ranks of a node exchange through shared memory
  /// Whether each step compares the lengths of all ranks, and what queries see, by a reduction of 16 bytes: ranks that
  /// have appended other numbers of keys would return attention over different sequences.
  bool compares_lengths = true;
  /// The pages of each rank, for all sequences; 0: rows lie one after the other. Over several ranks append() then waits for
  /// the others where a sequence begins a leaf, and with ranges or after share() always: if one rank has too few pages, no
  /// rank appends.
  PageRule pages{};
  KvScales scales{};   ///< of keys and values of F8_E4M3, which append() also takes in other types
  PlanOptions plan{};  ///< its network is that of the transport
};

/// Attention over keys and values that grow, for one rank of several or alone.
///
/// All ranks make the same calls in the same order; the constructor, step(), start(), finish(), combine(), and in pages
/// append(), wait for the others. Every rank returns the same output, and with an algorithm that keeps its bits the same as
/// any other number of ranks.
///
/// With a backend of a device, "cuda" or "emulated", tensors may lie in the memory of that device: TensorView::on_device.
/// Then nothing is copied between host and device but a few integers for each sequence, its length and what lists its
/// leaves; over several ranks also the states that a transport sends from host memory, see DeviceFabric. What was queued on
/// the default stream before a call is seen, and append() queues there; step() and combine() have written their output when
/// they return.
///
/// Threads: one at a time uses an object. Two objects in two threads do not disturb each other; over MPI that needs
/// MPI_THREAD_MULTIPLE.
class Attention {
 public:
  /// Alone, without messages.
  /// @throws InputError for names that find_algorithm() or find_backend() refuse; std::invalid_argument for
  ///   what Backend::refusal() names, and as the constructors of the cache and KvCache::set_scales()
  explicit Attention(const AttentionShape& shape, const AttentionSetup& setup = {});
  /// One rank of several, which outlive this object: MpiRanks, or the ThreadRanks of run_threads().
  /// @throws InputError on every rank if two ranks differ, as Algorithm::open(); TransportError
  Attention(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup = {});
  /// The same with ranks of its own.
  Attention(std::unique_ptr<const Ranks> ranks, const AttentionShape& shape, const AttentionSetup& setup = {});
  ~Attention();

  /// Appends the next n positions of a sequence. Every rank passes the same n; it keeps those positions that it holds and
  /// reads no others, so on a rank that holds none of them the data of both views may be null.
  /// @param entry batch entry
  /// @param k [1, n_kv, n, d_h] @param v [1, n_kv, n, d_v], each on the host or the device
  /// @throws as KvCache::append(), before anything is appended; std::invalid_argument also for null data of a position that
  ///   this rank holds; std::out_of_range beyond the ranges, and on every rank if one has too few pages
  void append(std::int64_t entry, const TensorView& k, const TensorView& v);
  /// Removes all positions of a sequence except the first n. @throws std::out_of_range unless 0 <= n <= its length, and in
  /// pages of a window if position n would follow keys that may have been given back
  void truncate(std::int64_t entry, std::int64_t n);
  /// Lets a sequence without keys begin with the first n positions of another one, in the same pages, which a step reads
  /// once for both on the CPU. @throws std::logic_error without pages; std::out_of_range as truncate(), or if the sequence
  /// has keys
  void share(std::int64_t from, std::int64_t to, std::int64_t n);
  /// Ends a sequence; the next append() begins another in its place. Its memory is kept, its pages go back to the pool.
  void release(std::int64_t entry) { truncate(entry, 0); }
  /// Keys of each sequence [b], over all ranks.
  std::span<const std::int64_t> lengths() const { return lengths_; }
  /// Whether this rank holds the key of a position. @throws std::out_of_range for a negative position
  bool holds(std::int64_t position) const;

  /// Attention of the queries over all keys. Collective.
  /// @param q [b, n_h, l, d_h], the same on every rank
  /// @param rule which of the keys a query sees, by default all @param sink learned natural logits [n_h]; empty: none
  /// @returns out and lse, valid until the next call, on the device if q is there, which ring, one-shot and learned sinks
  ///   refuse
  /// @throws InputError on every rank if two ranks have other lengths; std::invalid_argument for other axes, and on every
  ///   rank for keys that pages may have given back; TransportError
  OutputView step(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {});
  /// Computes the states of this rank and posts the first messages, so that the program can compute something else while
  /// they travel. The arguments of step(); the queries are read before it returns; with q on a device, and where
  /// Decoder::start() says so, it takes the whole step. append() and truncate() may follow at once.
  void start(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {});
  /// Moves what has been started, without waiting: merges what has arrived and posts the next round. @returns whether all
  /// has
  bool progress() { return decoder_->progress(); }
  /// Waits for the rest of what has been started. @returns as step() @throws std::logic_error if nothing was started
  OutputView finish() { return decoder_->finish(); }

  /// The exchange alone, see Combiner: merges what kernels of the program have computed. Collective, also the first call for
  /// a shape and a part, which writes a plan. Keys that were appended have no part in it.
  OutputView combine(const TensorView& o, const TensorView& lse, OutputPart part = OutputPart::kAll,
                     LseForm form = LseForm::kNatural);

  /// The device that tensors may be on.
  DevicePlatform platform() const;
  /// The messages of this rank, and their counters.
  Transport& transport() const { return *transport_; }

 private:
  struct Alone;
  void open(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup);
  /// Throws what truncate() and share() throw for the first n positions of a sequence.
  void check_prefix(const char* function, std::int64_t entry, std::int64_t n) const;
  /// Throws InputError on every rank if two of them have other lengths or rules.
  void compare(const Step& step);
  /// The step for these queries, compared and of keys that no rank has given back.
  Step checked(const TensorView& q, const SeenRule& rule, std::span<const float> sink);

  std::unique_ptr<Alone> alone_;
  std::unique_ptr<const Ranks> own_ranks_;
  std::unique_ptr<Transport> transport_;
  OpenShard shard_;
  std::unique_ptr<Decoder> decoder_;
  struct OpenCombiner {
    std::array<std::int64_t, 4> shape;
    OutputPart part;
    Combiner combiner;
  };
  std::unique_ptr<OpenCombiner> combiner_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> kept_from_;  ///< [b] positions before it may have been given back, but for sinks
  bool has_shared_ = false;
  std::int64_t most_keys_ = 0;
  bool compares_lengths_ = true;
};

}  // namespace tree_attn
