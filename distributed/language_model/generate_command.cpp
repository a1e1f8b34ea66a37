// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn generate`: a language model whose keys and values are sharded over the ranks answers questions about a
/// text (section 6.4).
#include "distributed/language_model/generator.hpp"
#include "distributed/language_model/sampler.hpp"
#include "distributed/program/decode_options.hpp"
#include "distributed/program/memory.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"
#include "distributed/program/progress.hpp"
#include "reference/data/fnv1a.hpp"
#include "reference/data/mapped_file.hpp"
#include "reference/data/output_file.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

namespace tree_attn {
namespace {

/// The options of `generate`; see its help.
struct GenerateOptions : ClusterOptions {
  std::string model, text, questions, report, order = "contiguous", dtype = "f32", stop = ".";
  std::optional<std::string> ask;
  int tokens = 32;
  std::optional<int> reshard_at, ranks_after;
  std::optional<float> k_scale, v_scale;
  Sampling sampling;
};

/// A question, and the answer to it if it is known.
struct Question {
  std::string text;
  std::optional<std::string> expected;
};

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// The lines of a file: question, tab, answer; further columns are for others. @throws InputError
std::vector<Question> read_questions(const std::string& path) {
  std::istringstream text{std::string(text_of(MappedFile(path)))};
  std::vector<Question> questions;
  std::int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::size_t tab = line.find('\t');
    if (tab == 0 || tab == std::string_view::npos)
      refuse(readable(path, 200), ": line ", number, " is not a question, a tab and an answer");
    const std::string answer = line.substr(tab + 1);
    questions.push_back({line.substr(0, tab), answer.substr(0, answer.find('\t'))});
  }
  if (questions.empty()) refuse(readable(path, 200), ": no questions");
  return questions;
}

/// Request of the command line, checked.
struct Generation {
  std::unique_ptr<Model> model;
  std::unique_ptr<MappedFile> text_file;
  std::vector<Question> questions;
  Combining combining;
  GeneratorOptions generator;
  std::optional<OutputFile> report;  ///< on rank 0
  std::vector<Field> input;          ///< hashes of what was read

