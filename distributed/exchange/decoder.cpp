// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of algorithms, and the decoder of those that have a plan.
#include "distributed/exchange/decoder.hpp"

#include "distributed/exchange/decoder_setup.hpp"
#include "distributed/exchange/keys_read.hpp"
#include "distributed/exchange/runner.hpp"
#include "distributed/transport/ranks.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/fnv1a.hpp"
#include "reference/data/input_error.hpp"
#include "reference/decode/page_table.hpp"
#include "reference/tensor/float_environment.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

namespace tree_attn {

namespace {

/// Writes the plan of this rank for closed ranges and steps of l queries that end with a part of the output.
using PlanFor = std::function<Plan(std::span<const KeyRange> ranges, std::int64_t l, OutputPart part)>;

/// Decodes the own shard, then carries out the plan.
class PlanDecoder : public Decoder {
 public:
  PlanDecoder(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges, PlanFor plan_for, bool has_heads)
      : Decoder(transport, shard),
        ranges_(ranges.begin(), ranges.end()),
        plan_for_(std::move(plan_for)),
        has_heads_(has_heads) {
    on_device_ = dynamic_cast<DeviceSteps*>(shard.session.get());
    if (transport.device() != nullptr && on_device_ == nullptr)
      throw std::logic_error("PlanDecoder: the transport sends from device memory, the backend has states on the host");
    if (is_open()) return;
    prepare(ranges_, std::max<std::int64_t>(1, shard.most_queries));
    plan(most_queries_, transport.device() != nullptr);
  }
  bool takes_device_queries() const override { return on_device_ != nullptr; }
  bool has_heads() const override { return has_heads_; }

 protected:
  void begin(const Step& step) override {
    if (transport_.device() != nullptr) return;  // a plan on its memory is written by all ranks together
    plan_for(step);
    if (is_on_device(step)) return on_device_->prepare(step);
    sinks_ = sinks_of_rows(step);
    states_ = decode_own_shard(step).states();
  }
  OutputView run(const Step& step) override {
    plan_for(step);
    Runner& end = *planned_.front().on_device;
    // Memory that grows needs a new graph, and a message is in a graph at both sides or at neither: so the memory of all
    // ranks grows in the same step. Messages from host memory are in none.
    if (transport_.device() != nullptr) {
      shard_.grow(step.longest(), transport_.size());
      if (std::exchange(recorded_room_, shard_.room) != shard_.room) on_device_->stream().forget();
    }
    end.leave_output(step.q.on_device);
    end.put_sinks(sinks_of_rows(step));
    on_device_->decode_to(end, step, progress_);
    const OutputView output = end.settle(!step.stream);
    if (step.stream) on_device_->stream().lead(*step.stream);
    set_states_ready(transport_.device() != nullptr ? transport_.device()->settled_from() : transport_.seconds());
    return output;
  }
  bool run_start(const Step& step) override {
    if (is_on_device(step)) return Decoder::run_start(step);
    planned_.front().on_host->start(states_, sinks_);
    return false;
  }
  bool run_progress() override { return planned_.front().on_host->advance(); }
  OutputView run_finish() override { return planned_.front().on_host->finish(); }

 private:
  /// Tests whether the plan runs on the device.
  bool is_on_device(const Step& step) const { return transport_.device() != nullptr || step.q.on_device; }
  /// Lengths and queries are the same on every rank, so all ranks write new plans, and take memory for them, in the same
  /// step.
  void plan_for(const Step& step) {
    const std::int64_t longest = step.longest(), l = step.q.shape[2];
    const bool is_first_of_part = !has_part_[part() == OutputPart::kHeads];
    if (now_.empty() || is_first_of_part || l > most_queries_ ||
        (is_open() && closed(ranges_.back(), longest).end != now_.back().end))
      prepare(closed(ranges_, longest), std::max({std::int64_t{1}, shard_.most_queries, most_queries_, l}), part());
    plan(l, is_on_device(step));
  }

