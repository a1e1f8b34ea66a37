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
    for (const Words& rule : std::vector<Words>{{},
                                                {"--causal"},
                                                {"--window", "70"},
                                                {"--causal", "--window", "1"},
                                                {"--causal", "--window", "100", "--sinks", "66"}}) {
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
  check_one_line(run(alone({"decode", "--seq-len", "64", "--sinks", "3"})), "--sinks requires --window");
  check_one_line(run(alone({"decode", "--seq-len", "64", "--window", "0"})), "--window");
  for (const Words& more : std::vector<Words>{{"--seq-len", "64", "--window", "9"}, {scratch.path("four")}}) {
    check_one_line(run(alone(Words{"decode"} + more + Words{"--backend", "emulated", "--algorithm", "one-shot"})),
                   "its kernel has no window and no learned sinks; use two-level");
  }
}
