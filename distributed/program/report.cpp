// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Formats measurements as a table and as JSON.
#include "distributed/program/report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace tree_attn {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

/// A number with its unit: three digits, four from 1000 on.
std::string digits(double n, const char* unit) {
  return format(n < 9.995 ? "%.2f %s" : n < 99.95 ? "%.1f %s" : "%.0f %s", n, unit);
}

/// Bytes with a binary unit and three or four digits.
std::string bytes(std::int64_t n_bytes) {
  if (n_bytes < 1024) return std::to_string(n_bytes) + " B";
  auto n = static_cast<double>(n_bytes) / 1024;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (n < 1023.5) break;
    n /= 1024;
    unit = larger;
  }
  return digits(n, unit);
}

/// A time in microseconds, formatted in us, ms or s with three digits.
std::string time(double us) {
  return us < 999.5 ? digits(us, "us") : us < 999.5e3 ? digits(us / 1e3, "ms") : digits(us / 1e6, "s");
}

/// Lines of cells. Every column is as wide as its widest cell, the first one aligned to the left.
std::string columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(width[i] - row[i].size(), ' ');
      line += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

/// "4096 keys, 1 x 16 heads (16 kv) of 128, BF16; 3 ranks on 2 nodes"
std::string workload_text(const WorkloadShape& shape, int n_ranks, int n_nodes) {
  return std::to_string(shape.n_keys) + " keys, " + std::to_string(shape.batch) + " x " + std::to_string(shape.heads) +
         " heads (" + std::to_string(shape.kv_heads) + " kv) of " + std::to_string(shape.head_dim) + ", " +
         std::string(name_of(shape.dtype)) + "; " +
         format("%d rank%s on %d node%s", n_ranks, n_ranks == 1 ? "" : "s", n_nodes, n_nodes == 1 ? "" : "s");
}

nlohmann::ordered_json fields(const WorkloadShape& shape) {
  return {{"dtype", lower_name_of(shape.dtype)}, {"batch", shape.batch},       {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},          {"head_dim", shape.head_dim}, {"seq_len", shape.n_keys},
          {"order", name_of(shape.order)}};
}

nlohmann::ordered_json fields(const Prediction& predicted) {
  return {{"bytes_per_step", predicted.bytes},       {"peak_elements", predicted.peak_elements},
          {"messages_per_step", predicted.messages}, {"bytes_between_nodes_per_step", predicted.bytes_between_nodes},
          {"merge_steps", predicted.merge_steps},    {"rounds", predicted.rounds}};
}

nlohmann::ordered_json fields(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"instruction_set", machine.instruction_set},
          {"gpus", machine.gpus},
          {"mpi", machine.mpi},
          {"nccl", machine.nccl.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(machine.nccl)},
          {"compiler", machine.compiler},
          {"build_type", machine.build_type}};
}

nlohmann::ordered_json fields(const RunHeader& header) {
  return {{"backend", header.backend}, {"arithmetic", header.arithmetic}, {"transport", header.transport},
          {"ranks", header.ranks},     {"nodes", header.nodes},           {"threads", header.threads}};
}

nlohmann::ordered_json fields(const Network& network) {
  const auto link = [](const Link& each) {
    return nlohmann::ordered_json{{"latency_us", each.latency_us}, {"bytes_per_us", each.bytes_per_us}};
  };
  return {{"inside", link(network.inside)}, {"between", link(network.between)}, {"overhead_us", network.overhead_us}};
}

/// The radix of a plan; null where there is none.
nlohmann::ordered_json radix_or_null(int radix) { return radix > 0 ? nlohmann::ordered_json(radix) : nullptr; }

/// The command line may contain any bytes, but JSON must be UTF-8.
std::string dump(const nlohmann::ordered_json& report) {
  return report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

nlohmann::ordered_json quantiles(const Latency& time) {
  return {{"median", time.median}, {"p10", time.p10}, {"p90", time.p90}};
}

std::string hex(std::uint64_t n) { return format("%016llx", static_cast<unsigned long long>(n)); }

}  // namespace

