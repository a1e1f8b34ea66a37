// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `--causal`, `--window`, `--sinks` and the tensor sink: within the bound of the oracle, the bits of any number of
/// ranks, and what is refused.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

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

TEST_CASE("decode: what a query sees, and sinks, masks and caps: the bits of any ranks and of steps, near the oracle") {
  const Scratch scratch;
  struct Case {
    const char* backend;
    Words options;
    bool has_sink;
    std::vector<std::int64_t> mask = {};  ///< its axes; none without
    bool is_boolean = false;
  };
  const Words seen{"--causal", "--window", "100", "--sinks", "66"};
  for (const Case& c :
       {Case{"cpu", {"--causal"}, false}, Case{"cpu", seen, true}, Case{"emulated", {"--window", "70"}, true},
        Case{"emulated", seen, false}, Case{"cpu", {"--softcap", "2"}, false, {1, 1, 3, 500}, true},
        Case{"cpu", seen, true, {2, 4, 3, 500}}, Case{"cpu", {"--softcap", "2"}, true, {2, 4, 3, 500}}}) {
    CAPTURE(on_one_line(c.options.back() + " on " + c.backend));
    FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 500, 16, 24);
    workload.lengths = {500, 70};
    workload.mask_shape = c.mask, workload.mask_is_boolean = c.is_boolean;
    if (c.has_sink) workload.sink = {1, -2, 0.5f, 40};
    workload.write(scratch.path("in"), "F32");
    const auto decode = [&](const char* out) {
      return Words{"decode", scratch.path("in"), scratch.path(out), "--verify", "--backend", c.backend} + c.options;
    };
    check_silent_success(run(alone(decode("one"))));
    check_silent_success(run(ranks(3, decode("three") + Words{"--compare", "paper,ring"})));
    CHECK((Scratch::read(scratch.path("one")) == Scratch::read(scratch.path("three"))));
    check_silent_success(run(alone(Words{"oracle", scratch.path("in"), scratch.path("exact")} + c.options)));
    const std::vector<std::int64_t> axes{2, 4, 3, 24};
    const std::vector<float> out = tensor<float>(scratch.path("one"), "out", axes);
    check_near(std::vector<double>(out.begin(), out.end()), tensor<double>(scratch.path("exact"), "out", axes), 1e-5);
    // The last step has the last row of the mask.
    check_silent_success(run(ranks(2, decode("steps") + Words{"--steps", "3"})));
    const std::vector<float> last = tensor<float>(scratch.path("steps"), "out", {2, 4, 1, 24});
    for (std::size_t r = 0; r < 8; ++r)
      for (std::size_t i = 0; i < 24; ++i) CHECK(last[r * 24 + i] == out[(r * 3 + 2) * 24 + i]);
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
