// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn generate` under mpirun: the text and logits of one rank, also where the number of ranks changes.
#include "tree_attn/tests/distributed/model/model_files.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"

using tree_attn::test::kRecall;

TEST_CASE("generate: keys and values that go to other ranks in the middle of an answer change no bit of it") {
  const Scratch scratch;
  std::string filler;
  while (filler.size() < 600) filler += "that among these are life, liberty and the pursuit of happiness ";
  const std::string text = scratch.write("text", filler + "The code of velora is 402913. " + filler);
  const Words ask{"generate",
                  kRecall,
                  text,
                  "--ask",
                  "The code of velora is ",
                  "--compare",
                  "gather",
                  "--report",
                  scratch.path("report")};
  const auto digest = [&](const Result& result) {
    check_silent_success(result);
    const nlohmann::json runs = nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"];
    CHECK(runs[0]["logits_digest"] == runs[1]["logits_digest"]);
    CHECK(runs[0]["answers"][0]["answer"] == "402913");
    for (const auto& each : runs) {
      CHECK(each["same_bits_on_all_ranks"] == true);
      CHECK((each["bytes_per_token"] == 0) == (each["ranks"] == 1));
      CHECK(each["radix"].is_null() == (each["algorithm"] == "gather"));
    }
    return runs[0]["logits_digest"].get<std::string>();
  };
  for (const std::string order : {"contiguous", "dealt"}) {
    const Words here =
        ask + Words{"--order", order} + (order == "dealt" ? Words{"--dtype", "f8_e4m3", "--k-scale", "0.3"} : Words{});
    const std::string stays = digest(run(alone(here)));
    for (const std::string after : {"1", "2", "3"}) {
      const Words job = here + Words{"--reshard-at", "3", "--ranks-after", after};
      const Result result = run(order == "dealt" ? ranks(3, job) : alone(job + Words{"--devices", "0-2"}));
      CAPTURE(result.out);
      CHECK(digest(result) == stays);
      const std::size_t at = result.out.find("after 3 characters its keys and values went to " + after + " rank");
      REQUIRE(at != std::string::npos);
      // To as many ranks as before nothing moves, but for the last leaves, whose cut the contiguous order takes anew.
      const long long bytes = std::stoll(result.out.substr(result.out.find(": ", at) + 2));
      if (after != "3") CHECK(bytes > 0);
      if (after == "3" && order == "dealt") CHECK(bytes == 0);
    }
  }
}
