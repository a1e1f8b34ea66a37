// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention over a decoder: it adds the keys that each rank holds, and the lengths of the sequences.
#include "distributed/interface/attention.hpp"

#include "distributed/exchange/decoder_setup.hpp"
#include "distributed/exchange/reshard.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/fnv1a.hpp"
#include "reference/tensor/float_environment.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

namespace tree_attn {
/// One rank that is this thread.
struct Attention::Alone {
  ThreadNetwork network{1, std::numeric_limits<double>::infinity()};
  Topology topology = Topology::pretend(1, 1);
  ThreadRanks ranks{network, topology, 0};
};

Attention::Attention(const AttentionShape& shape, const AttentionSetup& setup) : alone_(std::make_unique<Alone>()) {
  open(alone_->ranks, shape, setup);
}

Attention::Attention(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup) {
  open(ranks, shape, setup);
}

Attention::Attention(std::unique_ptr<const Ranks> ranks, const AttentionShape& shape, const AttentionSetup& setup)
    : Attention(std::make_shared<Messages>(std::move(ranks)), shape, setup) {}

Attention::Attention(std::shared_ptr<Messages> messages, const AttentionShape& shape, const AttentionSetup& setup)
    : messages_(std::move(messages)) {
  open(messages_->ranks(), shape, setup);
}

Attention::Attention(Transport& transport, const AttentionShape& shape, const AttentionSetup& setup)
    : transport_(&transport) {
  open(transport.ranks(), shape, setup);
}

Attention::~Attention() {
  if (relay_ == nullptr) return;
  const OnDevice on_device(*this);
  combiners_.clear(), decoder_.reset(), shard_.reset(), own_transport_.reset();
}
Attention::Attention(Attention&&) noexcept = default;

Attention& Attention::operator=(Attention&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);  // in the reverse of the order in which things were opened
  return *std::construct_at(this, std::move(other));
}

