// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The options of `tree_attn decode`: names, groups, and one pass that checks what the parser cannot.
#include "distributed/program/decode_options.hpp"

#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace tree_attn {

std::vector<std::string> dtype_options() {
  std::vector<std::string> options;
  for (const DType dtype : kDTypes) {
    if (kernel_cores_of(dtype) != KernelCores::None) options.push_back(lower_name_of(dtype));
  }
  return options;
}
std::string dtype_help() {
  std::string help = "Storage type, one of";
  for (const std::string& option : dtype_options()) help += " " + option;
  return help;
}
DType dtype_named(std::string_view name) {
  return *std::find_if(kDTypes.begin(), kDTypes.end(), [&](DType candidate) { return lower_name_of(candidate) == name; });
}

std::string ranks_text(int n_ranks) { return line_of(n_ranks, n_ranks == 1 ? " rank" : " ranks"); }

LeafOrder order_named(std::string_view name) {
  return name == name_of(LeafOrder::kDealt) ? LeafOrder::kDealt : LeafOrder::kContiguous;
}

WorkloadShape synthetic_shape(const ShapeOptions& options, LeafOrder order) {
  const std::int64_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  if (options.heads % kv_heads != 0) refuse("--heads ", options.heads, " is not a multiple of --kv-heads ", kv_heads);
  const DType dtype = dtype_named(options.dtype);
  const WorkloadShape shape{{.dtype = dtype,
                             .value_dtype = dtype,
                             .batch = options.batch,
                             .heads = options.heads,
                             .kv_heads = kv_heads,
                             .head_dim = options.head_dim,
                             .value_dim = options.head_dim},
                            options.seq_len,
                            {},
                            order};
  const double bytes = static_cast<double>(shape.bytes_per_position()) * static_cast<double>(options.seq_len);
  if (bytes > 0x1p46)
    refuse("--seq-len ", options.seq_len, ": a cache of ", bytes / 0x1p40, " TiB exceeds the limit of 64 TiB");
  return shape;
}

Combining resolve(const ClusterOptions& options, const std::optional<std::string>& order, bool deals,
                  const RankLayout& layout) {
  Combining result{{&find_algorithm(options.algorithm)}};
  for (const std::string& name : options.compare) result.algorithms.push_back(&find_algorithm(name));
  const auto has_radix = [](const Algorithm* algorithm) { return algorithm->radix != nullptr; };
  if (options.radix && std::ranges::none_of(result.algorithms, has_radix))
    refuse("--radix is for algorithms that join blocks of ranks, not for ", options.algorithm);
  deals = deals && std::ranges::all_of(result.algorithms, [](const Algorithm* each) { return each->takes_dealt; });
  result.order = order ? order_named(*order) : deals ? LeafOrder::kDealt : LeafOrder::kContiguous;

  const int n_ranks = layout.topology.size();
  if (options.threads && !layout.backend->has_threads())
    refuse("--threads is for --backend cpu, but the backend is ", options.backend);
  if (options.transport == "nccl" && platform_of(*layout.backend).make_blocks == nullptr)
    refuse("--transport nccl sends from the memory of GPUs, but the backend is ", options.backend, "; use --backend cuda");
  if (options.ranks_per_node > n_ranks)
    refuse("--ranks-per-node ", options.ranks_per_node, " is larger than the job, which has ", ranks_text(n_ranks));
  if (result.order == LeafOrder::kDealt && n_ranks > kMostDealtRanks)
    refuse("--order dealt: at most ", kMostDealtRanks, " ranks can share a sequence, but the job has ", ranks_text(n_ranks));
  return result;
}

