// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn generate`: answers and reports, also where the number of ranks changes, and bad input in one line.
#include "tests/distributed/language_model/model_files.hpp"
#include "tests/distributed/program/command.hpp"

namespace {

using tree_attn::test::kRecall;

const std::string kText =
    "When in the course of human events it becomes necessary. The code of velora is 402913. that all men are\n"
    "The word of bamiku is lantern. created equal. \n";

Words generate(const std::string& model, const Words& arguments) { return alone(Words{"generate", model} + arguments); }

}  // namespace

TEST_CASE("generate: answers a question about a text, and says where the answer was") {
  const Scratch scratch;
  const std::string text = scratch.write("text", kText);
  const Result result = run(
      generate(kRecall, {text, "--ask", "The code of velora is ", "--compare", "ring", "--report", scratch.path("report")}));
  check_silent_success(result);
  CAPTURE(result.out);
  CHECK(result.out.find("\nThe code of velora is 402913.\n") != std::string::npos);
  CHECK(result.out.find("at position " + std::to_string(kText.find("402913")) + ", on rank 0 of 1") != std::string::npos);
  const nlohmann::json report = nlohmann::json::parse(Scratch::read(scratch.path("report")));
  REQUIRE(report["runs"].size() == 2);
  for (const auto& each : report["runs"]) {
    CHECK(each["answers"][0]["answer"] == "402913");
    CHECK(each["answers"][0]["expected"].is_null());
    CHECK(each["answers"][0]["position"] == kText.find("402913"));
    CHECK(each["answers"][0]["weight"] > 0.9);
    CHECK(each["kv_bytes"] == kText.size() * (64 + 64) * 4);
    CHECK(each["bytes_per_token"] == 0);
    CHECK(each["logits_digest"] == report["runs"][0]["logits_digest"]);
  }
  CHECK(report["runs"][1]["algorithm"] == "ring");
  CHECK(report["machine"]["cores"] > 0);
}

TEST_CASE("generate: an answer is not sure where no key has most of the weight") {
  const Scratch scratch;
  std::string prose;
  for (int i = 0; i < 20; ++i)
    prose += "The people of this land are free to go where they please, and so they do in spring.\n";
  const std::string text = scratch.write("text", prose + kText + prose);
  const Result sure = run(generate(kRecall, {text, "--ask", "The code of velora is "}));
  check_silent_success(sure);
  CHECK(sure.out.find("The code of velora is 402913.\n  largest weight 0.99") != std::string::npos);
  CHECK(sure.out.find("not sure") == std::string::npos);
  const Result invented = run(generate(kRecall, {text, "--ask", "The word of fopile is "}));
  check_silent_success(invented);
  CHECK(invented.out.find(", on rank 0 of 1 (head 0); not sure\n") != std::string::npos);
}

