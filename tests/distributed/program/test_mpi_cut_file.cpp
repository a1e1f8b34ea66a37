// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A tensor file that is cut short while ranks read it: one line, status 2, and all end.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

namespace {

namespace fs = std::filesystem;

/// Processes that have mapped a file.
int n_mapping(const std::string& path) {
  int n = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const int maps = ::open((entry.path() / "maps").c_str(), O_RDONLY | O_CLOEXEC);
    if (maps < 0) continue;
    if (command_detail::read_all(maps).find(path) != std::string::npos) ++n;
    ::close(maps);
  }
  return n;
}

}  // namespace

TEST_CASE("cut file: ranks that read a file cut short end with one line that names it") {
  const std::vector<std::int64_t> cache{1, 1, 1 << 16, 128};
  for (const bool only_last : {false, true}) {
    for (const int n_ranks : only_last ? std::vector{3} : std::vector{1, 3}) {
      CAPTURE(n_ranks);
      CAPTURE(only_last);
      const Scratch scratch;
      const std::string in = scratch.path("in");
      write_zeros(in, {{"q", {1, 1, 1, 128}}, {"k", cache}, {"v", cache}});
      // Either nothing is left but the header, or the last rank alone misses the end of v, and speaks although it is not
      // rank 0.
      const std::uintmax_t left = only_last ? fs::file_size(in) - 16384 : 4096;
      const auto cut = [&](pid_t) {
        for (int i = 0; i < 3000 && n_mapping(in) < n_ranks; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        REQUIRE(n_mapping(in) == n_ranks);
        fs::resize_file(in, left);
      };
      const Words arguments{"decode", "in", "out", "--repeat", "1000000", "--timeout", "30"};
      const Result result = run(n_ranks == 1 ? alone(arguments) : ranks(n_ranks, arguments),
                                {.folder = scratch.folder().string(), .deadline = 60, .meanwhile = cut});
      check_one_line(result, "in: truncated, or its disk failed, while it was being read");
      CHECK(n_mapping(in) == 0);
      CHECK(scratch.names() == std::vector<std::string>{"in"});
    }
  }
}