std::string table(const ReportHeader& header, std::span<const Measurement> measurements) {
  const std::string title = workload_text(header.shape, header.ranks, header.nodes) + ", backend " + header.backend +
                            ", transport " + header.transport + "\n\n";

  // The headings take two lines, so that the table fits in 140 columns.
  std::vector<std::vector<std::string>> rows{{"", "", "", "", "", "", "between", "", "peak", "max", "of", "same", ""},
                                             {"algorithm", "latency", "p10 .. p90", "collectives", "messages", "bytes",
                                              "nodes", "merges", "k, v", "error", "bound", "bits", "digest"}};
  for (const Measurement& m : measurements) {
    std::string from = time(m.latency.p10);
    const std::string to = time(m.latency.p90);
    // Print the unit once if both times have the same.
    const std::string unit = to.substr(to.find(' '));
    if (from.ends_with(unit)) from.resize(from.size() - unit.size());
    rows.push_back({m.algorithm, time(m.latency.median), from + " .. " + to, std::to_string(m.per_step.collectives),
                    std::to_string(m.per_step.messages), bytes(m.per_step.bytes), bytes(m.per_step.bytes_between_nodes),
                    std::to_string(m.per_step.merge_steps), bytes(m.peak_kv_bytes_per_rank),
                    m.errors ? format("%.1e", m.errors->max_abs) : "-",
                    m.errors ? m.errors->passed ? format("%.3f", m.errors->max_over_bound) : "FAILED" : "-",
                    m.same_bits_on_all_ranks ? "yes" : "NO", hex(m.digest)});
  }
  return title + columns(rows);
}

std::string json(const ReportHeader& header, std::span<const Measurement> measurements) {
  nlohmann::ordered_json report;
  for (const Measurement& m : measurements) {
    nlohmann::ordered_json run{
        {"algorithm", m.algorithm},
        {"steps", header.steps},
        {"latency_us", quantiles(m.latency)},
        {"combine_us", quantiles(m.combine)},
        {"collectives_per_step", m.per_step.collectives},
        {"messages_per_step", m.per_step.messages},
        {"bytes_per_step", m.per_step.bytes},
        {"bytes_between_nodes_per_step", m.per_step.bytes_between_nodes},
        {"merge_steps", m.per_step.merge_steps},
        {"launches_per_step", m.launches_per_step > 0 ? nlohmann::ordered_json(m.launches_per_step) : nullptr},
        {"windows", m.windows.empty() ? nullptr : nlohmann::ordered_json(m.windows)},
        {"peak_kv_bytes_per_rank", m.peak_kv_bytes_per_rank},
        {"predicted", m.predicted ? fields(*m.predicted) : nullptr},
    };
    run.update(fields(header));
    run.update(fields(header.shape));
    run["radix"] = radix_or_null(m.radix);
    run["max_abs_error"] = m.errors ? nlohmann::ordered_json(m.errors->max_abs) : nullptr;
    run["max_rel_error"] = m.errors ? nlohmann::ordered_json(m.errors->max_rel) : nullptr;
    run["lse_max_error"] = m.errors ? nlohmann::ordered_json(m.errors->lse_max) : nullptr;
    run["error_over_bound"] = m.errors ? nlohmann::ordered_json(m.errors->max_over_bound) : nullptr;
    run["passed"] = m.errors ? nlohmann::ordered_json(m.errors->passed) : nullptr;
    run["same_bits_on_all_ranks"] = m.same_bits_on_all_ranks;
    run["output_digest"] = hex(m.digest);
    report["runs"].push_back(std::move(run));
  }
  report["machine"] = fields(header.machine);
  report["command"] = header.command;
  return dump(report);
}

std::string table(const PredictionHeader& header, std::span<const NamedPrediction> predictions) {
  const Network& network = header.cluster.network;
  const auto link = [](const Link& each) {
    return format("%g us and %g GB/s", each.latency_us, each.bytes_per_us / kGigabytePerSecond);
  };
  const std::string title =
      workload_text(header.shape, header.topology.size(), header.topology.n_nodes()) + "\ninside a node " +
      link(network.inside) + ", between nodes " + link(network.between) +
      format(", %g us per message, %g us per store; memory %g GB/s; %g us per merge\n\n", network.overhead_us,
             header.cluster.store_us, header.cluster.memory_bytes_per_us / kGigabytePerSecond, header.cluster.merge_us);
  std::vector<std::vector<std::string>> rows{
      {"", "", "", "", "", "", "between", "", "peak", "peak"},
      {"algorithm", "step", "radix", "rounds", "messages", "bytes", "nodes", "merges", "k, v", "memory"}};
  for (const auto& [name, radix, predicted] : predictions) {
    rows.push_back({name, time(*predicted.step_us), radix > 0 ? std::to_string(radix) : "-",
                    std::to_string(predicted.rounds), std::to_string(predicted.messages), bytes(predicted.bytes),
                    bytes(predicted.bytes_between_nodes), std::to_string(predicted.merge_steps),
                    bytes(predicted.peak_kv_bytes), bytes(predicted.peak_bytes)});
  }
  std::string left_out;
  for (const auto& [algorithm, why] : header.left_out) left_out.append("\nwithout " + algorithm + ": " + why + "\n");
  return title + columns(rows) + left_out;
}