  bool is_open() const { return !ranges_.empty() && ranges_.back().end == kOpenEnd; }
  /// Drops all plans. Those to come are for these ranges, and share memory that is enough for 1 to n queries, and for this
  /// part of the output beside those before.
  void prepare(std::vector<KeyRange> ranges, std::int64_t n, OutputPart part_to_come = OutputPart::kAll) {
    std::array<bool, 2> has_part = has_part_;
    has_part[part_to_come == OutputPart::kHeads] = true;
    now_.clear();  // an error leaves no plan, and the parts of the steps before
    planned_.clear();
    host_memory_.reset(), device_memory_.reset();
    size_ = {};
    for (const OutputPart part : {OutputPart::kAll, OutputPart::kHeads}) {
      if (!has_part[part == OutputPart::kHeads]) continue;
      const Plan of_one = plan_for_(ranges, 1, part), of_most = n > 1 ? plan_for_(ranges, n, part) : Plan{};
      fit(1, of_one), fit(n, of_most);
      fit_between(ranges, part, 1, of_one, n, of_most);
    }
    now_ = std::move(ranges), most_queries_ = n, has_part_ = has_part;
  }
  void fit(std::int64_t l, const Plan& plan) { size_.fit(plan, shape().n_rows(l), shape().value_dim); }
  /// Makes the memory enough for all numbers of queries between two. Plans have few layouts, each for neighbouring numbers,
  /// and blocks of one layout grow with the rows.
  void fit_between(std::span<const KeyRange> ranges, OutputPart part, std::int64_t l, const Plan& of_l, std::int64_t n,
                   const Plan& of_n) {
    if (n - l < 2 || of_l.widths == of_n.widths) return;
    const std::int64_t middle = l + (n - l) / 2;
    const Plan of_middle = plan_for_(ranges, middle, part);
    fit(middle, of_middle);
    fit_between(ranges, part, l, of_l, middle, of_middle), fit_between(ranges, part, middle, of_middle, n, of_n);
  }
  /// Puts the plan for steps of l queries in front. The last four are kept, as many as a stream keeps graphs.
  void plan(std::int64_t l, bool on_device) {
    constexpr std::size_t kMostKept = 4;
    const auto known = std::ranges::find(planned_, std::pair(l, part()), &Planned::step);
    if (known == planned_.end())
      planned_.emplace_front(l, part());
    else
      planned_.splice(planned_.begin(), planned_, known);
    if (planned_.size() > kMostKept) planned_.pop_back();
    auto& [of_step, of_host, of_device] = planned_.front();
    std::optional<Runner>& runner = on_device ? of_device : of_host;
    if (runner) return;
    std::shared_ptr<RunnerMemory>& memory = on_device ? device_memory_ : host_memory_;
    const std::int64_t d_v = shape().value_dim;
    NcclTransport* const device = transport_.device();
    if (memory == nullptr && on_device)
      memory = std::make_shared<RunnerMemory>(
          transport_, size_, d_v, device != nullptr ? device->make_blocks() : platform_of(*shard_.backend).make_blocks,
          &on_device_->stream(), shard_.cache->scales().v);
    else if (memory == nullptr)
      memory = std::make_shared<RunnerMemory>(transport_, size_, d_v);
    runner.emplace(transport_, plan_for_(now_, l, part()), shape().n_rows(l), d_v, memory);
  }
  const AttentionShape& shape() const { return shard_.cache->shape(); }

