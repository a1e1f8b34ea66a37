// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn oracle`: attention in double precision, and the energy and its gradient (eq. (5)-(6)).
#include "distributed/program/decode_options.hpp"
#include "distributed/program/memory.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"
#include "distributed/program/progress.hpp"
#include "reference/data/output_file.hpp"
#include "reference/data/workload.hpp"
#include "reference/oracle/attention.hpp"

#include <memory>

namespace tree_attn {
namespace {

struct OracleOptions : FormulaOptions {
  std::string in, out;
};

void run_oracle(const OracleOptions& options) {
  const SafetensorsFile file = SafetensorsFile::open(options.in);
  OutputFile out(options.out);
  check_different({{"IN", options.in}, {"OUT", options.out}});
  const FileTensors tensors = read_tensors(file, options.value_dim);
  const WorkloadShape& shape = tensors.shape;
  AttentionOptions attention_options{.scale = options.scale,
                                     .rule = options.rule,
                                     .sink = {shape.sink.begin(), shape.sink.end()},
                                     .lengths = shape.lengths,
                                     .mask = shape.mask,
                                     .key_scale = shape.scales.k,
                                     .value_scale = shape.scales.v,
                                     .softcap = options.softcap};
  if (file.find("zeta")) attention_options.zeta = view4(file, "zeta", "b, n_h, l, d_v");
  require_memory(readable(options.in, 200) + ": attention over " + axes_text(shape),
                 oracle_bytes(shape, attention_options.zeta ? 2 : 1));
  AttentionResult result;
  Progress progress(true, 1);
  progress.next("oracle");
  attention_options.progress = [&](double done) { progress.part(done); };
  try {
    result = attention(tensors.q, tensors.k, tensors.v, attention_options);
  } catch (const std::invalid_argument& error) {
    throw InputError(readable(options.in, 200) + ": " + error.what());
  }

  progress.end();

  // Write out [b, n_h, l, d_v], lse [b, n_h, l] and, given zeta, energy and gradient.
  const std::vector<std::int64_t> rows{tensors.q.shape[0], tensors.q.shape[1], tensors.q.shape[2]};
  std::vector<std::int64_t> vectors = rows;
  vectors.push_back(tensors.v.shape[3]);
  SafetensorsWriter writer;
  writer.add("out", "F64", vectors, std::as_bytes(std::span(result.out)));
  writer.add("lse", "F64", rows, std::as_bytes(std::span(result.lse)));
  if (attention_options.zeta) {
    writer.add("energy", "F64", rows, std::as_bytes(std::span(result.energy)));
    writer.add("gradient", "F64", vectors, std::as_bytes(std::span(result.gradient)));
  }
  writer.write(out);
  out.finish();
  const std::string of_rows = " [" + CLI::detail::join(rows, ", ") + "]",
                    of_vectors = " [" + CLI::detail::join(vectors, ", ") + "]";
  std::string written = "out" + of_vectors + ", lse" + of_rows;
  if (attention_options.zeta) written += ", energy" + of_rows + ", gradient" + of_vectors;
  std::printf("%s: %s, F64\n", readable(options.out, 200).c_str(), written.c_str());
  flush_standard_output();
  out.put_in_place();
  name_ignored(file);
}

}  // namespace

Command add_oracle(CLI::App& program) {
  auto options = std::make_shared<OracleOptions>();
  CLI::App* command = program.add_subcommand(
      "oracle", "Attention in double precision: out and lse; given a tensor zeta, also energy and gradient");
  const auto add = adder(*command);
  add("IN", options->in,
      "safetensors file with q [b, n_h, l, d_h], k [b, n_kv, N, d_h], v [b, n_kv, N, d_v] (heads before"
      "\npositions); optional zeta [b, n_h, l, d_v], lengths [b], learned sinks: sink [n_h],"
      "\nmask [b or 1, n_h or 1, l, N] (BOOL, U8 or F32); scales of F8_E4M3: k_scale, v_scale [b, n_kv] (F32)",
      not_empty)
      ->required();
  add("OUT", options->out, "safetensors file to write: F64 out, lse (natural), energy, gradient", not_empty)->required();
  add_formula_options(*command, *options);
  return [options](const Ranks& ranks) {
    // Rank 0 computes; the other ranks learn whether it succeeded.
    run_on_all(ranks, [&] {
      ranks.doing("in the oracle");
      if (ranks.rank() == 0) run_oracle(*options);
    });
    return 0;
  };
}

}  // namespace tree_attn
