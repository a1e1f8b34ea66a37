// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ring attention, the baseline: keys and values travel (section 6, eq. (10)).
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/keys_read.hpp"
#include "distributed/exchange/reshard.hpp"
#include "distributed/transport/buffer.hpp"
#include "distributed/transport/nccl_transport.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace tree_attn {
namespace {

/// Memory for the keys and values of one rank, kept from step to step: of the host, or of the device that sends and receives
/// them.
class KvMemory {
 public:
  explicit KvMemory(Transport& transport) : on_host_(transport.allocate()), device_(transport.device()) {}
  std::span<std::byte> first(std::size_t n_bytes) {
    if (device_ == nullptr) return on_host_.first<std::byte>(n_bytes);
    if (n_bytes > n_on_device_) {
      on_device_.reset();
      on_device_ = device_->make_blocks()(static_cast<std::int64_t>((n_bytes + 3) / 4), 1, nullptr, nullptr);
      n_on_device_ = n_bytes;
    }
    return {n_bytes == 0 ? nullptr : reinterpret_cast<std::byte*>(on_device_->address(0)), n_bytes};
  }
  /// Leaves the memory of the host to messages in flight.
  void leave() { on_host_.leave(); }

 private:
  Buffer on_host_;
  NcclTransport* device_;
  std::unique_ptr<DeviceBlocks> on_device_;
  std::size_t n_on_device_ = 0;
};

/// Keys and values of one rank, on their way around the ring.
struct KvBlock {
  KvMemory* memory;             // for the keys and, after them, the values
  std::span<std::byte> held{};  // what lies there: nothing if the rank's own shard is dense, which is sent as it lies
  Shard shard{};                // k [b, n_kv, n, d_h] and v [b, n_kv, n, d_v], dense
};

std::size_t n_bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]) * bytes_of(view.dtype);
}

/// Makes room for the first n rows of keys and values of a rank.
void prepare_receive(KvBlock& block, const AttentionShape& shape, std::int64_t n, bool on_device) {
  block.held = block.memory->first(static_cast<std::size_t>(n * shape.bytes_per_position()));
  block.shard = dense_shard(shape, n, block.held.data(), 0, on_device);
}

/// Keys and values of the rank's own shard: in place if its first n rows are dense in host memory, else copied there, or to
/// memory of the device.
void pack_shard(KvBlock& block, const KvCache& cache, std::int64_t n, bool on_device) {
  const auto memory = [&block](std::size_t n_bytes) {
    block.held = block.memory->first(n_bytes);
    return block.held.data();
  };
  const AttentionShape& shape = cache.shape();
  block.shard = on_device ? cache.shard_on_device(n, memory(static_cast<std::size_t>(n * shape.bytes_per_position())))
                          : cache.shard(n, memory);
}

/// Keys and values travel p - 1 hops, the next shard in flight while this one is computed; states are kept by source and
/// merged in the order of the ranks. What travels of a shard are the rows in use by the longest sequence, all batch entries
/// side by side; of a shard that no query sees, nothing.
class RingDecoder : public Decoder {
 public:
  RingDecoder(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges)
      : Decoder(transport, shard),
        leaves_(owned_leaves(ranges, shard.cache->leaves().order())),
        d_v_(shard.cache->shape().value_dim),
        device_(transport.device()),
        memory_{KvMemory(transport), KvMemory(transport)},
        forests_(ranges.size(), Forest<float>(0, d_v_)),
        joined_(0, d_v_),
        hop_lengths_(static_cast<std::size_t>(shard.cache->shape().batch)) {
    set_rows(shard.cache->shape().n_rows(std::max<std::int64_t>(1, shard.most_queries)));
    if (ranges.size() == 1) return;
    // Memory for the longest shard. Where shards grow it is that of this rank, and grows too.
    const OwnedLeaves& own = shard.cache->leaves();
    std::int64_t longest = shard.cache->capacity();
    for (const KeyRange& range : ranges)
      if (range.end != kOpenEnd && own.order() == LeafOrder::kContiguous) longest = std::max(longest, range.size());
    const OwnedLeaves leaves = own.order() == LeafOrder::kContiguous ? OwnedLeaves({0, longest}) : own;
    hop_ = open_shard(*shard.backend, shard.cache->shape(), leaves, longest == 0 ? 0 : leaves.position(longest - 1) + 1,
                      shard.session->scale(), {}, shard.cache->scales(), shard.most_queries);
    for (KvMemory& memory : memory_)
      memory.first(static_cast<std::size_t>(longest * shard.cache->shape().bytes_per_position()));
    // A stream of its own for the messages, so that the next shard travels while kernels compute on this one.
    if (device_ != nullptr) for_messages_ = device_->make_blocks()(0, 1, nullptr, nullptr);
  }
  /// Keeps what is sent and received for ever, if messages are in flight.
  ~RingDecoder() override {
    if (!transport_.has_messages_in_flight()) return;
    for (KvMemory& memory : memory_) memory.leave();
    new auto(shard_.cache);
  }
  RingDecoder(const RingDecoder&) = delete;
  RingDecoder& operator=(const RingDecoder&) = delete;

