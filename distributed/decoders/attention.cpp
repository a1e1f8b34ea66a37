// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What Attention adds to a decoder: which rank holds which keys, and how long the sequences are.
#include "tree_attn/distributed/decoders/attention.hpp"

#include "tree_attn/distributed/decoders/agreement.hpp"
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/reference/data/fnv1a.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
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
    : own_ranks_(std::move(ranks)) {
  open(*own_ranks_, shape, setup);
}

Attention::~Attention() = default;

void Attention::open(const Ranks& ranks, const AttentionShape& shape, const AttentionSetup& setup) {
  const Backend* backend = nullptr;
  const Algorithm* algorithm = nullptr;
  run_on_all<std::exception>(ranks, [&] {
    algorithm = &find_algorithm(setup.algorithm);
    backend = &find_backend(setup.backend, setup.n_threads);
    require_shape("Attention", shape);
  });
  const Topology topology = ranks.topology(setup.ranks_per_node);
  transport_ = setup.shares_memory ? ranks.open_shared_transport(topology) : ranks.open_transport(topology);
  const bool is_dealt = setup.ranges.empty();
  const std::vector<KeyRange> ranges = is_dealt ? dealt_ranges(topology.size()) : setup.ranges;
  const OwnedLeaves leaves(topology.range_of(ranks.rank(), ranges), is_dealt ? LeafOrder::kDealt : LeafOrder::kContiguous);
  const double scale = setup.scale.value_or(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  run_on_all<std::exception>(ranks, [&] {
    const std::string why = backend->refusal(shape);
    require(why.empty(), "--backend ", setup.backend, ": no kernel supports ", why);
    shard_ = open_shard(*backend, shape, leaves, 0, scale, setup.pages, setup.scales);
  });
  PlanOptions options = setup.plan;
  options.network = transport_->network();
  decoder_ = algorithm->open(*transport_, shard_, ranges, options);
  lengths_.assign(static_cast<std::size_t>(shape.batch), 0), kept_from_ = lengths_;
  most_keys_ = ranges.back().end;
  compares_lengths_ = setup.compares_lengths && topology.size() > 1;
}

void Attention::append(std::int64_t entry, const TensorView& k, const TensorView& v) {
  KvCache& cache = *shard_.cache;
  const OwnedLeaves& leaves = cache.leaves();
  cache.append(entry, k.positions(0, 0), v.positions(0, 0));  // checks all but the data
  std::int64_t& length = lengths_[static_cast<std::size_t>(entry)];
  const std::int64_t n = k.shape[2];
  require(n == v.shape[2], "Attention::append: k has ", n, " positions, v has ", v.shape[2]);
  require<std::out_of_range>(n <= most_keys_ - length, "Attention::append: batch entry ", entry, " has ", length,
                             " positions, and ", n, " more do not fit in the ranges of all ranks, which end at ",
                             most_keys_);
  const std::int64_t end = length + n, held = leaves.n_keys(length);
  require(leaves.n_keys(end) == held || (k.data != nullptr && v.data != nullptr), "Attention::append: rank ",
          transport_->rank(), " holds ", leaves.n_keys(end) - held, " of the positions [", length, ", ", end,
          "), but has no data of them");
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
    } catch (const std::out_of_range& refusal) {
      error = refusal.what();
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
  try {
    for_each_run([&](std::int64_t first, std::int64_t n_held) {
      cache.append(entry, k.positions(first, first + n_held), v.positions(first, first + n_held));
    });
  } catch (...) {
    cache.truncate(entry, held);
    throw;
  }
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
  check_prefix("Attention::truncate", entry, n);
  shard_.cache->truncate(entry, shard_.cache->leaves().n_keys(n));
  lengths_[static_cast<std::size_t>(entry)] = n;
  if (n == 0) kept_from_[static_cast<std::size_t>(entry)] = 0;
}

void Attention::share(std::int64_t from, std::int64_t to, std::int64_t n) {
  constexpr const char* kHere = "Attention::share";
  check_prefix(kHere, from, n), check_prefix(kHere, to, 0);
  require<std::out_of_range>(lengths_[static_cast<std::size_t>(to)] == 0, kHere, ": batch entry ", to, " has ",
                             lengths_[static_cast<std::size_t>(to)], " positions, not none");
  shard_.cache->share(from, to, shard_.cache->leaves().n_keys(n));
  lengths_[static_cast<std::size_t>(to)] = n;
  kept_from_[static_cast<std::size_t>(to)] = n == 0 ? 0 : kept_from_[static_cast<std::size_t>(from)];
  has_shared_ = true;
}

bool Attention::holds(std::int64_t position) const {
  require<std::out_of_range>(position >= 0, "Attention::holds: position ", position);
  const OwnedLeaves& leaves = shard_.cache->leaves();
  return leaves.n_keys(position + 1) > leaves.n_keys(position);
}

Step Attention::checked(const TensorView& q, const SeenRule& rule, std::span<const float> sink) {
  const Step step{q, lengths_, rule, sink};
  if (compares_lengths_) compare(step);
  // Each rank has given back leaves of its own; all refuse what one of them cannot see.
  for (std::size_t i = 0; shard_.cache->pages() != nullptr && i < lengths_.size(); ++i) {
    const std::int64_t begin = (shard_.cache->pages()->rule().sinks + kLeafKeys - 1) / kLeafKeys * kLeafKeys,
                       end = kept_from_[i] / kLeafKeys * kLeafKeys;
    require(begin >= end || !step.seen_by_any(static_cast<std::int64_t>(i)).touches(begin, end),
            "Attention::step: batch entry ", i, " sees keys before position ", end, ", which may have been given back");
  }
  return step;
}

void Attention::compare(const Step& step) {
  const auto hash = [](auto values) { return fnv1a(std::as_bytes(values)); };
  const auto& [causal, window, sinks] = step.rule;
  const std::array<std::int64_t, 5> rule{step.longest(), causal, window, sinks, step.q.on_device};
  const std::array mine{hash(std::span(rule)), hash(std::span(lengths_)), hash(step.sink)};
  constexpr std::string_view kWhat = "all ranks to compare lengths";
  if (transport_->ranks().all_equal(hash(std::span(mine)), kWhat)) return;
  require_equal(
      *transport_, "Attention::step", kWhat,
      std::array{Field{"the longest sequence", rule[0]}, Field{"the hash of lengths", mine[1]},
                 Field{"the causal edge", causal}, Field{"the window", window}, Field{"the number of sinks", sinks},
                 Field{"the memory of queries", step.q.on_device ? "device" : "host"},
                 Field{"the hash of learned sinks", mine[2]}});
}

OutputView Attention::step(const TensorView& q, const SeenRule& rule, std::span<const float> sink) {
  return decoder_->step(checked(q, rule, sink));
}

void Attention::start(const TensorView& q, const SeenRule& rule, std::span<const float> sink) {
  decoder_->start(checked(q, rule, sink));
}

DevicePlatform Attention::platform() const { return platform_of(*shard_.backend); }

OutputView Attention::combine(const TensorView& o, const TensorView& lse, OutputPart part, LseForm form) {
  if (decoder_->is_under_way()) throw std::logic_error("Attention::combine: a step is under way");
  if (combiner_ == nullptr || combiner_->part != part || combiner_->shape != o.shape) {
    combiner_.reset();
    combiner_.reset(new OpenCombiner{o.shape, part, Combiner(*transport_, o.shape, part, {}, platform().make_blocks)});
  }
  return combiner_->combiner.combine(o, lse, form);
}

}  // namespace tree_attn
