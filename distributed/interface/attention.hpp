// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One class for programs that have keys, values and queries: attention over a growing cache, alone or over ranks
/// (sections 5 and 6).
///
/// It holds a Ranks, a Transport, an OpenShard and a Decoder, which programs with other needs use themselves. A program that
/// has opened a Transport shares it between its objects, one for each layer.
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/queries_by_heads.hpp"
#include "distributed/interface/combiner.hpp"
#include "distributed/transport/messages.hpp"
#include "distributed/transport/ranks.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Options of an Attention: the same on every rank, but for the threads.
struct AttentionSetup {
  std::string algorithm = "two-level";  ///< find_algorithm()
  std::string backend = "cpu";          ///< find_backend()
  int n_threads = 1;                    ///< of this rank on the CPU
  /// A backend that the program has found, and whose device it has chosen for this rank: then it is taken in the place of
  /// those two.
  const Backend* found_backend = nullptr;
  std::optional<double> scale{};  ///< factor of q.k, finite; 1/sqrt(d_h) by default
  /// Ranges of the ranks. Empty: leaves of 64 keys are dealt to the ranks as the sequences grow. Otherwise a range of
  /// positions for each rank, in the order of the topology; the last one may end at kOpenEnd.
  std::vector<KeyRange> ranges{};
  int ranks_per_node = 0;  ///< 0: ranks that share memory form a node
  /// Tells whether the ranks of a node exchange through shared memory: by default they do.
  std::optional<bool> shares_memory{};
  /// "nccl": NCCL carries the messages of the ranks, between the devices of the backend that are current on each of them;
  /// empty: they lie in host memory.
  std::string transport{};
  /// True if each step compares the lengths of all ranks, and what queries see, by a reduction of 16 bytes: ranks that have
  /// appended other numbers of keys would return attention over different sequences. combine() compares its axes. With it a
  /// rank that refuses an argument tells the others; without it they wait.
  bool compares_lengths = true;
  std::int64_t capacity = 0;  ///< positions of each sequence that memory is taken for at once; not with pages
  /// The pages of each rank, for all sequences; 0: rows lie one after the other. Over several ranks append() then waits for
  /// the others: if one rank refuses an argument, or has too few pages, no rank appends.
  PageRule pages{};   ///< with most_queries of below, for at least one query: pages of its window are kept for so many
  KvScales scales{};  ///< of keys and values of F8_E4M3, which append() also takes in other types
  /// A step of up to so many queries takes no memory. 0: memory grows when a step needs it, on all ranks in the same step.
  std::int64_t most_queries = 0;
  PlanOptions plan{};  ///< its network is that of the transport, unless the program has opened that
  /// The line of an argument that the caller of this rank has refused before: all ranks throw it.
  std::string refusal{};
};

/// Call of the other ranks in which Attention::refuse() takes part.
enum class Refused {
  kStep,    ///< step(), step_by_heads(), start() or combine()
  kAppend,  ///< append()
  kMove     ///< use() or reshard()
};