 protected:
  OutputView run(const Step& step) override {
    try {
      return circulate(step);
    } catch (...) {
      transport_.abandon();
      throw;
    }
  }

 private:
  void set_rows(std::int64_t n) {
    n_rows_ = n;
    for (Forest<float>& forest : forests_) forest.set_rows(n);
    joined_.set_rows(n);
    if (const auto size = static_cast<std::size_t>(n); lse_.size() < size)
      lse_.resize(size), out_.resize(size * static_cast<std::size_t>(d_v_));
  }

  OutputView circulate(const Step& step) {
    set_rows(shard_.cache->shape().n_rows(step.q.shape[2]));
    const std::vector<int>& order = transport_.topology().order();
    const int p = transport_.size(), me = transport_.topology().index_of(transport_.rank());
    const int right = order[static_cast<std::size_t>((me + 1) % p)],
              left = order[static_cast<std::size_t>((me - 1 + p) % p)];
    const AttentionShape& shape = shard_.cache->shape();
    const std::int64_t longest = step.longest();
    const auto leaves_of = [&](int hop) -> const OwnedLeaves& {
      return leaves_[static_cast<std::size_t>((me - hop + p) % p)];
    };
    const auto n_sent = [&](int hop) { return is_seen(leaves_of(hop), step) ? leaves_of(hop).n_keys(longest) : 0; };

    // Hop i: compute on the shard of index me - i while it goes on to the right and the next one comes in from the left.
    KvBlock here{&memory_[0]}, next{&memory_[1]};
    if (p > 1) pack_shard(here, *shard_.cache, n_sent(0), device_ != nullptr);
    for (int hop = 0; hop < p; ++hop) {
      if (hop + 1 < p) {
        prepare_receive(next, shape, n_sent(hop + 1), device_ != nullptr);
        transport_.receive(next.held.first(n_bytes(next.shard.k)), left);
        transport_.receive(next.held.subspan(n_bytes(next.shard.k)), left);
        transport_.send({here.shard.k.data, n_bytes(here.shard.k)}, right);
        transport_.send({here.shard.v.data, shape.values_in_keys ? 0 : n_bytes(here.shard.v)}, right);
        transport_.count_held_kv_bytes(static_cast<std::int64_t>(here.held.size() + next.held.size()));
        if (device_ != nullptr) queue_messages();
      }
      here.shard.begin = leaves_of(hop).range().begin;
      Forest<float>& kept = forests_[static_cast<std::size_t>((me - hop + p) % p)];
      if (hop > 0 && n_sent(hop) < leaves_of(hop).n_keys(longest)) {
        if (device_ != nullptr) device_->settle();
        const KeyRange range = closed(leaves_of(hop).range(), longest);
        const std::span<float> states = kept.assign(cover(range.begin, range.end));
        for (std::size_t at = 0; at < states.size(); at += static_cast<std::size_t>(state_size(d_v_)))
          set_empty(states.data() + at, d_v_);
      } else {
        const Forest<float>& states = hop == 0 ? decode_first(step) : decode_hop(here.shard, leaves_of(hop), step);
        std::ranges::copy(states.states(), kept.assign(states.subtrees()).begin());
      }
      if (device_ == nullptr) transport_.wait();
      std::swap(here, next);
    }

    joined_.clear();
    for (const Forest<float>& forest : forests_) joined_.append(forest.subtrees(), forest.states().data());
    float* root = joined_.fold().data();
    transport_.count_merge_steps(joined_.n_merges());
    for (std::int64_t r = 0; r < n_rows_; ++r, root += state_size(d_v_)) {
      if (!step.sink.empty()) add_sink(root, step.sink_of(r), d_v_);
      lse_[static_cast<std::size_t>(r)] = tree_attn::finish(root, out_.data() + r * d_v_, d_v_);
    }
    return {std::span(out_).first(static_cast<std::size_t>(n_rows_ * d_v_)),
            std::span(lse_).first(static_cast<std::size_t>(n_rows_))};
  }

  /// Tests whether a query sees a key of a shard.
  static bool is_seen(const OwnedLeaves& leaves, const Step& step) {
    for (std::int64_t i = 0; i < step.q.shape[0]; ++i)
      if (keys_read(leaves, step.seen_by_any(i)) > 0) return true;
    return false;
  }
  /// States of a shard that has arrived.
  const Forest<float>& decode_hop(const Shard& arrived, const OwnedLeaves& leaves, const Step& step) {
    std::ranges::transform(step.lengths, hop_lengths_.begin(),
                           [&leaves](std::int64_t length) { return leaves.n_keys(length); });
    hop_.cache->reset(leaves);
    hop_.cache->borrow(arrived, hop_lengths_);
    return on_host(hop_.session->decode(step, progress_));
  }