  std::vector<KeyRange> ranges_;
  PlanFor plan_for_;
  bool has_heads_;
  std::array<bool, 2> has_part_{true, false};  ///< whether there is memory for the plans of all of the output, and of heads
  DeviceSteps* on_device_ = nullptr;           ///< the session, if it has states on a device
  std::int64_t recorded_room_ = -1;            ///< that there was in the step before
  std::vector<KeyRange> now_;                  ///< ranges in the plans, closed; empty before the first
  std::int64_t most_queries_ = 0;              ///< that there is memory for
  RunnerSize size_;                            ///< of that memory
  std::shared_ptr<RunnerMemory> host_memory_, device_memory_;
  std::span<const float> states_;  ///< of the own shard, on the host
  std::span<const float> sinks_;   ///< of the rows
  /// The plan of steps of so many queries and a part of the output, where a step has needed it.
  struct Planned {
    std::pair<std::int64_t, OutputPart> step;
    std::optional<Runner> on_host{};
    std::optional<Runner> on_device{};  ///< the only one if messages are sent from device memory
    Planned(std::int64_t l, OutputPart part) : step(l, part) {}
  };
  std::list<Planned> planned_;  ///< that of the last step first
};

/// The kind of a mask, which ranks compare: its type, and the axes that are not broadcast.
std::string_view kind_of(const Mask& mask) {
  constexpr std::string_view kKinds[] = {"additive",
                                         "boolean",
                                         "additive, of every entry",
                                         "boolean, of every entry",
                                         "additive, of every head",
                                         "boolean, of every head",
                                         "additive, of every entry, of every head",
                                         "boolean, of every entry, of every head"};
  return mask.data == nullptr ? "none" : kKinds[mask.is_boolean + 2 * (mask.shape[0] > 1) + 4 * (mask.shape[1] > 1)];
}

}  // namespace

Decoder::Decoder(Transport& transport, OpenShard& shard)
    : transport_(transport), shard_(shard), progress_([&transport] { transport.progress(); }) {
  reserve(std::max<std::int64_t>(1, shard.most_queries));
}

void Decoder::reserve(std::int64_t l) {
  const AttentionShape& shape = shard_.cache->shape();
  if (!shard_.cache->scales().v.empty()) scaled_.reserve(static_cast<std::size_t>(shape.n_rows(l) * shape.value_dim));
}

Decoder::~Decoder() {
  if (!is_started_) return;
  transport_.ranks().set_busy(false);
  if (transport_.size() > 1 && !is_whole_) transport_.abandon();
}

OutputView Decoder::step(const Step& step, const std::optional<std::string>& refusal, OutputPart part) {
  start(step, refusal, part);
  return finish();
}

void Decoder::start(const Step& step, const std::optional<std::string>& refusal, OutputPart part) {
  const FloatEnvironment environment;
  agree(step, refusal, part);
  is_whole_ = run_start(step);
  is_started_ = true, transport_.ranks().set_busy(true);
}

bool Decoder::progress() {
  const FloatEnvironment environment;
  require_started("Decoder::progress", true);
  return is_whole_ || run_progress();
}

OutputView Decoder::finish() {
  const FloatEnvironment environment;
  require_started("Decoder::finish", true);
  is_started_ = false, transport_.ranks().set_busy(false);
  return scaled(is_whole_ ? output_ : run_finish());
}

OutputView Decoder::scaled(const OutputView& output) {
  const std::vector<float>& scales = shard_.cache->scales().v;
  if (scales.empty() || output.on_device || output.out.empty()) return output;
  // Rows of a query head follow each other, all of them or the heads of this rank.
  const AttentionShape& shape = shard_.cache->shape();
  const bool by_heads = part_ == OutputPart::kHeads;
  const std::int64_t n = by_heads ? shape.heads / transport_.size() : shape.heads,
                     first = by_heads ? n * transport_.rank() : 0,
                     of_head = std::max<std::int64_t>(1, std::ssize(output.out) / (shape.batch * n));
  scaled_.assign(output.out.begin(), output.out.end());
  for (std::int64_t i = 0; i < std::ssize(scaled_); ++i) {
    const std::int64_t entry = i / of_head / n, head = first + i / of_head % n;
    scaled_[static_cast<std::size_t>(i)] *=
        scales[static_cast<std::size_t>(entry * shape.kv_heads + head * shape.kv_heads / shape.heads)];
  }
  return {scaled_, output.lse};
}

void Decoder::require_started(const char* function, bool started) const {
  if (is_started_ == started) return;
  throw std::logic_error(std::string(function) + (started ? ": no step has been started" : ": a step is under way"));
}

void Decoder::check(const Step& step) const {
  shard_.session->check(step);
  require(!step.q.on_device || takes_device_queries(),
          "Decoder::step: q is in memory of a device; ring and one-shot take it in memory of the host alone");
  for (std::size_t i = 0; i < step.lengths.size(); ++i) {
    require<std::out_of_range>(step.lengths[i] <= most_keys_, "Decoder::step: batch entry ", i, " has ", step.lengths[i],
                               " keys, but the ranges of all ranks end at ", most_keys_);
  }
}

void Decoder::check_part(OutputPart part) const {
  if (part == OutputPart::kAll) return;
  const std::int64_t n_h = shard_.cache->shape().heads;
  require(has_heads(), "Decoder::step: two-level alone leaves the output by heads");
  require(n_h % transport_.size() == 0, "Decoder::step: ", n_h, " heads cannot be scattered over ", transport_.size(),
          " ranks");
  require(transport_.device() == nullptr, "Decoder::step: the transport ", transport_.name(),
          " sends from device memory, and the output by heads is of host memory");
}

void Decoder::agree(const Step& step, std::optional<std::string> refusal, OutputPart part) {
  transport_.check();
  const Ranks& ranks = transport_.ranks();
  const bool compares = compares_steps_ && ranks.size() > 1;
  if (!refusal)
    refusal = refusal_of(compares, [&] {
      require_started("Decoder::step", false), transport_.ranks().require_idle("Decoder::step");
      check(step), check_part(part);
      require(part == OutputPart::kAll || !step.q.on_device,
              "Decoder::step: q is in memory of a device; by heads it is on the host");
      part_ = part;
      reserve(step.q.shape[2]), begin(step);
    });
  if (ranks.size() == 1) return;
  const std::array fields{Field{"the longest sequence", compares ? step.longest() : 0},
                          Field{"the hash of lengths", compares ? fnv1a(std::as_bytes(step.lengths)) : 0},
                          Field{"the number of queries", step.q.shape[2]},
                          Field{"the type of queries", name_of(step.q.dtype)},
                          Field{"the memory of queries", step.q.on_device ? "device" : "host"},
                          Field{"the output by heads", part == OutputPart::kHeads},
                          Field{"the causal edge", step.rule.causal},
                          Field{"the window", step.rule.window},
                          Field{"the number of sinks", step.rule.sinks},
                          Field{"the mask", kind_of(step.mask)},
                          Field{"the soft cap", step.softcap},
                          Field{"the hash of learned sinks", fnv1a(std::as_bytes(step.sink))}};
  const std::uint64_t hash = hash_of(fields);
  if (!compares && hash == agreed_) return;
  require_equal(ranks, "Decoder::step", "all ranks to compare a step", fields, refusal);
  agreed_ = hash;
}

std::span<const float> Decoder::sinks_of_rows(const Step& step) {
  of_rows_.clear();
  for (std::int64_t r = 0; !step.sink.empty() && r < shard_.cache->shape().n_rows(step.q.shape[2]); ++r)
    of_rows_.push_back(step.sink_of(r));
  return of_rows_;
}

Forest<float>& Decoder::decode_own_shard(const Step& step) {
  Forest<float>& states = shard_.session->decode_checked(step, progress_).host();
  set_states_ready(transport_.seconds());
  return states;
}

extern const Algorithm kTwoLevel, kLeaders, kPaper, kPacked, kFused, kGather, kRing, kRingState, kOneShot;

std::span<const Algorithm> all_algorithms() {
  static const Algorithm all[] = {kTwoLevel, kLeaders, kPaper, kPacked, kFused, kGather, kRing, kRingState, kOneShot};
  return all;
}
std::span<const Algorithm> algorithms() { return all_algorithms().first(all_algorithms().size() - 1); }

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.name == name) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw InputError("--algorithm " + std::string(name) + ": unknown; use one of " + known);
}