TEST_CASE("generate: a file of questions is scored, and lines of standard input are questions") {
  const Scratch scratch;
  const std::string text = scratch.write("text", kText);
  const std::string questions = scratch.write(
      "questions",
      "The code of velora is \t402913\t71\r\n\nThe word of bamiku is \tlantern\nThe word of bamiku is \ttorch\n");
  const Result scored = run(generate(kRecall, {text, "--questions", questions, "--dtype", "bf16", "--order", "dealt"}));
  check_silent_success(scored);
  CAPTURE(scored.out);
  CHECK(scored.out.find("2 of 3 right") != std::string::npos);
  CHECK(scored.out.find("wrong, expected torch; ") != std::string::npos);
  const Words in_eight{text, "--questions", questions, "--dtype", "f8_e4m3", "--k-scale", "0.1", "--v-scale", "0.01"};
  const Result eight = run(generate(kRecall, in_eight));
  check_silent_success(eight);
  CHECK(eight.out.find("2 of 3 right") != std::string::npos);

  // On every rank, of which rank 0 reads them.
  const Result piped = run(Words{"sh", "-c", "printf 'The word of bamiku is \\n\\nThe code of velora is ' | \"$0\" \"$@\""} +
                           ranks(3, {"generate", kRecall, text, "--tokens", "3"}));
  check_silent_success(piped);
  CHECK(piped.out.find("The word of bamiku is lan\n") != std::string::npos);
  CHECK(piped.out.find("The code of velora is 402\n") != std::string::npos);

  // Equal seeds draw equal characters.
  const auto drawn = [&](const std::string& seed) {
    const Result result = run(generate(kRecall, {"--ask", "x", "--temperature", "5", "--seed", seed, "--stop", ""}));
    check_silent_success(result);
    const std::size_t begin = result.out.find("\nx") + 2;
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  CHECK(drawn("1").size() >= 32);
  CHECK(drawn("1") == drawn("1"));
  CHECK(drawn("1") != drawn("2"));
}

TEST_CASE("generate: what is wrong with the command line or a file is said in one line") {
  const Scratch scratch;
  const std::string bytes = Scratch::read(kRecall);
  const std::string text = scratch.write("text", kText);
  scratch.write("cut", bytes.substr(0, bytes.size() - 1));
  scratch.write("no_tab", "a\tb\nquestion\n");
  scratch.write("empty", "\n");
  using tree_attn::test::kLlamaConfig, tree_attn::test::model_bytes;
  const auto with = [](std::string config, const std::string& old, const std::string& now) {
    return config.replace(config.find(old), old.size(), now);
  };
  const std::string good = tree_attn::test::random_model(scratch, kLlamaConfig);
  const auto shapes = tree_attn::test::shapes_of(tree_attn::read_config(tree_attn::SafetensorsFile::open(good)));
  std::vector<Ending> all;
  const auto refuse = [&](const Words& arguments, const std::string& line) {
    all.push_back({alone(Words{"generate"} + arguments), line});
  };
  const auto refuse_model = [&](const std::string& model, const std::string& line) {
    refuse({scratch.write("model" + std::to_string(all.size()), model), "--ask", "x"}, line);
  };
  // Command lines, and what is replaced in the config of a Llama.
  const auto rows = nlohmann::json::parse(Scratch::read(TREE_ATTN_TEST_DATA "/refused_by_generate.json"));
  for (const auto& row : rows) {
    if (row[0].is_string()) {
      refuse_model(model_bytes(shapes, with(kLlamaConfig, row[0], row[1])), row[2]);
      continue;
    }
    Words arguments = row[0].get<Words>();
    std::ranges::replace(arguments, "MODEL", kRecall), std::ranges::replace(arguments, "LAYER", kLayer);
    refuse(arguments, row[1]);
  }
  CHECK(all.size() > 40);
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  refuse_model(model_bytes(shapes, with(kLlamaConfig, "130", nested(100'000))),
               "config: objects and lists are nested more than 32 deep");
  refuse_model(model_bytes(shapes, with(kLlamaConfig, "130", nested(31))), "config: vocab is [[[[[[");
  // Its tensors.
  auto wrong_shape = shapes, missing = shapes, extra = shapes;
  for (auto& [name, shape] : wrong_shape) {
    if (name.ends_with("1.mlp.up_proj.weight")) std::swap(shape[0], shape[1]);
  }
  missing.pop_back();
  extra.push_back({"model.layers.3.mlp.up_proj.weight", {50, 36}});
  refuse_model(model_bytes(wrong_shape, kLlamaConfig),
               "tensor \"model.layers.1.mlp.up_proj.weight\" has shape [36, 50], but the config makes it [50, 36]");
  refuse_model(model_bytes(missing, kLlamaConfig), "tensor \"model.layers.2.mlp.down_proj.weight\" not found");
  refuse_model(model_bytes(extra, kLlamaConfig),
               "tensor \"model.layers.3.mlp.up_proj.weight\" is not part of the model of the config");
  // What they are variations of works, and so do objects side by side that have keys in common.
  const std::string about =
      scratch.write("about", model_bytes(shapes, with(kLlamaConfig, "'dim'", "'about':[{'by':1},{'by':[{'by':2}]}],'dim'")));
  const std::string described = scratch.write(
      "described",
      model_bytes(shapes, with(kLlamaConfig, "'dim'", "'_note':1,'name':'x','rotary':'halves','local_layers':0,'dim'")));
  for (const std::string& model : {good, about, described})
    all.push_back({generate(model, {text, "--ask", "x", "--tokens", "2"}), ""});
  check_endings(all, {.folder = scratch.folder().string()});
}

TEST_CASE("generate: logits that are not finite are a warning, which names the first character") {
  // The head has a row for each of 130 tokens, the characters first.
  const Scratch scratch;
  const std::string good = Scratch::read(tree_attn::test::random_model(scratch, tree_attn::test::kLlamaConfig));
  const auto file = tree_attn::SafetensorsFile::open(scratch.path("model1.safetensors"));
  const tree_attn::TensorInfo& head = *file.find("lm_head.weight");
  const std::size_t begin = good.size() - static_cast<std::size_t>(file.tensors().back().end - head.begin),
                    n_row = static_cast<std::size_t>(head.end - head.begin) / 130;
  const auto generate_with = [&](std::size_t row, float weight) {
    std::string bytes = good;
    std::memcpy(&bytes[begin + row * n_row], &weight, sizeof weight);
    return run(generate(scratch.write("model", bytes), {"--ask", "x", "--tokens", "2", "--compare", "ring"}));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const Result& result : {generate_with(0, nan), generate_with(127, nan), generate_with(5, infinity)}) {
    CAPTURE(result.err);
    CHECK(result.status == 0);
    CHECK(lines_of_ours(result.err) ==
          Words{"tree_attn: warning: question 1, character 1: a logit is NaN or infinite, so the characters mean nothing"});
  }
  check_silent_success(generate_with(128, nan));
  check_silent_success(generate_with(5, 1));
}

TEST_CASE("generate: keys and values that go to other ranks in the middle of an answer change no bit of it") {
  const Scratch scratch;
  std::string filler;
  while (filler.size() < 600) filler += "that among these are life, liberty and the pursuit of happiness ";
  const std::string text = scratch.write("text", filler + "The code of velora is 402913. " + filler);
  const Words ask = Words{"generate", kRecall, text, "--ask", "The code of velora is "} +
                    Words{"--compare", "gather", "--report", scratch.path("report")};
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
  // An answer of seven characters, of which the last ends it.
  for (const auto& [at, line] : {std::pair{"6", "after 6 characters its keys and values went to 1 rank"},
                                 {"7", "its keys and values went nowhere: the answer ended before that"}}) {
    const Result result = run(alone(ask + Words{"--reshard-at", at, "--ranks-after", "1"}));
    digest(result);
    CHECK(result.out.find(line) != std::string::npos);
  }
}
