// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn generate` under mpirun: the same text and logits on every number of ranks.
#include "tree_attn/tests/distributed/model/model_files.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"
#include "tree_attn/tests/support/sweep.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace {

using tree_attn::test::kRecall;

}  // namespace

TEST_CASE("generate: the same answer and the same bits of every logit on 1 to 13 ranks, in both orders") {
  const Scratch scratch;
  std::string filler;
  while (filler.size() < 3000) filler += "that among these are life, liberty and the pursuit of happiness ";
  const std::string text = scratch.write("text", filler + "The code of velora is 402913. " + filler);
  for (const std::string order : {"contiguous", "dealt"}) {
    std::set<std::string> digests;
    for (const int n : tree_attn::test::takes_all_cases() ? std::vector{1, 2, 3, 5, 8, 13} : std::vector{1, 3, 8}) {
      CAPTURE(n);
      const std::string report_path = scratch.path("report");
      const Result result =
          run(ranks(n, {"generate", kRecall, text, "--ask", "The code of velora is ", "--order", order, "--ranks-per-node",
                        n > 2 ? "3" : "1", "--report", report_path, "--compare", tree_attn::test::others()}));
      check_silent_success(result);
      CHECK(result.out.find("\nThe code of velora is 402913.\n") != std::string::npos);
      const nlohmann::json report = nlohmann::json::parse(Scratch::read(report_path));
      REQUIRE(report["runs"].size() == tree_attn::algorithms().size());
      for (const auto& each : report["runs"]) {
        const tree_attn::Algorithm& algorithm = tree_attn::find_algorithm(each["algorithm"].get<std::string>());
        CHECK(each["same_bits_on_all_ranks"] == true);
        CHECK(each["answers"][0]["answer"] == "402913");
        CHECK(each["answers"][0]["position"] == filler.size() + 22);
        CHECK(each["answers"][0]["rank"] < n);
        CHECK((each["bytes_per_token"] == 0) == (n == 1));
        CHECK(each["radix"].is_null() == (algorithm.radix == nullptr));
        if (algorithm.keeps_bits) digests.insert(each["logits_digest"].get<std::string>());
      }
    }
    CHECK(digests.size() == 1);
  }
}

TEST_CASE("generate: ranks that read different texts, and a question of standard input on all ranks") {
  const Scratch scratch;
  const std::string text = scratch.write("text", "The code of velora is 402913. ");
  scratch.write("other", "The code of velora is 402914. ");
  const Words shell{"sh",
                    "-c",
                    "cd \"$2\"; [ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 1 ] && t=other || t=text; "
                    "exec \"$0\" generate \"$1\" $t --ask 'The code of velora is '",
                    kProgram,
                    kRecall,
                    scratch.folder().string()};
  check_one_line(run(ranks(2, {}, shell)), "the ranks read different files: MODEL, TEXT or the file of --questions");

  Words piped = ranks(3, {"generate", kRecall, text});
  std::string command;
  for (const std::string& word : piped) command += " '" + word + "'";
  const Result result = run({"sh", "-c", "printf 'The code of velora is \\n' |" + command});
  check_silent_success(result);
  CHECK(result.out.find("The code of velora is 402913.\n") != std::string::npos);
}