  /// @throws InputError
  Generation(const GenerateOptions& options, const Ranks& ranks, const RankLayout& layout) {
    if (options.ask && !options.questions.empty()) refuse("--ask and --questions: give one of them");
    if (options.ask && options.ask->empty()) refuse("--ask must not be empty");
    if (options.reshard_at.has_value() != options.ranks_after.has_value())
      refuse("--reshard-at and --ranks-after: give both of them, or neither");
    if (options.reshard_at && *options.reshard_at >= options.tokens)
      refuse("--reshard-at ", *options.reshard_at, " is not below --tokens ", options.tokens,
             ": the answer has ended by then");
    if (options.ranks_after && *options.ranks_after > ranks.size())
      refuse("--ranks-after ", *options.ranks_after, " is larger than the job, which has ", ranks_text(ranks.size()));
    if (options.reshard_at && options.transport == "nccl")
      refuse("--reshard-at moves keys and values over host memory; use --transport mpi or shared");
    if ((options.k_scale || options.v_scale) && options.dtype != "f8_e4m3")
      refuse("--k-scale and --v-scale are for --dtype f8_e4m3");
    combining = resolve(options, options.order, false, layout);
    generator.order = combining.order;
    generator.dtype = dtype_named(options.dtype);
    generator.n_threads = layout.n_threads;
    generator.portable = options.portable;

    // The files.
    std::vector<NamedFile> files{{"MODEL", options.model}};
    const SafetensorsFile file = SafetensorsFile::open(options.model);
    model = std::make_unique<Model>(file);
    const auto n_kv = static_cast<std::size_t>(model->config().kv_heads);
    if (options.k_scale) generator.scales.k.assign(n_kv, *options.k_scale);
    if (options.v_scale) generator.scales.v.assign(n_kv, *options.v_scale);
    input.emplace_back("hash of MODEL", fnv1a(MappedFile(options.model).bytes()));
    if (!options.text.empty()) {
      files.push_back({"TEXT", options.text});
      text_file = std::make_unique<MappedFile>(options.text);
      input.emplace_back("hash of TEXT", fnv1a(text_file->bytes()));
    }
    if (options.ask) questions.push_back({*options.ask, std::nullopt});
    if (!options.questions.empty()) {
      files.push_back({"--questions", options.questions});
      questions = read_questions(options.questions);
      input.emplace_back("hash of --questions", fnv1a(MappedFile(options.questions).bytes()));
    }
    if (ranks.rank() == 0 && !options.report.empty()) {
      report.emplace(options.report);
      files.push_back({"--report", options.report});
      check_different(files);
    }
    const std::int64_t n = std::ssize(text());
    check_shards(combining.algorithms, layout, growing_ranges(generator.order, n, ranks.size()),
                 {cache_shape(model->config(), generator), n, {}, generator.order});
  }
  std::string_view text() const { return text_file ? text_of(*text_file) : std::string_view(); }
  std::int64_t global_layers() const {
    const std::vector<LayerKind>& layers = model->config().layers;
    return std::count(layers.begin(), layers.end(), LayerKind::kGlobal);
  }
};

/// Waits until rank 0 can read from standard input, for as long as it takes: the ranks meet several times in a time limit.
void await_input(const Ranks& ranks) {
  const double limit = ranks.deadline().seconds();
  const int wait_ms = std::isfinite(limit) ? static_cast<int>(std::clamp(250 * limit, 1.0, 10'000.0)) : -1;
  for (std::uint64_t can_read = 0; can_read == 0; can_read = ranks.broadcast_from_root(can_read)) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (ranks.rank() == 0) can_read = ::poll(&input, 1, wait_ms) != 0;
  }
}

/// A line that rank 0 reads from standard input, on every rank; nothing at the end of the input.
std::optional<std::string> next_line(const Ranks& ranks, bool prompt) {
  std::string line;
  std::uint64_t size = 0;
  if (ranks.rank() == 0) {
    if (prompt) std::fputs("> ", stdout), std::fflush(stdout);
  }
  await_input(ranks);
  if (ranks.rank() == 0) {
    size = std::getline(std::cin, line) ? line.size() + 1 : 0;
  }
  size = ranks.broadcast_from_root(size);
  if (size == 0) return std::nullopt;
  line.resize(size - 1);
  if (!line.empty()) ranks.broadcast(std::as_writable_bytes(std::span(line)), 0, "a question");
  return line;
}

/// The answers that one algorithm gives, and what they cost.
class Conversation {
 public:
  /// @param generator has read the text
  /// @param radix of the algorithm; 0 if it has none
  Conversation(const GenerateOptions& options, const Algorithm& algorithm, int radix, const Ranks& ranks,
               Transport& transport, Generator& generator)
      : options_(options), algorithm_(algorithm), ranks_(ranks), transport_(transport), generator_(generator) {
    run_.algorithm = algorithm.name;
    run_.radix = radix;
    run_.digest = kFnvStart;
  }

  /// Answers a question about the text alone. Collective.
  /// @param shown whether this rank prints the characters as they are decoded
  const Answer& ask(const Question& question, bool shown) {
    ranks_.doing("in " + run_.algorithm + ", question " + std::to_string(run_.answers.size() + 1));
    generator_.use(algorithm_);
    const Cursor after_text = generator_.cursor();
    const auto show = [&](const std::string& text) {
      if (shown) std::fputs(readable(text, 4096).c_str(), stdout), std::fflush(stdout);
    };
    show(question.text);

    // The question stands on a line of its own. The first character is chosen where the weight is largest.
    Answer& answer = run_.answers.emplace_back();
    answer.question = question.text, answer.expected = question.expected;
    std::vector<float> logits = append("\n" + question.text, question_us_);
    const LargestWeight largest = generator_.largest_weight(ranks_);
    answer.position = largest.position, answer.rank = largest.rank, answer.head = largest.head;
    answer.weight = largest.weight;
    for (int step = 0; step < options_.tokens; ++step) {
      if (step > 0 && step == options_.reshard_at) move_to(*options_.ranks_after);
      if (step > 0) logits = append(answer.text.substr(answer.text.size() - 1), token_us_);
      run_.digest = fnv1a(std::as_bytes(std::span(logits)), run_.digest);
      const auto is_finite = [](float score) { return std::isfinite(score); };
      if (not_finite_.empty() && !std::ranges::all_of(scores_of_characters(logits), is_finite))
        not_finite_ = line_of("question ", run_.answers.size(), ", character ", step + 1);
      const std::string next(1, sample(logits, options_.sampling, static_cast<std::uint64_t>(step)));
      show(next);
      if (next == options_.stop) break;
      answer.text += next;
    }
    if (shown) std::fputc('\n', stdout);
    if (shown && moved_) std::printf("%s\n", moved_->c_str());
    if (shown && options_.reshard_at && !moved_)
      std::puts("  its keys and values went nowhere: the answer ended before that");
    generator_.rewind(after_text);
    if (std::exchange(moved_, {})) generator_.move_to(ranks_.size());
    return answer;
  }

  bool has_answers() const { return !run_.answers.empty(); }
  /// The first character whose logits are not all finite, "question 1, character 3"; empty if there is none.
  const std::string& not_finite() const { return not_finite_; }
  /// Everything so far. Collective. @pre has_answers()
  GenerationRun result() const {
    GenerationRun run = run_;
    run.token = latency_of(token_us_.empty() ? question_us_ : token_us_);
    run.per_token = over_ranks(traffic_, ranks_);
    run.same_bits_on_all_ranks = ranks_.all_equal(run.digest, "all ranks to compare their logits");
    return run;
  }

 private:
  /// In the middle of an answer.
  void move_to(int n_ranks) {
    const std::int64_t bytes = ranks_.all_sum(generator_.move_to(n_ranks));
    moved_ = line_of("  after ", *options_.reshard_at, " characters its keys and values went to ", ranks_text(n_ranks), ": ",
                     bytes, " bytes");
  }
  std::vector<float> append(const std::string& text, std::vector<double>& times) {
    transport_.clear_traffic();
    const double start = transport_.seconds();
    std::vector<float> logits = generator_.append(text);
    times.push_back(1e6 * (transport_.seconds() - start));
    traffic_ = transport_.traffic();
    return logits;
  }

  const GenerateOptions& options_;
  const Algorithm& algorithm_;
  const Ranks& ranks_;
  Transport& transport_;
  Generator& generator_;
  GenerationRun run_;
  std::vector<double> question_us_, token_us_;
  Traffic traffic_;  ///< of the last character
  std::string not_finite_;
  std::optional<std::string> moved_;  ///< in this answer: a line that says so
};

int run_generate(const GenerateOptions& options, const Ranks& ranks) {
  const bool is_root = ranks.rank() == 0;

  // Check everything that can be wrong before any rank waits for another.
  const RankLayout layout = layout_of(options, ranks);
  const Topology& machines = layout.machines;
  std::optional<Generation> setup;
  run_on_all(ranks, [&] { setup.emplace(options, ranks, layout); });
  require_equal(ranks, "generate", "all ranks to compare their files", setup->input);
  const std::string_view text = setup->text();
  const std::int64_t n = std::ssize(text);
  const std::int64_t bytes_per_character =
      setup->global_layers() * cache_shape(setup->model->config(), setup->generator).bytes_per_position();
  run_on_all(ranks, [&] {
    const double share = static_cast<double>(machines.node(machines.node_of(ranks.rank())).size()) / ranks.size();
    require_memory((options.text.empty() ? "MODEL" : readable(options.text, 200)) + ": keys and values of " +
                       std::to_string(n) + " characters",
                   static_cast<double>(n) * static_cast<double>(bytes_per_character) *
                       (options.reshard_at ? share + 1 : share));  // what moves may all come to one node
  });

  // Where questions come from a file or a pipe, there is at least one.
  std::optional<std::string> first_line;
  if (is_root) std::setvbuf(stdin, nullptr, _IONBF, 0);  // what has been read ahead cannot be waited for
  if (setup->questions.empty() && ranks.broadcast_from_root(std::uint64_t{isatty(STDIN_FILENO) == 0}) != 0) {
    first_line = next_line(ranks, false);
    if (!first_line) throw InputError("no question: give --ask, --questions, or a question on each line of standard input");
  }

  // Read the text.
  const OpenTransport opened = open_transport(options, ranks, layout);
  Transport& transport = *opened.transport;
  setup->generator.plan = opened.plan;
  ranks.doing("while reading the text");
  Progress progress(is_root, 1);
  progress.next("reading");
  const double start = transport.seconds();
  std::optional<Generator> generator;
  generator.emplace(*setup->model, *layout.backend, transport, n, *setup->combining.algorithms[0], setup->generator);
  generator->read(text, [&](double part) { progress.part(part); });
  progress.end();
  const double read_seconds = ranks.all_max(transport.seconds() - start);
  const std::int64_t most_rows = static_cast<std::int64_t>(ranks.all_max(static_cast<std::uint64_t>(generator->rows())));
  const GenerationHeader header{header_of(options, layout, transport, cache_shape(setup->model->config(), setup->generator)),
                                options.dtype,
                                options.order,
                                n,
                                static_cast<int>(setup->global_layers()),
                                static_cast<int>(std::ssize(setup->model->config().layers)),
                                read_seconds,
                                n * bytes_per_character,
                                most_rows * bytes_per_character};
  if (is_root) std::fputs((title(header) + "\n").c_str(), stdout), std::fflush(stdout);

  // Answer every question with one algorithm after the other.
  std::vector<Conversation> conversations;
  const std::vector<KeyRange> ranges = closed(growing_ranges(setup->generator.order, n, ranks.size()), n);
  const PlanOptions of_one = opened.plan.for_step(cache_shape(setup->model->config(), setup->generator), 1);
  for (const Algorithm* algorithm : setup->combining.algorithms) {
    conversations.emplace_back(options, *algorithm, algorithm->radix_of(layout.topology, ranges, of_one), ranks, transport,
                               *generator);
  }
  const auto answer = [&](const Question& question) {
    for (Conversation& conversation : conversations) {
      const bool shown = is_root && &conversation == conversations.data();
      const Answer& given = conversation.ask(question, shown);
      if (!shown) continue;
      const std::string verdict = !given.expected    ? ""
                                  : given.is_right() ? "right; "
                                                     : "wrong, expected " + readable(*given.expected) + "; ";
      std::printf("  %s%s\n", verdict.c_str(), where(given, ranks.size()).c_str());
      std::fflush(stdout);
    }
  };
  for (const Question& question : setup->questions) answer(question);
  while (setup->questions.empty()) {
    ranks.doing("while waiting for a question");
    const std::optional<std::string> line =
        first_line ? std::exchange(first_line, {}) : next_line(ranks, isatty(STDOUT_FILENO) != 0);
    if (!line) break;
    if (!line->empty()) answer({*line, std::nullopt});
  }

  // The table, and the report.
  ranks.doing("while writing the results");
  std::vector<GenerationRun> runs;
  for (const Conversation& conversation : conversations) {
    if (conversation.has_answers()) runs.push_back(conversation.result());
  }
  int n_failed = 0;
  run_on_all(ranks, [&] {
    if (!is_root) return;
    if (setup->report) setup->report->write(json(header, runs)), setup->report->finish();
    if (!runs.empty()) std::printf("\n%s", table(runs).c_str());
    flush_standard_output();
    if (setup->report) setup->report->put_in_place();
    const auto found = std::ranges::find_if(conversations, [](const auto& each) { return !each.not_finite().empty(); });
    if (found != conversations.end())
      std::fprintf(stderr, "tree_attn: warning: %s: a logit is NaN or infinite, so the characters mean nothing\n",
                   found->not_finite().c_str());
    for (const GenerationRun& run : runs) {
      if (run.same_bits_on_all_ranks) continue;
      std::fprintf(stderr, "tree_attn: check failed: %s has different bits on different ranks\n", run.algorithm.c_str());
      ++n_failed;
    }
  });
  return ranks.all_sum(n_failed) > 0 ? 1 : 0;
}

}  // namespace

Command add_generate(CLI::App& program, std::string command_line) {
  auto options = std::make_shared<GenerateOptions>();
  options->command_line = std::move(command_line);
  CLI::App* command = program.add_subcommand(
      "generate", "Answer questions about a text with a language model whose keys and values are sharded over ranks");
  const auto add = adder(*command);
  add("MODEL", options->model, "safetensors file with the weights of a model, and its sizes as metadata", not_empty)
      ->required();
  add("TEXT", options->text, "The text to read, a regular file, one token per byte; without it the model knows nothing",
      not_empty);
  command->add_option("--ask", options->ask, "The question, which the model continues: \"The code of velora is \"");
  add("--questions", options->questions,
      "File with a question, a tab and the right answer on each line; the answers are counted", not_empty);
  add("--tokens", options->tokens, "Most characters of an answer", within(1, 1 << 20))->capture_default_str();
  add("--stop", options->stop, "Character that ends an answer; empty: none", [](const std::string& text) {
    return text.size() < 2 ? "" : readable(text) + " is not one character";
  })->capture_default_str();
  add("--temperature", options->sampling.temperature,
      "Draw characters from softmax(logits / temperature); 0: the likeliest character", is_not_negative)
      ->capture_default_str();
  add("--seed", options->sampling.seed, "Equal seeds draw equal characters, for every number of ranks",
      any_integer<std::uint64_t>())
      ->capture_default_str();
  add_cluster_options(*command, *options);
  add("--order", options->order,
      "contiguous: characters are appended on the last rank; dealt: leaves go round the ranks; changes bits",
      one_of({"contiguous", "dealt"}))
      ->capture_default_str();
  add("--dtype", options->dtype, dtype_help() + ", of keys and values", one_of(dtype_options()))->capture_default_str();
  const auto in_range = number_check("from 2^-100 to 2^100", [](double x) { return x >= 0x1p-100 && x <= 0x1p100; });
  add("--k-scale", options->k_scale, "Keys of f8_e4m3 are divided by it before they are rounded; default: 1", in_range);
  add("--v-scale", options->v_scale, "The same for values", in_range);
  add("--reshard-at", options->reshard_at,
      "After so many characters of each answer, move the keys and values to other ranks; with --ranks-after",
      within(1, 1 << 20));
  add("--ranks-after", options->ranks_after, "Ranks that hold them from then on, to the end of the answer",
      within(1, 1 << 20));
  add("--report", options->report, "Machine-readable report to write (JSON)", not_empty);
  command->footer(
      "\nWithout --ask and --questions, each line of standard input is a question. Every question is asked about TEXT "
      "alone.\n"
      "Example:\n"
      "  tree_attn generate --devices 0-3 tests/data/recall/model.safetensors haystack.txt --ask \"The code of velora is "
      "\"");
  return [options](const Ranks& ranks) { return run_generate(*options, ranks); };
}

}  // namespace tree_attn