/// Attention over keys and values that grow, for one rank of several or alone.
///
/// All ranks make the same calls in the same order; the constructor, step(), step_by_heads(), start(), finish(), combine(),
/// use(), reshard(), and in pages append(), wait for the others. Every rank returns the same output, and with an algorithm
/// that keeps its bits the same as any other number of ranks.
///
/// Refusals: if one of several ranks refuses the arguments of the constructor, step(), step_by_heads(), start(), combine(),
/// use(), reshard() or, in pages, append(), all ranks throw InputError with its line, which names that rank, in place of
/// what is said below; nothing has changed, and the next call is like any other. append() without pages, truncate(), share()
/// and release() are calls of one rank alone: the next step tells of other lengths. A rank that does not call at all is
/// found by the deadline.
///
/// Ending: all ranks destroy their objects over shared messages in the same order, and between the same opens, which are
/// refused if another rank still holds them open; the last one over a transport waits for the others. An object that ends
/// with a step under way gives up these messages.
///
/// With a backend of a device, "cuda" or "emulated", tensors may lie in the memory of that device: TensorView::on_device.
/// Then nothing is copied between host and device but a few integers for each sequence, its length and what lists its
/// leaves; over several ranks also the states that a transport sends from host memory, see Runner. What was queued on
/// the default stream before a call is seen, and append() queues there; step() and combine() have written their output when
/// they return, unless use_stream() says otherwise. The device is that which was current when the object was opened; each
/// call makes it current, and the one before at its end.
///
/// Threads: one at a time uses an object, or the objects over the same ranks: those on one communicator. Objects on two
/// duplicates of it, in two threads, do not disturb each other; over MPI that needs MPI_THREAD_MULTIPLE.
class Attention {
 public:
  /// Alone, without messages.
  /// @throws InputError for names that find_algorithm() or find_backend() refuse; std::invalid_argument for
  ///   what Backend::refusal() names, and as the constructors of the cache and KvCache::set_scales()
  explicit Attention(const AttentionShape& shape, const AttentionSetup& setup = {});
  /// One rank of several, which outlive this object: MpiRanks, or the ThreadRanks of run_threads().
  /// @throws InputError on every rank if two ranks differ in the setup, before anything else is compared; TransportError
  Attention(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup = {});
  /// One rank of several, with ranks that it owns.
  Attention(std::unique_ptr<const Ranks> ranks, const AttentionShape& shape, const AttentionSetup& setup = {});
  /// One rank of several, over messages that it owns together with other objects; one at a time has a step under way.
  Attention(std::shared_ptr<Messages> messages, const AttentionShape& shape, const AttentionSetup& setup = {});
  /// One rank of several over messages that the program has opened, on its nodes; they outlive this object, and any number
  /// of objects share them, of which one at a time has a step under way.
  /// @throws as above; std::invalid_argument also for a setup that names nodes or shared memory, and for messages from
  ///   device memory beside a backend that has none
  Attention(Transport& transport, const AttentionShape& shape, const AttentionSetup& setup = {});
  ~Attention();
  /// Leaves an object that may be destroyed or assigned to, and nothing else.
  Attention(Attention&& other) noexcept;
  /// Ends what this object has opened, as the destructor.
  Attention& operator=(Attention&& other) noexcept;

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
  /// Tests whether this rank holds the key of a position. @throws std::out_of_range for a negative position
  bool holds(std::int64_t position) const;

  /// Attention of the queries over all keys. Collective.
  /// @param q [b, n_h, l, d_h], the same on every rank; any l in every step
  /// @param rule which of the keys a query sees, by default all @param sink learned natural logits [n_h]; empty: none
  /// @param mask of all positions, on the host; on the CPU; a rank reads the elements of its own keys @param softcap as Step
  /// @returns out and lse, valid until the next call, on the device if q is there, which ring and one-shot refuse
  /// @throws InputError on every rank if two ranks have other lengths; std::invalid_argument for other axes, and on every
  ///   rank for keys that pages may have given back; TransportError
  OutputView step(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {}, const Mask& mask = {},
                  double softcap = 0);
  /// step() of layers that are sharded by heads: of p ranks, rank r passes the queries of the heads [r n_h / p,
  /// (r + 1) n_h / p) and gets their output, with the bits of step(). Collective. Ranks send their queries to each other,
  /// and then the states of heads to their rank alone: `two-level`, in host memory.
  /// @param q [b, n_h / p, l, d_h], on the host @param rule as step() @param sink of all heads [n_h], as the mask
  /// @returns out [b, n_h / p, l, d_v] and lse @throws as step(), for all that is not so
  OutputView step_by_heads(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {},
                           const Mask& mask = {}, double softcap = 0);
  /// Computes the states of this rank and posts the first messages, so that the program can compute something else while
  /// they travel. The arguments of step(); the queries are read before it returns; with q on a device, and where
  /// Decoder::start() says so, it takes the whole step. append() and truncate() may follow at once.
  void start(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {}, const Mask& mask = {},
             double softcap = 0);
  /// Moves what has been started, without waiting: merges what has arrived and posts the next round. Functions of the
  /// program carry messages on in finish() alone, so between nodes it is false there until then. @returns whether all has
  /// arrived
  bool progress();
  /// Waits for the rest of what has been started. @returns as step() @throws std::logic_error if nothing was started
  OutputView finish();

  /// Combines shards by another algorithm from now on, over the same keys. Collective. @throws as the constructor for the
  ///   name, and for an order of leaves or ranges that the algorithm does not take; std::logic_error while a step is under
  ///   way
  void use(std::string_view algorithm);
  /// Moves keys and values, so that other ranks hold them, and the keys to come. The order of leaves stays. Collective: what
  /// changes its owner is sent once, see tree_attn::reshard().
  /// @param ranges as those of the setup, or in the dealt order as of dealt_ranges(); if there are fewer than ranks, the
  ///   ranks left over come before the last one and hold nothing
  /// @throws std::invalid_argument for other ranges, keys in pages, and messages from device memory; std::out_of_range for
  ///   ranges that end before a sequence does; std::logic_error while a step is under way; TransportError
  void reshard(std::span<const KeyRange> ranges);