std::string json(const PredictionHeader& header, std::span<const NamedPrediction> predictions) {
  nlohmann::ordered_json report;
  for (const auto& [name, radix, predicted] : predictions) {
    nlohmann::ordered_json run{{"algorithm", name},
                               {"ranks", header.topology.size()},
                               {"nodes", header.topology.n_nodes()},
                               {"radix", radix_or_null(radix)},
                               {"predicted", fields(predicted)}};
    run.update(fields(header.shape));
    run["predicted"]["peak_kv_bytes_per_rank"] = predicted.peak_kv_bytes;
    run["predicted"]["peak_bytes_per_rank"] = predicted.peak_bytes;
    run["predicted"]["step_us"] = *predicted.step_us;
    report["runs"].push_back(std::move(run));
  }
  report["left_out"] = nlohmann::ordered_json::object();
  for (const auto& [algorithm, why] : header.left_out) report["left_out"][algorithm] = why;
  const auto& [network, memory_bytes_per_us, merge_us, eager, store_us] = header.cluster;
  report["cluster"] = fields(network);
  report["cluster"].update(
      {{"memory_bytes_per_us", memory_bytes_per_us}, {"merge_us", merge_us}, {"eager", eager}, {"store_us", store_us}});
  report["command"] = header.command;
  return dump(report);
}

std::string title(const GenerationHeader& header) {
  return std::to_string(header.n_characters) + " characters" +
         format(", read in %.1f s; %d rank%s on %d node%s", header.read_seconds, header.ranks, header.ranks == 1 ? "" : "s",
                header.nodes, header.nodes == 1 ? "" : "s") +
         ", backend " + header.backend + ", transport " + header.transport + "\n" +
         format("keys and values of %d of %d layers: ", header.global_layers, header.layers) + bytes(header.kv_bytes) +
         ", " + header.dtype + ", " + header.order + "; at most " + bytes(header.kv_bytes_per_rank) + " on a rank\n";
}

std::string where(const Answer& answer, int n_ranks) {
  const std::string line = "largest weight " + format("%.3f", answer.weight) + " at position " +
                           std::to_string(answer.position) + ", on rank " + std::to_string(answer.rank) + " of " +
                           std::to_string(n_ranks) + " (head " + std::to_string(answer.head) + ")";
  return answer.weight < kSureWeight ? line + "; not sure" : line;
}

std::string table(std::span<const GenerationRun> runs) {
  std::vector<std::vector<std::string>> rows{{"", "per", "", "", "between", "same", "", ""},
                                             {"algorithm", "token", "messages", "bytes", "nodes", "bits", "digest", ""}};
  for (const GenerationRun& run : runs) {
    std::int64_t n_asked = 0, n_right = 0;
    for (const Answer& answer : run.answers) n_asked += answer.expected.has_value(), n_right += answer.is_right();
    rows.push_back({run.algorithm, time(run.token.median), std::to_string(run.per_token.messages),
                    bytes(run.per_token.bytes), bytes(run.per_token.bytes_between_nodes),
                    run.same_bits_on_all_ranks ? "yes" : "NO", hex(run.digest),
                    n_asked > 0 ? std::to_string(n_right) + " of " + std::to_string(n_asked) + " right" : ""});
  }
  return columns(rows);
}

std::string json(const GenerationHeader& header, std::span<const GenerationRun> runs) {
  nlohmann::ordered_json report;
  for (const GenerationRun& run : runs) {
    nlohmann::ordered_json fields_of_run{{"algorithm", run.algorithm},
                                         {"dtype", header.dtype},
                                         {"order", header.order},
                                         {"characters", header.n_characters},
                                         {"read_seconds", header.read_seconds},
                                         {"kv_bytes", header.kv_bytes},
                                         {"peak_kv_bytes_per_rank", header.kv_bytes_per_rank},
                                         {"token_us", quantiles(run.token)},
                                         {"collectives_per_token", run.per_token.collectives},
                                         {"messages_per_token", run.per_token.messages},
                                         {"bytes_per_token", run.per_token.bytes},
                                         {"bytes_between_nodes_per_token", run.per_token.bytes_between_nodes},
                                         {"same_bits_on_all_ranks", run.same_bits_on_all_ranks},
                                         {"logits_digest", hex(run.digest)}};
    fields_of_run.update(fields(header));
    fields_of_run["radix"] = radix_or_null(run.radix);
    for (const Answer& answer : run.answers) {
      nlohmann::ordered_json fields_of_answer{{"question", answer.question}, {"answer", answer.text},
                                              {"position", answer.position}, {"rank", answer.rank},
                                              {"head", answer.head},         {"weight", answer.weight}};
      fields_of_answer["expected"] = answer.expected ? nlohmann::ordered_json(*answer.expected) : nullptr;
      fields_of_run["answers"].push_back(std::move(fields_of_answer));
    }
    report["runs"].push_back(std::move(fields_of_run));
  }
  report["machine"] = fields(header.machine);
  report["command"] = header.command;
  return dump(report);
}

}  // namespace tree_attn
