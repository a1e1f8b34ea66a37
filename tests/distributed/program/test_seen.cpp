// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `--causal`, `--window`, `--sinks` and the tensor sink: within the bound of the oracle, the bits of any number of
/// ranks, and what is refused.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/sweep.hpp"

TEST_CASE("decode: causal edges, windows, sinks and learned sinks: the same bits on 1 and 3 ranks, near the oracle") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 500, 16, 24);
  workload.lengths = {500, 70};
  for (const bool has_sink : {false, true}) {
    if (has_sink) workload.sink = {1, -2, 0.5f, 40};
    workload.write(scratch.path("in"), "F32");
    for (const Words& rule :
         std::vector<Words>{{}, {"--causal"}, {"--window", "70"}, {"--causal", "--window", "100", "--sinks", "66"}}) {
      for (const char* backend : {"cpu", "emulated"}) {
        if (!tree_attn::test::takes_all_cases() && backend == std::string("emulated") && rule.size() < 5 &&
            rule != Words{"--causal"})
          continue;
        CAPTURE(backend);
        CAPTURE(rule.size());
        const auto decode = [&](const char* out) {
          return Words{"decode", scratch.path("in"), scratch.path(out)} + rule + Words{"--backend", backend, "--verify"};
        };
        check_silent_success(run(alone(decode("one"))));
        check_silent_success(run(ranks(3, decode("three") + Words{"--compare", "paper,ring"})));
        CHECK((Scratch::read(scratch.path("one")) == Scratch::read(scratch.path("three"))));
      }
      if (!has_sink && rule == Words{"--causal"}) {
        check_silent_success(run(ranks(2, Words{"decode", scratch.path("in"), scratch.path("three"), "--causal", "--backend",
                                                "emulated", "--algorithm", "one-shot"})));
        CHECK((Scratch::read(scratch.path("one")) == Scratch::read(scratch.path("three"))));
      }
      // The oracle's numbers, from both commands.
      check_silent_success(run(alone(Words{"oracle", scratch.path("in"), scratch.path("exact")} + rule)));
      const std::vector<std::int64_t> shape{2, 4, 3, 24};
      const std::vector<float> out = tensor<float>(scratch.path("three"), "out", shape);
      check_near(std::vector<double>(out.begin(), out.end()), tensor<double>(scratch.path("exact"), "out", shape), 1e-5);
    }
  }
}

TEST_CASE("decode: rules that a kernel does not have, and learned sinks of another shape, are one line") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(1, 4, 2, 1, 100, 8, 8);
  workload.sink = {1, 2, 3};
  workload.write(scratch.path("three"), "F32");
  workload.sink = {1, 2, 3, 4};
  workload.write(scratch.path("four"), "F32");
  check_one_line(run(alone({"decode", scratch.path("three")})),
                 "tensor \"sink\" must be F64, F32, F16 or BF16 of shape [4], a logit for every query head");
  check_one_line(run(alone({"oracle", scratch.path("three"), scratch.path("out")})), "tensor \"sink\" must be");
  check_one_line(run(alone({"decode", scratch.path("four"), "--moments", "2"})), "a learned sink has no moments");
  check_one_line(run(alone({"decode", scratch.path("four"), "--backend", "emulated", "--algorithm", "one-shot"})),
                 "its kernel has no window and no learned sinks; use two-level");
}

TEST_CASE("decode: masks and soft caps: the same bits on 1 and 3 ranks and with --steps, near the oracle") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 500, 16, 24);
  workload.lengths = {500, 70};
  for (const bool is_boolean : {false, true}) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{1, 1, 3, 500}, {2, 4, 3, 500}}) {
      if (is_boolean != (shape[0] == 1) && !tree_attn::test::takes_all_cases()) continue;
      workload.mask_shape = shape, workload.mask_is_boolean = is_boolean;
      workload.write(scratch.path("in"), "F32");
      for (const Words& more : std::vector<Words>{{"--softcap", "2"}, {"--causal", "--window", "100", "--sinks", "66"}}) {
        CAPTURE(shape.size() + more.size());
        const auto decode = [&](const char* out) {
          return Words{"decode", scratch.path("in"), scratch.path(out), "--verify"} + more;
        };
        check_silent_success(run(alone(decode("one"))));
        check_silent_success(run(ranks(3, decode("three") + Words{"--compare", "paper,ring"})));
        CHECK((Scratch::read(scratch.path("one")) == Scratch::read(scratch.path("three"))));
        check_silent_success(run(alone(Words{"oracle", scratch.path("in"), scratch.path("exact")} + more)));
        const std::vector<std::int64_t> axes{2, 4, 3, 24};
        const std::vector<float> out = tensor<float>(scratch.path("one"), "out", axes);
        check_near(std::vector<double>(out.begin(), out.end()), tensor<double>(scratch.path("exact"), "out", axes), 1e-5);
        // The last step has the last row of the mask.
        check_silent_success(run(ranks(2, decode("steps") + Words{"--steps", "3"})));
        const std::vector<float> last = tensor<float>(scratch.path("steps"), "out", {2, 4, 1, 24});
        for (std::size_t r = 0; r < 8; ++r)
          for (std::size_t c = 0; c < 24; ++c) CHECK(last[r * 24 + c] == out[(r * 3 + 2) * 24 + c]);
      }
    }
  }
}

TEST_CASE("decode: masks and caps that cannot be had are one line") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 4, 2, 1, 100, 8, 8);
  workload.mask_shape = {1, 2, 1, 100};
  workload.write(scratch.path("two heads"), "F32");
  workload.mask_shape = {1, 4, 1, 100};
  workload.write(scratch.path("in"), "F32");
  const char* const axes = "tensor \"mask\" must be BOOL, U8 or F32 of shape [2 or 1, 4 or 1, 1, 100]";
  check_one_line(run(alone({"decode", scratch.path("two heads")})), axes);
  check_one_line(run(alone({"oracle", scratch.path("two heads"), scratch.path("out")})), axes);
  check_one_line(run(alone({"decode", scratch.path("in"), "--moments", "2"})), "the entropy needs scores that are linear");
  check_one_line(run(ranks(2, {"decode", scratch.path("in"), "--backend", "emulated"})),
                 "--backend emulated: no kernel has --softcap or the tensor \"mask\"; use --backend cpu");
}

TEST_CASE("predict: a window is in the predicted messages and times, and one-shot is left out") {
  const auto predict = [](const Words& more) {
    const Result result = run(alone(Words{"predict", "--seq-len", "640000", "--ranks", "8"} + more));
    check_silent_success(result);
    return result.out;
  };
  const std::string window = predict({"--window", "4096", "--sinks", "4"});
  CHECK(window.find("without one-shot: its kernel has no window") != std::string::npos);
  CHECK(predict({}).find("without") == std::string::npos);
  // Of eight shards the first and the last are seen: two messages each, seven times.
  CHECK(window.find("-       7        28") != std::string::npos);
}