void Attention::open(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup) try {
  const FloatEnvironment environment;
  constexpr const char* kHere = "Attention";
  const bool is_given = transport_ != nullptr, is_nccl = setup.transport == "nccl";
  const bool shares_memory = setup.shares_memory.value_or(!is_given && !is_nccl);
  const LeafOrder order = setup.ranges.empty() ? LeafOrder::kDealt : LeafOrder::kContiguous;
  shape_ = shape, setup_ = setup;
  if (setup.ranges.empty()) setup_.ranges = dealt_ranges(ranks.size());
  if (!setup.scale) setup_.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (!is_given) setup_.plan.network = {};
  if (setup.pages.n_pages != 0) setup_.pages.most_queries = std::max<std::int64_t>(1, setup.most_queries);
  const Backend*& backend = setup_.found_backend;
  const std::string name = backend != nullptr ? std::string(backend->name()) : setup.backend;
  std::string_view arithmetic;
  const auto refusal = refusal_of(ranks.size() > 1, [&] {
    require(setup.refusal.empty(), setup.refusal);
    algorithm_ = &find_algorithm(setup.algorithm);
    if (backend == nullptr) backend = &find_backend(setup.backend, setup.n_threads);
    require_shape(kHere, shape);
    require(std::isfinite(*setup_.scale), kHere, ": a scale of ", *setup_.scale, "; a finite number is needed");
    const std::string why = backend->refusal(shape);
    require(why.empty(), "--backend ", name, ": no kernel supports ", why);
    arithmetic = backend->arithmetic(shape);
    algorithm_->check_ranges(kHere, ranks.size(), setup_.ranges, order, setup_.plan);
    require(setup.ranks_per_node >= 0, kHere, ": nodes of ", setup.ranks_per_node, " ranks");
    require(!is_given || (setup.ranks_per_node == 0 && !setup.shares_memory && setup.transport.empty()), kHere,
            ": nodes and shared memory are those of the transport");
    require(setup.transport.empty() || is_nccl, kHere, ": a transport ", setup.transport, "; nccl is one");
    require(!is_nccl || platform_of(*backend).make_blocks != nullptr, kHere,
            ": the transport nccl sends from device memory, and the backend ", name, " has none");
    require(!is_given || transport_->device() == nullptr || platform_of(*backend).make_blocks != nullptr, kHere,
            ": the transport ", is_given ? transport_->name() : "", " sends from device memory, and the backend ", name,
            " has none");
    require(setup.capacity >= 0, kHere, ": a capacity of ", setup.capacity, " positions");
    require(setup.most_queries >= 0, kHere, ": steps of at most ", setup.most_queries, " queries");
    require(setup.capacity == 0 || setup.pages.n_pages == 0, kHere, ": a capacity of ", setup.capacity,
            " positions, but memory is taken for ", setup.pages.n_pages, " pages");
    if (const MakeBlocks make_blocks = platform_of(*backend).make_blocks; make_blocks != nullptr)
      relay_ = make_blocks(0, 1, nullptr, nullptr), device_ = relay_->device();
  });
  MessagesKind kind{setup.ranks_per_node, shares_memory};
  if (is_nccl && !refusal) kind.of_nccl = platform_of(*backend), kind.device = device_;
  // Before anything else, since ranks that differ here call other collectives.
  std::vector<Field> fields = fields_of({setup.algorithm, shape, setup_.ranges, order, *setup_.scale, setup.scales,
                                         setup_.pages, setup.most_queries, setup_.plan});
  const auto add = [&](std::string_view of, const auto& value) { fields.emplace_back(of, value); };
  add("version", std::string_view(TREE_ATTN_VERSION)), add("backend", std::string_view(name));
  add("ranks of a node", setup.ranks_per_node), add("shared memory", shares_memory);
  add("capacity", setup.capacity), add("comparing lengths", setup.compares_lengths);
  add("transport", is_given ? transport_->name() : is_nccl ? "nccl" : "its own");
  add("hash of nodes", is_given ? hash_of_nodes(transport_->topology()) : 0);
  add("messages that objects hold open", messages_ != nullptr ? messages_->number_of(kind) : 0);
  fields.emplace_back("arithmetic", arithmetic, "--portable");
  require_equal(ranks, kHere, "all ranks to open attention", fields, refusal);

  if (!is_given) {
    own_transport_ = messages_ != nullptr ? messages_->open(kind) : open_messages(ranks, kind);
    transport_ = own_transport_.get();
    setup_.plan.network = transport_->network();
  }
  shard_ = make_shard(setup_.ranges, order, setup.capacity);
  compares_lengths_ = setup.compares_lengths && ranks.size() > 1;
  decoder_ = algorithm_->open_agreed(*transport_, *shard_, setup_.ranges, setup_.plan, compares_lengths_);
  lengths_.assign(static_cast<std::size_t>(shape.batch), 0), kept_from_ = lengths_;
} catch (const std::exception& error) {
  // All ranks throw an InputError, so they meet to free what they have opened: here, since ranks do not in an exception that
  // unwinds.
  if (ranks.size() == 1 || dynamic_cast<const InputError*>(&error) != nullptr)
    decoder_.reset(), shard_.reset(), own_transport_.reset(), messages_.reset();
  throw;
}

std::unique_ptr<OpenShard> Attention::make_shard(std::span<const KeyRange> ranges, LeafOrder order,
                                                 std::int64_t capacity) const {
  std::unique_ptr<OpenShard> shard;
  run_on_all<std::exception>(transport_->ranks(), [&] {
    const OwnedLeaves leaves(transport_->topology().range_of(transport_->rank(), ranges), order);
    shard = std::make_unique<OpenShard>(open_shard(*setup_.found_backend, shape_, leaves, capacity, *setup_.scale,
                                                   setup_.pages, setup_.scales, setup_.most_queries));
  });
  return shard;
}

