// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode`: one problem, one or more algorithms, side by side.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>

#include "distributed/measure.hpp"
#include "distributed/program.hpp"
#include "distributed/report.hpp"
#include "reference/attention.hpp"

namespace tree_attn {
namespace {

struct DecodeOptions {
  std::string command_line, in, out, algorithm = "two-level", backend = "cpu", transport = "mpi", dtype = "bf16", report,
                                     expect;
  std::vector<std::string> compare;
  std::vector<std::int64_t> shards;
  std::int64_t seq_len = 4096, heads = 16, kv_heads = 0, head_dim = 128, batch = 1;
  std::uint64_t seed = 1;
  std::optional<double> scale;
  double tolerance = 1e-5;
  int ranks_per_node = 0, steps = 1, repeat = 1, warmup = 0;
  bool verify = false;
};

/// The numbers of the options that no parser can check alone. @throws InputError
void check(const DecodeOptions& options, int n_ranks, const ProblemShape& shape) {
  const auto refuse = [](const std::string& why) { throw InputError(why); };
  if (options.scale && !std::isfinite(*options.scale))
    refuse("--scale " + std::to_string(*options.scale) + " is not a finite number");
  const std::string ranks = std::to_string(n_ranks) + (n_ranks == 1 ? " rank" : " ranks");
  if (options.ranks_per_node > n_ranks)
    refuse("--ranks-per-node " + std::to_string(options.ranks_per_node) + " is more than the job has: " + ranks);
  if (options.steps > 1 && options.steps > shape.n_keys) {
    refuse("--steps " + std::to_string(options.steps) + ": every step appends a key, and there are only " +
           std::to_string(shape.n_keys));
  }
  if (options.shards.empty()) return;
  if (static_cast<int>(options.shards.size()) != n_ranks) {
    refuse("--shards names " + std::to_string(options.shards.size()) +
           (options.shards.size() == 1 ? " shard for " : " shards for ") + ranks);
  }
  std::int64_t sum = 0;
  for (const std::int64_t shard : options.shards) {
    if (shard < 0 || shard > shape.n_keys)
      refuse("--shards: " + std::to_string(shard) + " is not in 0 .. " + std::to_string(shape.n_keys) +
             ", the number of keys");
    sum += shard;
  }
  if (sum != shape.n_keys)
    refuse("--shards add up to " + std::to_string(sum) + " keys, there are " + std::to_string(shape.n_keys));
}

/// The shape of a made-up problem. @throws InputError
ProblemShape synthetic_shape(const DecodeOptions& options) {
  const std::int64_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  if (options.heads % kv_heads != 0) {
    throw InputError("--heads " + std::to_string(options.heads) + " is not a multiple of --kv-heads " +
                     std::to_string(kv_heads));
  }
  const std::map<std::string, Storage> storages{{"f32", Storage::F32}, {"f16", Storage::F16}, {"bf16", Storage::BF16}};
  ProblemShape shape{storages.at(options.dtype),
                     options.batch,
                     options.heads,
                     kv_heads,
                     options.head_dim,
                     options.head_dim,
                     1,
                     options.seq_len,
                     {}};
  shape.lengths.assign(static_cast<std::size_t>(options.batch), options.seq_len);
  const double bytes = static_cast<double>(shape.bytes_per_position()) * static_cast<double>(options.seq_len);
  if (bytes > 0x1p46)
    throw InputError("--seq-len " + std::to_string(options.seq_len) + ": a cache of " + std::to_string(bytes / 0x1p40) +
                     " TiB is over the limit of 64 TiB");
  return shape;
}

/// Refuses made-up input that the machine has no room for: Linux hands out more than there is, and kills whoever uses it.
/// @param machines which ranks share a machine, and so its memory
/// @throws InputError
void check_memory(const DecodeOptions& options, const ProblemShape& shape, const Topology& machines, const Bench& bench,
                  bool ring) {
  // A query and, in F32, a few states a row; the ring holds two shards more; the oracle is in double, over everything.
  const double rows = static_cast<double>(shape.n_rows()) *
                      (static_cast<double>(shape.head_dim) * 2 + static_cast<double>(shape.value_dim + 2) * 12);
  const auto bytes_of_keys = [&](std::int64_t n) {
    return static_cast<double>(n) * static_cast<double>(shape.bytes_per_position());
  };
  double needed = 0;
  for (const int rank : machines.node(machines.node_of(bench.session.rank()))) {
    needed +=
        rows + bytes_of_keys(bench.runs[static_cast<std::size_t>(bench.topology.place_of(rank))].size()) * (ring ? 3 : 1);
    if (rank == 0 && options.verify) needed += 4 * rows + bytes_of_keys(shape.n_keys);
  }
  if (const double available = available_memory(); needed > available) {
    std::array<char, 160> why{};
    std::snprintf(why.data(), why.size(),
                  "--seq-len %lld with --batch %lld needs about %.1f GiB of memory on one machine, which has %.1f GiB left",
                  static_cast<long long>(shape.n_keys), static_cast<long long>(shape.batch), needed / 0x1p30,
                  available / 0x1p30);
    throw InputError(why.data());
  }
}

/// The tensor that the output is to be compared with. @throws InputError
TensorView expected_tensor(const SafetensorsFile& file, const std::string& name, const ProblemShape& shape) {
  const TensorView expected = view4(file, name, "b, n_h, l, d_v");
  const std::array<std::int64_t, 4> axes{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
  if (expected.shape != axes) {
    const auto text = [](const std::array<std::int64_t, 4>& n) {
      return "[" + std::to_string(n[0]) + ", " + std::to_string(n[1]) + ", " + std::to_string(n[2]) + ", " +
             std::to_string(n[3]) + "]";
    };
    throw InputError(readable(file.path(), 200) + ": tensor \"" + readable(name) + "\" has shape " + text(expected.shape) +
                     ", the output has " + text(axes));
  }
  return expected;
}

/// Largest distance of the output from the tensor that the input file brought along.
double distance_from(const TensorView& expected, const DecodeOutput& output) {
  double largest = 0;
  const auto& axes = expected.shape;
  std::vector<double> row(static_cast<std::size_t>(axes[3]));
  for (std::int64_t r = 0; r < axes[0] * axes[1] * axes[2]; ++r) {
    load_row(expected, r / (axes[1] * axes[2]), r / axes[2] % axes[1], r % axes[2], row.data());
    for (std::int64_t j = 0; j < axes[3]; ++j) {
      const double error = std::abs(row[static_cast<std::size_t>(j)] -
                                    static_cast<double>(output.out[static_cast<std::size_t>(r * axes[3] + j)]));
      largest = error <= largest ? largest : error;  // written so that NaN counts as the largest
    }
  }
  return largest;
}

/// A bar on a terminal, nothing elsewhere.
void show_progress(bool shown, std::size_t done, std::size_t all, std::string_view what) {
  if (!shown) return;
  constexpr std::size_t kWidth = 30;
  const std::size_t filled = all == 0 ? kWidth : done * kWidth / all;
  std::fprintf(stderr, "\r[%s%s] %s\033[K", std::string(filled, '#').c_str(), std::string(kWidth - filled, ' ').c_str(),
               std::string(what).c_str());
  if (done == all) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

int run_decode(const DecodeOptions& options, const MpiSession& session) {
  const bool speaks = session.rank() == 0;

  // Gather everything that can be wrong before any rank waits for another.
  std::optional<SafetensorsFile> file;
  std::unique_ptr<Problem> problem;
  std::vector<const Algorithm*> chosen;
  Backend backend;
  std::optional<std::string> trouble;
  try {
    backend = find_backend(options.backend);
    if (options.transport == "nccl")
      throw InputError("--transport nccl: not built in: it comes with the cuda backend; there is mpi");
    chosen.push_back(&find_algorithm(options.algorithm));
    for (const std::string& name : options.compare) chosen.push_back(&find_algorithm(name));
    if (!options.in.empty()) file = SafetensorsFile::open(options.in);
    if (!file && !options.expect.empty())
      throw InputError("--expect " + readable(options.expect) + ": needs IN, the file that holds the tensor");
    const ProblemShape synthetic = file ? ProblemShape{} : synthetic_shape(options);
    problem = file ? open_problem(*file, options.steps) : make_problem(synthetic, options.seed, options.steps);
    if (file && !options.expect.empty()) expected_tensor(*file, options.expect, problem->shape());
    check(options, session.size(), problem->shape());
    if (speaks && !options.out.empty()) check_writable(options.out, false);
    if (speaks && !options.report.empty()) check_writable(options.report, true);
  } catch (const InputError& error) {
    trouble = error.what();
  }
  session.agree(trouble);
  const std::uint64_t header = file ? file->header_hash() : 0;
  session.agree(header == session.of_first(header)
                    ? std::nullopt
                    : std::optional("header of " + readable(options.in, 200) + " differs from rank 0's"));

  // Cut the sequence.
  const ProblemShape& shape = problem->shape();
  const Topology topology = session.topology(options.ranks_per_node);
  std::vector<std::int64_t> row_shards;
  for (const int rank : topology.row()) {
    if (!options.shards.empty()) row_shards.push_back(options.shards[static_cast<std::size_t>(rank)]);
  }
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  Bench bench{session,
              topology,
              backend,
              *problem,
              options.shards.empty() ? even_runs(shape.n_keys, session.size(), kLeafLength) : runs_of_lengths(row_shards),
              scale,
              options.warmup,
              options.repeat};
  if (!file) {
    const Topology machines = options.ranks_per_node == 0 ? topology : session.topology(0);
    const bool ring =
        std::any_of(chosen.begin(), chosen.end(), [](const Algorithm* algorithm) { return algorithm->name == "ring"; });
    try {
      check_memory(options, shape, machines, bench, ring);
    } catch (const InputError& error) {
      trouble = error.what();
    }
    session.agree(trouble);
  }

  // Run one algorithm after the other on the same input.
  const bool bar = speaks && isatty(STDERR_FILENO) != 0;
  const std::size_t n_stages = chosen.size() + (options.verify ? 1 : 0);
  std::vector<Measurement> measurements;
  for (const Algorithm* algorithm : chosen) {
    show_progress(bar, measurements.size(), n_stages, algorithm->name);
    measurements.push_back(measure(bench, *algorithm));
  }

  // Hold them against the oracle, on rank 0, and against what the file expects.
  std::vector<std::string> failed;
  if (speaks && options.verify) {
    show_progress(bar, measurements.size(), n_stages, "oracle");
    const Verifier verify(*problem, scale, session.size());
    for (Measurement& m : measurements) {
      m.errors = verify(m);
      if (!m.errors->passed) failed.push_back(m.algorithm + " is not within the bound of the oracle");
    }
  }
  for (const Measurement& m : measurements) {
    if (!m.same_bits_on_all_ranks) failed.push_back(m.algorithm + " ended with different bits on different ranks");
  }
  show_progress(bar, n_stages, n_stages, "");

  // Write what was found, then say it: what cannot be written is not there, and all that is said is the reason.
  if (speaks) {
    try {
      const ReportHeader report{options.command_line, backend.name,   options.transport, shape,
                                options.steps,        session.size(), topology.n_nodes()};
      if (!options.out.empty()) {
        const std::vector<std::int64_t> rows{shape.batch, shape.heads, shape.n_queries};
        const std::vector<std::int64_t> vectors{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
        SafetensorsWriter writer;
        writer.add("out", "F32", vectors, std::as_bytes(std::span(measurements[0].output.out)));
        writer.add("lse", "F32", rows, std::as_bytes(std::span(measurements[0].output.lse)));
        writer.write(options.out);
      }
      if (!options.report.empty()) write_file(options.report, json(report, measurements));
      std::fputs(table(report, measurements).c_str(), stdout);
      for (const Measurement& m : measurements) {
        if (!file || options.expect.empty()) break;
        const double distance = distance_from(expected_tensor(*file, options.expect, shape), m.output);
        std::printf("%s: at most %.2e from the tensor \"%s\" of the file\n", m.algorithm.c_str(), distance,
                    readable(options.expect).c_str());
        if (!(distance <= options.tolerance))
          failed.push_back(m.algorithm + " is not within --tolerance of \"" + readable(options.expect) + "\"");
      }
    } catch (const InputError& error) {
      trouble = error.what();
    }
    std::fflush(stdout);          // the table first, then what is wrong with it
    if (trouble) failed.clear();  // one line is enough
    for (const std::string& line : failed) std::fprintf(stderr, "tree_attn: check failed: %s\n", line.c_str());
  }
  session.agree(trouble);
  return session.sum(static_cast<std::int64_t>(failed.size())) > 0 ? 1 : 0;
}

}  // namespace

Command add_decode(CLI::App& program, std::string command_line) {
  auto options = std::make_shared<DecodeOptions>();
  options->command_line = std::move(command_line);
  CLI::App* command = program.add_subcommand(
      "decode", "Decode with keys and values sharded over ranks: mpirun -n P tree_attn decode [IN [OUT]] ...");

  // Checks that keep out of the help: the limits are far away.
  const auto within = [](std::int64_t least, std::int64_t most) { return CLI::Range(least, most).description(""); };
  const auto is_number = [](const std::string& text) {
    double number = 0;
    return CLI::detail::lexical_cast(text, number) && number >= 0 ? "" : text + " is not a number from 0 up";
  };
  const auto is_whole = [](const std::string& text) {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return digits ? "" : text + " is not a whole number from 0 up";
  };
  std::string names, lines;
  for (const Algorithm& algorithm : algorithms()) {
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
    lines += "\n  " + std::string(algorithm.name) + ": " + std::string(algorithm.brief);
  }
  const auto is_algorithm = [names](const std::string& name) {
    const auto all = algorithms();
    const bool known =
        std::any_of(all.begin(), all.end(), [&](const Algorithm& algorithm) { return algorithm.name == name; });
    return known ? "" : readable(name) + " is unknown; there are " + names;
  };

  command
      ->add_option("IN", options->in, "safetensors file with q, k, v, optional lengths; each rank reads only its own shard")
      ->check(not_empty);
  command->add_option("OUT", options->out, "safetensors file to write: F32 out and lse of the last step")->check(not_empty);

  // One argument a list: IN and OUT may follow it.
  command->add_option("--algorithm", options->algorithm, "How shards are combined:" + lines)
      ->check(is_algorithm)
      ->capture_default_str();
  command->add_option("--compare", options->compare, "Further algorithms, A,B,..., on the same input")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(is_algorithm);
  command->add_option("--backend", options->backend, "cpu, emulated (the CUDA kernels on the CPU) or cuda")
      ->capture_default_str();
  command->add_option("--transport", options->transport, "mpi, or nccl (cuda only)")
      ->check(CLI::IsMember({"mpi", "nccl"}).description(""))
      ->capture_default_str();
  command
      ->add_option("--ranks-per-node", options->ranks_per_node,
                   "Pretend that every R consecutive ranks are a node (default: found by shared memory)")
      ->check(within(1, 1 << 20));
  command
      ->add_option("--shards", options->shards,
                   "Keys per rank, n0,n1,..., zeros allowed (default: as even as leaves of 64 keys allow)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--steps", options->steps, "Decode T tokens: the last T keys arrive one a step, each with a new query")
      ->check(within(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--scale", options->scale, "Factor of q.k (default 1/sqrt(d_h))");

  const std::string measuring = "Measuring and checking";
  command->add_option("--repeat", options->repeat, "Timed repetitions")
      ->check(within(1, 1 << 20))
      ->capture_default_str()
      ->group(measuring);
  command->add_option("--warmup", options->warmup, "Repetitions before them that are not timed")
      ->check(within(0, 1 << 20))
      ->capture_default_str()
      ->group(measuring);
  command
      ->add_flag("--verify", options->verify,
                 "Also compute the oracle (rank 0); status 1 if the error is over the bound for the type")
      ->group(measuring);
  command
      ->add_option("--expect", options->expect,
                   "Also compare the output with this tensor of IN; status 1 if it is off by more than --tolerance")
      ->check(not_empty)
      ->group(measuring);
  command->add_option("--tolerance", options->tolerance, "Largest difference that --expect allows")
      ->check(is_number)
      ->capture_default_str()
      ->group(measuring);
  command->add_option("--report", options->report, "Machine-readable report to write (JSON)")
      ->check(not_empty)
      ->group(measuring);

  const std::string made_up = "Made-up input, where there is no IN";
  std::vector<const CLI::Option*> without_in;
  const auto add_made_up = [&](const std::string& name, auto& value, const std::string& what, auto check) {
    CLI::Option* option = command->add_option(name, value, what)->check(check)->group(made_up);
    without_in.push_back(option);
    return option;
  };
  add_made_up("--seq-len", options->seq_len, "Keys", within(0, std::int64_t{1} << 40))->capture_default_str();
  add_made_up("--heads", options->heads, "Query heads", within(1, 65536))->capture_default_str();
  add_made_up("--kv-heads", options->kv_heads, "Key/value heads, of which --heads is a multiple (default: as many)",
              within(1, 65536));
  add_made_up("--head-dim", options->head_dim, "Numbers in a key, and in a value", within(1, 65536))->capture_default_str();
  add_made_up("--batch", options->batch, "Batch entries", within(0, 1 << 20))->capture_default_str();
  add_made_up("--dtype", options->dtype, "Stored as f32, f16 or bf16", CLI::IsMember({"f32", "f16", "bf16"}).description(""))
      ->capture_default_str();
  add_made_up("--seed", options->seed, "The same seed gives the same input, for every number of ranks", is_whole)
      ->capture_default_str();

  command->footer(
      "\n--timeout of tree_attn --help may stand here too. Some ways to use it:\n"
      "  mpirun -n 4 tree_attn decode cache.safetensors out.safetensors --verify\n"
      "  mpirun -n 8 tree_attn decode --seq-len 65536 --ranks-per-node 4 --compare ring,paper --repeat 10 --report "
      "report.json");
  return [options, without_in](const MpiSession& session) {
    // Not CLI's excludes(), which fills the help with itself. Ignored in silence, they would be taken for what was measured.
    for (const CLI::Option* option : without_in) {
      if (!options->in.empty() && option->count() > 0) {
        throw InputError(option->get_name() + " is for made-up input, here it comes from " + readable(options->in, 200));
      }
    }
    return run_decode(*options, session);
  };
}

}  // namespace tree_attn