void check_shards(std::span<const Algorithm* const> algorithms, const RankLayout& layout, std::span<const KeyRange> ranges,
                  const WorkloadShape& shape) {
  const Backend& backend = *layout.backend;
  const std::string who = "--backend " + std::string(backend.name()) + ": ";
  if (const std::string why = backend.refusal(shape); !why.empty()) refuse(who, "no kernel supports ", why);
  if (shape.mask.data != nullptr && !backend.has_masks())
    refuse(who, "no kernel adds the tensor \"mask\"; use --backend cpu");
  for (const Algorithm* algorithm : algorithms) {
    if (shape.order == LeafOrder::kDealt && !algorithm->takes_dealt)
      refuse("--algorithm ", algorithm->name, ": takes --order contiguous alone");
    if (algorithm->refusal == nullptr) continue;
    if (const std::string why = algorithm->refusal(layout.topology, &backend, ranges, shape); !why.empty())
      refuse("--algorithm ", algorithm->name, ": ", why);
  }
}

DecodeTask resolve(const DecodeOptions& options, const RankLayout& layout) {
  const int n_ranks = layout.topology.size();
  DecodeTask task{resolve(options, options.order, options.steps > 1 && options.in.empty(), layout)};

  // Open the input.
  if (!options.in.empty()) {
    task.file = SafetensorsFile::open(options.in);
    task.workload = open_workload(*task.file, options.steps, task.order, options.rule, options.softcap, options.value_dim);
  } else {
    if (!options.expect.empty())
      refuse("--expect ", readable(options.expect), ": needs IN, the file that contains the tensor");
    if (options.value_dim > 0) refuse("--value-dim ", options.value_dim, ": needs IN, a file without the tensor v");
    WorkloadShape synthetic = synthetic_shape(options, task.order);
    synthetic.rule = options.rule, synthetic.softcap = options.softcap;
    task.workload = make_workload(synthetic, options.seed, options.steps);
  }
  task.workload->set_portable(options.portable);
  const WorkloadShape& shape = task.workload->shape();
  if (!options.expect.empty()) {
    task.expected = view4(*task.file, options.expect, "b, n_h, l, d_v");
    const std::array axes{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
    if (task.expected->shape != axes)
      refuse(readable(options.in, 200), ": tensor \"", readable(options.expect), "\" has shape [",
             CLI::detail::join(task.expected->shape, ", "), "], but the output has [", CLI::detail::join(axes, ", "), "]");
  }
  task.scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));

  // Cut the sequence.
  const bool grows = options.steps > 1;
  if (grows && options.steps > shape.n_keys)
    refuse("--steps ", options.steps, ": every step appends one key, but the sequence has only ", shape.n_keys);
  if (!options.shards.empty()) {
    if (task.order == LeafOrder::kDealt)
      refuse("--shards is for --order contiguous: in the dealt order the number of ranks decides who holds which keys");
    if (std::ssize(options.shards) != n_ranks)
      refuse("--shards lists ", options.shards.size(), options.shards.size() == 1 ? " shard for " : " shards for ",
             ranks_text(n_ranks));
    std::int64_t sum = 0;
    for (const std::int64_t shard : options.shards) {
      if (shard < 0 || shard > shape.n_keys)
        refuse("--shards: ", shard, " is not in 0 .. ", shape.n_keys, ", the number of keys");
      sum += shard;
    }
    if (sum != shape.n_keys) refuse("--shards add up to ", sum, " keys, but the sequence has ", shape.n_keys);
    std::vector<std::int64_t> lengths;
    for (const int rank : layout.topology.order()) lengths.push_back(options.shards[static_cast<std::size_t>(rank)]);
    task.ranges = ranges_of_lengths(lengths);
    for (const KeyRange& range : task.ranges) {
      if (!begins_leaf(range))
        refuse("--shards: key ", range.begin, " is inside a leaf of ", kLeafKeys, " keys; cut shards at multiples of ",
               kLeafKeys);
    }
    if (grows) task.ranges.back().end = kOpenEnd;
  } else if (grows) {
    task.ranges = growing_ranges(task.order, task.workload->n_keys_at_start(), n_ranks);
  } else {
    task.ranges = task.order == LeafOrder::kDealt ? dealt_ranges(n_ranks) : coarse_ranges(shape.n_keys, n_ranks, kLeafKeys);
  }
  check_shards(task.algorithms, layout, task.ranges, shape);
  return task;
}