void Attention::require_idle(const char* function) const {
  if (decoder_->is_under_way()) throw std::logic_error(std::string(function) + ": a step is under way");
  transport_->ranks().require_idle(function);
}

void Attention::use(std::string_view algorithm) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  constexpr const char* kHere = "Attention::use";
  const Algorithm* other = nullptr;
  const auto refusal = refusal_of(transport_->size() > 1, [&] {
    require_idle(kHere);
    other = &find_algorithm(algorithm);
    other->check_ranges(kHere, transport_->size(), setup_.ranges, cache().leaves().order(), setup_.plan);
  });
  require_equal(transport_->ranks(), kHere, "all ranks to use an algorithm", std::array{Field{"algorithm", algorithm}},
                refusal);
  if (other == algorithm_) return;
  decoder_ = other->open_agreed(*transport_, *shard_, setup_.ranges, setup_.plan, compares_lengths_);
  algorithm_ = other;
}

void Attention::reshard(std::span<const KeyRange> ranges) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  constexpr const char* kHere = "Attention::reshard";
  const int p = transport_->size();
  const LeafOrder order = cache().leaves().order();
  std::vector<KeyRange> after;
  const auto refusal = refusal_of(p > 1, [&] {
    require_idle(kHere);
    require(cache().pages() == nullptr, kHere, ": keys in pages stay where they are");
    require(transport_->device() == nullptr, kHere, ": the transport ", transport_->name(), " sends from device memory");
    after = spread_over(ranges, p);
    algorithm_->check_ranges(kHere, p, after, order, setup_.plan);
    for (const std::int64_t length : lengths_)
      require<std::out_of_range>(length <= after.back().end, kHere, ": a sequence has ", length,
                                 " positions, but the ranges of all ranks end at ", after.back().end);
  });
  const auto hash = fnv1a(std::as_bytes(std::span<const KeyRange>(after)));
  require_equal(transport_->ranks(), kHere, "all ranks to move their keys", std::array{Field{"hash of ranges", hash}},
                refusal);
  std::unique_ptr<OpenShard> moved = make_shard(after, order, shard_->room);
  tree_attn::reshard(*transport_, cache(), *moved->cache, owned_leaves(setup_.ranges, order), owned_leaves(after, order),
                     lengths_);
  decoder_ = algorithm_->open_agreed(*transport_, *moved, after, setup_.plan, compares_lengths_);
  shard_ = std::move(moved);
  setup_.ranges = std::move(after);
}

void Attention::check_append(std::int64_t entry, const TensorView& k, const TensorView& v) const {
  const OwnedLeaves& leaves = shard_->cache->leaves();
  require_no_capture("Attention::append", stream_);
  shard_->cache->append(entry, k.positions(0, 0), v.positions(0, 0));  // checks all but the data
  const std::int64_t length = lengths_[static_cast<std::size_t>(entry)], n = k.shape[2];
  require(n == v.shape[2], "Attention::append: k has ", n, " positions, v has ", v.shape[2]);
  require<std::out_of_range>(n <= most_keys() - length, "Attention::append: batch entry ", entry, " has ", length,
                             " positions, and ", n, " more do not fit in the ranges of all ranks, which end at ",
                             most_keys());
  const std::int64_t end = length + n, n_held = leaves.n_keys(end) - leaves.n_keys(length);
  const auto has_data = [](const TensorView& x) { return x.data != nullptr || x.shape[1] == 0 || x.shape[3] == 0; };
  require(n_held == 0 || (has_data(k) && has_data(v)), "Attention::append: rank ", transport_->rank(), " holds ", n_held,
          " of the positions [", length, ", ", end, "), but has no data of them");
}