void Algorithm::check_ranges(const char* function, int n_ranks, std::span<const KeyRange> ranges, LeafOrder order,
                             const PlanOptions& options) const {
  require(ranges.size() == static_cast<std::size_t>(n_ranks), function, ": ", ranges.size(), " ranges for ", n_ranks,
          " ranks");
  require_neighbours(function, ranges);
  require(ranges.front().begin == 0, function, ": the ranges begin at ", ranges.front().begin, " instead of 0");
  for (const KeyRange& range : ranges)
    require(begins_leaf(range), function, ": a range begins at ", range.begin, ", inside a leaf of ", kLeafKeys, " keys");
  constexpr std::int64_t kEnd = std::int64_t{1} << kPositionBits;
  require(order == LeafOrder::kContiguous || ranges.back().end == kEnd, function, ": the ranges end at ", ranges.back().end,
          "; in the dealt order they end at ", kEnd);
  require(takes_dealt || order == LeafOrder::kContiguous, function, ": ", name, " takes no dealt order of leaves");
  require(options.radix == 0 || options.radix >= 2, function, ": a radix of ", options.radix, "; 0 or at least 2");
  require(options.node_radix == 0 || options.node_radix >= 2, function, ": a radix of nodes of ", options.node_radix,
          "; 0 or at least 2");
}