RunHeader header_of(const ClusterOptions& options, const RankLayout& layout, const Transport& transport,
                    const AttentionShape& shape) {
  RunHeader header{options.command_line,
                   options.backend,
                   std::string(layout.backend->arithmetic(shape)),
                   std::string(transport.name()),
                   layout.backend->has_threads() ? layout.n_threads : 1,
                   layout.topology.size(),
                   layout.topology.n_nodes(),
                   this_machine()};
  header.machine.nccl = transport.library();
  return header;
}

void add_shape_options(CLI::App& command, ShapeOptions& options, const std::string& group) {
  const auto add = adder(command, group);
  add("--seq-len", options.seq_len, "Keys", within(0, std::int64_t{1} << 40))->capture_default_str();
  add("--heads", options.heads, "Query heads", within(1, 65536))->capture_default_str();
  add("--kv-heads", options.kv_heads, "Key/value heads, a divisor of --heads (default: --heads)", within(1, 65536));
  add("--head-dim", options.head_dim, "Elements per key and per value", within(1, 65536))->capture_default_str();
  add("--batch", options.batch, "Batch entries", within(0, 1 << 20))->capture_default_str();
  add("--dtype", options.dtype, dtype_help(), one_of(dtype_options()))->capture_default_str();
}

void add_window_options(CLI::App& command, SeenRule& rule) {
  const auto add = adder(command);
  CLI::Option* window =
      add("--window", rule.window, "A query sees the last W of its keys (default: all)", within(1, kOpenEnd));
  add("--sinks", rule.sinks, "The first keys of the sequence, which it sees beside its window", within(0, kOpenEnd))
      ->needs(window);
}

void add_formula_options(CLI::App& command, FormulaOptions& options) {
  const auto add = adder(command);
  add("--scale", options.scale, "Factor of q.k (default 1/sqrt(d_h))", is_finite);
  add("--value-dim", options.value_dim,
      "IN has no tensor v: values are the first d components of the keys (multi-head latent attention)",
      within(1, kOpenEnd));
  command.add_flag("--causal", options.rule.causal,
                   "Query j of l stands at position N - l + j, and sees the keys up to there");
  add_window_options(command, options.rule);
  add("--softcap", options.softcap, "c: scores s become c tanh(s / c), before a mask is added (default: no cap)",
      number_check("a soft cap: 0 (none), or 2^-60 to 2^60", is_soft_cap));
}

void add_devices_option(CLI::App& command, std::vector<int>& devices) {
  const auto assign = [&devices](const std::string& list) {
    try {
      devices = devices_of(list);
    } catch (const InputError& error) {
      throw CLI::ValidationError("--devices", error.what());
    }
  };
  command.add_option_function<std::string>(
      "--devices", assign,
      "0-7, for example: ranks are threads of this process, one per device, instead of processes under mpirun");
}

void add_cluster_options(CLI::App& command, ClusterOptions& options) {
  std::string names, lines;
  for (const Algorithm& algorithm : all_algorithms()) {
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
    lines += line_of("\n  ", algorithm.name, ": ", algorithm.brief);
  }
  const auto is_algorithm = [names](const std::string& name) {
    const bool is_known = std::ranges::count(all_algorithms(), name, &Algorithm::name) > 0;
    return is_known ? "" : readable(name) + " is unknown; use one of " + names;
  };

  const auto add = adder(command);
  add("--algorithm", options.algorithm, "How shards are combined:" + lines, is_algorithm)->capture_default_str();
  add_list_option(command, "--compare", options.compare, "Further algorithms A,B,... to run on the same input",
                  is_algorithm);
  command.add_option("--backend", options.backend, "cpu, emulated (the CUDA kernels on the CPU), or cuda")
      ->capture_default_str();
  command.add_flag("--portable", options.portable,
                   "The bits of the CPU on every backend and device: no tensor core multiplies (F32 always has them)");
  add("--threads", options.threads,
      "Threads per rank on the CPU; changes no bit (default: the cores of the node divided by its ranks)", within(1, 4096));
  add("--transport", options.transport,
      "mpi; shared: memory that ranks of a node share, mpi between nodes; nccl: between the memories of GPUs",
      one_of({"mpi", "shared", "nccl"}))
      ->capture_default_str();
  add_devices_option(command, options.devices);
  add("--ranks-per-node", options.ranks_per_node,
      "Treat every R consecutive ranks as a node (default: ranks that share memory)", within(1, 1 << 20));
  command.add_flag("--share-gpus", options.share_gpus, "Let several ranks use one GPU, in turns; else they are refused");
  add("--radix", options.radix,
      "Nodes, or blocks of nodes, that one round joins, at least 2 (default: by a model of the network)",
      within(2, 1 << 20));
}