void Attention::append(std::int64_t entry, const TensorView& k, const TensorView& v) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  const std::int64_t n = k.shape[2];
  const auto refusal = refusal_of(appends_together(), [&] { check_append(entry, k, v); });
  // Compare also the two things that decide below whether the ranks look for pages together.
  if (appends_together())
    require_equal(transport_->ranks(), "Attention::append", "all ranks to append",
                  std::array{Field{"the batch entry", entry}, Field{"positions", n},
                             Field{"positions before", refusal ? 0 : lengths_[static_cast<std::size_t>(entry)]},
                             Field{"shared prefixes", has_shared_}},
                  refusal);
  KvCache& cache = *shard_->cache;
  const OwnedLeaves& leaves = cache.leaves();
  std::int64_t& length = lengths_[static_cast<std::size_t>(entry)];
  const std::int64_t end = length + n, held = leaves.n_keys(length);
  // Runs of positions that this rank holds: its range, or leaf by leaf.
  const auto for_each_run = [&](const auto& use) {
    for (std::int64_t at = length; at < end;) {
      const bool is_dealt = leaves.order() == LeafOrder::kDealt;
      const std::int64_t begin = is_dealt ? at : std::min(end, std::max(at, leaves.range().begin));
      at = std::min(end, is_dealt ? (at / kLeafKeys + 1) * kLeafKeys : end);
      const std::int64_t n_held = leaves.n_keys(at) - leaves.n_keys(begin);
      if (n_held > 0) use(begin - length, n_held);
    }
  };
  if (const PageTable* const pages = cache.pages()) {
    std::optional<std::string> error;
    try {
      std::int64_t rows = held;
      for_each_run([&](std::int64_t, std::int64_t n_held) { pages->check_room(entry, held, rows += n_held); });
    } catch (const std::out_of_range& too_few_here) {
      error = too_few_here.what();
    }
    // All ranks know whether one of them may take a page: in the dealt order with the first key of a leaf.
    std::vector<std::int64_t> too_few{error.has_value()};
    const bool begins_leaf = leaves.order() == LeafOrder::kContiguous ||
                             (end + kLeafKeys - 1) / kLeafKeys != (length + kLeafKeys - 1) / kLeafKeys;
    if (transport_->size() > 1 && n > 0 && (has_shared_ || begins_leaf))
      too_few = transport_->ranks().all_gather(too_few[0], "all ranks to find pages");
    if (error) throw std::out_of_range(*error);
    const auto rank = std::ranges::find(too_few, 1);
    require<std::out_of_range>(rank == too_few.end(), "Attention::append: rank ", rank - too_few.begin(),
                               " has too few pages for ", n, " more positions of batch entry ", entry);
  }
  // The rows are copied on the default stream.
  if (stream_) relay_->stream().follow(*stream_), relay_->stream().lead(nullptr);
  try {
    shard_->grow(end, transport_->size());
    for_each_run([&](std::int64_t first, std::int64_t n_held) {
      cache.append(entry, k.positions(first, first + n_held), v.positions(first, first + n_held));
    });
  } catch (...) {
    cache.truncate(entry, held);
    throw;
  }
  if (stream_) relay_->stream().follow(nullptr), relay_->stream().lead(*stream_);
  length = end;
  if (const PageTable* const pages = cache.pages(); pages != nullptr && pages->rule().window > 0) {
    std::int64_t& kept_from = kept_from_[static_cast<std::size_t>(entry)];
    kept_from = std::max(kept_from, pages->first_seen(end));
  }
}

void Attention::check_prefix(const char* function, std::int64_t entry, std::int64_t n) const {
  require<std::out_of_range>(entry >= 0 && entry < std::ssize(lengths_), function, ": batch entry ", entry,
                             " of a batch of ", lengths_.size());
  const std::int64_t length = lengths_[static_cast<std::size_t>(entry)],
                     kept_from = kept_from_[static_cast<std::size_t>(entry)];
  require<std::out_of_range>(n >= 0 && n <= length, function, ": batch entry ", entry, " has ", length, " positions, not ",
                             n);
  require<std::out_of_range>(n == 0 || n >= kept_from, function, ": batch entry ", entry, " keeps the positions from ",
                             kept_from, " on, so position ", n, " would follow keys that were given back");
}