  const Forest<float>& decode_first(const Step& step) {
    if (device_ == nullptr) return decode_own_shard(step);
    const Forest<float>& states = on_host(shard_.session->decode_checked(step, progress_));
    set_states_ready(transport_.seconds());
    return states;
  }

  /// The states, once the next shard has arrived if both are on a device: a copy from there waits for all streams, and has
  /// no deadline.
  const Forest<float>& on_host(States& states) {
    if (device_ != nullptr) device_->settle();
    return states.host();
  }

  /// Queues messages after what the default stream was given: packing, and the hop before.
  void queue_messages() {
    for_messages_->stream().follow_default();
    device_->queue_on(for_messages_->stream());
    transport_.wait();
  }

  std::vector<OwnedLeaves> leaves_;  ///< of every rank
  std::int64_t n_rows_ = 0, d_v_;
  NcclTransport* device_;                       ///< the transport, if messages are sent from device memory
  std::array<KvMemory, 2> memory_;              ///< one receives while the other is sent
  std::unique_ptr<DeviceBlocks> for_messages_;  ///< no blocks: their stream, if messages are sent from device memory
  OpenShard hop_;                               ///< over the shard that has arrived; empty with one rank
  std::vector<Forest<float>> forests_;          ///< by source
  Forest<float> joined_;
  std::vector<float> out_, lse_;
  std::vector<std::int64_t> hop_lengths_;  ///< positions of that shard, per batch entry
};

std::unique_ptr<Decoder> open_ring(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                   const PlanOptions&) {
  return std::make_unique<RingDecoder>(transport, shard, ranges);
}

/// Keys and values of a shard on their way around the ring.
struct Cargo {
  std::array<std::int64_t, 2> bytes{};  ///< of its messages; 0 is no message
  std::int64_t decoded_bytes = 0, positions = 0;
};
std::vector<Cargo> cargoes_of(std::span<const KeyRange> ranges, const WorkloadShape& shape) {
  const std::int64_t key_bytes = shape.batch * shape.kv_heads * shape.key_bytes();
  std::vector<Cargo> cargoes;
  for (const OwnedLeaves& leaves : owned_leaves(ranges, shape.order)) {
    const std::int64_t decoded = bytes_read(leaves, shape), n = decoded == 0 ? 0 : leaves.n_keys(shape.longest());
    cargoes.push_back({.bytes = {n * key_bytes, n * shape.bytes_per_position() - n * key_bytes},
                       .decoded_bytes = decoded,
                       .positions = n});
  }
  return cargoes;
}

/// Cost for dense shards, which are sent from where they are.
RankCost ring_cost(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape,
                   const PlanOptions&) {
  const std::vector<int>& order = topology.order();
  const std::size_t p = order.size(), me = static_cast<std::size_t>(topology.index_of(rank));
  const std::vector<Cargo> cargoes = cargoes_of(ranges, shape);
  const auto messages = [](int peer, const Cargo& cargo) {
    std::vector<RankCost::Message> both{{peer, cargo.bytes[0]}, {peer, cargo.bytes[1]}};
    std::erase_if(both, [](const RankCost::Message& message) { return message.bytes == 0; });
    return both;
  };
  RankCost cost;
  for (std::size_t hop = 0; hop < p; ++hop) {
    const Cargo &here = cargoes[(me + p - hop) % p], &next = cargoes[(me + 2 * p - hop - 1) % p];
    RankCost::Round& round = cost.rounds.emplace_back();
    round.decoded_bytes = here.decoded_bytes;
    if (hop + 1 == p) break;
    round.sends = messages(order[(me + 1) % p], here);
    round.receives = messages(order[(me + p - 1) % p], next);
    cost.other_positions = std::max(cost.other_positions, (hop == 0 ? 0 : here.positions) + next.positions);
  }

  // The states of every source, then joined.
  std::int64_t n_blocks = 0;
  Forest<float> joined(0, 0);
  for (const KeyRange& range : closed(ranges, shape.longest())) {
    const std::vector<Subtree> subtrees = cover(range.begin, range.end);
    n_blocks += 2 * static_cast<std::int64_t>(subtrees.size());
    joined.append(subtrees, nullptr);
  }
  joined.fold();
  cost.merge_steps = cost.rounds.back().merge_steps = joined.n_merges();
  cost.elements = shape.n_rows() * (n_blocks * state_size(shape.value_dim) + shape.value_dim + 1);
  return cost;
}

}  // namespace

extern const Algorithm kRing;
constinit const Algorithm kRing{.name = "ring",
                                .brief = "baseline: keys and values circulate around the ring",
                                .kv_shards_in_flight = 2,
                                .exchange = OwnDecoder{open_ring, ring_cost}};

}  // namespace tree_attn