std::unique_ptr<Decoder> Algorithm::open(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                         const PlanOptions& options) const {
  constexpr const char* kHere = "Algorithm::open";
  const FloatEnvironment environment;
  const Topology& topology = transport.topology();
  const OwnedLeaves& own_leaves = shard.cache->leaves();
  std::vector<Field> fields =
      fields_of({name, shard.cache->shape(), ranges, own_leaves.order(), shard.session->scale(), shard.cache->scales(),
                 shard.cache->pages() != nullptr ? shard.cache->pages()->rule() : PageRule{}, shard.most_queries, options});
  fields.emplace_back("hash of nodes", hash_of_nodes(topology));
  fields.emplace_back("arithmetic", shard.cache->arithmetic(), "--portable");
  require_equal(transport.ranks(), kHere, "all ranks to open " + std::string(name), fields);
  check_ranges(kHere, topology.size(), ranges, own_leaves.order(), options);
  const KeyRange mine = topology.range_of(transport.rank(), ranges), held = own_leaves.range();
  require(mine == held, kHere, ": the range of rank ", transport.rank(), " is [", mine.begin, ", ", mine.end,
          "), but its cache holds [", held.begin, ", ", held.end, ")");
  return open_agreed(transport, shard, ranges, options, false);
}

std::unique_ptr<Decoder> Algorithm::open_agreed(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                                const PlanOptions& options, bool compares_steps) const {
  std::unique_ptr<Decoder> decoder;
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) {
    decoder = own->open(transport, shard, ranges, options);
  } else {
    decoder = std::make_unique<PlanDecoder>(
        transport, shard, ranges,
        [this, &transport, &shard, options](std::span<const KeyRange> all, std::int64_t l, OutputPart part) {
          const PlanOf plan_of = part == OutputPart::kHeads ? heads : std::get<PlanOf>(exchange);
          return plan_of(transport.topology(), transport.rank(), all, options.for_step(shard.cache->shape(), l));
        },
        heads != nullptr);
  }
  decoder->most_keys_ = ranges.back().end;
  decoder->compares_steps_ = compares_steps;
  return decoder;
}

RankCost Algorithm::cost(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape,
                         const PlanOptions& options, OutputPart part) const {
  constexpr const char* kHere = "Algorithm::cost";
  require_workload(kHere, shape);
  check_ranges(kHere, topology.size(), ranges, shape.order, options);
  require<std::out_of_range>(rank >= 0 && rank < topology.size(), kHere, ": rank ", rank, " of ", topology.size());
  require(shape.longest() <= ranges.back().end, kHere, ": ", shape.longest(), " keys, but the ranges end at ",
          ranges.back().end);
  const bool by_heads = part == OutputPart::kHeads;
  require(!by_heads || (heads != nullptr && shape.heads % topology.size() == 0), kHere, ": ", name, " scatters no ",
          shape.heads, " heads over ", topology.size(), " ranks");
  if (const auto* own = std::get_if<OwnDecoder>(&exchange))
    return own->cost(topology, rank, ranges, shape, options.for_step(shape, shape.n_queries));
  const PlanOf plan_of = by_heads ? heads : std::get<PlanOf>(exchange);
  RankCost cost = cost_of(plan_of(topology, rank, closed(ranges, shape.longest()), options.for_step(shape, shape.n_queries)),
                          shape.n_rows(), shape.value_dim);
  const OwnedLeaves leaves(topology.range_of(rank, ranges), shape.order);
  cost.rounds.front().decoded_bytes = bytes_read(leaves, shape);
  return cost;
}

}  // namespace tree_attn