void Attention::truncate(std::int64_t entry, std::int64_t n) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  check_prefix("Attention::truncate", entry, n);
  shard_->cache->truncate(entry, shard_->cache->leaves().n_keys(n));
  lengths_[static_cast<std::size_t>(entry)] = n;
  if (n == 0) kept_from_[static_cast<std::size_t>(entry)] = 0;
}

void Attention::share(std::int64_t from, std::int64_t to, std::int64_t n) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  constexpr const char* kHere = "Attention::share";
  check_prefix(kHere, from, n), check_prefix(kHere, to, 0);
  require<std::out_of_range>(lengths_[static_cast<std::size_t>(to)] == 0, kHere, ": batch entry ", to, " has ",
                             lengths_[static_cast<std::size_t>(to)], " positions, not none");
  shard_->cache->share(from, to, shard_->cache->leaves().n_keys(n));
  lengths_[static_cast<std::size_t>(to)] = n;
  kept_from_[static_cast<std::size_t>(to)] = n == 0 ? 0 : kept_from_[static_cast<std::size_t>(from)];
  has_shared_ = true;
}

bool Attention::holds(std::int64_t position) const {
  require<std::out_of_range>(position >= 0, "Attention::holds: position ", position);
  const OwnedLeaves& leaves = shard_->cache->leaves();
  return position < most_keys() && leaves.n_keys(position + 1) > leaves.n_keys(position);
}

std::optional<std::string> Attention::refusal_of_pages(const Step& step) const {
  return refusal_of(compares_lengths_, [&] {
    require_no_capture("Attention::step", stream_);
    for (std::size_t i = 0; shard_->cache->pages() != nullptr && i < lengths_.size(); ++i) {
      const std::int64_t begin = (shard_->cache->pages()->rule().sinks + kLeafKeys - 1) / kLeafKeys * kLeafKeys,
                         end = kept_from_[i] / kLeafKeys * kLeafKeys;
      require(begin >= end || !step.seen_by_any(static_cast<std::int64_t>(i)).touches(begin, end),
              "Attention::step: batch entry ", i, " sees keys before position ", end, ", which may have been given back");
    }
  });
}

OutputView Attention::step(const TensorView& q, const SeenRule& rule, std::span<const float> sink, const Mask& mask,
                           double softcap) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  const Step step{q, lengths_, rule, sink, mask, softcap, stream_of(q)};
  return decoder_->step(step, refusal_of_pages(step));
}

OutputView Attention::step_by_heads(const TensorView& q, const SeenRule& rule, std::span<const float> sink, const Mask& mask,
                                    double softcap) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  constexpr const char* kHere = "Attention::step_by_heads";
  const int p = transport_->size();
  const auto& [b, n, l, d] = q.shape;
  const auto refusal = refusal_of(compares_lengths_, [&] {
    require_idle(kHere);
    decoder_->check_part(OutputPart::kHeads);
    require(q.shape == std::array{shape_.batch, shape_.heads / p, l, shape_.head_dim}, kHere, ": q is [", b, ", ", n, ", ",
            l, ", ", d, "]; expected [", shape_.batch, ", ", shape_.heads / p, ", l, ", shape_.head_dim,
            "], the heads of one of ", p, " ranks");
    require_view(kHere, q, "q");
    if (p > 1) queries_.reserve(q, p);
  });
  if (compares_lengths_)
    require_equal(transport_->ranks(), kHere, "all ranks to compare queries by heads",
                  std::array{Field{"the number of queries", l}, Field{"the type of queries", name_of(q.dtype)}}, refusal);
  const Step step{p == 1 ? q : queries_.gather(*transport_, q), lengths_, rule, sink, mask, softcap};
  return decoder_->step(step, refusal_of_pages(step), OutputPart::kHeads);
}

