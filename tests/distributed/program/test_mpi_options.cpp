// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks whose command lines differ in one option: each option of each command, as the help lists them.
#include "tests/distributed/language_model/model_files.hpp"
#include "tests/distributed/program/command.hpp"
#include "tests/distributed/program/file_workload.hpp"
#include "tests/support/sweep.hpp"

#include <map>
#include <regex>
#include <set>

namespace {

/// The options and positional arguments that a help lists, by their long names.
Words options_of(const std::string& help) {
  static const std::regex option("  (?:-[a-z],)?(--[a-z-]+|[A-Z]+)( .*)?");
  Words names;
  std::istringstream text(help);
  for (std::string line; std::getline(text, line);) {
    if (std::smatch match; std::regex_match(line, match, option)) names.push_back(match[1]);
  }
  return names;
}

/// Options that no message depends on.
bool may_differ(const std::string& option) { return option == "OUT" || option == "--report" || option == "--threads"; }

/// The bits of a run: digests in its tables, or all that it prints.
std::string bits_of(const Result& result) {
  static const std::regex digest("[0-9a-f]{16}(?=\n)");
  std::string digests;
  for (std::sregex_iterator at(result.out.begin(), result.out.end(), digest), end; at != end; ++at) digests += at->str();
  return digests.empty() ? result.out : digests;
}

}  // namespace

TEST_CASE("options: any of them on rank 1 alone is refused by its name, or changes no bit") {
  const Scratch scratch;
  FileWorkload::draw(1, 2, 1, 1, 64, 8, 8).write(scratch.path("in"), "F32");
  scratch.write("text", "The code of velora is 402913. ");
  scratch.write("questions", "The code of velora is \t402913\n");
  const std::string model = tree_attn::test::kRecall;
  // A value of every option that is not its default; of a flag, none.
  std::map<std::string, Words> values;
  for (const std::string& word : R"(
      --algorithm=ring --ask=y --backend=emulated --bandwidth=10,1 --batch=2 --causal --compare=paper --devices=0-1
      --dtype=f16 --expect=out --head-dim=64 --heads=8 --help --k-scale=0.5 --kv-heads=4 --latency=1,20
      --memory-bandwidth=100 --merge-time=7 --order=dealt --overhead=3 --portable --questions=questions --radix=2
      --ranks=4 --ranks-after=1 --ranks-per-node=1 --repeat=2 --report=report --reshard-at=3 --scale=2 --seed=3
      --seq-len=128 --shards=0,4096 --share-gpus --sinks=4 --softcap=30 --steps=2 --stop=x --store-latency=9 --temperature=1
      --threads=2 --timeout=50 --tokens=3 --tolerance=1 --transport=shared --v-scale=0.5 --value-dim=8 --verify
      --version --warmup=1 --window=64 IN=in OUT=out TEXT=text)"_words) {
    const std::size_t end = word.find('=');
    values[word.substr(0, end)] = end == std::string::npos ? Words{} : Words{word.substr(end + 1)};
  }
  const Words commands[] = {{"decode"}, {"generate", model}, {"oracle", "in", "oracle"}, {"predict"}, {"info"}};

  // What every rank is given, and what rank 1 alone has more.
  struct Unlike {
    Words common, more;
    std::string option;
  };
  std::vector<Unlike> all;
  std::set<std::string> seen;
  for (const Words& command : commands) {
    Words options = options_of(run(alone({command[0], "--help"})).out);
    // Those of the program are the same for all commands.
    std::erase(options, "--help");
    if (command[0] == "decode") options = options + options_of(run(alone({"--help"})).out);
    for (const std::string& option : options) {
      if (option == "MODEL" || (command[0] == "oracle" && (option == "IN" || option == "OUT"))) continue;  // required
      REQUIRE_MESSAGE(values.contains(option), option, " of ", command[0]);
      // One command stands for those that have the same option.
      if (!seen.insert(option).second && !may_differ(option) && !tree_attn::test::takes_all_cases()) continue;
      const Words value = values.at(option);
      Words common = command;
      if (option == "OUT") common.push_back("in");
      if (option == "--sinks") common = common + Words{"--window", "64"};
      if (command[0] == "generate" && option != "--ask" && option != "--questions") common = common + Words{"--ask", "x"};
      all.push_back({common, option.starts_with("--") ? Words{option} + value : value, option});
    }
  }
  // Alone, what is accepted has to give the same bits.
  std::vector<Words> to_run;
  for (const auto& [common, more, option] : all) to_run.push_back(each_its_own({common, common + more}));
  for (const auto& [common, more, option] : all) {
    if (may_differ(option)) to_run.push_back(ranks(2, common));
  }
  const std::vector<Result> results = run_all(to_run, {.folder = scratch.folder().string(), .deadline = 40});
  std::size_t alike = all.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [common, more, option] = all[i];
    CAPTURE(common[0]);
    CAPTURE(option);
    CAPTURE(results[i].err);
    if (may_differ(option)) {
      check_silent_success(results[i]);
      CHECK(bits_of(results[i]) == bits_of(results[alike++]));
    } else if (option == "--help" || option == "--version") {
      check_one_line(results[i], "rank 0 has called " + common[0] + " " TREE_ATTN_VERSION ", and rank 1 --help");
    } else {
      check_one_line(results[i], "rank");
      const std::regex named(option + "[ :,)]");
      CHECK(std::regex_search(lines_of_ours(results[i].err).at(0), named));
    }
  }
  // More than a few, and nothing was written.
  CHECK(all.size() > 50);
  CHECK(scratch.names().size() == 3);
}

TEST_CASE("options: the same files at other paths are no difference, and other files are") {
  const Scratch scratch;
  const FileWorkload workload = FileWorkload::draw(1, 2, 1, 1, 100, 8, 8);
  for (const char* name : {"in", "same"}) workload.write(scratch.path(name), "F32");
  FileWorkload::draw(1, 2, 1, 1, 100, 8, 8, true).write(scratch.path("other"), "F32");
  for (const char* name : {"text", "same_text"}) scratch.write(name, "The code of velora is 402913. ");
  scratch.write("other_text", "The code of velora is 502913. ");
  const std::string model = tree_attn::test::kRecall;
  const auto generate = [&](const char* text) { return Words{"generate", model, text, "--ask", "x", "--tokens", "2"}; };
  const std::vector<Result> results =
      run_all({each_its_own({{"decode", "in"}, {"decode", "same"}}), ranks(2, {"decode", "in"}),
               each_its_own({generate("text"), generate("same_text")}), ranks(2, generate("text")),
               each_its_own({{"decode", "in"}, {"decode", "other"}}),
               each_its_own({generate("text"), generate("other_text")}), each_its_own({{"decode"}, {"info"}})},
              {.folder = scratch.folder().string()});
  for (const std::size_t i : {0, 2}) {
    check_silent_success(results[i]);
    CHECK(bits_of(results[i]) == bits_of(results[i + 1]));
  }
  check_one_line(results[4], "decode: ranks 0 and 1 differ in hash of the header (");
  check_one_line(results[5], "generate: ranks 0 and 1 differ in hash of TEXT (");
  check_one_line(results[6], "rank 0 has called decode " TREE_ATTN_VERSION ", and rank 1 info " TREE_ATTN_VERSION);
}
