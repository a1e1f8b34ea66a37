// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `one-shot` where every rank is a process: each maps the windows of the others.
#include "gpu/backend/one_shot_session.hpp"
#include "gpu/types/device_error.hpp"
#include "tests/support/mpi_test_session.hpp"
#include "tests/support/one_shot_runs.hpp"

#include <string>
#include <vector>

namespace tree_attn::test::one_shot {
/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot on processes: slow ranks and a counter that wraps change no bit and no count") {
  const int p = session().ranks().size();
  for (const auto& [run, n_keys] :
       {std::pair{Run{.p = p, .steps = 4, .cut = Cut::kEmpty, .seed = 1, .slow_rank = p - 1}, 700},
        {Run{.p = p, .steps = 20, .dtype = DType::BF16, .group = 4, .steps_done = 0U - 10}, 510},
        {Run{.p = p, .seed = 2}, 510}}) {
    INFO(text(run));
    const auto transport = session().ranks().open_transport(topology_of(run));
    const emulated::SettingsScope scope({.seed = run.seed});
    emulated::backend().use_gpu(session().ranks().rank());
    Traffic last;
    CHECK(differences_on_rank(*transport, run, n_keys, nullptr, last) == 0);
    const Prediction predicted = one_shot::predicted(run, n_keys);
    CHECK(session().ranks().all_sum(last.bytes) == predicted.bytes);
    CHECK(session().ranks().all_sum(last.messages) == predicted.messages);
    CHECK(session().ranks().all_sum(last.bytes_between_nodes) == predicted.bytes_between_nodes);
  }
}

TEST_CASE("one-shot on processes: a window that cannot be opened is named with both ranks") {
  const MpiRanks& ranks = session().ranks();
  if (ranks.size() == 1) return;
  emulated::backend().use_gpu(ranks.rank());
  const Run run{.p = ranks.size()};
  const WorkloadShape shape = shape_of(run, 600);
  const std::vector<KeyRange> ranges = even_ranges(600, run.p, kLeafKeys);
  OpenShard shard = open_shard(emulated::backend(), shape, ranges[static_cast<std::size_t>(ranks.rank())], kScale);
  const auto decoder = open_one_shot(*shard.cache, kScale, {.timeout = kTimeout});
  NodeWindow own = decoder->open_window(ranges, ranks.rank(), ranks.rank(), true);
  if (ranks.rank() == 1) own.handle = {};
  const std::vector<NodeWindow> all = ranks.all_gather(own, "windows");
  if (ranks.rank() == 0) {
    const std::string line = message<DeviceError>([&] { decoder->connect(all); });
    CAPTURE(line);
    CHECK(line.starts_with("one-shot: ranks 0 and 1: the window of process 0: "));
  }
  ranks.barrier();
}

}  // namespace tree_attn::test::one_shot