void add_decode_options(CLI::App& command, DecodeOptions& options) {
  const auto add = adder(command);
  add("IN", options.in,
      "safetensors file with q [b, n_h, l, d_h], k [b, n_kv, N, d_h], v [b, n_kv, N, d_v] (heads before"
      "\npositions), optional lengths [b], learned sinks, sink [n_h], and scales of k and v of F8_E4M3, k_scale"
      "\nand v_scale [b, n_kv]; each rank reads only its own shard; on the CPU also mask [b or 1, n_h or 1, l, N],"
      "\nBOOL, U8 or F32",
      not_empty);
  add("OUT", options.out, "safetensors file to write: F32 out and lse of the last step", not_empty);

  add_cluster_options(command, options);
  add_list_option(command, "--shards", options.shards,
                  "Keys per rank, n0,n1,..., zeros allowed; cuts at multiples of 64 (default: even, aligned)",
                  any_integer<std::int64_t>());
  add("--steps", options.steps,
      "Decode T tokens: the cache starts with N - T keys; each step appends one and has a new query;"
      "\na batch entry with fewer than T keys joins late, in the last steps, one for each of its keys",
      within(1, 1 << 30))
      ->capture_default_str();
  add("--order", options.order,
      "contiguous, or dealt: leaves go round the ranks; changes bits\n(default: contiguous; for --steps without "
      "IN dealt, but for one-shot)",
      one_of({"contiguous", "dealt"}));
  add_formula_options(command, options);

  const std::string measuring = "Measuring and checking";
  const auto add_measuring = adder(command, measuring);
  add_measuring("--repeat", options.repeat, "Timed repetitions", within(1, 1 << 20))->capture_default_str();
  add_measuring("--warmup", options.warmup, "Untimed repetitions before the timed ones", within(0, 1 << 20))
      ->capture_default_str();
  command
      .add_flag("--verify", options.verify,
                "Also compute the oracle (rank 0); status 1 if the error exceeds the bound for the type")
      ->group(measuring);
  add_measuring("--expect", options.expect,
                "Also compare the output with this tensor of IN; status 1 if they differ by more than --tolerance",
                not_empty);
  add_measuring("--tolerance", options.tolerance, "Largest difference that --expect allows", is_not_negative)
      ->capture_default_str();
  add_measuring("--report", options.report, "Machine-readable report to write (JSON)", not_empty);

  add_shape_options(command, options, kSyntheticGroup);
  adder(command, kSyntheticGroup)("--seed", options.seed, "Equal seeds give equal input, for every number of ranks",
                                  any_integer<std::uint64_t>())
      ->capture_default_str();

  command.footer(
      "\n--timeout (see tree_attn --help) is accepted here too. Examples:\n"
      "  tree_attn decode --devices 0-3 --seq-len 65536 --compare ring,paper --verify\n"
      "  tree_attn decode --devices 0-3 cache.safetensors out.safetensors\n"
      "  mpirun -n 8 tree_attn decode --seq-len 65536 --ranks-per-node 4 --repeat 10 --report report.json");
}

}  // namespace tree_attn
