// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode` near the end of F32: what has an output has it, and what has none is said in one line.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"

namespace {

const std::string kAll = tree_attn::test::others();

/// Two batch entries, four heads over two, 70 keys.
FileWorkload draw() { return FileWorkload::draw(2, 4, 2, 1, 70, 8, 8); }

/// Multiplies the numbers of batch entry 1, head h.
void enlarge(Elements& elements, std::int64_t h, double factor) {
  for (std::int64_t a = 0; a < elements.shape[2]; ++a) {
    for (std::int64_t c = 0; c < elements.shape[3]; ++c) elements.at(1, h, a, c) *= factor;
  }
}

/// Ended well with one line of warning, which names a head of entry 1, and OUT is there.
void check_warning(const Result& result, const Scratch& scratch, int head) {
  CAPTURE(result.err);
  CHECK(result.status == 0);
  REQUIRE(lines_of_ours(result.err).size() == 1);
  CHECK(lines_of_ours(result.err)[0] == "tree_attn: warning: batch entry 1, head " + std::to_string(head) +
                                            ", query 0: out or lse is not finite: q, k or v has NaN or Inf, or a number "
                                            "exceeds F32; tree_attn oracle computes in F64");
  CHECK(tensor<float>(scratch.path("out"), "out", {2, 4, 1, 8}).size() == 64);
}

}  // namespace

TEST_CASE("overflow: a score or an element beyond F32 is one line of warning that names the first row") {
  const Scratch scratch;
  const Words decode{"decode", scratch.path("in"), scratch.path("out")};

  // Scores of 1e40 in head 1 of entry 1: its query times its keys, which head 0 shares with small queries.
  FileWorkload scores = draw();
  enlarge(scores.q, 1, 1e20), enlarge(scores.k, 0, 1e20);
  scores.write(scratch.path("in"), "F32");
  for (const Words& command : {alone(decode), ranks(3, decode + Words{"--compare", kAll})})
    check_warning(run(command), scratch, 1);

  // A value of 1e200, which F64 has and F32 has not; heads 2 and 3 read it.
  FileWorkload values = draw();
  enlarge(values.v, 1, 1e200);
  values.write(scratch.path("in"), "F64");
  check_warning(run(alone(decode)), scratch, 2);
}
