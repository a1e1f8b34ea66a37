// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn generate` without mpirun: answers and reports, and bad input in one line.
#include "tree_attn/tests/distributed/model/model_files.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"

#include <nlohmann/json.hpp>

namespace {

using tree_attn::test::kRecall;

const std::string kText =
    "When in the course of human events it becomes necessary. The code of velora is 402913. that all men are\n"
    "The word of bamiku is lantern. created equal. \n";

Words generate(const std::string& model, const Words& arguments) { return alone(Words{"generate", model} + arguments); }

/// Every command is refused in one line.
void check_refused(const std::vector<std::pair<Words, std::string>>& cases) {
  std::vector<Words> commands;
  for (const auto& [arguments, part] : cases) commands.push_back(alone(Words{"generate"} + arguments));
  const std::vector<Result> results = run_all(commands);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].second);
    check_one_line(results[i], cases[i].second);
  }
}

}  // namespace

TEST_CASE("generate: answers a question about a text, and says where the answer was") {
  const Scratch scratch;
  const std::string text = scratch.write("text", kText);
  const Result result = run(generate(kRecall, {text, "--ask", "The code of velora is ", "--moments", "2", "--compare",
                                               "ring", "--report", scratch.path("report")}));
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
    CHECK(each["answers"][0]["entropy"].is_number());
    CHECK(each["kv_bytes"] == kText.size() * (64 + 3 * 64) * 4);
    CHECK(each["bytes_per_token"] == 0);
    CHECK(each["logits_digest"] == report["runs"][0]["logits_digest"]);
  }
  CHECK(report["runs"][1]["algorithm"] == "ring");
  CHECK(report["machine"]["cores"] > 0);
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

  const Result piped = run(
      {"sh", "-c", "printf 'The word of bamiku is \\n\\nThe code of velora is ' | \"$0\" generate \"$1\" \"$2\" --tokens 3",
       kProgram, kRecall, text});
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
  const std::string text = scratch.write("text", kText), cut = scratch.write("cut", bytes.substr(0, bytes.size() - 1)),
                    no_tab = scratch.write("no_tab", "a\tb\nquestion\n"), empty = scratch.write("empty", "\n");
  using tree_attn::test::kLlamaConfig, tree_attn::test::model_bytes;
  const auto with = [](std::string config, const std::string& old, const std::string& now) {
    return config.replace(config.find(old), old.size(), now);
  };
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  // A Llama whose config or tensors are not as they must be.
  const std::string good = tree_attn::test::random_model(scratch, kLlamaConfig);
  const auto shapes = tree_attn::test::shapes_of(tree_attn::read_config(tree_attn::SafetensorsFile::open(good)));
  const auto of_config = [&](const std::string& name, const std::string& config) {
    return scratch.write(name, model_bytes(shapes, config));
  };
  auto wrong_shape = shapes, missing = shapes, extra = shapes;
  for (auto& [name, shape] : wrong_shape) {
    if (name.ends_with("1.mlp.up_proj.weight")) std::swap(shape[0], shape[1]);
  }
  missing.pop_back();
  extra.push_back({"model.layers.3.mlp.up_proj.weight", {50, 36}});

  check_refused({
      {{}, "MODEL is required"},
      {{kRecall, text, "more"}, "more"},
      {{scratch.path("none"), "--ask", "x"}, "none: cannot open"},
      {{kRecall, scratch.path("none"), "--ask", "x"}, "none: cannot open"},
      {{text, "--ask", "x"}, "text: "},
      {{cut, "--ask", "x"}, "cut: file ends 1 bytes early: tensor"},
      {{kLayer, "--ask", "x"}, "attention.safetensors: no entry \"config\" in __metadata__"},
      {{kRecall, text}, "no question: give --ask, --questions, or a question on each line of standard input"},
      {{kRecall, text, "--ask", ""}, "--ask must not be empty"},
      {{kRecall, text, "--ask", "x", "--questions", no_tab}, "--ask and --questions: give one of them"},
      {{kRecall, text, "--questions", no_tab}, "no_tab: line 2 is not a question, a tab and an answer"},
      {{kRecall, text, "--questions", empty}, "empty: no questions"},
      {{kRecall, text, "--ask", "x", "--report", text}, "text is the same file as TEXT"},
      {{kRecall, text, "--ask", "x", "--tokens", "0"}, "--tokens: Value 0 not in range 1 to"},
      {{kRecall, text, "--ask", "x", "--temperature", "-1"}, "--temperature: -1 is not a number >= 0"},
      {{kRecall, text, "--ask", "x", "--temperature", "nan"}, "--temperature: nan is not a number >= 0"},
      {{kRecall, text, "--ask", "x", "--stop", "ab"}, "--stop: ab is not one character"},
      {{kRecall, text, "--ask", "x", "--dtype", "f8_e4m3", "--k-scale", "0"}, "--k-scale: 0 is not from 2^-100 to 2^100"},
      {{kRecall, text, "--ask", "x", "--dtype", "f8_e4m3", "--k-scale", "-1"}, "--k-scale: -1 is not from 2^-100 to 2^100"},
      {{kRecall, text, "--ask", "x", "--dtype", "f8_e4m3", "--v-scale", "nan"},
       "--v-scale: nan is not from 2^-100 to 2^100"},
      {{kRecall, text, "--ask", "x", "--dtype", "f8_e4m3", "--v-scale", "1e31"}, "--v-scale: 1e31 is not from 2^-100 to"},
      {{kRecall, text, "--ask", "x", "--v-scale", "2"}, "--k-scale and --v-scale are for --dtype f8_e4m3"},
      {{kRecall, text, "--ask", "x", "--dtype", "f8_e4m3", "--moments", "2"},
       "--moments 2: squares of values have no scale"},
      {{kRecall, text, "--ask", "x", "--backend", "emulated", "--threads", "2"}, "--threads is for --backend cpu"},
      {{kRecall, text, "--ask", "x", "--algorithm", "tree"}, "--algorithm: tree is unknown"},
      {{kRecall, text, "--ask", "x", "--algorithm", "ring", "--radix", "2"}, "--radix is for algorithms that join blocks"},
      {{kRecall, text, "--ask", "x", "--ranks-per-node", "2"}, "--ranks-per-node 2 is larger than the job"},
      {{scratch.write("shape", model_bytes(wrong_shape, kLlamaConfig)), "--ask", "x"},
       "tensor \"model.layers.1.mlp.up_proj.weight\" has shape [36, 50], but the config makes it [50, 36]"},
      {{scratch.write("missing", model_bytes(missing, kLlamaConfig)), "--ask", "x"},
       "tensor \"model.layers.2.mlp.down_proj.weight\" not found"},
      {{scratch.write("extra", model_bytes(extra, kLlamaConfig)), "--ask", "x"},
       "tensor \"model.layers.3.mlp.up_proj.weight\" is not part of the model of the config"},
      {{of_config("json", "{'vocab':"), "--ask", "x"}, "config is not a JSON object: {\"vocab\":"},
      {{of_config("no_dim", with(kLlamaConfig, "'dim'", "'dims'")), "--ask", "x"}, "config has no \"dim\""},
      {{of_config("dim", with(kLlamaConfig, "'dim':36", "'dim':-1")), "--ask", "x"},
       "config: dim is -1, not an integer in 1 .."},
      {{of_config("vocab", with(kLlamaConfig, "130", "100")), "--ask", "x"},
       "config: vocab is 100, but a token is an ASCII byte"},
      {{of_config("heads", with(kLlamaConfig, "'heads':6", "'heads':5")), "--ask", "x"},
       "config: heads is 5, not a multiple of kv_heads"},
      {{of_config("odd", with(kLlamaConfig, "10,", "9,")), "--ask", "x"}, "config: head_dim is 9, not even"},
      {{of_config("layers", with(kLlamaConfig, "'global','global','global'", "'window'")), "--ask", "x"},
       "without a global layer"},
      {{of_config("window", with(kLlamaConfig, "'global'", "'window'")), "--ask", "x"}, "config has no \"window\""},
      {{of_config("kind", with(kLlamaConfig, "'global'", "'local'")), "--ask", "x"},
       "not a list of \"window\" and \"global\""},
      {{of_config("eps", with(kLlamaConfig, "1e-6", "0")), "--ask", "x"}, "config: eps is 0, not a positive number"},
      {{of_config("flag", with(kLlamaConfig, "true", "1")), "--ask", "x"}, "config: global_rotary is 1, not true or false"},
      {{of_config("twice", with(kLlamaConfig, "'dim':36", "'dim':36,'vocab':130")), "--ask", "x"},
       "config: duplicate key \"vocab\""},
      {{of_config("inside", with(kLlamaConfig, "'dim'", "'about':[{'by':1},{'by':2,'by':3}],'dim'")), "--ask", "x"},
       "config: duplicate key \"by\""},
      {{of_config("mark", "\xEF\xBB\xBF" + std::string(kLlamaConfig)), "--ask", "x"},
       "config has a byte order mark or a NUL"},
      {{of_config("nul", std::string(kLlamaConfig) + "\\u0000{'vocab':5}"), "--ask", "x"},
       "config has a byte order mark or a NUL"},
      {{of_config("deep", with(kLlamaConfig, "130", nested(100'000))), "--ask", "x"},
       "config: objects and lists are nested more than 32 deep"},
      {{of_config("list", with(kLlamaConfig, "130", nested(31))), "--ask", "x"}, "config: vocab is [[[[[["},
  });

  // What they are variations of works, and so do objects side by side that have keys in common.
  const std::string about =
      scratch.write("about", model_bytes(shapes, with(kLlamaConfig, "'dim'", "'about':[{'by':1},{'by':[{'by':2}]}],'dim'")));
  for (const std::string& model : {good, about})
    check_silent_success(run(generate(model, {text, "--ask", "x", "--tokens", "2"})));
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