void Attention::start(const TensorView& q, const SeenRule& rule, std::span<const float> sink, const Mask& mask,
                      double softcap) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  const Step step{q, lengths_, rule, sink, mask, softcap, stream_of(q)};
  decoder_->start(step, refusal_of_pages(step));
}

void Attention::refuse(const std::string& line, Refused call) {
  const bool is_told = call == Refused::kStep     ? compares_lengths_
                       : call == Refused::kAppend ? appends_together()
                                                  : transport_->size() > 1;
  if (is_told) transport_->ranks().all_equal(0, "all ranks to refuse a call", line);
  throw std::invalid_argument(line);
}

bool Attention::progress() {
  const OnDevice on_device(*this);
  return decoder_->progress();
}

OutputView Attention::finish() {
  const OnDevice on_device(*this);
  require_no_capture("Attention::finish", stream_);
  return decoder_->finish();
}

Attention::OnDevice::OnDevice(const Attention& of) {
  if (of.relay_ == nullptr || (before_ = of.relay_->device()) == of.device_) return;
  backend_ = of.setup_.found_backend;
  backend_->use_gpu(of.device_);
}

Attention::OnDevice::~OnDevice() {
  if (backend_ != nullptr) backend_->use_gpu(before_);
}

void Attention::use_stream(std::optional<void*> stream) {
  const OnDevice on_device(*this);
  constexpr const char* kHere = "Attention::use_stream";
  require(!stream || relay_ != nullptr, kHere, ": the backend ", setup_.found_backend->name(), " has no streams");
  if (stream == stream_) return;
  require_no_capture(kHere, stream_), require_no_capture(kHere, stream);
  // First, since it fails for a stream of another device.
  relay_->stream().follow(stream.value_or(nullptr));
  relay_->stream().follow(stream_.value_or(nullptr)), relay_->stream().lead(stream.value_or(nullptr));
  stream_ = stream;
}

void Attention::require_no_capture(const char* function, std::optional<void*> stream) const {
  require(!stream || !relay_->stream().is_captured(*stream), function,
          ": the stream is being captured, and a graph would not read the lengths of later calls: call it outside of the "
          "graph");
}

DevicePlatform Attention::platform() const { return platform_of(*shard_->backend); }

OutputView Attention::combine(const TensorView& o, const TensorView& lse, OutputPart part, LseForm form) {
  const FloatEnvironment environment;
  const OnDevice on_device(*this);
  const MakeBlocks make_blocks = platform().make_blocks;
  const auto refusal = refusal_of(compares_lengths_, [&] {
    require_idle("Attention::combine");
    require_no_capture("Attention::combine", stream_);
    Combiner::check(*transport_, o.shape, part, make_blocks != nullptr, o, lse);
  });
  const auto& [b, n_h, l, d_v] = o.shape;
  if (compares_lengths_)
    require_equal(
        transport_->ranks(), "Attention::combine", "all ranks to compare what they combine",
        std::array{Field{"b", b}, Field{"n_h", n_h}, Field{"l", l}, Field{"d_v", d_v},
                   Field{"by heads", part == OutputPart::kHeads}, Field{"the memory of o", o.on_device ? "device" : "host"}},
        refusal);

  constexpr std::size_t kMost = 4;
  const auto found =
      std::ranges::find_if(combiners_, [&](const auto& each) { return each->part == part && each->shape == o.shape; });
  if (found != combiners_.end()) {
    std::rotate(combiners_.begin(), found, found + 1);
  } else {
    if (combiners_.size() == kMost) combiners_.pop_back();
    combiners_.insert(
        combiners_.begin(),
        std::unique_ptr<OpenCombiner>(new OpenCombiner{
            o.shape, part, Combiner(*transport_, o.shape, part, {.network = transport_->network()}, make_blocks)}));
  }
  return combiners_.front()->combiner.combine(o, lse, form, stream_of(o));
}

}  // namespace tree_attn