  /// The exchange alone, see Combiner: merges what kernels of the program have computed. Collective, also the first call for
  /// a shape and a part, which writes a plan; those of the last four are kept. Keys that were appended have no part in it.
  OutputView combine(const TensorView& o, const TensorView& lse, OutputPart part = OutputPart::kAll,
                     LseForm form = LseForm::kNatural);

  /// Takes part in a call of the other ranks for a rank that refuses its arguments before it can make it, since it cannot
  /// read them, say: all ranks throw InputError with the line. @throws std::invalid_argument alone, and where the call
  ///   waits for no other rank
  [[noreturn]] void refuse(const std::string& line, Refused call = Refused::kStep);
  /// Gives up all messages, so that the destructor does not wait for the other ranks: after an error of the program that
  /// they have not met. They find it by their deadline. Unwinding of the last object over these messages does it too.
  void abandon() noexcept { transport_->abandon(); }

  /// Lets append(), step() and combine() read tensors on the device, and write their output, in the order of a stream of the
  /// program, from now on; those calls do not wait for the device, but step() for the step before of this object, and where
  /// messages or tensors pass through host memory. Over NCCL a call has one wait, for the messages. A step reads lengths
  /// from the host, so it cannot be captured: a call is refused while the stream is.
  /// @param stream its handle, as DeviceStream::handle(), a cudaStream_t; null: the default stream. None: calls are again
  ///   after the default stream, and wait @throws std::invalid_argument for a backend without a device, and while this
  ///   stream or the one before is captured; DeviceError for a stream of another device
  void use_stream(std::optional<void*> stream);
  std::optional<void*> stream() const { return stream_; }
  /// Makes the device of this object current on the calling thread for as long as it lives.
  class OnDevice {
   public:
    explicit OnDevice(const Attention& of);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

   private:
    const Backend* backend_ = nullptr;  ///< null: nothing to do at the end
    int before_ = 0;
  };

  /// The keys and values that this rank holds, and whose they are.
  const KvCache& cache() const { return *shard_->cache; }
  /// The device that tensors may be on.
  DevicePlatform platform() const;
  /// The messages of this rank and their counters: those of all objects over them.
  Transport& transport() const { return *transport_; }

 private:
  struct Alone;
  void open(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup);
  /// An empty shard, with memory for sequences of so many keys. Collective: if a rank has none, all throw.
  std::unique_ptr<OpenShard> make_shard(std::span<const KeyRange> ranges, LeafOrder order, std::int64_t capacity) const;
  /// Throws std::logic_error while a step is under way.
  void require_idle(const char* function) const;
  /// The position where the ranges of all ranks end.
  std::int64_t most_keys() const { return setup_.ranges.back().end; }
  /// Throws what truncate() and share() throw for the first n positions of a sequence.
  void check_prefix(const char* function, std::int64_t entry, std::int64_t n) const;
  /// Names why no rank takes a step: each has given back leaves of its own, and all refuse what one of them cannot see.
  std::optional<std::string> refusal_of_pages(const Step& step) const;
  /// Throws std::invalid_argument while a stream is being captured.
  void require_no_capture(const char* function, std::optional<void*> stream) const;
  /// The stream of a step with these queries.
  std::optional<void*> stream_of(const TensorView& x) const { return x.on_device ? stream_ : std::nullopt; }
  /// Throws what append() does before it looks for pages.
  void check_append(std::int64_t entry, const TensorView& k, const TensorView& v) const;
  /// Tells whether append() waits for the other ranks.
  bool appends_together() const { return cache().pages() != nullptr && transport_->size() > 1; }

  std::unique_ptr<Alone> alone_;
  std::shared_ptr<Messages> messages_;
  std::shared_ptr<Transport> own_transport_;
  Transport* transport_ = nullptr;  ///< that, or the one of the program
  AttentionShape shape_;
  AttentionSetup setup_;  ///< as the ranks have agreed on it
  const Algorithm* algorithm_ = nullptr;
  std::unique_ptr<DeviceBlocks> relay_;  ///< no blocks: a stream between that of the program and the default one
  int device_ = 0;                       ///< of the backend, if there is a relay
  std::optional<void*> stream_;          ///< of the program
  std::unique_ptr<OpenShard> shard_;
  std::unique_ptr<Decoder> decoder_;
  struct OpenCombiner {
    std::array<std::int64_t, 4> shape;
    OutputPart part;
    Combiner combiner;
  };
  std::vector<std::unique_ptr<OpenCombiner>> combiners_;  ///< those used last come first
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> kept_from_;  ///< [b] positions before it may have been given back, but for sinks
  QueriesByHeads queries_;
  bool has_shared_ = false;
  bool compares_lengths_ = true;
};

}  // namespace tree_attn
